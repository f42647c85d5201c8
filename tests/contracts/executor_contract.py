"""What every executor must do; a test class inherits this and provides the fixture `executor`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields

import numpy as np
import pytest

from tests.solvers.problems import M, examples
from topline import AverageTopK, SerialExecutor, TopKHinge, solve
from topline.solvers.core.dual_points import PendingStep
from topline.solvers.core.problem import LargestLosses, Problem
from topline.solvers.errors import StateLostError
from topline.solvers.executors import Executor
from topline.solvers.operations import (
    Evaluate,
    FindLargestLosses,
    FindSelectedVertices,
    FindVertices,
    Rebuild,
    SumMoments,
)

BOUNDS = (0, 1, 17, 40, 41, 75)


class ExecutorContract:
    """Inherit it and define a fixture `executor`, cut at the rows BOUNDS."""

    @pytest.fixture
    def executor(self) -> Iterator[Executor]:
        raise NotImplementedError

    @pytest.fixture
    def serial(self) -> Iterator[Executor]:
        with SerialExecutor(bounds=BOUNDS) as executor:
            yield executor

    def data(self, dtype=np.float32):
        X, y = examples(n=BOUNDS[-1])
        return X.astype(dtype), y.astype(np.int32)

    def problem(self, smoothing=0.5):
        X, _ = self.data()
        return Problem(TopKHinge(2), *X.shape, M, 0.05, smoothing)

    def bound(self, executor: Executor, *, smoothing=0.5, keep_duals=True) -> Executor:
        executor.bind(self.problem(smoothing), *self.data(), keep_duals=keep_duals)
        return executor

    def weights(self, seed=0):
        return np.random.default_rng(seed).standard_normal((self.problem().d, M))

    def requests(self):
        """Two rounds, a measurement, a rebuild, and what changes nothing."""
        first, second = PendingStep(0, 1.0), PendingStep(1, 0.25, 0.5)
        return [
            FindVertices(0, self.weights(0)),
            FindVertices(1, self.weights(1), first),
            Evaluate(self.weights(2), second),
            Rebuild(second),
            SumMoments(3),
        ]

    def assert_same(self, left, right) -> None:
        """Bitwise, for both add along the same tree; only times differ."""
        assert type(left) is type(right)
        for name in (part.name for part in fields(left) if not part.name.startswith("seconds")):
            one, other = getattr(left, name), getattr(right, name)
            if isinstance(one, np.ndarray):
                np.testing.assert_array_equal(one, other)
            elif not isinstance(one, LargestLosses):
                assert one == other, name

    def all_duals(self, executor: Executor, pending_step=None):
        parts = [(start, stop, rows.copy()) for start, stop, rows in executor.duals(pending_step)]
        assert [start for start, _, _ in parts] == [0, *[stop for _, stop, _ in parts[:-1]]]
        return np.concatenate([rows for _, _, rows in parts])

    def test_traffic_says_who_worked(self, executor: Executor) -> None:
        before = self.bound(executor).traffic()
        for request in self.requests():
            executor.run(request)
        moved = executor.traffic().since(before)
        assert sum(worker.rows for worker in moved.workers) == BOUNDS[-1]
        assert len({worker.name for worker in moved.workers}) == len(moved.workers)
        assert all(worker.seconds_busy > 0.0 for worker in moved.workers if worker.rows)
        assert sum(worker.memory_bytes for worker in moved.workers) < moved.memory_bytes < 100 << 30

    def test_it_is_an_executor(self, executor: Executor) -> None:
        assert isinstance(executor, Executor)
        assert executor.workers >= 1

    def test_sums_are_bitwise_those_of_one_process(self, executor: Executor, serial: Executor) -> None:
        self.bound(executor)
        self.bound(serial)
        for request in self.requests():
            self.assert_same(executor.run(request), serial.run(request))
        np.testing.assert_array_equal(self.all_duals(executor), self.all_duals(serial))

    def test_weights_reach_every_block(self, executor: Executor, serial: Executor) -> None:
        """Sums and duals are bitwise those of one process, and not those without weights."""
        weights = np.random.default_rng(9).uniform(0.0, 3.0, BOUNDS[-1])
        weights[20:25] = 0.0
        for each in (executor, serial):
            each.bind(self.problem(), *self.data(), keep_duals=True, weights=weights)
        answers = []
        for request in self.requests():
            answers.append(executor.run(request))
            self.assert_same(answers[-1], serial.run(request))
        duals = self.all_duals(executor)
        np.testing.assert_array_equal(duals, self.all_duals(serial))
        assert not duals[20:25].any()
        self.bound(serial)
        assert serial.run(self.requests()[0]).loss != answers[0].loss

    def test_an_order_that_comes_twice_changes_nothing(self, executor: Executor, serial: Executor) -> None:
        self.bound(executor)
        self.bound(serial)
        for request in self.requests():
            expected = serial.run(request)
            executor.run(request)
            self.assert_same(executor.run(request), expected)

    def test_duals_come_with_the_last_step(self, executor: Executor) -> None:
        """A after the commits is rebuilt into the same sums, and applying the commit again does nothing."""
        self.bound(executor)
        for request in self.requests()[:2]:
            executor.run(request)
        pending_step = PendingStep(1, 0.25, 0.5)
        A = self.all_duals(executor, pending_step)
        np.testing.assert_array_equal(self.all_duals(executor, pending_step), A)
        assert A.dtype == np.float32
        X, _ = self.data()
        stats = executor.run(Rebuild(pending_step))
        np.testing.assert_allclose(stats.product, X.astype(np.float64).T @ A, rtol=1e-12, atol=1e-12)

    def test_loaded_duals_are_used(self, executor: Executor) -> None:
        self.bound(executor)
        A = np.random.default_rng(4).standard_normal((BOUNDS[-1], M)).astype(np.float32)
        executor.load_duals([(0, 20, A[:20]), (20, 75, A[20:])])
        np.testing.assert_array_equal(self.all_duals(executor), A)
        assert executor.run(Rebuild()).alpha_sq == pytest.approx(np.sum(A.astype(np.float64) ** 2))

    def test_duals_with_a_hole_are_refused(self, executor: Executor) -> None:
        self.bound(executor)
        A = np.zeros((BOUNDS[-1], M), dtype=np.float32)
        with pytest.raises(StateLostError, match="row 10"):
            executor.load_duals([(0, 10, A[:10]), (11, 75, A[11:])])
        with pytest.raises(StateLostError, match="row 10"):
            executor.load_duals([(0, 10, A[:10])])

    def test_a_commit_of_an_unseen_round_is_refused(self, executor: Executor) -> None:
        self.bound(executor)
        executor.run(FindVertices(0, self.weights()))
        with pytest.raises(StateLostError, match="round 7"):
            executor.run(FindVertices(8, self.weights(), PendingStep(7, 0.5)))

    def test_binding_again_starts_from_zero(self, executor: Executor) -> None:
        self.bound(executor)
        for request in self.requests():
            executor.run(request)
        self.bound(executor)
        assert not self.all_duals(executor).any()

    @pytest.mark.parametrize("smoothing", [0.0, 0.5])
    def test_the_largest_losses_are_those_of_one_process(self, executor, serial, smoothing) -> None:
        """Their rows and values, and the vertices of these rows alone, bit for bit."""
        found, chosen = [], []
        for each in (executor, serial):
            self.bound(each, smoothing=smoothing, keep_duals=False)
            found.append(each.run(FindLargestLosses(self.weights(), 13)))
            rows = AverageTopK(12.5).selected(found[-1].largest, BOUNDS[-1])
            chosen.append(each.run(FindSelectedVertices(self.weights(), rows)))
        np.testing.assert_array_equal(found[0].largest.rows, found[1].largest.rows)
        np.testing.assert_array_equal(found[0].largest.losses, found[1].largest.losses)
        self.assert_same(*found)
        self.assert_same(*chosen)
        assert (len(found[0].largest.rows), chosen[0].rows) == (13, 13)

    @pytest.mark.parametrize("weighted", [False, True])
    @pytest.mark.parametrize("smoothing", [0.0, 0.5])
    def test_a_run_is_bitwise_that_of_one_process(self, executor, serial, smoothing, weighted) -> None:
        X, y = self.data()
        weights = np.random.default_rng(9).uniform(0.5, 2.0, len(y)) if weighted else None
        options = {"method": "fw", "tol": 1e-9, "max_passes": 15, "m": M, "sample_weight": weights}
        results = [
            solve(X, y, TopKHinge(2), 0.05, smoothing, executor=e, **options) for e in (executor, serial)
        ]
        np.testing.assert_array_equal(results[0].W, results[1].W)
        assert results[0].primal == results[1].primal
        assert results[0].dual == results[1].dual
