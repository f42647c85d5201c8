"""What the end of a cell costs, and how exact what it says is."""

from __future__ import annotations

import numpy as np
import pytest

from topline import SerialExecutor, Softmax, TopKHinge
from topline.pipeline.options import TrainConfig
from topline.pipeline.sweep.cells import COARSE, ROUNDED, CellRows, advance_cell, reached
from topline.solvers.core.held_out import HitCount
from topline.solvers.core.problem import Problem
from topline.solvers.operations import Ascend, Evaluate, Rebuild

N, D, M = 400, 12, 4


class Rows(CellRows):
    """Rows without any that are held out, which note what they are asked."""

    def __init__(self, executor):
        super().__init__(executor)
        self.asked, self.radii = [], []

    def run(self, request):
        self.asked.append(request)
        return super().run(request)

    def start_from(self, before, problem):
        raise NotImplementedError

    def go_on(self, known, problem):
        raise NotImplementedError

    def count(self, W, radius):
        self.radii.append(radius)
        return HitCount(1, 0, 0, 0)


@pytest.mark.parametrize(("goal", "tol", "certified"), [(0.01, 1e-3, False), (2e-3, 2e-3, True)])
def test_float64_is_for_the_tolerance_and_rounding_is_part_of_a_coarser_gap(goal, tol, certified) -> None:
    random = np.random.default_rng(0)
    y = (np.arange(N) % M).astype(np.int32)
    X = (random.standard_normal((M, D))[y] + random.standard_normal((N, D))).astype(np.float32)
    problem = Problem(TopKHinge(2), N, D, M, 1.0 / N)
    config = TrainConfig(store="memory", C=1.0, method="dual_ascent", tol=tol)
    with SerialExecutor(threads=1) as executor:
        executor.bind(problem, X, y, keep_duals=True)
        rows = Rows(executor)
        run, outcome = advance_cell(rows, problem, config, (1.0, goal, 0), None, None, 1.0)
    exact = [one for one in rows.asked if isinstance(one, Rebuild)]
    exact += [one for one in rows.asked if isinstance(one, Evaluate) and one.exact]
    assert bool(exact) is certified
    share = 0.0 if certified else ROUNDED
    assert COARSE <= outcome.relative_gap <= goal
    assert outcome.relative_gap == run.final.relative_gap + share
    assert outcome.gap == run.final.gap + share * abs(run.final.primal)
    assert rows.radii[0] == pytest.approx(np.sqrt(outcome.gap / problem.lam))


class Copied(Rows):
    """Rows whose dual variables are those of a smaller C."""

    def start_from(self, before, problem):
        return before.best_multiple(problem)[1]


@pytest.mark.parametrize(
    ("loss", "times", "measured"), [(Softmax(), 2.0, 0), (Softmax(), 1.1, 1), (TopKHinge(2), 2.0, 1)]
)
def test_an_entropy_that_starts_from_a_much_smaller_C_is_not_measured_there(loss, times, measured) -> None:
    """One sweep leaves it far behind; a hinge may start within the gap already."""
    random = np.random.default_rng(0)
    y = (np.arange(N) % M).astype(np.int32)
    X = (random.standard_normal((M, D))[y] + random.standard_normal((N, D))).astype(np.float32)
    config = TrainConfig(store="memory", C=1.0, method="dual_ascent", max_passes=4)
    first, zero = Problem(loss, N, D, M, 100.0 / N), np.log(M)
    with SerialExecutor(threads=1) as executor:
        executor.bind(first, X, y, keep_duals=True)
        run, _ = advance_cell(Rows(executor), first, config, (0.01, 0.1, 0), None, None, zero)
        rows, C = Copied(executor), 0.01 * times
        then = Problem(loss, N, D, M, 1.0 / (N * C))
        advance_cell(rows, then, config, (C, 1e-3, 0), None, reached(0.01, run, None), zero)
    kinds = [type(request) for request in rows.asked]
    assert kinds.index(Ascend) == measured
