"""One training run from a stored dataset to a published, certified model.

Meanwhile the coordinator looks at held-out rows between two rounds, ever more rarely: one product of a sample
with W, without influence on the run; all looks but the first take a hundredth of the time at most.
"""

from __future__ import annotations

import errno
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from distributed import Client
from numpy.typing import NDArray
from scipy.sparse import vstack

from topline.pipeline.certification import Certificate, certify
from topline.pipeline.cluster import DaskExecutor
from topline.pipeline.errors import ClusterError, InterruptedRunError, NotStoredError
from topline.pipeline.interrupts import stop_on_signals, whole_interrupts
from topline.pipeline.log import kept_lines
from topline.pipeline.options import ClusterConfig, TrainConfig
from topline.pipeline.progress import Progress, begin
from topline.pipeline.rows import TrainingRows
from topline.pipeline.training.checkpointing import (
    EARLIER_FORMAT,
    RunPlace,
    RunRecorder,
    find_checkpoint,
    is_of_earlier_format,
    load_state,
    save_state,
)
from topline.pipeline.training.executor import lay_out, open_executor, picked_rows, refuse_memory
from topline.pipeline.training.kernel_training import on_kernel
from topline.pipeline.training.plan import TrainingPlan, plan_training
from topline.pipeline.training.problem_checks import scale_note
from topline.pipeline.training.run import Run, TrainResult, begin_run, store_model
from topline.solvers.core.problem import AverageTopK
from topline.solvers.core.state import SolveResult, SolverState, Status, StoppingCriteria
from topline.solvers.counts import how_many
from topline.solvers.errors import NonFiniteError, StateLostError
from topline.solvers.executors import Executor
from topline.solvers.names import k_note
from topline.solvers.run import Task, compile_jit_functions, run_task
from topline.storage.cache import StoredKernel
from topline.storage.errors import AccessError, DiskFullError, IntegrityError, StorageError
from topline.storage.runs import Checkpoint, RunLock, finish_run, run_lock

logger = logging.getLogger(__name__)

# Most times per run that lost dual variables are taken from the last checkpoint.
ROLLBACKS = 5


@dataclass(frozen=True, eq=False)
class Fitted:
    """A run that has published its model; its certificate and outcome are still missing."""

    run: Run
    result: SolveResult
    model: str

    @property
    def to_certify(self) -> bool:
        """Whether a certificate is requested and the loss has one."""
        return self.run.plan.config.certify and self.run.plan.problem.form.convex

    def outcome(self, certificate: Certificate | None) -> TrainResult:
        """Return the result of the run."""
        plan, result = self.run.plan, self.result
        return TrainResult(
            model=self.model,
            run=self.run.id,
            dataset=plan.rows.dataset.info.id,
            status=result.status.value,
            objective=result.objective,
            passes=result.passes,
            seconds=result.seconds,
            n=result.problem.n,
            d=plan.rows.shape[1],
            m=result.problem.m,
            certificate=certificate,
            average_top=plan.problem.risk.k if isinstance(plan.problem.risk, AverageTopK) else None,
            collapsed=result.collapsed,
            no_weights=plan.spec.kernel is None and not result.W.any(),
            notes=self.run.notes,
            method=result.method,
            why=plan.why(result),
            chosen=plan.config.chosen,
        )

    def conclude(self, certificate: Certificate | None) -> TrainResult:
        """Record the outcome of the run and return it."""
        outcome = self.outcome(certificate)
        finish_run(self.run.plan.store, self.run.id, outcome.to_dict())
        return outcome


@kept_lines()
def fit(
    config: TrainConfig,
    cluster: ClusterConfig | None = None,
    progress: Progress | None = None,
    client: Client | None = None,
) -> Fitted:
    """Train and publish one model, the part of `train` that takes long."""
    plan = plan_training(config)
    layout = lay_out(plan, cluster or ClusterConfig(), client)
    refuse_memory(plan, layout.cluster, client)
    said = k_note(plan.config.loss, plan.config.k, plan.problem.m), scale_note(plan.config, plan.rows)
    notes = (*(note for note in said if note is not None), *layout.notes)
    for sentence in notes:
        logger.warning("%s", sentence)
    run = replace(begin_run(plan), notes=notes)
    with run_lock(plan.store, run.id) as lock:
        try:
            with whole_interrupts():
                _compile_jit_functions(plan, progress)
                return _trained(run, layout.cluster, progress, client, lock)
        except KeyboardInterrupt as error:
            # Before the first round, or a second Ctrl-C outside the rounds.
            reason = str(error) or "stopped by Ctrl-C"
            raise InterruptedRunError(f"{reason}; {run.how_to_resume}") from error


def train(
    config: TrainConfig,
    cluster: ClusterConfig | None = None,
    progress: Progress | None = None,
    client: Client | None = None,
    *,
    fit: Callable[..., Fitted] = fit,
    certify: Callable[..., Certificate] = certify,
) -> TrainResult:
    """Train, publish and certify one model.

    `cluster` says where it runs (default: one worker per core); an open `client` takes precedence.  A flow
    replaces `fit` and `certify` by tasks around them.  Raises `InterruptedRunError` after Ctrl-C or SIGTERM,
    with the command that resumes the run; `NotStoredError` with the result if there is no room for the
    certificate; and `InputError`, `ConfigError`, `InvalidProblemError` or `MismatchError`, before any work,
    for what cannot be trained.
    """
    fitted = fit(config, cluster, progress, client)
    try:
        certificate = certify(fitted.model, progress) if fitted.to_certify else None
    except NotStoredError as error:
        raise NotStoredError(str(error), fitted.outcome(error.result)) from error
    return fitted.conclude(certificate)


def _trained(
    run: Run, cluster: ClusterConfig, progress: Progress | None, client: Client | None, lock: RunLock
) -> Fitted:
    """Train and publish."""
    config = run.plan.config
    with (
        stop_on_signals() as flag,
        open_executor(run, cluster, client, progress, flag) as (executor, rows, kernel, run),
    ):
        place = run.place(kernel)
        held_out = HeldOutRows.of(run.plan)
        recorder = RunRecorder(
            place, executor, flag, config.checkpoint_seconds, progress, config.tol, lock,
            None if held_out is None else Watch(held_out).look,
        )  # fmt: skip
        if isinstance(executor, DaskExecutor):
            executor.recover_from(recorder)
        begin(progress, "train", config.max_passes, "passes")
        for sentence in run.notes:
            recorder.note({"event": "note", "reason": sentence})
        with recorder:
            picked = picked_rows(run.plan, cluster, client)
            result, url = _Session(run, place, executor, rows, kernel, recorder, picked).to_the_end()
        recorder.show_result(result)
        if result.status is Status.INTERRUPTED:
            raise InterruptedRunError(
                f"stopped by {flag.reason} after {how_many(result.passes, 'passes')}; {run.how_to_resume}"
            )
        if result.status is Status.NONFINITE:
            finish_run(run.plan.store, run.id, {"status": result.status.value})
            raise NonFiniteError(
                f"the numbers overflowed in pass {result.passes} of run {run.id}: scale the features"
                f" (transforms standardize or l2) or use a C smaller than {config.C:g}"
            )
    return Fitted(run, result, url)


def _compile_jit_functions(plan: TrainingPlan, progress: Progress | None) -> None:
    """Compile before the clock starts, and before workers start, which then find the kernels on disk."""
    begin(progress, "compile")
    factored = plan.spec.kernel is not None and not plan.on_blocks
    compile_jit_functions(
        replace(plan.spec, kernel=None) if factored else plan.spec,
        len(plan.rows) if factored else plan.rows.shape[1],
        plan.problem.m,
        sparse=plan.rows.dataset.info.layout == "csr" and plan.spec.kernel is None,
        several=plan.examples.label_sets is not None,
    )


@dataclass(frozen=True, eq=False)
class _Session:
    """A run with executor, rows and recorder; a kernel's round of dual ascent updates `picked` rows."""

    run: Run
    place: RunPlace
    executor: Executor
    rows: TrainingRows
    kernel: StoredKernel | None
    recorder: RunRecorder
    picked: int

    def to_the_end(self) -> tuple[SolveResult, str]:
        """Run the loop, rolling back lost duals, and store the model; its URL is "" after an interrupt."""
        how_to_resume = self.run.how_to_resume
        checkpoint = find_checkpoint(self.place) if self.run.resumes else None
        losses = 0
        if checkpoint is not None and is_of_earlier_format(checkpoint):
            logger.warning(EARLIER_FORMAT, checkpoint.round)
        while True:
            try:
                solved = self._solved(checkpoint)
                if solved.status not in {Status.SOLVED, Status.NONFINITE}:
                    self.recorder.save(solved.state)
                result = on_kernel(self.run.plan, self.kernel, self.executor, solved)
                if result.status in {Status.INTERRUPTED, Status.NONFINITE}:
                    return result, ""
                self.recorder.lock.check()
                return result, store_model(self.run, self.executor, result)
            except StateLostError as error:
                losses += 1
                if losses > ROLLBACKS:
                    raise InterruptedRunError(f"{error}; {how_to_resume}") from error
                logger.warning("%s", error)
                self.recorder.note({"event": "rollback", "reason": str(error)})
                checkpoint = find_checkpoint(self.place)
            except (ClusterError, DiskFullError, AccessError, KeyboardInterrupt) as error:
                self._save_weights()
                reason = str(error) or "interrupted twice"
                raise InterruptedRunError(f"{reason}; {how_to_resume}") from error
            except IntegrityError as error:
                self._save_weights()
                raise IntegrityError(f"{error}; once it is whole again, {how_to_resume}") from error
            except (OSError, MemoryError) as error:
                if isinstance(error, StorageError):
                    raise
                # No room for what does not fit in memory, or no memory, here or on a worker.
                self._save_weights()
                raise InterruptedRunError(f"{_room(error)}; {how_to_resume}") from error

    def _solved(self, checkpoint: Checkpoint | None) -> SolveResult:
        plan, config = self.run.plan, self.run.plan.config
        criteria = StoppingCriteria(config.tol, config.max_passes, config.time_limit)
        start: tuple[Any, Any, bool] = None, None, False
        if checkpoint is not None:
            start = load_state(checkpoint), checkpoint.dual_blocks() if checkpoint.has_duals else None, False
        elif plan.start is not None:
            start = plan.start.state, plan.start.duals, plan.start.near
        task = Task(
            plan.spec, replace(plan.examples, rows=self.rows), criteria, config.seed, self.executor,
            (self.recorder,), *start, kernel=plan.spec.kernel if plan.on_blocks else None, picked=self.picked,
        )  # fmt: skip
        return run_task(task)

    def _save_weights(self) -> None:
        """Save the last state; without dual variables the coordinator has all of it."""
        state = self.recorder.latest
        if state is not None and not self.run.plan.keep_duals:
            try:
                save_state(self.place, state, None, self.recorder.lock)
            except StorageError as error:
                logger.warning("the last rounds are not saved: %s", error)


def _room(error: OSError | MemoryError) -> str:
    """Return what has run out: disk or memory."""
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return (
            f"no space is left on the disk at {error.filename} for dual variables that memory does not hold"
        )
    return str(error) or "out of memory"


#: Most rows of the sample, stored rows read for it, multiplications of a look, and numbers.
MOST_ROWS, MOST_READ, MOST_TERMS, MOST_NUMBERS = 2_000, 1 << 16, 1 << 29, 1 << 23
#: Seconds of training before the first look, growth of the interval, and largest share of time for looks.
FIRST_SECONDS, LONGER, SHARE = 1.0, 1.5, 0.01


@dataclass(frozen=True, eq=False)
class HeldOutRows:
    """A sample of the rows of validation, else of the test split; read on first use."""

    rows: TrainingRows

    @classmethod
    def of(cls, plan: TrainingPlan) -> HeldOutRows | None:
        """Return those of a plan; None if there are none, or if a row has no single class to compare with."""
        dataset = plan.rows.dataset
        if plan.spec.kernel is not None or dataset.label_sets() is not None:
            return None
        for split in ("val", "test"):
            rows = TrainingRows(dataset, split, plan.transforms)
            if len(rows):
                return cls(TrainingRows(dataset, split, plan.transforms, _sample(rows, plan.problem.m)))
        return None

    @cached_property
    def features(self) -> Any:
        """The rows (r, d), dense or CSR."""
        parts = [X.copy() for _, _, X in self.rows.tiles()]
        return np.concatenate(parts) if isinstance(parts[0], np.ndarray) else vstack(parts, format="csr")

    def accuracy(self, W: NDArray[np.float64]) -> float:
        """Return the share of rows whose class has the highest score under W (d, m)."""
        scores = np.asarray(self.features @ W.astype(np.float32), dtype=np.float64)
        places = np.arange(len(scores)), self.rows.labels()
        own = scores[places].copy()
        scores[places] = -np.inf
        return float(np.mean(own > scores.max(axis=1)))


def _sample(rows: TrainingRows, m: int) -> NDArray[np.int64]:
    """Return the sampled rows, ascending, from a few batches, which alone are read."""
    random = np.random.default_rng(0)
    spans = [rows.batch_span(batch) for batch in random.permutation(rows.batches).tolist()]
    batches = max(MOST_READ * rows.batches // rows.dataset.info.n_rows, 1)
    read = [np.arange(start, stop) for start, stop in spans if stop > start][:batches]
    d = rows.shape[1]
    most = min(MOST_ROWS, max(MOST_TERMS // (d * m), 1), max(MOST_NUMBERS // d, 1))
    return np.sort(random.permutation(np.concatenate(read))[:most])


class Watch:
    """Looks at held-out rows after some rounds of a run, by `clock`."""

    def __init__(self, rows: HeldOutRows, clock: Callable[[], float] = time.monotonic) -> None:
        self._rows, self._clock = rows, clock
        self._began = clock()
        self._due = FIRST_SECONDS
        self._spent = 0.0

    def look(self, state: SolverState) -> dict[str, Any]:
        """Return the history's record of a look at the best weights so far; empty if none is due."""
        begun = self._clock()
        W = state.best.W
        W = state.W if W is None else W
        if begun - self._began < self._due or not W.any():
            return {}
        found = {
            "held_out": self._rows.accuracy(W),
            "held_out_rows": len(self._rows.rows),
            "held_out_split": self._rows.rows.split,
        }
        ended = self._clock()
        self._spent += ended - begun
        self._due = max(LONGER * (ended - self._began), self._spent / SHARE)
        return found
