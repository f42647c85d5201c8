"""A run's history, written while it runs, and a run as pages show it from that alone."""

from __future__ import annotations

import itertools
import math
import operator
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from topline.pipeline.log import taken_lines
from topline.storage.errors import IntegrityError
from topline.storage.runs import HistoryReader, HistoryWriter, read_run
from topline.storage.schema import HISTORY_ENCODING, encoding
from topline.storage.stores import Store

if TYPE_CHECKING:
    from topline.solvers.core.state import IterationRecord

#: Columns whose extremes are kept in every stretch of rounds.
LEVELS: Final = (
    "primal", "dual", "relative_gap", "stationarity", "step", "active", "memory_bytes", "held_out",
)  # fmt: skip
#: Columns that are summed over the rounds that a row stands for.
SUMS: Final = (
    "seconds_products", "seconds_kernels", "seconds_waiting", "bytes_sent", "bytes_received", "bytes_read",
)  # fmt: skip
COLUMNS: Final = ("round", "passes", "seconds", "at", "best_gap", *LEVELS, *SUMS)

Rows: TypeAlias = NDArray[np.float64]

_PLACES: Final = {name: number for number, name in enumerate(COLUMNS)}
_LEVELS: Final = [_PLACES[name] for name in LEVELS]
_SUMS: Final = [_PLACES[name] for name in SUMS]
_SHARED: Final = ("seconds_products", "seconds_kernels")


class RunTable:
    """Collects rounds and keeps at most about `most` rows.

    Beyond twice as many, rounds are cut into stretches; each keeps the rounds with the lowest or highest
    value of a level.  Sums of a dropped round are added to the next kept one.
    """

    def __init__(self, most: int = 2048) -> None:
        self._most = most
        self._rows: Rows = np.empty((0, len(COLUMNS)))
        #: Rounds that were repeated after a loss.
        self.repeated = 0

    def add(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Add the rounds among records, in the order of writing."""
        batch: list[list[float]] = []
        reached = self._reached()
        for record in (one for one in records if "round" in one):
            if record["round"] <= reached:
                self._append(batch)
                batch = []
                # The rounds from here on are repeated.
                self.repeated += int(self._reached()) - record["round"] + 1
                self._rows = self._rows[: np.searchsorted(self._rows[:, 0], record["round"])]
            reached = record["round"]
            batch.append(_row_of(record))
        self._append(batch)

    def columns(self) -> dict[str, NDArray[np.float64]]:
        """Return the columns by name, as copies."""
        rows = self._rows.copy(order="F")
        return {name: rows[:, place] for name, place in _PLACES.items()}

    def left(self, tol: float) -> TimeLeft | None:
        """Return the estimated time to the tolerance; None if it is not known."""
        known = self._rows[np.isfinite(self._rows[:, _PLACES["best_gap"]])]
        rounds, seconds, gaps = (known[:, _PLACES[name]] for name in ("round", "seconds", "best_gap"))
        return time_left(rounds, seconds, gaps, tol)

    def _reached(self) -> float:
        return float(self._rows[-1, 0]) if len(self._rows) else -1.0

    def _append(self, batch: list[list[float]]) -> None:
        if not batch:
            return
        rows = np.asarray(batch, np.float64)
        rows[:, _PLACES["best_gap"]] = _best(self._rows, rows)
        self._rows = np.concatenate([self._rows, rows])
        if len(self._rows) > 2 * self._most:
            self._rows = thinned(self._rows, self._most)


def thinned(rows: Rows, most: int) -> Rows:
    """Return at most about `most` of the rows: the ends, and the extremes of each stretch."""
    stretches = max(1, most // (2 * len(_LEVELS)))
    rounds = rows[:, 0].astype(np.int64)
    # Powers of two, so that new stretches are unions of old ones.
    width = 1 << max(0, int(rounds[-1] // stretches).bit_length())
    _, starts, stretch = np.unique(rounds // width, return_index=True, return_inverse=True)
    kept = np.zeros(len(rows), dtype=bool)
    kept[[0, -1]] = True
    for place in _LEVELS:
        _mark_extremes(rows[:, place], starts, stretch, kept)
    groups = np.concatenate([[0], np.cumsum(kept)[:-1]])
    thin = rows[kept]
    for place in _SUMS:
        thin[:, place] = np.bincount(groups, weights=rows[:, place], minlength=len(thin))
    return thin


def _mark_extremes(
    values: NDArray[np.float64], starts: NDArray[np.intp], stretch: NDArray[np.intp], kept: NDArray[np.bool_]
) -> None:
    """Mark the first minimum and the first maximum of each stretch, ignoring NaN."""
    for sign in (1.0, -1.0):
        signed = np.where(np.isnan(values), np.inf, sign * values)
        is_lowest = (signed == np.minimum.reduceat(signed, starts)[stretch]) & ~np.isnan(values)
        places = np.flatnonzero(is_lowest)
        _, first = np.unique(stretch[places], return_index=True)
        kept[places[first]] = True


def _best(before: Rows, rows: Rows) -> NDArray[np.float64]:
    """Return the smallest gap so far, or the gradient if there is no gap."""
    gaps, gradients = rows[:, _PLACES["relative_gap"]], rows[:, _PLACES["stationarity"]]
    measures = np.where(np.isnan(gradients), gaps, gradients)
    last = before[-1, _PLACES["best_gap"]] if len(before) else np.nan
    best: NDArray[np.float64] = np.fmin.accumulate(np.concatenate([[last], measures]))[1:]
    return best


def _row_of(record: Mapping[str, Any]) -> list[float]:
    """Return the values of a record; the workers' times are averaged."""
    workers = record.get("workers") or 1
    values = [_number(record.get(name), 0.0 if name in SUMS else math.nan) for name in COLUMNS]
    for name in _SHARED:
        values[_PLACES[name]] /= workers
    return values


def _number(value: Any, missing: float) -> float:
    return missing if value is None else float(value)


# Workers kept; beyond, the least recently active ones are dropped.
MOST_WORKERS = 256
# Stretches of time kept for each.
MOST_STRETCHES = 512


@dataclass(frozen=True, eq=False)
class WorkerTimeline:
    """One worker of a run.

    `name` is its address, or that of a thread; `rows` and `memory_bytes` are what it held at its last
    activity, and `here` says whether the last record that names workers names it.  It worked `seconds_busy`
    in all; `at` are ends of stretches of time, in seconds since 1970, and `busy` the seconds of each in which
    it worked.
    """

    name: str
    rows: int
    memory_bytes: int
    here: bool
    seconds_busy: float
    at: NDArray[np.float64]
    busy: NDArray[np.float64]


@dataclass
class _Timeline:
    rows: int = 0
    memory_bytes: int = 0
    heard: int = 0
    at: list[float] = field(default_factory=list)
    busy: list[float] = field(default_factory=list)


class WorkerTimelines:
    """Takes the activity of rounds and gives one timeline a worker."""

    def __init__(self) -> None:
        self._timelines: dict[str, _Timeline] = {}
        self._taken = 0

    def add(self, at: float, activity: Sequence[Mapping[str, Any]]) -> None:
        """Take what workers did up to the time `at`."""
        self._taken += 1
        for worker in activity:
            line = self._timelines.setdefault(worker["name"], _Timeline())
            line.rows, line.memory_bytes, line.heard = worker["rows"], worker["memory_bytes"], self._taken
            line.at.append(at)
            line.busy.append(worker["seconds_busy"])
            if len(line.at) > 2 * MOST_STRETCHES:
                line.at = line.at[1::2] if len(line.at) % 2 == 0 else [*line.at[1::2], line.at[-1]]
                line.busy = [sum(line.busy[i : i + 2]) for i in range(0, len(line.busy), 2)]
        while len(self._timelines) > MOST_WORKERS:
            del self._timelines[min(self._timelines, key=lambda name: self._timelines[name].heard)]

    def timelines(self) -> tuple[WorkerTimeline, ...]:
        """Return the workers in the order in which they came."""
        return tuple(
            WorkerTimeline(
                name, line.rows, line.memory_bytes, line.heard == self._taken, sum(line.busy),
                np.asarray(line.at), np.asarray(line.busy),
            )
            for name, line in self._timelines.items()
        )  # fmt: skip


#: "running" and "publishing" also where the process was killed: then `heard` stays where it is.
Stage: TypeAlias = Literal["waiting", "running", "publishing", "stopped", "finished"]

# Events that are kept of a run, and the newest of them that pages show.
MOST_EVENTS = 500
EVENTS_SHOWN = 100
# The end of the year 9999, in seconds since 1970.
_LAST_TIME = 253402300799.0
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

    @property
    def last(self) -> dict[str, float | None]:
        """The last row by column, None where a value is not known; empty before the first round."""
        return {name: finite(values[-1]) for name, values in self.columns.items() if len(values)}

    def time_split(self) -> dict[str, NDArray[np.float64]]:
        """Return the seconds of each row by what an average worker did; "other" is the coordinator's own."""
        columns = self.columns
        split = {part: columns[f"seconds_{part}"] for part in ("products", "kernels", "waiting")}
        whole = np.diff(columns["seconds"], prepend=0.0)
        return {**split, "other": np.maximum(whole - sum(split.values()), 0.0)}


def finite(value: float) -> float | None:
    """Return a value as a number of Python's, None where it is not finite."""
    return float(value) if math.isfinite(value) else None


class RunFollower:
    """Polls a run, reading each time what is new; views have about twice `rows` rows at most."""

    def __init__(self, store: Store, run_id: str, *, rows: int = 2048) -> None:
        self._store, self._run_id, self._rows = store, run_id, rows
        tol = read_run(store, run_id).config.get("tol")
        self._tol = float(tol) if isinstance(tol, int | float) else None
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
            try:
                for record in batch:
                    self._note(record)
                self._table.add(batch)
            except (TypeError, ValueError, KeyError, OverflowError) as error:
                raise IntegrityError(
                    f"a record of the history is none that training writes ({error}): restore it from a copy"
                ) from error

    def view(self, run: str, tol: float | None, outcome: Mapping[str, Any] | None) -> RunView:
        """Return all of it as one value."""
        columns = self._table.columns()
        stage = self._stage(outcome)
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
            left=self._table.left(tol) if tol is not None and stage == "running" else None,
        )

    def _note(self, record: Mapping[str, Any]) -> None:
        at = record.get("at")
        if at is not None and not 0.0 <= at <= _LAST_TIME:
            raise ValueError(f"time {at}")
        if at is not None:
            self._begun, self._heard = at if self._begun is None else self._begun, at
        if "round" in record:
            self._rounds = operator.index(record["round"]) + 1
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


# Fewer rounds show no trend.
LEAST_ROUNDS = 6
# A wider range is no answer, unless it ends within this share of the rounds so far.
WIDEST, NEAR = 10.0, 0.1
# Nor is an extrapolation over this many times the observed decline, in decades.
FARTHEST = 10.0
# A law is plausible while its squared error is within this factor of the better one's.
PLAUSIBLE = 2.0

Floats: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True)
class TimeLeft:
    """Seconds until the tolerance is reached, with a 95 % range."""

    seconds: float
    low: float
    high: float


def time_text(left: TimeLeft | None) -> str:
    """Return the estimate as shown after a gap; "" if unknown or next to nothing."""
    if left is None or left.high < 1.0:
        return ""
    low, high = rough_time(left.low), rough_time(left.high)
    if left.high <= 1.5 * left.low or low == high:
        return f", about {rough_time(left.seconds)} left"
    return f", {low} to {high} left"


def rough_time(seconds: float) -> str:
    """Return seconds in the largest unit of which there are about two."""
    for unit, length in (("days", 86_400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 1.5 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"


def time_left(rounds: ArrayLike, seconds: ArrayLike, gaps: ArrayLike, tol: float) -> TimeLeft | None:
    """Estimate from the gaps after ascending rounds, and the seconds at their ends.

    The smallest gap is assumed to fall by a constant factor per round or as a power of the rounds, whichever
    fits better.  Returns None for an insignificant decline, one far from the tolerance, or too uncertain an
    end.
    """
    t, clock = np.asarray(rounds, np.float64), np.asarray(seconds, np.float64)
    best = np.minimum.accumulate(np.asarray(gaps, np.float64))
    if len(t) and best[-1] <= tol:
        return TimeLeft(0.0, 0.0, 0.0)
    if len(t) < LEAST_ROUNDS or not tol > 0.0:
        return None
    windows = [_window(t, share) for share in (0.5, 0.25)]
    found = [_rounds_left(t[first:], np.log(best[first:]), math.log(tol)) for first in windows]
    low, high = min(one[1] for one in found), max(one[2] for one in found)
    rounds_left = math.sqrt(found[0][0] * found[1][0])
    shown, missing = math.log(best[windows[0]] / best[-1]), math.log(best[-1] / tol)
    vague = high > WIDEST * low and high > NEAR * (t[-1] - t[0])
    if math.isinf(high) or vague or missing > FARTHEST * shown:
        return None
    pace = (clock[-1] - clock[windows[0]]) / (t[-1] - t[windows[0]])
    return TimeLeft(float(pace * rounds_left), float(pace * low), float(pace * high))


def _window(t: Floats, share: float) -> int:
    """Return the index of the first of the last `share` of the rounds, or of a few more."""
    first = int(np.searchsorted(t, t[-1] - share * (t[-1] - t[0])))
    return min(first, len(t) - LEAST_ROUNDS)


def _rounds_left(t: Floats, logs: Floats, goal: float) -> tuple[float, float, float]:
    """Return the expected, least and most rounds until `logs` reaches `goal`; infinite if it may not."""
    laws = [_line(t, logs), _line(np.log1p(t), logs)]
    errors = [law.error for law in laws]
    ranges = []
    for law, in_logs in zip(laws, (False, True), strict=True):
        if law.error <= PLAUSIBLE * min(errors) + 1e-18 * len(t):
            drop, spread = logs[-1] - goal, law.errors * law.scatter
            steep, flat = (law.slope + sign * law.errors * law.slope_error for sign in (-1.0, 1.0))
            least = _rounds_of(in_logs, t[-1], max(drop - spread, 0.0), steep)
            most = _rounds_of(in_logs, t[-1], drop + spread, flat)
            ranges.append((_rounds_of(in_logs, t[-1], drop, law.slope), least, most, law.error))
    best = min(ranges, key=lambda one: one[3])
    return best[0], min(one[1] for one in ranges), max(one[2] for one in ranges)


def _rounds_of(in_logs: bool, now: float, drop: float, slope: float) -> float:
    """Return the rounds in which a line of this slope drops so far, over rounds or their logarithms."""
    steps = drop / -slope if slope < 0.0 else math.inf
    if not in_logs:
        return steps
    return (1.0 + now) * math.expm1(steps) if steps < 100.0 else math.inf


@dataclass(frozen=True)
class _Line:
    """A fitted line: slope, its standard error, squared error, scatter, and standard `errors` of 95 %."""

    slope: float
    slope_error: float
    error: float
    scatter: float
    errors: float


def _line(x: Floats, y: Floats) -> _Line:
    """Fit by least squares; autocorrelated errors count as fewer points."""
    from scipy.stats import linregress

    fit = linregress(x, y)
    off = y - fit.intercept - fit.slope * x
    error = float(off @ off)
    together = float(off[1:] @ off[:-1]) / error if error > 0.0 else 0.0
    together = min(max(together, 0.0), 0.9)
    inflation = math.sqrt((1.0 + together) / (1.0 - together))
    # Quantile of Student's t to two digits from 4 degrees of freedom on.
    errors, scatter = 1.96 + 3.3 / (len(x) - 2), math.sqrt(error / (len(x) - 2))
    return _Line(float(fit.slope), inflation * float(fit.stderr), error, scatter, errors)


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
