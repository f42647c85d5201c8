"""What the end of a cell costs, and how exact what it says is."""

from __future__ import annotations

import numpy as np
import pytest

from tests.solvers.problems import Requests
from topline import Softmax, TopKHinge
from topline.pipeline.options import TrainConfig
from topline.pipeline.sweep.cells import COARSE, ROUNDED, Path, advance_cell
from topline.solvers.core.held_out import HitCount
from topline.solvers.core.problem import Problem
from topline.solvers.operations import Ascend, Evaluate, Rebuild

N, D, M = 400, 12, 4


class Rows:
    """Rows without any that are held out, which note what they are asked; A begins as that of any cell."""

    def __init__(self, executor):
        self.executor, self.radii = executor, []

    def start_from(self, before, problem):
        return before.best_multiple(problem)[1]

    def go_on(self, known, problem):
        raise NotImplementedError

    def count(self, W, radius):
        self.radii.append(radius)
        return HitCount(1, 0, 0, 0)

    def duals(self, state):
        """Return nothing: `start_from` takes what the executor has."""


@pytest.mark.parametrize(("goal", "tol", "certified"), [(0.01, 1e-3, False), (2e-3, 2e-3, True)])
def test_float64_is_for_the_tolerance_and_rounding_is_part_of_a_coarser_gap(goal, tol, certified) -> None:
    random = np.random.default_rng(0)
    y = (np.arange(N) % M).astype(np.int32)
    X = (random.standard_normal((M, D))[y] + random.standard_normal((N, D))).astype(np.float32)
    problem = Problem(TopKHinge(2), N, D, M, 1.0 / N)
    config = TrainConfig(store="memory", C=1.0, method="dual_ascent", tol=tol)
    with Requests() as executor:
        executor.bind(problem, X, y, keep_duals=True)
        rows, path = Rows(executor), Path()
        outcome = advance_cell(rows, path, problem, config, (1.0, goal, 0), 1.0)
    exact = [one for one in executor.seen if isinstance(one, Rebuild)]
    exact += [one for one in executor.seen if isinstance(one, Evaluate) and one.exact]
    assert bool(exact) is certified
    share = 0.0 if certified else ROUNDED
    assert COARSE <= outcome.relative_gap <= goal
    reached = path.cells[1.0]
    assert outcome.gap == reached.primal - reached.dual + share * abs(reached.primal)
    assert rows.radii[0] == pytest.approx(np.sqrt(outcome.gap / problem.lam))


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
    with Requests() as executor:
        executor.bind(first, X, y, keep_duals=True)
        rows, path = Rows(executor), Path()
        advance_cell(rows, path, first, config, (0.01, 0.1, 0), zero)
        C = 0.01 * times
        executor.seen.clear()
        advance_cell(rows, path, Problem(loss, N, D, M, 1.0 / (N * C)), config, (C, 1e-3, 0), zero)
    kinds = [type(request) for request in executor.seen]
    assert kinds.index(Ascend) == measured
