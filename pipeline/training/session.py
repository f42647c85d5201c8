"""One training run from a stored dataset to a published, certified model, and where its blocks live.

Data and options decide the blocks, except of a hinge: the workers of a running cluster, or processes of this
machine, share the rows once a model of costs says that this takes less time, from the seconds of products and
of a round trip of W (`topline.solvers.methods.shared_work`).  Of our own workers no more start than there are
blocks, with more threads each, or than the memory limit has room for; if it has none, the job runs in this
process.

During a run the coordinator looks at held-out rows between two rounds, ever more rarely: one product of a
sample with W, without influence on the run; all looks but the first take a hundredth of the time at most.
"""

from __future__ import annotations

import errno
import logging
import time
import timeit
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
from dask.system import CPU_COUNT
from distributed import Client
from numpy.typing import NDArray

from topline.pipeline.certification import Certificate, certify
from topline.pipeline.cluster import (
    Call,
    DaskExecutor,
    MemoryPlan,
    ProblemSize,
    WorkerCalls,
    WorkersLost,
    announce,
    given_or_own_client,
    known_workers,
    memory_limit,
    plan_alone,
    plan_memory,
    plan_on_workers,
    takes_processes,
    worker_count,
)
from topline.pipeline.cluster.calls import by_tree
from topline.pipeline.cluster.memory_plan import KERNEL_ROW_BYTES
from topline.pipeline.cluster.shared_arrays import can_share_memory
from topline.pipeline.errors import ClusterError, ConfigError, InterruptedRunError, NotStoredError
from topline.pipeline.interrupts import StopFlag, stop_on_signals, whole_interrupts
from topline.pipeline.log import kept_lines
from topline.pipeline.options import ClusterConfig, TrainConfig
from topline.pipeline.options.train import PRECOMPUTED
from topline.pipeline.progress import Progress, begin
from topline.pipeline.rows import CachedRows, TrainingRows
from topline.pipeline.training.kernel_training import FactorDataset, factored_kernel, on_kernel
from topline.pipeline.training.plan import (
    ASCENT_BLOCK_BYTES,
    TrainingPlan,
    is_of_earlier_format,
    load_state,
    plan_training,
    scale_note,
)
from topline.pipeline.training.run import (
    EARLIER_FORMAT,
    Run,
    RunRecorder,
    TrainResult,
    begin_run,
    find_checkpoint,
    save_state,
    store_model,
)
from topline.solvers.core.problem import AverageTopK
from topline.solvers.core.state import SolveResult, SolverState, Status, StoppingCriteria
from topline.solvers.counts import how_many
from topline.solvers.crew import one_blas_thread
from topline.solvers.errors import NonFiniteError, StateLostError
from topline.solvers.executors import Executor, ThreadExecutor
from topline.solvers.kernels import is_precomputed
from topline.solvers.methods import MethodMemory, method_memory
from topline.solvers.methods.kernel import PICKED_ROWS, atom_bytes, picked_bytes
from topline.solvers.methods.shared_work import SWEEP_WORK, SharedWork, fastest, threads_speed
from topline.solvers.names import k_note
from topline.solvers.run import Task, compile_jit_functions, run_task
from topline.storage.cache import StoredKernel
from topline.storage.errors import AccessError, DiskFullError, IntegrityError, StorageError
from topline.storage.runs import Checkpoint, RunLock, finish_run, run_lock

logger = logging.getLogger(__name__)

#: Bytes of features up to which one worker of a running cluster is enough, without a note.
_SMALL_BYTES = 64 << 20
#: Rows that are multiplied and numbers that are sent to learn their seconds, and how often.
_PROBED_ROWS, _PROBED_NUMBERS, _PROBES = 2048, 1 << 20, 3
#: Seconds in which workers of this machine get W and send as much: so many, and so many a byte and worker.
#: Two of 600 KB took 3.4 ms, of 4 MB 6.3; a run then goes by its own exchanges.
_HERE_SECONDS, _HERE_BYTE = 3e-3, 4e-10
#: Bytes for columns of a kernel matrix in all workers together.
COLUMN_BYTES = 1 << 29
#: Rows that a round of a kernel's dual ascent may pick: fewer, halved, when memory is limited.
_PICKED = tuple(PICKED_ROWS >> halvings for halvings in range(4))


@contextmanager
def open_executor(
    run: Run, layout: Layout, client: Client | None, progress: Progress | None, flag: StopFlag
) -> Iterator[tuple[Executor, TrainingRows, StoredKernel | None, Run]]:
    """Choose where the blocks live: a client's workers, a local cluster's, or threads of this process.

    Yields the executor, the rows to train on, the plan's kernel matrix, if any, which is computed there
    first, and the run, which now knows how workers share it and which factor it reads.  The memory limit
    decides the budgets of features and dual variables.
    """
    plan, cluster, memory, kernel = run.plan, layout.cluster, layout.memory, None
    worker_bytes = None if memory is None else memory.worker_bytes
    with given_or_own_client(cluster, client, layout.data_bytes, worker_bytes) as found:
        if found is not None:
            announce(found, plan.store.url, run.id)
            if memory is None and plan.may_share:
                run = _on_workers(run, found, cluster)
                plan = run.plan
        if memory is None:
            workers = {} if found is None else known_workers(found, cluster.worker_wait)
            limits = [int(worker["memory_limit"] or 0) for worker in workers.values()]
            memory = plan_on_workers(limits, needs_of(plan).size, cluster.cache_bytes)
        rows = plan.rows
        if plan.factors_kernel:
            kernel = factored_kernel(run, found, progress, flag)
            run = run.with_factor(kernel)
            rows = TrainingRows(FactorDataset(plan.rows.dataset, kernel))
        bounds = plan.bounds_of(rows)
        if found is None:
            most = min(layout.threads, len(bounds) - 1)
            executor: Executor = ThreadExecutor(
                most, bounds=bounds, dual_bytes=memory.dual_bytes, kept_bytes=memory.kept_bytes
            )
            rows = CachedRows(rows, memory.cache_bytes)
        else:
            executor = DaskExecutor(
                found,
                bounds=bounds,
                memory=memory,
                worker_wait=cluster.worker_wait,
                heartbeat_timeout=cluster.heartbeat_timeout,
            )
        try:
            yield executor, rows, kernel, run
        finally:
            executor.close()


@dataclass(frozen=True)
class Layout:
    """Where a training run works, the bytes of its data there, and the notes about it.

    A round of a kernel's dual ascent updates `picked` rows.  `memory` is shared among `threads` of this
    process, or the workers that it starts; a running cluster has its own, and here None.
    """

    cluster: ClusterConfig
    notes: tuple[str, ...] = ()
    data_bytes: int = 0
    picked: int = PICKED_ROWS
    memory: MemoryPlan | None = None
    threads: int = CPU_COUNT


@dataclass(frozen=True)
class Needs:
    """The sizes of a training and the bytes of its data.

    `besides` has what the coordinator needs in addition, by the rows picked in a round of a kernel's dual
    ascent, the most first.
    """

    size: ProblemSize
    data_bytes: int
    besides: Mapping[int, int]

    def laid_out(self, cluster: ClusterConfig, notes: tuple[str, ...] = ()) -> Layout:
        """Return the layout on a local cluster with the most rows picked that fit its memory limit.

        Raises `ConfigError` if the fewest do not.
        """
        *more, fewest = self.besides
        for picked in more:
            with suppress(ConfigError):
                return self._with_picked(picked, cluster, notes)
        return self._with_picked(fewest, cluster, notes)

    def _with_picked(self, picked: int, cluster: ClusterConfig, notes: tuple[str, ...]) -> Layout:
        """Share the memory of this process and of those that it starts."""
        limit, threads = memory_limit(cluster.memory_limit), CPU_COUNT
        size = replace(self.size, besides=self.besides[picked])
        if cluster.workers == 0:
            most = min(CPU_COUNT, size.blocks)
            memory, threads = plan_alone(limit, size, most, cluster.cache_bytes)
        else:
            workers, processes = worker_count(cluster), takes_processes(self.data_bytes)
            memory = plan_memory(limit, size, workers, cluster.cache_bytes, processes=processes)
        return Layout(cluster, notes, self.data_bytes, picked, memory, threads)


def needs_of(plan: TrainingPlan) -> Needs:
    """Return the needs of a training: on features, on columns of a kernel, or on the factor of its matrix."""
    n, d, m, kernel = len(plan.rows), plan.rows.shape[1], plan.problem.m, plan.spec.kernel
    size = ProblemSize(
        n=n, d=d, m=m, blocks=len(plan.bounds_of(plan.rows)) - 1, features=plan.rows.nbytes,
        keeps_duals=plan.keep_duals,
    )  # fmt: skip
    if kernel is not None and plan.on_blocks:
        # Rows of kernel values are not sent, only their numbers.
        travels = 0 if is_precomputed(kernel) else d
        atoms = atom_bytes(plan.problem) if plan.method.dual_free else 0
        size = replace(
            size,
            method=MethodMemory(kept=min(4 * n * n, COLUMN_BYTES)),
            # Scores, in float64 near the end.
            held=8 * n * m + atoms,
            row_bytes=KERNEL_ROW_BYTES,
        )
        return Needs(size, 8 * n * n, {rows: picked_bytes(travels, m, rows) for rows in _PICKED})
    size = replace(size, method=method_memory(plan.method, plan.problem, plan.rows.nbytes))
    if kernel is None:
        return Needs(size, plan.rows.nbytes, {PICKED_ROWS: 0})
    # Training then reads the rows of the kernel matrix's factor, which is also held here.
    return Needs(replace(size, d=n, features=4 * n * n), 8 * n * n, {PICKED_ROWS: 16 * n * n})


def lay_out(plan: TrainingPlan, cluster: ClusterConfig, client: Client | None) -> Layout:
    """Return how to train on a local cluster: with workers that have blocks and fit the memory limit.

    A running cluster, or none, is left as it is.  Raises `ConfigError`, before anything begins, for a limit
    that is too small for one process.
    """
    if client is not None or cluster.scheduler is not None:
        return Layout(cluster)
    needs = needs_of(plan)
    if cluster.workers == 0:
        return needs.laid_out(cluster)
    notes: tuple[str, ...] = ()
    asked, blocks = worker_count(cluster), needs.size.blocks
    # A kernel's rows are those of its future factor.
    if plan.spec.kernel is None and blocks < asked:
        fitted = _with_workers(cluster, blocks)
        if cluster.workers is not None:
            # The default is the number of cores, which nobody chose: no note.
            notes = (_why(plan, blocks, asked, fitted.threads_per_worker),)
        cluster, asked = fitted, blocks
    with suppress(ConfigError):
        return needs.laid_out(cluster, notes)
    for workers in range(asked - 1, 0, -1):
        fewer = _FEWER_FIT.format(cluster.memory_limit, workers, asked)
        with suppress(ConfigError):
            return needs.laid_out(_with_workers(cluster, workers), (*notes, fewer))
    alone = cluster.model_copy(update={"workers": 0})
    return needs.laid_out(alone, (*notes, _NONE_FITS.format(cluster.memory_limit)))


def _arranged(
    plan: TrainingPlan, cluster: ClusterConfig, client: Client | None
) -> tuple[TrainingPlan, Layout]:
    """Return the plan with the blocks that processes of this machine share in less time, and the layout."""
    layout = lay_out(plan, cluster, client)
    most = min(worker_count(cluster), plan.rows.batches, CPU_COUNT)
    processes = layout.cluster.workers != 0 and takes_processes(layout.data_bytes) and can_share_memory()
    if layout.memory is None or not (processes and plan.may_share and most > 1):
        return plan, layout
    threads = min(worker_count(cluster) * cluster.threads_per_worker, CPU_COUNT)
    work = SWEEP_WORK * len(plan.rows) * row_seconds(plan.rows, plan.problem.m)
    size = 4 * plan.rows.shape[1] * plan.problem.m

    def among(workers: int) -> SharedWork:
        exchange = _HERE_SECONDS + _HERE_BYTE * workers * size
        return SharedWork(workers, work / threads_speed(threads // workers), exchange)

    best = fastest(among(1), *map(among, _numbers(most)))
    shared = replace(plan, shared=best)
    found = lay_out(shared, cluster, client)
    # A memory limit that holds fewer workers would give one of them several blocks.
    each_one = found.cluster.workers != 0 and worker_count(found.cluster) == best.blocks
    return (shared, found) if each_one and _holds_as_much(found, layout) else (plan, layout)


def _holds_as_much(layout: Layout, other: Layout) -> bool:
    """Return whether a layout holds all features, and unpacked dual variables, if another one does."""
    if layout.memory is None or other.memory is None:
        return False
    features = min(other.memory.cache_bytes, other.data_bytes)
    duals = layout.memory.dual_bytes is None or other.memory.dual_bytes is not None
    return duals and (features < other.data_bytes or layout.memory.cache_bytes >= features)


def _with_workers(cluster: ClusterConfig, workers: int) -> ClusterConfig:
    """Return a cluster with fewer workers and the same number of threads in total."""
    threads = max(cluster.threads_per_worker, worker_count(cluster) * cluster.threads_per_worker // workers)
    return cluster.model_copy(update={"workers": workers, "threads_per_worker": threads})


_FEWER_FIT = "a memory limit of {} has room for {} of {} workers: these start, with the threads of the others"
_NONE_FITS = (
    "a memory limit of {} has no room for a worker beside the coordinator: the job runs in one process"
)
_ONE_WORKS = "one worker of the cluster works: {}; --blocks N cuts the rows all the same"


def _why(plan: TrainingPlan, blocks: int, asked: int, threads: int) -> str:
    most = plan.rows.batches
    if plan.config.blocks is not None and plan.config.blocks == blocks:
        reason = f"--blocks is {blocks}"
    elif plan.shared is not None:
        reason = f"{plan.blocks_why}; --blocks {min(asked, most)} cuts the data all the same"
    elif blocks == most:
        reason = f"the data is stored in {how_many(most, 'pieces')}"
    else:
        reason = (
            f"{plan.choice.method} keeps {ASCENT_BLOCK_BYTES >> 30} GiB of features in a block, on which all"
            f" threads work; --blocks {min(asked, most)} cuts the data all the same"
        )
    return f"of {asked} workers {blocks} can work, with {how_many(threads, 'threads')} each: {reason}"


def _on_workers(run: Run, client: Client, cluster: ClusterConfig) -> Run:
    """Return the run with the blocks that a running cluster's workers share, and a note if one has all."""
    plan = replace(run.plan, shared=_shared_there(run.plan, client, cluster))
    if plan.shared is None or plan.shared.blocks > 1 or plan.rows.nbytes <= _SMALL_BYTES:
        return replace(run, plan=plan)
    note = _ONE_WORKS.format(plan.blocks_why)
    logger.warning("%s", note)
    return replace(run, plan=plan, notes=(*run.notes, note))


def _shared_there(plan: TrainingPlan, client: Client, cluster: ClusterConfig) -> SharedWork | None:
    """Return how the workers of a running cluster share the rows in the least time; None for a single one."""
    calls = WorkerCalls(client, heartbeat_timeout=cluster.heartbeat_timeout)
    found = calls.wait_for_workers(1, cluster.worker_wait)
    first, *others = found
    if not others:
        return None
    numbers, most = plan.rows.shape[1] * plan.problem.m, plan.rows.batches
    few, many = np.zeros(1, dtype=np.float32), np.zeros(min(numbers, _PROBED_NUMBERS), dtype=np.float32)

    def exchange(workers: int, W: NDArray[np.float32]) -> float:
        """Return the least seconds in which so many workers get W and send as much."""
        trip = partial(calls.run, by_tree([*found][:workers], echo, (W,), echo))
        return min(timeit.repeat(trip, number=1, repeat=_PROBES))

    try:
        (seconds,) = calls.run([Call(first, row_seconds, (plan.rows, plan.problem.m))]).values()
        exchanges = {}
        for workers in _numbers(min(len(found), most)):
            delay = exchange(workers, few)
            exchanges[workers] = delay + max(exchange(workers, many) - delay, 0.0) * numbers / len(many)
    except WorkersLost as lost:
        logger.warning("%s while its speed was measured: one worker gets all rows", lost)
        return None
    finally:
        calls.let_go()
    work = SWEEP_WORK * len(plan.rows) * seconds / threads_speed(min(found.values()))
    return fastest(SharedWork(1, work), *(SharedWork(k, work, each) for k, each in exchanges.items()))


def _numbers(workers: int) -> list[int]:
    """Return the numbers of workers to compare: the powers of two from 2 on, and all."""
    return sorted({*(2**i for i in range(1, workers.bit_length())), workers})


def row_seconds(rows: TrainingRows, m: int) -> float:
    """Return the seconds in which one thread multiplies a row with W (d, m), measured on the first rows."""
    X = rows.read_batch(0)[:_PROBED_ROWS]
    W = np.ones((rows.shape[1], m), dtype=np.float32)
    with one_blas_thread():
        took = timeit.repeat(lambda: X @ W, number=1, repeat=_PROBES)
    return min(took) / max(int(X.shape[0]), 1)


def echo(W: NDArray[np.float32], *_others: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return W, whatever other workers returned."""
    return W


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
    cluster = cluster or ClusterConfig()
    plan, layout = _arranged(plan_training(config), cluster, client)
    config = plan.config
    said = [k_note(config.loss, config.k, plan.problem.m)]
    if config.kernel != PRECOMPUTED:
        said.append(scale_note(plan.rows, config.transforms))
    notes = (*(note for note in said if note is not None), *layout.notes)
    for sentence in notes:
        logger.warning("%s", sentence)
    run = replace(begin_run(plan), notes=notes)
    with run_lock(plan.store, run.id) as lock:
        try:
            with whole_interrupts():
                _compile_jit_functions(plan, progress)
                return _trained(run, layout, progress, client, lock)
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
    run: Run, layout: Layout, progress: Progress | None, client: Client | None, lock: RunLock
) -> Fitted:
    """Train and publish."""
    config = run.plan.config
    with (
        stop_on_signals() as flag,
        open_executor(run, layout, client, progress, flag) as (executor, rows, kernel, run),
    ):
        held_out = HeldOutRows.of(run.plan.rows, run.plan.problem.m) if run.plan.spec.kernel is None else None
        recorder = RunRecorder(
            run.place, executor, flag, config.checkpoint_seconds, progress, config.tol, lock,
            None if held_out is None else Watch(held_out).look,
        )  # fmt: skip
        if isinstance(executor, DaskExecutor):
            executor.recover_from(recorder)
        begin(progress, "train", config.max_passes, "passes")
        for sentence in run.notes:
            recorder.note({"event": "note", "reason": sentence})
        with recorder:
            session = _Session(run, executor, rows, kernel, recorder, layout.picked)
            result, url = session.to_the_end()
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
    compile_jit_functions(
        replace(plan.spec, kernel=None) if plan.factors_kernel else plan.spec,
        len(plan.rows) if plan.factors_kernel else plan.rows.shape[1],
        plan.problem.m,
        sparse=plan.rows.dataset.info.layout == "csr" and plan.spec.kernel is None,
        several=plan.examples.label_sets is not None,
    )


@dataclass(frozen=True, eq=False)
class _Session:
    """A run with executor, rows and recorder; a kernel's round of dual ascent updates `picked` rows."""

    run: Run
    executor: Executor
    rows: TrainingRows
    kernel: StoredKernel | None
    recorder: RunRecorder
    picked: int

    def to_the_end(self) -> tuple[SolveResult, str]:
        """Run the loop, rolling back lost duals, and store the model; its URL is "" after an interrupt."""
        checkpoint = find_checkpoint(self.run.place) if self.run.resumes else None
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
                    raise InterruptedRunError(f"{error}; {self.run.how_to_resume}") from error
                logger.warning("%s", error)
                self.recorder.note({"event": "rollback", "reason": str(error)})
                checkpoint = find_checkpoint(self.run.place)
            except (ClusterError, DiskFullError, AccessError, KeyboardInterrupt) as error:
                self._save_weights()
                reason = str(error) or "interrupted twice"
                raise InterruptedRunError(f"{reason}; {self.run.how_to_resume}") from error
            except IntegrityError as error:
                self._save_weights()
                raise IntegrityError(f"{error}; once it is whole again, {self.run.how_to_resume}") from error
            except (OSError, MemoryError) as error:
                if isinstance(error, StorageError):
                    raise
                # No room for what does not fit in memory, or no memory, here or on a worker.
                self._save_weights()
                raise InterruptedRunError(f"{_room(error)}; {self.run.how_to_resume}") from error

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
                save_state(self.run.place, state, None, self.recorder.lock)
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
    def of(cls, trained: TrainingRows, m: int) -> HeldOutRows | None:
        """Return those beside the rows `trained` on; None if there are none, or if rows have label sets."""
        dataset, transforms = trained.dataset, trained.transforms
        if dataset.label_sets() is not None:
            return None
        for split in ("val", "test"):
            rows = TrainingRows(dataset, split, transforms)
            if len(rows):
                return cls(TrainingRows(dataset, split, transforms, _sample(rows, m)))
        return None

    @cached_property
    def features(self) -> Any:
        """The rows (r, d), dense or CSR."""
        return self.rows.whole()

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
