"""A run as a page shows it, while it lives and afterwards: read from its history, and from nothing else."""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from topline.pipeline.telemetry.forecast import TimeLeft, time_left
from topline.pipeline.telemetry.run_table import RunTable
from topline.pipeline.telemetry.timeline import WorkerTimeline, WorkerTimelines
from topline.storage.errors import IntegrityError
from topline.storage.runs import HistoryReader, read_run
from topline.storage.stores import Store

#: "running" and "publishing" also where the process was killed: then `heard` stays where it is.
Stage: TypeAlias = Literal["waiting", "running", "publishing", "stopped", "finished"]

# Events that are kept of a run, and the newest of them that pages show.
MOST_EVENTS = 500
EVENTS_SHOWN = 100
# Records that are turned into a table at once.
_BATCH = 4096


@dataclass(frozen=True)
class RunEvent:
    """Something between two rounds: `kind` and `facts` as stored, after round `after`."""

    kind: str
    at: float
    after: int
    facts: Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class RunView:
    """A run at one moment.

    Attributes
    ----------
    run : its id.
    stage, reason : where it is, and why it stopped, None where the history does not say.
    outcome : what it came to, once it is finished.
    tol : relative gap that it is to reach, None where nobody said.
    begun, heard : when its first and its last record were written, seconds since 1970; None before that.
    rounds : rounds done so far.
    repeated : rounds that were done again after a loss or a crash, over all of the run.
    columns : `run_table.COLUMNS`, each (rows,), rounds ascending; many rounds are thinned so that all peaks
        stay, and a row then has the seconds and bytes of those before it that are left out.
    workers : who worked, and when.
    events : the latest ones, oldest first.
    left : estimated time to the tolerance; None where it is not known, or the run does not continue.
    """

    run: str = ""
    stage: Stage = "waiting"
    reason: str | None = None
    outcome: Mapping[str, Any] | None = None
    tol: float | None = None
    begun: float | None = None
    heard: float | None = None
    rounds: int = 0
    repeated: int = 0
    columns: Mapping[str, NDArray[np.float64]] = field(default_factory=lambda: RunTable().columns())
    workers: tuple[WorkerTimeline, ...] = ()
    events: tuple[RunEvent, ...] = ()
    left: TimeLeft | None = None

    def time_split(self) -> dict[str, NDArray[np.float64]]:
        """Return the seconds of each row by what an average worker did; "other" is the coordinator's own."""
        columns = self.columns
        split = {part: columns[f"seconds_{part}"] for part in ("products", "kernels", "waiting")}
        whole = np.diff(columns["seconds"], prepend=0.0)
        return {**split, "other": np.maximum(whole - sum(split.values()), 0.0)}


class RunFollower:
    """Polls a run, and each time reads what was written since.

    Views have at most about twice `rows` rows, however many rounds there are.
    """

    def __init__(self, store: Store, run_id: str, *, rows: int = 2048) -> None:
        self._store, self._run_id, self._rows = store, run_id, rows
        self._tol = _tolerance(read_run(store, run_id).config)
        self._reader = HistoryReader(store, run_id)
        self._state = RunState(rows)
        self._outcome: Mapping[str, Any] | None = None

    def poll(self) -> RunView:
        """Return the run as it is now."""
        try:
            self._state.take(self._reader.read_new())
        except IntegrityError:
            # A machine that lost its power may lose lines that were read already.
            self._reader, self._state = HistoryReader(self._store, self._run_id), RunState(self._rows)
            self._state.take(self._reader.read_new())
        if self._state.going_on:
            self._outcome = None
        elif self._outcome is None:
            self._outcome = read_run(self._store, self._run_id).outcome
        return self._state.view(self._run_id, self._tol, self._outcome)


def view_run(store: Store, run_id: str) -> RunView:
    """Return a run as its history in the store tells it now.

    Parameters
    ----------
    store : a store from `topline.open_store`.
    run_id : id of a run, such as "r0001".

    Returns
    -------
    The run: `stage`, `rounds`, `events`, `workers` and `columns`, float64 arrays of shape (rows,) with the
    round, the seconds, the objectives and the relative gap of each round (of long runs, of a thinned choice).

    Raises
    ------
    NotFoundError
        There is no such run.
    IntegrityError
        A line of its history is damaged.

    Examples
    --------
    >>> import tempfile
    >>> from topline import open_store, view_run
    >>> from topline.storage.runs import create_run
    >>> store = open_store(tempfile.mkdtemp(), create=True)
    >>> run = view_run(store, create_run(store, {"tol": 1e-3}))
    >>> run.stage, run.rounds, run.tol
    ('waiting', 0, 0.001)
    """
    return RunFollower(store, run_id).poll()


class RunState:
    """The state of a run after the records so far, in bounded memory."""

    def __init__(self, rows: int = 2048) -> None:
        self._table = RunTable(rows)
        self._timelines = WorkerTimelines()
        self._events: deque[RunEvent] = deque(maxlen=MOST_EVENTS)
        self._begun: float | None = None
        self._heard: float | None = None
        self._rounds = 0
        self._ended: RunEvent | None = None
        #: Whether no process has said that it let go of the run since the last one took it up.
        self.going_on = False

    def take(self, records: Iterator[Mapping[str, Any]]) -> None:
        """Take in further records."""
        while batch := list(itertools.islice(records, _BATCH)):
            for record in batch:
                self._note(record)
            self._table.add([record for record in batch if "round" in record])

    def view(self, run: str, tol: float | None, outcome: Mapping[str, Any] | None) -> RunView:
        """Return all of it as one value."""
        columns = self._table.columns()
        stage = self._stage(outcome)
        left = None
        if tol is not None and stage == "running":
            known = np.isfinite(columns["best_gap"])
            rounds, seconds, gaps = (columns[name][known] for name in ("round", "seconds", "best_gap"))
            left = time_left(rounds, seconds, gaps, tol)
        return RunView(
            run=run,
            stage=stage,
            reason=None if self._ended is None else self._ended.facts.get("reason"),
            outcome=outcome,
            tol=tol,
            begun=self._begun,
            heard=self._heard,
            rounds=self._rounds,
            repeated=self._table.repeated,
            columns=columns,
            workers=self._timelines.timelines(),
            events=tuple(self._events),
            left=left,
        )

    def _note(self, record: Mapping[str, Any]) -> None:
        at = record.get("at")
        if at is not None:
            self._begun, self._heard = at if self._begun is None else self._begun, at
        if "round" in record:
            self._rounds = record["round"] + 1
            if record.get("activity") and at is not None:
                self._timelines.add(at, record["activity"])
            return
        facts = {name: value for name, value in record.items() if name not in ("event", "at")}
        event = RunEvent(str(record.get("event")), at or math.nan, self._rounds - 1, facts)
        self._events.append(event)
        if event.kind in ("begin", "end"):
            self.going_on = event.kind == "begin"
            self._ended = None if self.going_on else event

    def _stage(self, outcome: Mapping[str, Any] | None) -> Stage:
        if self._begun is None and self._rounds == 0:
            return "waiting"
        if outcome is not None:
            return "finished"
        if self._ended is None:
            return "running"
        return "publishing" if self._ended.facts.get("reason") is None else "stopped"


def _tolerance(config: Mapping[str, Any]) -> float | None:
    tol = config.get("tol")
    return float(tol) if isinstance(tol, int | float) else None
