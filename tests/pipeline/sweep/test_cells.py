"""What the end of a cell costs, and how exact what it says is."""

from __future__ import annotations

import numpy as np
import pytest

from topline import Problem, SerialExecutor, TopKHinge
from topline.pipeline.options import TrainConfig
from topline.pipeline.sweep.cells import COARSE, ROUNDED, CellRows, advance_cell
from topline.solvers.core.held_out import HitCount
from topline.solvers.core.requests import EvaluateRequest, RebuildRequest

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
    exact = [one for one in rows.asked if isinstance(one, RebuildRequest)]
    exact += [one for one in rows.asked if isinstance(one, EvaluateRequest) and one.exact]
    assert bool(exact) is certified
    share = 0.0 if certified else ROUNDED
    assert COARSE <= outcome.relative_gap <= goal
    assert outcome.relative_gap == run.final.relative_gap + share
    assert outcome.gap == run.final.gap + share * abs(run.final.primal)
    assert rows.radii[0] == pytest.approx(np.sqrt(outcome.gap / problem.lam))
