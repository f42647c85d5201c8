"""What the loop records of a run, whatever the method."""

from __future__ import annotations

from itertools import pairwise

import pytest

from tests.solvers.problems import M, examples
from topline import Softmax, Status, TopKHinge, solve


@pytest.mark.parametrize("loss", [TopKHinge(2), Softmax()], ids=lambda loss: loss.name)
@pytest.mark.parametrize("method", ["fw", "fw_open_loop", "projected_gradient"])
def test_without_duals_the_bounds_are_the_best_so_far(method, loss) -> None:
    """Steps fixed beforehand find worse points in between, and the run returns the best one."""
    X, y = examples()
    result = solve(X, y, loss, 0.02, method=method, tol=1e-7, max_passes=25, m=M)
    assert result.status is Status.MAX_PASSES
    assert len(result.history) == 25
    for before, after in pairwise(result.history):
        assert after.primal <= before.primal
        assert after.dual >= before.dual
