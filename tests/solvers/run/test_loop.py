"""What the loop records of a run, whatever the method."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from tests.reference import losses as reference
from tests.solvers.problems import M, examples
from topline import Softmax, Status, TopKHinge, solve
from topline.solvers.methods import METHODS

X, Y = examples()
LAM = 0.02


@pytest.mark.parametrize(
    ("method", "loss", "smoothing"),
    [
        *((name, TopKHinge(2), 0.0) for name in METHODS if name != "lbfgs"),
        *((name, TopKHinge(2), 0.5) for name in METHODS),
        *((name, Softmax(), 0.0) for name in METHODS if "columns" not in name),
    ],
    ids=str,
)
def test_the_primal_of_a_round_is_the_least_so_far(method, loss, smoothing) -> None:
    """Scores that are lifted by gamma A bound the envelope from above, as three methods measure it."""
    W = [np.zeros((X.shape[1], M))]
    seen = [lambda _, state: W.append(state.W.copy())]
    result = solve(X, Y, loss, LAM, smoothing, method, tol=1e-9, max_passes=12, m=M, callbacks=seen)
    measured = W[: len(result.history)]
    true = [reference.primal(X, Y, loss, LAM, smoothing, each) for each in measured]
    expected, found = np.minimum.accumulate(true), np.array([record.primal for record in result.history])
    if smoothing > 0.0 and METHODS[method].smooths_through_duals:
        assert (found >= expected * (1.0 - 1e-12)).all()
    else:
        np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.parametrize("loss", [TopKHinge(2), Softmax()], ids=lambda loss: loss.name)
@pytest.mark.parametrize("method", ["fw", "fw_open_loop", "projected_gradient"])
def test_without_duals_the_bounds_are_the_best_so_far(method, loss) -> None:
    """Steps fixed beforehand find worse points in between, and the run returns the best one."""
    result = solve(X, Y, loss, LAM, method=method, tol=1e-7, max_passes=25, m=M)
    assert result.status is Status.MAX_PASSES
    assert len(result.history) == 25
    for before, after in pairwise(result.history):
        assert after.primal <= before.primal
        assert after.dual >= before.dual
