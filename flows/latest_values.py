"""The latest values of a job, published for a slow reader: the job never waits.

One entry is held per key, whatever the number of updates, so memory is bounded by construction: a reader that
falls behind skips states and never the last one.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from contextvars import copy_context
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol

logger = logging.getLogger(__name__)

Kind = Literal["progress", "table", "markdown"]


@dataclass(frozen=True)
class Entry:
    """One artifact's content: a percentage, a list of rows (one dict each) or a Markdown text."""

    kind: Kind
    description: str
    data: Any


class LatestValues:
    """The latest entry under each key; every method returns at once and may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: dict[str, tuple[int, Entry]] = {}

    def publish(self, key: str, entry: Entry) -> None:
        """Replace what was published under `key` by `entry`."""
        with self._lock:
            version = self._entries[key][0] + 1 if key in self._entries else 1
            self._entries[key] = (version, entry)

    def newer_than(self, seen: Mapping[str, int]) -> dict[str, tuple[int, Entry]]:
        """Return the entries whose version is not the one in `seen`, by key, each with its version."""
        with self._lock:
            return {key: found for key, found in self._entries.items() if seen.get(key) != found[0]}


class Receiver(Protocol):
    """A receiver of the latest values; it may be slow or fail.  All calls come from one thread."""

    recoverable: ClassVar[tuple[type[Exception], ...]]
    """Errors of `deliver` that mean "not now"."""

    def deliver(self, key: str, entry: Entry) -> None:
        """Take the latest entry of one key."""

    def close(self) -> None:
        """Close connections."""


class Forwarder:
    """A daemon thread that delivers the latest values to a receiver, at most every `interval` seconds.

    An entry that could not be delivered is tried again after a pause, which doubles up to `longest_pause`
    seconds, in the state that it then has.  The publishing side never notices.
    """

    def __init__(
        self,
        values: LatestValues,
        receiver: Receiver,
        *,
        interval: float = 2.0,
        longest_pause: float = 30.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._values = values
        self._receiver = receiver
        self._interval = interval
        self._longest_pause = longest_pause
        self._clock = clock
        self._seen: dict[str, int] = {}
        self._closing = threading.Event()
        self._give_up_at = float("inf")
        # Prefect keeps its settings and the current run in context variables, which a new thread lacks.
        context = copy_context()
        self._thread = threading.Thread(
            target=context.run, args=(self._deliver,), name="topline-artifacts", daemon=True
        )

    def start(self) -> None:
        """Start delivering."""
        self._thread.start()

    def close(self, deadline: float = 10.0) -> bool:
        """Deliver what is left, for at most `deadline` seconds; False and a warning if some stays."""
        self._give_up_at = self._clock() + deadline
        self._closing.set()
        self._thread.join(deadline)
        delivered = not self._thread.is_alive() and not self._values.newer_than(self._seen)
        if not delivered:
            logger.warning(
                "The last progress artifacts did not reach Prefect's server within %g s.", deadline
            )
        return delivered

    def _deliver(self) -> None:
        try:
            self._deliver_until_closed()
        finally:
            self._receiver.close()

    def _deliver_until_closed(self) -> None:
        pause = self._interval
        while True:
            closing = self._closing.is_set()
            delivered = self._deliver_newer()
            if closing and (delivered or self._clock() >= self._give_up_at):
                return
            pause = self._interval if delivered else min(2 * pause, self._longest_pause)
            if closing:
                # Only entries that failed are left: try again soon, until the deadline.
                time.sleep(min(0.5, self._interval))
            else:
                self._closing.wait(pause)

    def _deliver_newer(self) -> bool:
        for key, (version, entry) in self._values.newer_than(self._seen).items():
            try:
                self._receiver.deliver(key, entry)
            except self._receiver.recoverable as error:
                logger.debug("Artifact %s was not delivered: %s", key, error)
                return False
            self._seen[key] = version
        return True
