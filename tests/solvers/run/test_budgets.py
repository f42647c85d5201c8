"""Budgets of passes and time hold inside a round, and what cannot be meant is refused."""

from __future__ import annotations

import numpy as np
import pytest

from tests.solvers.problems import M, examples
from topline import InvalidProblemError, SerialExecutor, Softmax, Status, TopKHinge, solve
from topline.solvers.methods import METHODS


@pytest.mark.parametrize("method", [name for name in METHODS if name != "lbfgs"])
@pytest.mark.parametrize("passes", [1, 2, 5, 11])
@pytest.mark.covering(1)
def test_no_run_exceeds_its_passes(method, passes) -> None:
    X, y = examples(n=40)
    result = solve(X, y, TopKHinge(2), 1e-4, method=method, tol=1e-12, max_passes=passes, m=M)
    assert result.status is Status.MAX_PASSES
    assert result.passes <= passes


@pytest.mark.parametrize("blocks", [1, 3])
def test_a_budget_is_used_up_by_sweeps_that_are_cut_off(blocks) -> None:
    X, y = examples(n=200)
    with SerialExecutor(blocks=blocks) as executor:
        ends = [
            solve(
                X, y, TopKHinge(2), 1e-5, method="dual_ascent", tol=1e-12, max_passes=passes, m=M,
                executor=executor,
            ).passes
            for passes in range(2, 40)
        ]  # fmt: skip
    assert ends == sorted(ends)
    assert all(passes - 1 <= end <= passes for passes, end in zip(range(2, 40), ends, strict=True))


def test_a_look_at_the_gap_of_rows_stays_within_the_passes() -> None:
    X, y = examples(n=40)
    wanted = [(passes, tol) for passes in range(1, 12) for tol in (1e-3, 1e-6, 1e-10)]
    ends = [
        solve(X, y, Softmax(), 0.1, method="dual_ascent", tol=tol, max_passes=passes, m=M).passes
        for passes, tol in wanted
    ]
    assert all(end <= passes for end, (passes, _) in zip(ends, wanted, strict=True))


def test_a_time_limit_ends_sweeps_before_all_rows_were_visited() -> None:
    X, y = examples(n=9000)
    limit = 1e-6  # over before the first row
    result = solve(X, y, TopKHinge(2), 1e-5, tol=1e-12, time_limit=limit, m=M)
    assert result.status is Status.TIME_LIMIT
    assert result.passes == 1


def test_labels_that_leave_classes_out_are_asked_about() -> None:
    X, y = examples(n=30)
    with pytest.raises(InvalidProblemError, match=r"largest label is 1000004, but class 0 and .* m=1000005"):
        solve(X, y + 10**6, TopKHinge(2), 0.1)
    with pytest.raises(InvalidProblemError, match="class 1 and 3 more below it have no example"):
        solve(X, np.where(y == 0, 0, 5), TopKHinge(2), 0.1)
    assert solve(X, np.where(y == 0, 0, 5), TopKHinge(2), 0.1, m=6).W.shape == (4, 6)


def test_a_tolerance_that_float64_does_not_resolve_is_refused() -> None:
    X, y = examples(n=30)
    with pytest.raises(InvalidProblemError, match=r"tol is 1e-15, .*at least 1e-14"):
        solve(X, y, Softmax(), 0.1, tol=1e-15)
