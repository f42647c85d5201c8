"""Writer of a run's history: its rounds, and the events between them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from topline.pipeline.log import taken_lines
from topline.storage.runs import HistoryWriter
from topline.storage.schema import HISTORY_ENCODING, encoding
from topline.storage.stores import Store

if TYPE_CHECKING:
    from topline.solvers.core.state import IterationRecord

# Rounds shorter than this are written together.
WRITE_SECONDS = 0.5


class HistoryRecorder:
    """Appends to a run's history (fields: storage/README.md); `remote` workers may come and go."""

    def __init__(self, store: Store, run_id: str, *, remote: bool) -> None:
        self._writer = HistoryWriter(store, run_id)
        self._remote = remote
        self._waiting: list[dict[str, Any]] = []
        self._written = time.monotonic()
        self._workers: list[str] | None = None
        self.event("begin", **encoding(HISTORY_ENCODING))

    def round(self, record: IterationRecord, **more: Any) -> dict[str, Any]:
        """Record a round with more facts, and return its record; short rounds are written in batches."""
        facts = {**record.to_dict(), **more, "at": _now()}
        if self._remote and record.activity:
            names = [worker.name for worker in record.activity]
            before, self._workers = names if self._workers is None else self._workers, names
            for kind, some, others in (("worker-lost", before, names), ("worker-joined", names, before)):
                for name in (name for name in some if name not in others):
                    self.event(kind, worker=name)
        self._waiting.append(facts)
        if time.monotonic() - self._written >= WRITE_SECONDS:
            self.write()
        return facts

    def event(self, kind: str, /, **facts: Any) -> None:
        """Record an event between two rounds."""
        self._waiting.append({"event": kind, "at": _now(), **facts})
        self.write()

    def write(self) -> None:
        """Write pending records; those that cannot be written are dropped."""
        # Lines logged meanwhile, by any thread, are events too.
        waiting, self._waiting = [*self._waiting, *taken_lines()], []
        self._written = time.monotonic()
        self._writer.append(*written_together(waiting))

    def close(self, reason: str | None) -> None:
        """Record why the run stops, None if it finished, and close the file."""
        try:
            self.event("end", reason=reason)
        finally:
            self._writer.close()


def written_together(records: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the records, with each worker's activity of all rounds summed in the last one."""
    rounds = [number for number, record in enumerate(records) if record.get("activity")]
    workers: dict[str, dict[str, Any]] = {}
    for number in rounds:
        for worker in records[number]["activity"]:
            busy = workers.get(worker["name"], {}).get("seconds_busy", 0.0)
            workers[worker["name"]] = {**worker, "seconds_busy": busy + worker["seconds_busy"]}
    given = [{name: value for name, value in record.items() if name != "activity"} for record in records]
    if rounds:
        given[rounds[-1]]["activity"] = list(workers.values())
    return given


def _now() -> float:
    return round(time.time(), 3)
