"""Blocks on Dask workers: the same numbers as in process, whoever computes and whoever dies."""

from __future__ import annotations

import asyncio
import logging
import os
import queue
import re
import signal
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client

from tests.contracts.executor_contract import BOUNDS, ExecutorContract
from tests.pipeline.small_data import feature_files, make_features, small_dataset
from tests.processes import until
from tests.solvers.problems import solved_on_blocks
from topline import RBFKernel, TopKHinge
from topline.pipeline.cluster import (
    Call,
    DaskExecutor,
    MemoryPlan,
    WorkerCalls,
    WorkersLost,
    known_workers,
    open_cluster,
    watchdog,
    worker_blocks,
)
from topline.pipeline.cluster.assignment import assign, better_assignment, reassign_after_loss
from topline.pipeline.cluster.messages import Placement, ShippedRows, Span
from topline.pipeline.cluster.placement import LeaseRenewal
from topline.pipeline.cluster.worker_blocks import BlockRegistry
from topline.pipeline.errors import ClusterError
from topline.pipeline.options.train import ClusterConfig
from topline.pipeline.rows.partition import TrainingRows
from topline.solvers.core.answers import Answer, TreeMerger
from topline.solvers.core.problem import AverageTopK, Problem
from topline.solvers.core.state import IterationRecord, SolveResult, SolverState, Status
from topline.solvers.errors import StateLostError
from topline.solvers.executors import DualRows, Executor, SerialExecutor
from topline.solvers.operations import Ascend, FindSelectedVertices, RunSpec
from topline.solvers.run import ProblemSpec, solve
from topline.storage.errors import IntegrityError

N, D, M = 300, 10, 5
X, Y = make_features(N, D, M)


def run(
    executor: Executor, *, smoothing: float = 0.0, callbacks: Any = (), rows: Any = X, y: Any = Y
) -> SolveResult:
    return solve(
        rows,
        y,
        TopKHinge(2),
        lam=1.0 / len(y),
        smoothing=smoothing,
        method="fw",
        tol=1e-12,
        max_passes=25,
        executor=executor,
        callbacks=callbacks,
        m=M,
    )


class KillOnce:
    """Callback that kills the worker of the first blocks in one round."""

    def __init__(self, client: Client, at_round: int, number: int = signal.SIGKILL) -> None:
        self.client, self.at_round, self.number = client, at_round, number
        self.killed: int | None = None

    def __call__(self, record: IterationRecord, _state: SolverState) -> None:
        if record.round == self.at_round and self.killed is None:
            pids = self.client.run(os.getpid)
            self.killed = pids[min(pids)]
            os.kill(self.killed, self.number)


def test_stored_rows_are_read_by_the_workers(threads: Client, tmp_path: Path) -> None:
    rows = TrainingRows(small_dataset(tmp_path, n=500, d=D, m=M))
    in_memory = np.array(rows[0 : len(rows)])
    expected = run(SerialExecutor(bounds=rows.block_bounds()), rows=in_memory, y=rows.labels())
    for budget in (0, 5_000, 1 << 30):
        with DaskExecutor(threads, memory=MemoryPlan(None, budget, None)) as executor:
            assert np.array_equal(run(executor, rows=rows, y=rows.labels()).W, expected.W)


def test_a_missing_chunk_is_the_storage_error_that_names_rows(threads: Client, tmp_path: Path) -> None:
    rows = TrainingRows(small_dataset(tmp_path, n=500, d=D, m=M))
    shards = feature_files(tmp_path)
    shards[3].unlink()
    with DaskExecutor(threads) as executor, pytest.raises(IntegrityError, match="rows"):
        run(executor, rows=rows, y=rows.labels())


def test_close_leaves_nothing_on_the_workers(threads: Client) -> None:
    with DaskExecutor(threads, blocks=4) as executor:
        run(executor)
        assert sum(sum(held.values()) for held in threads.run(_held).values()) == 4
    assert not any(threads.run(_held).values())


def _held(dask_worker: Any) -> dict[str, int]:
    """Runs outside of calls, where `this_worker` needs help."""
    held = worker_blocks.registry.held(dask_worker.address)
    return {run: len(kept.blocks) for run, kept in held.items()}


def one_block(epoch: int, *, run: str = "late", lease: float = 60.0) -> Placement:
    problem = Problem(TopKHinge(2), N, D, M, 1.0 / N)
    return Placement(run, epoch, (Span(0, 0, N),), 1, RunSpec(problem, ShippedRows(X, 0, N), Y), 0, lease)


def test_an_abandoned_run_goes_when_its_lease_is_over() -> None:
    """By a clock of the test's own: renewing and using a run begin its lease again."""
    now = [1000.0]
    registry = BlockRegistry(clock=lambda: now[0])
    try:
        for name in ("abandoned", "renewed", "used", "in use"):
            registry.put("here", one_block(1, run=name), {}, X)
        with registry.using("here", "in use", 1):
            now[0] += 50.0
            registry.renew("here", "renewed")
            with registry.using("here", "used", 1):
                now[0] += 5.0
            now[0] += 5.0
            registry.sweep()
            assert sorted(registry.held("here")) == ["abandoned", "in use", "renewed", "used"]
            now[0] += 0.5
            registry.sweep()
            assert sorted(registry.held("here")) == ["in use", "renewed", "used"]
            now[0] += 1000.0
            registry.sweep()
            assert sorted(registry.held("here")) == ["in use"]
        now[0] += 60.0
        registry.sweep()
        assert sorted(registry.held("here")) == ["in use"]
        now[0] += 0.5
        registry.sweep()
        assert not registry.held("here")
    finally:
        registry.forget("here", "in use", 1)


class Renewing:
    """In the place of the calls of a run: takes what is begun."""

    def __init__(self) -> None:
        self.begun: queue.Queue[Call] = queue.Queue()

    def begin(self, call: Call) -> None:
        self.begun.put(call)


class Placed:
    """In the place of a run's placement."""

    run = "r"
    owned: Mapping[str, tuple[Span, ...]] = {"a": (), "b": ()}


def test_leases_are_renewed_until_the_placement_is_gone() -> None:
    calls, placed = Renewing(), Placed()
    threads_before = set(threading.enumerate())
    LeaseRenewal(calls, placed, lease=0.04)
    renewed = [calls.begun.get(timeout=240) for _ in range(4)]
    assert [(call.worker, call.arguments) for call in renewed] == [("a", ("r",)), ("b", ("r",))] * 2
    (renewing,) = set(threading.enumerate()) - threads_before
    del placed
    renewing.join(timeout=240)
    assert not renewing.is_alive()


def test_a_stopped_renewal_ends() -> None:
    placed = Placed()
    threads_before = set(threading.enumerate())
    renewal = LeaseRenewal(Renewing(), placed, lease=3600.0)
    (renewing,) = set(threading.enumerate()) - threads_before
    renewal.stop()
    renewing.join(timeout=240)
    assert not renewing.is_alive()


def test_a_call_of_an_old_epoch_is_refused(threads: Client) -> None:
    with DaskExecutor(threads, blocks=4) as executor:
        run(executor)
        owner = next(iter(executor.owners))
        stale = Call(owner, worker_blocks.read_duals, ("whatever", executor.epoch - 1, 0, 0, 1, None))
        with pytest.raises(WorkersLost, match="not epoch 0"):
            WorkerCalls(threads, heartbeat_timeout=240).run([stale])


def test_a_call_to_a_worker_that_is_not_there_ends(threads: Client) -> None:
    with pytest.raises(WorkersLost, match="is gone"):
        WorkerCalls(threads, heartbeat_timeout=3600).run([Call("tcp://127.0.0.1:1", os.getpid, ())])


def test_who_is_there_is_taken_however_short_the_wait(threads: Client) -> None:
    """Fewer than hoped for, after less than a replacement takes."""
    assert len(WorkerCalls(threads, heartbeat_timeout=240).wait_for_workers(3, 0.5)) == 2


@pytest.mark.parametrize("asked_for", [0.2, 5.0])
def test_a_scheduler_that_does_not_answer_is_waited_for_in_words_until_a_time(
    threads: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, asked_for: float
) -> None:
    async def never(*_: Any, **__: Any) -> Any:
        await asyncio.Event().wait()

    # Dask silences the handlers of its own logger while a cluster is open, and pytest's is one of them.
    caplog.set_level(logging.WARNING)
    monkeypatch.setattr(type(threads.scheduler), "identity", never, raising=False)
    monkeypatch.setattr(watchdog, "ASK_SECONDS", asked_for)
    with pytest.raises(ClusterError, match=r"the scheduler does not answer \(none in 0\.\d+ s\)"):
        WorkerCalls(threads, heartbeat_timeout=0.5).wait_for_workers(1, 3600.0)
    (said,) = (one.getMessage() for one in caplog.records if one.name == watchdog.__name__)
    assert re.search(r"is waited for until \d\d:\d\d:\d\d, and then the run ends, to be resumed", said)


_over = threading.Event()


def wait_until_over() -> None:
    _over.wait()


def test_an_error_is_not_kept_waiting_by_who_is_still_busy(threads: Client) -> None:
    """Who is busy goes on until the error is here."""
    busy, failing = sorted(known_workers(threads))
    calls = [Call(busy, wait_until_over, ()), Call(failing, divmod, (1, 0))]
    _over.clear()
    try:
        with pytest.raises(ZeroDivisionError):
            WorkerCalls(threads, heartbeat_timeout=3600).run(calls)
        assert not _over.is_set()
    finally:
        _over.set()


def test_a_late_placement_does_not_undo_a_later_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(given: Placement, before: Any) -> Any:
        if given.epoch == 1:
            worker_blocks.place(one_block(2))
        return cached(given, before)

    cached = worker_blocks._cached
    monkeypatch.setattr(worker_blocks, "_here", lambda: "here")
    monkeypatch.setattr(worker_blocks, "_cached", interrupted)
    try:
        with pytest.raises(StateLostError, match="epoch 1 of run late is over"):
            worker_blocks.place(one_block(1))
        assert worker_blocks.registry.held("here")["late"].placement.epoch == 2
    finally:
        worker_blocks.release("late", 2)


@pytest.mark.slow
@pytest.mark.cluster
def test_a_killed_worker_changes_nothing() -> None:
    """SIGKILL in mid-run, with and without a survivor: the same W, bit for bit."""
    expected = run(SerialExecutor(blocks=7))
    for workers in (2, 1):
        with open_cluster(ClusterConfig(workers=workers)) as client:
            executor = DaskExecutor(client, blocks=7)
            kill = KillOnce(client, at_round=6)
            result = run(executor, callbacks=(kill,))
            assert kill.killed is not None
            assert executor.epoch > 1
            assert np.array_equal(result.W, expected.W)
            executor.close()


class InMemory:
    """Dual rows that pickle."""

    def __init__(self, parts: list[DualRows]) -> None:
        self.parts = parts

    def __iter__(self) -> Iterator[DualRows]:
        return iter(self.parts)

    def between(self, first: int, last: int) -> Iterator[DualRows]:
        for start, stop, rows in self.parts:
            low, high = max(start, first), min(stop, last)
            if low < high:
                yield low, high, rows[low - start : high - start]


class Keep:
    """Callback and checkpoint source: saves the duals of one round, and what it is told."""

    def __init__(self, executor: DaskExecutor, at_round: int = -1) -> None:
        self.executor, self.at_round = executor, at_round
        self.saved: tuple[int, InMemory] | None = None
        self.events: list[Any] = []

    def saved_duals(self) -> Any:
        return self.saved

    def note(self, record: Any) -> None:
        self.events.append(record)

    def __call__(self, record: IterationRecord, state: SolverState) -> None:
        if record.round == self.at_round:
            parts = [
                (start, stop, rows.copy()) for start, stop, rows in self.executor.duals(state.pending_step)
            ]
            self.saved = (state.round, InMemory(parts))


@pytest.mark.slow
@pytest.mark.cluster
def test_a_killed_worker_that_held_duals_costs_two_rounds_at_most() -> None:
    """Its blocks alone go back to the checkpoint, those of the other stay, and the answer is certified."""
    with open_cluster(ClusterConfig(workers=2)) as client:
        for method, tol, at_round in (("dual_ascent", 1e-10, 3), ("fw", 2e-2, 20)):
            options: Any = {"smoothing": 0.5, "method": method, "tol": tol, "m": M}
            client.wait_for_workers(2, timeout=240)
            with DaskExecutor(client, blocks=8) as executor:
                # On this cluster, whose messages decide how often blocks agree.
                expected = solve(X, Y, TopKHinge(2), lam=20.0 / N, executor=executor, **options)
            assert len(expected.history) > at_round + 3, "it must be long enough to be disturbed"
            with DaskExecutor(client, blocks=8) as executor:
                checkpoint_source = Keep(executor, at_round)
                executor.recover_from(checkpoint_source)
                callbacks = (checkpoint_source, KillOnce(client, at_round))
                result = solve(
                    X, Y, TopKHinge(2), lam=20.0 / N, executor=executor, callbacks=callbacks, **options
                )
            assert [event["event"] for event in checkpoint_source.events] == ["loss"]
            assert 0 < len(checkpoint_source.events[0]["lost_blocks"]) < 8
            assert checkpoint_source.events[0]["saved_round"] == at_round + 1
            assert result.status is Status.SOLVED
            assert result.primal == pytest.approx(expected.primal, rel=tol)
            # A new start would cost the rounds up to the loss, four and more.
            assert len(result.history) <= len(expected.history) + 2


@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.parametrize("copies", [1, 400], ids=["messages", "shared_memory"])
def test_a_worker_killed_in_a_part_of_a_round_costs_its_duals_alone(
    monkeypatch: pytest.MonkeyPatch, copies: int
) -> None:
    """The next part finds it gone, its block starts again, and the answer is certified."""
    options: Any = {"lam": 1.0 / N, "method": "dual_ascent", "tol": 1e-3, "m": M}
    # Weights of many features lie in memory that the coordinator and its workers share.
    rows = np.tile(X, copies) / np.sqrt(copies)
    expected = solve(rows, Y, TopKHinge(2), **options)
    # Rounds of as many parts as in one process, whatever a message costs here.
    monkeypatch.setattr(DaskExecutor, "sends", False)
    with open_cluster(ClusterConfig(workers=2)) as client, DaskExecutor(client, blocks=2) as executor:
        genuine, checkpoints, pids = executor.run, Keep(executor), client.run(os.getpid)
        executor.recover_from(checkpoints)
        killed: list[int] = []

        def run_or_kill(operation: Any) -> Any:
            turn = operation.turn if isinstance(operation, Ascend) else None
            if not killed and turn is not None and turn.part == 5:
                killed.append(pids[min(pids)])
                os.kill(killed[0], signal.SIGKILL)
            return genuine(operation)

        monkeypatch.setattr(executor, "run", run_or_kill)
        result = solve(rows, Y, TopKHinge(2), executor=executor, **options)
    assert killed, "no round had so many parts"
    losses = [event for event in checkpoints.events if event["event"] == "loss"]
    assert [len(event["lost_blocks"]) for event in losses] == [1]
    assert result.status is Status.SOLVED
    assert result.primal - result.dual <= 1e-3 * result.primal
    assert result.primal == pytest.approx(expected.primal, rel=1e-3)


def test_who_joins_gets_blocks_with_their_duals() -> None:
    """In mid-run and without a round lost: the same W, bit for bit."""
    expected = run(SerialExecutor(blocks=7), smoothing=0.5)
    with open_cluster(ClusterConfig(workers=1), data_bytes=0) as client:

        def scale(record: IterationRecord, _state: SolverState) -> None:
            if record.round == 3:
                client.cluster.scale(2)
                client.wait_for_workers(2, timeout=240)

        with DaskExecutor(client, blocks=7, poll_interval=0.0) as executor:
            checkpoint_source = Keep(executor)
            executor.recover_from(checkpoint_source)
            result = run(executor, smoothing=0.5, callbacks=(scale,))
            assert sorted(map(len, executor.owners.values())) == [3, 4]
        assert [(event["event"], event["lost_blocks"]) for event in checkpoint_source.events] == [
            ("rebalance", [])
        ]
    received = [record.bytes_received for record in result.history]
    assert max(received) < min(received) + 4 * M * N // 7, "no block of dual variables came by"
    assert np.array_equal(result.W, expected.W)
    assert len(result.history) == len(expected.history)


def test_without_workers_the_wait_ends() -> None:
    with open_cluster(ClusterConfig(workers=1), data_bytes=0) as client:
        client.cluster.scale(0)
        until(lambda: not known_workers(client))
        executor = DaskExecutor(client, blocks=7, worker_wait=1.0)
        with pytest.raises(ClusterError, match="no worker for 1 s"):
            run(executor)


class TestDaskExecutor(ExecutorContract):
    """On two workers that are threads."""

    @pytest.fixture
    def executor(self, threads: Client) -> Iterator[Executor]:
        with DaskExecutor(threads, bounds=BOUNDS) as executor:
            yield executor


TWELVE = tuple(Span(i, 10 * i, 10 * (i + 1)) for i in range(12))


def test_blocks_are_assigned_by_threads() -> None:
    shares = assign(TWELVE, {"a": 1, "b": 1, "c": 2})
    assert [len(owned) for owned in shares.values()] == [3, 3, 6]
    assert [span.index for owned in shares.values() for span in owned] == list(range(12))
    assert assign(TWELVE[:1], {"a": 1, "b": 1}) in ({"a": TWELVE[:1]}, {"b": TWELVE[:1]})


def test_cuts_leave_few_sums_to_send() -> None:
    """About a share of the rows each, and cut where many blocks merge into one sum."""
    spans = tuple(Span(i, i, i + 1) for i in range(256))
    for owned in assign(spans, dict.fromkeys("abc", 1.0)).values():
        merger = TreeMerger(256)
        for span in owned:
            merger.add((0, span.index), Answer())
        assert len(merger.parts()) <= 4
        assert len(owned) == pytest.approx(256 / 3, rel=0.15)


def test_a_worker_in_the_place_of_another_moves_nobody_elses_blocks() -> None:
    owned = assign(TWELVE, {"a": 1, "b": 1, "c": 2})
    heirs = reassign_after_loss(TWELVE, owned, {"a": 9.0, "c": 1.0, "z": 1.0})
    assert heirs == {"a": owned["a"], "z": owned["b"], "c": owned["c"]}
    assert reassign_after_loss(TWELVE, owned, {"c": 1.0}) == {"c": TWELVE}


def test_blocks_move_only_where_rounds_become_much_shorter() -> None:
    owned = assign(TWELVE, {"a": 1, "b": 1})
    assert better_assignment(TWELVE, owned, {"a": 100.0, "b": 90.0}) is None
    slow = better_assignment(TWELVE, owned, {"a": 100.0, "b": 33.0})
    assert [len(slow[worker]) for worker in "ab"] == [9, 3]
    joined = better_assignment(TWELVE, owned, {"a": 100.0, "b": 100.0, "c": 100.0})
    assert [len(blocks) for blocks in joined.values()] == [4, 4, 4]


def test_rounds_say_what_workers_did_and_what_was_moved(threads: Client, tmp_path: Path) -> None:
    rows = TrainingRows(small_dataset(tmp_path, n=500, d=D, m=M))
    with DaskExecutor(threads, blocks=4, memory=MemoryPlan(None, 0, None)) as executor:
        options = {"lam": 0.01, "method": "fw", "tol": 1e-12, "max_passes": 5, "m": M}
        result = solve(rows, rows.labels(), TopKHinge(2), executor=executor, **options)
    matrix = 8 * D * M
    for record in result.history:
        assert record.workers == len(record.activity) == 2
        assert sum(worker.rows for worker in record.activity) == len(rows)
        assert all(worker.seconds_busy > 0.0 for worker in record.activity)
        # W goes to each worker and a sum of products comes back; nothing of the size of the rows does.
        assert 2 * matrix <= record.bytes_sent < 4 * matrix
        assert 2 * matrix <= record.bytes_received < 4 * matrix
        # Workers that are threads of this process have no memory of their own.
        assert [worker.memory_bytes for worker in record.activity] == [0, 0]
        assert 10 << 20 < record.memory_bytes < 100 << 30
    reads = [record.bytes_read for record in result.history]
    assert all(read >= 4 * D * len(rows) for read in reads), "nothing is kept in memory"
    assert max(reads) < 3 * 4 * D * 500


#: Methods with the gap that they reach in a moment.
KERNEL_METHODS = {"dual_ascent": 1e-6, "fw": 0.05, "fw_fully_corrective": 0.05}


def run_kernel(executor: Executor, method: str = "dual_ascent", callbacks: Any = ()) -> SolveResult:
    spec = ProblemSpec(TopKHinge(2), C=1.0, method=method, kernel=RBFKernel(0.1))
    return solved_on_blocks(
        spec, X, Y, executor, tol=KERNEL_METHODS[method], max_passes=1000, callbacks=callbacks
    )


@pytest.mark.parametrize("method", KERNEL_METHODS)
@pytest.mark.parametrize("blocks", [1, 7])
def test_kernels_are_bitwise_those_of_one_process(threads: Client, blocks: int, method: str) -> None:
    with SerialExecutor(blocks=blocks) as executor:
        alone = run_kernel(executor, method)
    with DaskExecutor(threads, blocks=blocks) as executor:
        together = run_kernel(executor, method)
        A = np.concatenate([rows for _, _, rows in executor.duals()])
    assert np.array_equal(A, alone.A)
    assert (together.primal, together.dual, together.passes) == (alone.primal, alone.dual, alone.passes)


@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.parametrize("method", KERNEL_METHODS)
def test_a_killed_worker_leaves_the_same_certified_optimum_of_a_kernel(method: str) -> None:
    with SerialExecutor(blocks=7) as executor:
        expected = run_kernel(executor)
    with open_cluster(ClusterConfig(workers=2)) as client:
        client.wait_for_workers(2, timeout=240)
        kill = KillOnce(client, at_round=2)
        with DaskExecutor(client, blocks=7) as executor:
            result = run_kernel(executor, method, callbacks=(kill,))
            assert executor.epoch > 1
    assert kill.killed is not None
    assert result.status is Status.SOLVED
    assert result.dual <= expected.primal <= result.primal * (1 + 1e-6)


RISK_TOL = 1e-4


def run_risk(executor: Executor) -> SolveResult:
    lam = 1.0 / (0.05 * N)
    return solve(X, Y, TopKHinge(2), lam, tol=RISK_TOL, executor=executor, risk=AverageTopK(40.5), m=M)


def test_an_average_top_k_risk_ends_at_the_same_objective_of_any_blocks(threads: Client) -> None:
    """Bit for bit what the same blocks give in one process; other blocks within the tolerance of the gap."""
    results = []
    for blocks in (1, 2, 7):
        with DaskExecutor(threads, blocks=blocks) as executor:
            results.append(run_risk(executor))
        serial = run_risk(SerialExecutor(blocks=blocks))
        assert np.array_equal(results[-1].W, serial.W)
        assert (results[-1].primal, results[-1].dual) == (serial.primal, serial.dual)
    for result in results:
        assert result.status is Status.SOLVED
        assert result.primal == pytest.approx(results[0].primal, rel=RISK_TOL)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.sampled(2)
def test_rows_that_a_risk_chose_are_read_again(threads: Client, tmp_path: Path, sparse: bool) -> None:
    """Whatever of them is held in memory; the rows that were chosen are read again from the store.

    After a few rounds: they are multiplied in tiles of other sizes, whose rounding many rounds may amplify.
    """
    rows = TrainingRows(small_dataset(tmp_path, n=400, d=D, m=M, sparse=sparse))
    lam, options = 1.0 / (0.05 * len(rows)), {"max_passes": 6, "tol": 1e-9, "risk": AverageTopK(40.5), "m": M}
    in_memory = rows[0 : len(rows)]
    in_memory = in_memory if sparse else np.array(in_memory)
    serial = SerialExecutor(bounds=rows.block_bounds())
    expected = solve(in_memory, rows.labels(), TopKHinge(2), lam, executor=serial, **options)
    for budget in (0, 5_000, 1 << 30):
        with DaskExecutor(threads, memory=MemoryPlan(None, budget, None)) as executor:
            result = solve(rows, rows.labels(), TopKHinge(2), lam, executor=executor, **options)
        np.testing.assert_allclose(result.W, expected.W, rtol=1e-7, atol=1e-9)


class KillsBetween(DaskExecutor):
    """Kills a worker after the rows of a round were chosen, before their vertices are found."""

    def __init__(self, client: Client, **options: Any) -> None:
        super().__init__(client, **options)
        self.pids = dict(client.run(os.getpid))
        self.choices = 0

    def run(self, request: Any) -> Any:
        self.choices += isinstance(request, FindSelectedVertices)
        if self.choices == 5 and self.pids:
            os.kill(self.pids[min(self.pids)], signal.SIGKILL)
            self.pids = {}
        return super().run(request)


@pytest.mark.slow
@pytest.mark.cluster
def test_a_worker_killed_between_the_choice_and_its_vertices_changes_nothing() -> None:
    expected = run_risk(SerialExecutor(blocks=7))
    assert len(expected.history) > 6
    with open_cluster(ClusterConfig(workers=2)) as client, KillsBetween(client, blocks=7) as executor:
        result = run_risk(executor)
        assert executor.epoch > 1
    assert np.array_equal(result.W, expected.W)
    assert (result.primal, result.dual) == (expected.primal, expected.dual)
