"""A run that is taken to one gap after the other goes on where it stopped."""

from __future__ import annotations

import numpy as np
import pytest

from tests.reference import losses as reference
from tests.solvers.problems import M, examples
from topline import SerialExecutor, Softmax, TopKHinge
from topline.solvers.core.problem import Problem
from topline.solvers.core.state import StoppingCriteria
from topline.solvers.methods import method_named
from topline.solvers.run import Ends, Start, iterate

LAM, GAPS = 2e-4, (0.2, 0.05, 1e-3)


def stages(loss, gaps, certified):
    X, y = examples(n=300)
    problem = Problem(loss, *X.shape, M, LAM)
    method = method_named("dual_ascent").method_for(problem, 1, 0)
    runs, start = [], None
    with SerialExecutor() as executor:
        executor.bind(problem, X, y, keep_duals=True)
        for gap in gaps:
            ends = Ends(duals_kept=True, certified=certified)
            run = iterate(problem, executor, method, StoppingCriteria(tol=gap), ends, start)
            start = Start(run.state, run.measured)
            A = np.concatenate([rows for _, _, rows in executor.duals(run.state.pending_step)])
            runs.append((run, A))
    return X, y, runs


@pytest.mark.parametrize("loss", [TopKHinge(2), Softmax()], ids=lambda loss: loss.name)
def test_stages_take_about_the_passes_of_one_run_and_come_as_near_to_the_optimum(loss) -> None:
    """Not the same: a round ends where the gap that is asked for seems to be reached."""
    _, _, apart = stages(loss, GAPS, certified=False)
    _, _, whole = stages(loss, GAPS[-1:], certified=False)
    last, once = apart[-1][0], whole[-1][0]
    assert last.state.passes == pytest.approx(once.state.passes, rel=0.1)
    # Both lie within a gap of the optimum in P, and so in lam/2 |W - W*|^2.
    between = 0.5 * LAM * float(np.sum((last.final.W - once.final.W) ** 2))
    assert between <= 2.0 * (last.final.gap + once.final.gap)
    assert [run.state.passes for run, _ in apart] == sorted({run.state.passes for run, _ in apart})


@pytest.mark.parametrize("loss", [TopKHinge(2), Softmax()], ids=lambda loss: loss.name)
@pytest.mark.parametrize("certified", [False, True])
def test_the_values_of_a_stage_are_those_of_its_weights_and_dual_variables(loss, certified) -> None:
    """In float64; the rounds' products are in float32, whose rounding is far below a gap of 1e-3."""
    X, y, runs = stages(loss, GAPS, certified)
    for (run, A), gap in zip(runs, GAPS, strict=True):
        final = run.final
        assert run.certified is certified
        assert final.relative_gap <= gap
        rounding = 1e-9 if certified else 1e-5
        assert final.primal == pytest.approx(reference.primal(X, y, loss, LAM, 0.0, final.W), rel=rounding)
        assert final.dual == pytest.approx(reference.dual(X, y, loss, LAM, 0.0, A), rel=1e-5)
