"""What a run writes while it trains: its history, and checkpoints from which it can be resumed."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from topline.pipeline.interrupts import StopFlag
from topline.pipeline.progress import Progress
from topline.pipeline.telemetry import Forecast, HistoryRecorder
from topline.solvers.core.codec import decoded, encoded
from topline.solvers.core.dual_points import PendingStep
from topline.solvers.core.state import IterationRecord, Point, SolveResult, SolverState
from topline.solvers.counts import how_many
from topline.solvers.executors import Executor, SerialExecutor
from topline.solvers.methods import change_of_method
from topline.solvers.methods.quasi_newton import LbfgsMemory
from topline.storage.arrays import DualSource, DualWriter, StoredDuals
from topline.storage.errors import StorageError
from topline.storage.runs import Checkpoint, RunLock, latest_checkpoint, save_checkpoint
from topline.storage.stores import FileEntry, Store, repeated_requests

logger = logging.getLogger(__name__)

# Shown for a checkpoint of version 0.1.
EARLIER_FORMAT = (
    "the checkpoint of round %d is of an earlier format: the run goes on from its weights and dual variables "
    "alone"
)
# Arrays of such a checkpoint; the first present belongs to its dual variables or is the best W.
_EARLIER_WEIGHTS = ("memory.newton.W_dual", "memory.mixture.W", "memory.best", "W")


@dataclass(frozen=True)
class RunPlace:
    """Where a run keeps its files, and what identifies it, by name: dataset and problem."""

    store: Store
    run_id: str
    fingerprint: Mapping[str, Any]
    transforms: Mapping[str, NDArray[Any]]
    keep_duals: bool


def save_state(place: RunPlace, state: SolverState, duals: DualSource | None, lock: RunLock) -> int:
    """Save `state` and any dual variables, with its pending step applied; return the bytes."""
    plain, arrays = encoded(state.with_point(pending_step=None))
    meta = {"fingerprint": dict(place.fingerprint), "state": plain}
    return save_checkpoint(
        place.store, place.run_id, state.round, {**arrays, **place.transforms}, duals, meta, lock
    )


def load_state(checkpoint: Checkpoint) -> SolverState:
    """Return the saved state with every step applied; raise InvalidProblemError for an unknown one."""
    stored = checkpoint.meta["state"]
    if not is_of_earlier_format(checkpoint):
        state: SolverState = decoded(stored, checkpoint.arrays)
        return state
    W = next(checkpoint.arrays[name] for name in _EARLIER_WEIGHTS if name in checkpoint.arrays)
    point = Point(stored["round"], np.asarray(W, dtype=np.float64), stored["b"], stored["aa"])
    memory = LbfgsMemory() if "memory.best" in checkpoint.arrays else None
    return SolverState(point, memory=memory, passes=stored["passes"], seconds=stored["seconds"])


def is_of_earlier_format(checkpoint: Checkpoint) -> bool:
    """Return whether this version can no longer read the method's memory."""
    return "is" not in checkpoint.meta["state"]


def find_checkpoint(place: RunPlace) -> Checkpoint | None:
    """Return the run's newest whole checkpoint; `MismatchError` names what has changed since."""
    found = latest_checkpoint(place.store, place.run_id, fingerprint=place.fingerprint)
    for damage in () if found is None else found.skipped:
        logger.warning("a checkpoint is skipped: %s", damage)
    return found


# Interval between forecasts of the remaining time.
FORECAST_SECONDS = 0.5
# Largest share of a run's time that saving may take.
SAVING_SHARE = 0.05


@dataclass(frozen=True)
class Pace:
    """When to save: `seconds` after the last save, later if the time `spent` on saving is a large share."""

    seconds: float
    began: float
    saved: float | None = None
    spent: float = 0.0
    last: float = 0.0

    def is_due(self, now: float) -> bool:
        """Return whether a save now, taking as long as the last, keeps the share within its limit."""
        since = self.began if self.saved is None else self.saved
        share = (self.spent + self.last) / (now - self.began + self.last) if self.last > 0.0 else 0.0
        return now - since >= self.seconds and share <= SAVING_SHARE

    def after(self, start: float, stop: float) -> Pace:
        """Return the pace after a save from `start` to `stop`."""
        last = stop - start
        return replace(self, saved=stop, spent=self.spent + last, last=last)


class RunRecorder:
    """Callback of the solver's loop: appends each round to the history and saves checkpoints.

    Returns False, which ends the loop, once `flag` is set.  `progress` gets each round with `left`, the
    `TimeLeft` to reach `tol` or None, and the held-out accuracy that `look` last found.
    """

    def __init__(
        self,
        place: RunPlace,
        executor: Executor,
        flag: StopFlag,
        seconds: float,
        progress: Progress | None,
        tol: float = 0.0,
        lock: RunLock | None = None,
        look: Callable[[SolverState], Mapping[str, Any]] | None = None,
    ) -> None:
        self._place = place
        self._look, self._seen = look, dict[str, Any]()
        self.lock = lock or RunLock()
        self._executor = executor
        self._flag = flag
        self._progress = progress
        remote = not isinstance(executor, SerialExecutor)
        self._history = HistoryRecorder(place.store, place.run_id, remote=remote)
        self._passes = 0
        self._pace = Pace(seconds, began=time.monotonic())
        self._forecast = Forecast(tol)
        self._forecast_at, self._left = time.monotonic(), self._forecast.left()
        self.latest: SolverState | None = None
        self._method: str | None = None
        self._repeated = repeated_requests()

    def __call__(self, record: IterationRecord, state: SolverState) -> bool:
        """Record one round; return whether to continue."""
        self.latest = state
        self._note_repetitions()
        choice = change_of_method(state)
        if self._method not in (None, choice.method):
            self.note({"event": "note", "reason": choice.why})
        self._method = choice.method
        now = time.monotonic()
        seen = self._looked(state)
        facts = self._history.round(record, **seen)
        self._seen = seen or self._seen
        if self._progress is not None:
            self._progress.advance(record.passes - self._passes)
            self._passes = record.passes
            self._forecast.take(facts)
            if now - self._forecast_at >= FORECAST_SECONDS:
                self._forecast_at, self._left = now, self._forecast.left()
            self._progress.note({**facts, **self._seen, "left": self._left})
        if self._pace.is_due(now):
            self.save(state)
        return not self._flag

    def show_result(self, result: SolveResult) -> None:
        """Show the gap of the result, which may be smaller than that of the last round."""
        if self._progress is not None and result.stationarity is None:
            self._progress.note({**self._seen, "relative_gap": result.relative_gap})

    def _looked(self, state: SolverState) -> dict[str, Any]:
        """Return the held-out accuracy of W; training continues if its rows cannot be read."""
        if self._look is None:
            return {}
        try:
            return dict(self._look(state))
        except (StorageError, OSError) as error:
            logger.warning("held-out rows are not looked at any more: %s", error)
            self._look = None
            return {}

    def _note_repetitions(self) -> None:
        """Record requests to a bucket that were repeated since the last round."""
        repeated, before = repeated_requests(), self._repeated
        if repeated > before:
            self._repeated = repeated
            reason = f"{how_many(repeated - before, 'requests')} to the store were repeated"
            self.note({"event": "store-retried", "requests": repeated - before, "reason": reason})

    def note(self, record: Mapping[str, Any]) -> None:
        """Append an event to the history."""
        facts = dict(record)
        self._history.event(facts.pop("event"), **facts)

    def save(self, state: SolverState) -> None:
        """Save a checkpoint of `state`, which must be the blocks' own."""
        began = time.monotonic()
        self.lock.check()
        self._history.write()
        duals = written_where_held(self._executor, state.pending_step) if self._place.keep_duals else None
        size = save_state(self._place, state, duals, self.lock)
        ended = time.monotonic()
        self._pace = self._pace.after(began, ended)
        self._history.event("checkpoint", rounds=state.round, seconds=round(ended - began, 3), bytes=size)

    def saved_duals(self) -> tuple[int, StoredDuals] | None:
        """Return the round of the last checkpoint and its dual variables, or None."""
        try:
            found = find_checkpoint(self._place)
        except StorageError as error:
            logger.warning("no checkpoint can be read, so that lost dual variables begin at 0: %s", error)
            return None
        return None if found is None or not found.has_duals else (found.round, found.dual_blocks())

    def close(self, reason: str | None = None) -> None:
        """Write pending records, and the `reason` why the run stops; None if it finished."""
        self._history.close(self._flag.reason if reason is None and self._flag else reason)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close(None if error is None else str(error) or type(error).__name__)
        except StorageError:
            # The reason for the stop is already reported; a full or lost disk adds nothing.
            if error is None:
                raise


def _write_scaled(
    writer: DualWriter, share: float, blocks: Iterable[tuple[int, int, NDArray[Any]]]
) -> list[FileEntry]:
    """Write runs of rows, each times the share, and return the files."""
    return writer.write((start, stop, share * rows) for start, stop, rows in blocks)


def written_where_held(
    executor: Executor, pending_step: PendingStep | None, share: float = 1.0
) -> DualSource:
    """Return what writes a share of an executor's A, after `pending_step`, from where its rows are held."""

    def write(writer: DualWriter) -> Sequence[FileEntry]:
        write_rows = writer.write if share == 1.0 else partial(_write_scaled, writer, share)
        return executor.map_duals(write_rows, pending_step)

    return write
