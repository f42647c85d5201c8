"""One training run from a stored dataset to a published, certified model."""

from __future__ import annotations

import errno
import logging
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from distributed import Client

from topline.pipeline.certification.recompute import Certificate, certify
from topline.pipeline.cluster.executor import DaskExecutor
from topline.pipeline.errors import ClusterError, InterruptedRunError
from topline.pipeline.interrupts import stop_on_signals
from topline.pipeline.options.train import ClusterConfig, TrainConfig
from topline.pipeline.progress import Progress
from topline.pipeline.rows.partition import TrainingRows
from topline.pipeline.training.checkpointing import (
    RunRecorder,
    find_checkpoint,
    load_state,
    save_state,
)
from topline.pipeline.training.executor import open_executor
from topline.pipeline.training.kernel_training import on_kernel
from topline.pipeline.training.plan import TrainingPlan, plan_training
from topline.pipeline.training.saving import store_model
from topline.solvers.core.risks import AverageTopK
from topline.solvers.core.state import SolveResult, SolverState
from topline.solvers.core.stopping import Status
from topline.solvers.errors import NonFiniteError, StateLostError
from topline.solvers.executors import Executor
from topline.solvers.run.api import solve
from topline.solvers.run.compiling import compile_jit_functions
from topline.storage.errors import AccessError, DiskFullError, IntegrityError, StorageError
from topline.storage.runs import Checkpoint, RunLock, finish_run, run_lock

logger = logging.getLogger(__name__)

# So many times in one run the dual variables may be lost and taken from the last checkpoint.
ROLLBACKS = 5


@dataclass(frozen=True)
class TrainResult:
    """What a finished run reached; `to_dict` is the object that `topline train --json` prints.

    Where the loss is not convex dual and gaps are NaN (null in JSON), `gap_kind` is "none" and
    `stationarity` says how far the gradient fell.  `average_top` is how many of the largest losses
    count, None for the mean of all, and `collapsed` says that W = 0 is then within the tolerance of the best.
    """

    model: str
    run: str
    dataset: str
    status: str
    primal: float
    dual: float
    gap: float
    relative_gap: float
    gap_kind: str
    passes: int
    seconds: float
    n: int
    d: int
    m: int
    certificate: Certificate | None
    stationarity: float | None = None
    average_top: float | None = None
    collapsed: bool = False

    @property
    def solved(self) -> bool:
        """Whether the tolerance was reached."""
        return self.status == Status.SOLVED.value

    def to_dict(self) -> dict[str, Any]:
        """Give plain values for JSON."""
        return {**asdict(self), "certificate": self.certificate.to_dict() if self.certificate else None}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TrainResult:
        """Read what `to_dict` gave, from a run's record, which may hold more."""
        known: dict[str, Any] = {field.name: values.get(field.name) for field in fields(cls)}
        known |= {name: math.nan for name in ("dual", "gap", "relative_gap") if known[name] is None}
        known["collapsed"] = bool(known["collapsed"])
        certificate = values["certificate"]
        return cls(**{**known, "certificate": Certificate.from_dict(certificate) if certificate else None})


def train(
    config: TrainConfig,
    cluster: ClusterConfig | None = None,
    progress: Progress | None = None,
    client: Client | None = None,
) -> TrainResult:
    """Train, publish and certify one model.

    `cluster` says where it runs (default: one worker a core); an open `client` goes before it.
    Raises `InterruptedRunError` after Ctrl-C or SIGTERM, once a checkpoint is stored; its message holds the
    command that resumes the run.  Before any work it raises `InputError`, `ConfigError`,
    `InvalidProblemError` or `MismatchError` for what cannot be trained.
    """
    plan = plan_training(config)
    with run_lock(plan.store, plan.run_id) as lock:
        _compile_jit_functions(plan, progress)
        result, url = _trained(plan, cluster or ClusterConfig(), progress, client, lock)
    certificate = certify(url, progress) if plan.config.certify and plan.convex else None
    return _conclude(plan, result, url, certificate)


def _trained(
    plan: TrainingPlan,
    cluster: ClusterConfig,
    progress: Progress | None,
    client: Client | None,
    lock: RunLock,
) -> tuple[SolveResult, str]:
    """Train and publish; gives the model's URL."""
    with (
        stop_on_signals() as flag,
        open_executor(plan, cluster, client, progress, flag) as (plan, executor, rows),
    ):
        recorder = RunRecorder(
            plan.place, executor, flag, plan.config.checkpoint_seconds, progress, plan.config.tol, lock
        )
        if isinstance(executor, DaskExecutor):
            executor.recover_from(recorder)
        if progress is not None:
            progress.begin("train", plan.config.max_passes, "passes")
        with recorder:
            result, url = _solve(plan, executor, rows, recorder)
        if result.status is Status.INTERRUPTED:
            raise InterruptedRunError(
                f"stopped by {flag.reason} after {result.passes} passes; {plan.how_to_resume}"
            )
        if result.status is Status.NONFINITE:
            finish_run(plan.store, plan.run_id, {"status": result.status.value})
            raise NonFiniteError(
                f"the numbers overflowed in pass {result.passes} of run {plan.run_id}: scale the features"
                f" (transforms standardize or l2) or take a C smaller than {plan.config.C:g}"
            )
    return result, url


def _compile_jit_functions(plan: TrainingPlan, progress: Progress | None) -> None:
    """Compile before the clock starts, and before the workers, who then find the kernels on disk."""
    if progress is not None:
        progress.begin("compile kernels")
    config = plan.config
    compile_jit_functions(
        plan.loss,
        plan.trained.shape[1] if plan.kernel is None else len(plan.rows),
        plan.m,
        config.smoothing,
        config.method,
        smoothing_kind=config.smoothing_kind,
        keep_duals=plan.keep_duals,
        risk=plan.risk,
        sparse=plan.rows.dataset.info.layout == "csr" and plan.kernel is None,
        several=plan.label_sets is not None,
    )


def _solve(
    plan: TrainingPlan, executor: Executor, rows: TrainingRows, recorder: RunRecorder
) -> tuple[SolveResult, str]:
    """Run the loop and publish what it reached: gives the model's URL, "" after an interrupt or overflow.

    Where a lost worker took dual variables with it that the loop, or the model, cannot do without, the run
    goes back to the last checkpoint.
    """
    checkpoint = find_checkpoint(plan.place) if plan.resumes else None
    losses = 0
    while True:
        try:
            result = on_kernel(plan, executor, _solve_from(checkpoint, plan, executor, rows, recorder))
            if result.status in {Status.INTERRUPTED, Status.NONFINITE}:
                return result, ""
            recorder.check_lock()
            return result, store_model(plan, executor, result)
        except StateLostError as error:
            losses += 1
            if losses > ROLLBACKS:
                raise InterruptedRunError(f"{error}; {plan.how_to_resume}") from error
            logger.warning("%s", error)
            recorder.note({"event": "rollback", "reason": str(error)})
            checkpoint = find_checkpoint(plan.place)
        except (ClusterError, DiskFullError, AccessError, KeyboardInterrupt) as error:
            _save_what_is_here(plan, recorder.latest)
            reason = str(error) or "interrupted twice"
            raise InterruptedRunError(f"{reason}; {plan.how_to_resume}") from error
        except IntegrityError as error:
            _save_what_is_here(plan, recorder.latest)
            raise IntegrityError(f"{error}; once it is whole again, {plan.how_to_resume}") from error
        except (OSError, MemoryError) as error:
            if isinstance(error, StorageError):
                raise
            # Room for what does not fit in memory is gone, or memory itself, here or on a worker.
            _save_what_is_here(plan, recorder.latest)
            raise InterruptedRunError(f"{_room(error)}; {plan.how_to_resume}") from error


def _room(error: OSError | MemoryError) -> str:
    """Say what a run has no room in."""
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return f"no room is left on the disk at {error.filename} for dual variables that memory does not hold"
    return str(error) or "out of memory"


def _solve_from(
    checkpoint: Checkpoint | None,
    plan: TrainingPlan,
    executor: Executor,
    rows: TrainingRows,
    recorder: RunRecorder,
) -> SolveResult:
    config = plan.config
    start = plan.start if checkpoint is None else None
    duals = checkpoint.dual_blocks() if checkpoint is not None and checkpoint.has_duals else None
    result = solve(
        rows,
        plan.rows.labels(),
        plan.loss,
        plan.lam,
        config.smoothing,
        config.method,
        sample_weight=plan.sample_weight,
        smoothing_kind=config.smoothing_kind,
        tol=config.tol,
        max_passes=config.max_passes,
        seed=config.seed,
        executor=executor,
        callbacks=(recorder,),
        keep_duals=plan.keep_duals,
        risk=plan.risk,
        time_limit=config.time_limit,
        m=plan.m,
        label_sets=plan.label_sets,
        state=load_state(checkpoint) if checkpoint is not None else None if start is None else start.state,
        duals=duals if start is None else start.duals,
    )
    if result.status not in {Status.SOLVED, Status.NONFINITE}:
        recorder.save(result.state)
    return result


def _save_what_is_here(plan: TrainingPlan, state: SolverState | None) -> None:
    """Without dual variables the coordinator has all there is, whatever became of the workers."""
    if state is not None and not plan.keep_duals:
        try:
            save_state(plan.place, state, None)
        except StorageError as error:
            logger.warning("the last rounds are not saved: %s", error)


def _conclude(
    plan: TrainingPlan, result: SolveResult, url: str, certificate: Certificate | None
) -> TrainResult:
    trained = TrainResult(
        model=url,
        run=plan.run_id,
        dataset=plan.rows.dataset.info.id,
        status=result.status.value,
        primal=result.primal,
        dual=result.dual,
        gap=result.gap,
        relative_gap=result.relative_gap,
        gap_kind=result.gap_kind,
        passes=result.passes,
        seconds=result.seconds,
        n=result.problem.n,
        d=plan.rows.shape[1],
        m=result.problem.m,
        certificate=certificate,
        stationarity=result.stationarity,
        average_top=plan.risk.k if isinstance(plan.risk, AverageTopK) else None,
        collapsed=result.collapsed,
    )
    finish_run(plan.store, plan.run_id, trained.to_dict())
    return trained
