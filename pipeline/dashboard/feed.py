"""Runs of a store as many lookers see them at once: each history is followed once and read on from there."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from dataclasses import dataclass, field

from pipeline.run_view import RunFollower, RunView
from storage.runs import RunRecord, read_run
from storage.stores import Store

# Runs that are followed at once; the one that nobody looked at for longest is let go.
MOST_FOLLOWED = 16
# A view this young is good for the next looker too.
FRESH_SECONDS = 0.5


@dataclass
class _Followed:
    """A run somebody looks at: the lock is held while its history is read."""

    record: RunRecord
    follower: RunFollower
    lock: threading.Lock = field(default_factory=threading.Lock)
    seen: RunView | None = None
    seen_at: float = 0.0


class Feed:
    """The runs of one store; threads may share it."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._lock = threading.Lock()
        self._followed: OrderedDict[str, _Followed] = OrderedDict()

    def run(self, run_id: str) -> tuple[RunRecord, RunView]:
        """Give what a run was started with, and how it is now; `NotFoundError` if there is none."""
        followed = self._find(run_id)
        with followed.lock:
            if followed.seen is None or time.monotonic() - followed.seen_at >= FRESH_SECONDS:
                followed.seen = followed.follower.look()
                followed.seen_at = time.monotonic()
            return followed.record, followed.seen

    def _find(self, run_id: str) -> _Followed:
        with self._lock:
            if run_id in self._followed:
                self._followed.move_to_end(run_id)
                return self._followed[run_id]
        found = _Followed(read_run(self.store, run_id), RunFollower(self.store, run_id))
        with self._lock:
            found = self._followed.setdefault(run_id, found)
            while len(self._followed) > MOST_FOLLOWED:
                self._followed.popitem(last=False)
        return found
