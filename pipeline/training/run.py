"""A training run on disk: its beginning and identity, history and checkpoints, model and result."""

from __future__ import annotations

import importlib.metadata
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from topline.pipeline.certification import CUT_POINTS, CUT_SHARES, DUAL_W, Certificate
from topline.pipeline.interrupts import StopFlag
from topline.pipeline.options.train import TrainConfig
from topline.pipeline.progress import Progress
from topline.pipeline.rows import LEARNED, LEARNED_LABELS, class_weights, learned_labels, learned_rows
from topline.pipeline.telemetry import HistoryRecorder, RunTable, TimeLeft
from topline.pipeline.training.plan import (
    MAY_CHANGE,
    TrainingPlan,
    resolve_options,
    resume_options,
    run_identity,
)
from topline.solvers.core.codec import encoded
from topline.solvers.core.dual_points import PendingStep
from topline.solvers.core.state import (
    HasObjective,
    IterationRecord,
    Objective,
    SolveResult,
    SolverState,
    Status,
)
from topline.solvers.counts import how_many
from topline.solvers.executors import Executor, SerialExecutor
from topline.solvers.methods import change_of_method
from topline.solvers.methods.frank_wolfe import atoms_of
from topline.solvers.operations import PutInside
from topline.storage.arrays import DualSource, DualWriter, StoredDuals
from topline.storage.cache import StoredKernel
from topline.storage.datasets import Dataset
from topline.storage.errors import StorageError
from topline.storage.models import ModelRecord, list_models, save_model
from topline.storage.runs import (
    Checkpoint,
    RunLock,
    RunRecord,
    create_run,
    latest_checkpoint,
    list_runs,
    read_run,
    save_checkpoint,
)
from topline.storage.stores import FileEntry, Store, open_store, repeated_requests
from topline.storage.stores.urls import join

logger = logging.getLogger(__name__)

# Shown for a checkpoint of version 0.1.
EARLIER_FORMAT = (
    "the checkpoint of round %d is of an earlier format: the run goes on from its weights and dual variables "
    "alone"
)


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
        self._table, self._tol, self._unseen = RunTable(), tol, list[Mapping[str, Any]]()
        self._forecast_at: float = time.monotonic()
        self._left: TimeLeft | None = None
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
            self._unseen.append(facts)
            if now - self._forecast_at >= FORECAST_SECONDS:
                self._table.add(self._unseen)
                self._forecast_at, self._left, self._unseen = now, self._table.left(self._tol), []
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


@dataclass(frozen=True)
class TrainResult(HasObjective):
    """Result of a finished run; `to_dict` is the object that `topline train --json` prints.

    Without a convex loss, dual and gaps are NaN (null in JSON), `gap_kind` is "none" and `stationarity` says
    how far the gradient fell.  `average_top` is the number of largest losses that count, None for all;
    `no_weights` says that W is 0.  `notes` are sentences about the run; `chosen` is what a preceding search
    compared.
    """

    model: str
    run: str
    dataset: str
    status: str
    objective: Objective
    passes: int
    seconds: float
    n: int
    d: int
    m: int
    certificate: Certificate | None
    average_top: float | None = None
    collapsed: bool = False
    no_weights: bool = False
    notes: tuple[str, ...] = ()
    method: str = ""
    why: str = ""
    chosen: Mapping[str, Any] | None = None

    @property
    def solved(self) -> bool:
        """Whether the tolerance was reached."""
        return self.status == Status.SOLVED.value

    @property
    def relative_gap_text(self) -> str:
        """The relative gap as printed, with its kind if it is only a bound."""
        kind = "" if self.gap_kind == "true" else f" ({self.gap_kind}: an upper bound)"
        return f"{self.relative_gap:.2e}{kind}"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        values = {**asdict(self), **self.objective.to_dict()}
        del values["objective"]
        return {**values, "certificate": self.certificate.to_dict() if self.certificate else None}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TrainResult:
        """Read the result of `to_dict` from a run's record, which may hold more."""
        known: dict[str, Any] = {field.name: values.get(field.name) for field in fields(cls)}
        known["objective"] = Objective.from_dict(values)
        known |= {name: bool(known[name]) for name in ("collapsed", "no_weights")}
        known["notes"] = tuple(known["notes"] or ())
        known |= {name: known[name] or "" for name in ("method", "why")}
        certificate = values["certificate"]
        return cls(**{**known, "certificate": Certificate.from_dict(certificate) if certificate else None})


@dataclass(frozen=True, eq=False)
class Run:
    """A run in the store: `resumes` if there may be checkpoints, `notes` are sentences for its records."""

    plan: TrainingPlan
    id: str
    place: RunPlace
    resumes: bool
    notes: tuple[str, ...] = ()

    @property
    def how_to_resume(self) -> str:
        """The sentence that ends every message about a run that stopped early."""
        return f"continue with: topline train --store {self.plan.store.url} --resume {self.id}"

    def with_factor(self, kernel: StoredKernel) -> Run:
        """Return the run on the factor of its kernel matrix: another one is another basis of the weights."""
        identity = {**self.place.fingerprint, "factor": kernel.folder}
        return replace(self, place=replace(self.place, fingerprint=identity))


def begin_run(plan: TrainingPlan) -> Run:
    """Record a new run of a plan in its store, or return the run that the plan resumes."""
    config, identity = plan.config, run_identity(plan.config, plan.rows.dataset)
    run_id = config.resume
    if run_id is None:
        options = config.model_dump(mode="json")
        run_id = create_run(plan.store, options, dataset=config.dataset, fingerprint=identity)
    place = RunPlace(plan.store, run_id, identity, plan.transforms.arrays(), plan.keep_duals)
    return Run(plan, run_id, place, resumes=config.resume is not None)


def runs_of(store: Store, config: TrainConfig, dataset: Dataset) -> list[RunRecord]:
    """Return the runs of these options on this dataset, oldest first, however they ended."""
    identity = run_identity(resolve_options(config, dataset), dataset)
    return [run for run in list_runs(store) if dict(run.fingerprint) == identity]


def unfinished_run(store: Store, config: TrainConfig, dataset: Dataset) -> RunRecord | None:
    """Return the newest run of these options on this dataset if it was killed or interrupted."""
    runs = runs_of(store, config, dataset)
    return runs[-1] if runs and runs[-1].outcome is None else None


def resuming(config: TrainConfig) -> TrainConfig:
    """Return options that resume the newest run of `config` if it stopped early, otherwise `config`."""
    if config.resume is not None:
        return config
    store = open_store(config.store)
    dataset = Dataset.open(store, config.dataset)
    run = unfinished_run(store, config, dataset)
    return config if run is None else TrainConfig(store=config.store, resume=run.id, tol=config.tol)


def already_solved(config: TrainConfig, run_id: str) -> TrainResult | None:
    """Return the result of the run that `config` resumes, None if it goes on; raise `MismatchError`."""
    store = open_store(config.store)
    run = read_run(store, run_id)
    tol = resume_options(config, run.config, f"run {run.id}", MAY_CHANGE).tol
    made = [model.id for model in list_models(store) if model.run == run.id]
    if run.outcome is None or run.outcome.get("status") != Status.SOLVED.value or not made:
        return None
    result = TrainResult.from_dict({**run.outcome, "model": join(store.url, "models", made[-1])})
    return result if result.objective.left <= tol else None


def store_model(run: Run, executor: Executor, result: SolveResult) -> str:
    """Store the model and return its URL.

    Its certificate is based on A if stored, otherwise on W, b and |A|^2/n, or on the points of the vertices
    or gradients that make up the dual point, if known.
    """
    plan = run.plan
    arrays = ({} if plan.spec.kernel is not None else {"W": result.W}) | dict(plan.transforms.arrays())
    arrays[LEARNED] = learned_rows(plan.rows.dataset)
    arrays[LEARNED_LABELS] = learned_labels(plan.rows.dataset)
    if not plan.stores_duals:
        arrays |= _dual_point(result)
    record = _model_record(
        run,
        {
            "status": result.status.value,
            **result.objective.to_dict(),
            "lifted_gap": result.smoothed_gap,
            "passes": result.passes,
            "seconds": result.seconds,
            "collapsed": result.collapsed,
            "notes": list(run.notes),
            "method": result.method,
            "why": plan.why(result),
        },
    )
    duals = None
    if plan.stores_duals:
        pending_step = result.state.pending_step
        executor.run(PutInside(pending_step))
        duals = written_where_held(executor, pending_step, result.dual_share)
    return save_model(plan.store, record, arrays, duals)


def _model_record(run: Run, result: Mapping[str, Any]) -> ModelRecord:
    plan, info, rows = run.plan, run.plan.rows.dataset.info, run.plan.rows
    weights = class_weights(plan.config.class_weight, rows.labels(), info.class_names, rows.own_weights)
    return ModelRecord(
        dataset=info.id,
        dataset_digest=info.digest,
        config=plan.config.model_dump(mode="json"),
        loss=plan.spec.loss.to_dict(),
        lam=plan.problem.lam,
        C=plan.config.C,
        smoothing=plan.config.smoothing,
        smoothing_kind=plan.config.smoothing_kind,
        class_weights=None if weights is None else tuple(weights.tolist()),
        method=plan.config.method,
        n=len(plan.rows),
        d=plan.rows.shape[1],
        m=plan.problem.m,
        class_names=info.class_names,
        multilabel=info.label_sets is not None,
        features=info.features,
        transforms=plan.transforms.record(),
        kernel=None if plan.spec.kernel is None else plan.spec.kernel.to_dict(),
        result=result if plan.start is None else {**result, "start": plan.start.to_dict()},
        parents=(plan.start.model,) if plan.start is not None and plan.start.how != "zero" else (),
        run=run.id,
        code_version=importlib.metadata.version("topline"),
    )


def _dual_point(result: SolveResult) -> dict[str, NDArray[np.float64]]:
    """Return what rebuilds a result's dual point; empty if W alone does.

    That is the points and shares of cuts, including minus the gradients at a W other than the model's, or b
    and |A|^2/n with their W(A), if that is another.
    """
    cuts = None if result.problem.mean_risk else atoms_of(result.problem, result.state).cuts()
    found = result.found_at
    if cuts is not None:
        return dict(zip((CUT_POINTS, CUT_SHARES), cuts, strict=True))
    if result.stationarity is not None:
        return {}
    if found is not None:
        here = found.share == 1.0 and np.array_equal(found.W, result.W)
        return {} if here else {CUT_POINTS: found.W[None], CUT_SHARES: np.array([found.share])}
    sums = {"dual_sums": np.asarray([result.conjugate_mean, result.mean_sq_dual])}
    return sums if result.W_dual is None else {**sums, DUAL_W: result.W_dual}
