"""What a run writes into its history: its rounds, and what happened between them."""

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

# Rounds that are shorter are written together.
WRITE_SECONDS = 0.5


class HistoryRecorder:
    """Appends to a run's history: storage/README.md lists the fields.

    `remote` is whether workers are processes elsewhere, which come and go.
    """

    def __init__(self, store: Store, run_id: str, *, remote: bool) -> None:
        self._writer = HistoryWriter(store, run_id)
        self._remote = remote
        self._waiting: list[dict[str, Any]] = []
        self._written = time.monotonic()
        self._workers: list[str] | None = None
        self.event("begin", **encoding(HISTORY_ENCODING))

    def round(self, record: IterationRecord, **more: Any) -> dict[str, Any]:
        """Note a round with what `more` is known, and give its facts.

        Many short ones are written together, twice a second.
        """
        facts = {**record.to_dict(), **more, "at": _now()}
        if self._remote and record.activity:
            self._note_workers([worker.name for worker in record.activity])
        self._waiting.append(facts)
        if time.monotonic() - self._written >= WRITE_SECONDS:
            self.write()
        return facts

    def event(self, kind: str, /, **facts: Any) -> None:
        """Note what happened between two rounds."""
        self._waiting.append({"event": kind, "at": _now(), **facts})
        self.write()

    def write(self) -> None:
        """Write what is waiting; what cannot be written is not tried again."""
        # Lines that were logged meanwhile, by whatever thread, are events too.
        waiting, self._waiting = [*self._waiting, *taken_lines()], []
        self._written = time.monotonic()
        self._writer.append(*written_together(waiting))

    def close(self, reason: str | None) -> None:
        """Note why the run stops here, None where it came to its end, and close the file."""
        try:
            self.event("end", reason=reason)
        finally:
            self._writer.close()

    def _note_workers(self, names: list[str]) -> None:
        before = names if self._workers is None else self._workers
        self._workers = names
        for kind, some, others in (("worker-lost", before, names), ("worker-joined", names, before)):
            for name in some:
                if name not in others:
                    self.event(kind, worker=name)


def written_together(records: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the records with what each worker did in all of the rounds in the last one alone."""
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
