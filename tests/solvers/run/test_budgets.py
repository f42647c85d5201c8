"""Budgets of passes and time hold inside a round, and what cannot be meant is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.sparse import csc_matrix, csr_matrix

from tests.solvers.problems import M, examples
from topline import InvalidProblemError, SerialExecutor, Softmax, Status, TopKHinge, solve
from topline.solvers.core.problem import Problem
from topline.solvers.core.state import SolverState, StoppingCriteria
from topline.solvers.methods import METHODS
from topline.solvers.methods.dual_ascent import DualAscent
from topline.solvers.run import Ends, Start, iterate


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


class Hopeful(DualAscent):
    """Takes every round for the last, which the certificate then denies."""

    def advance(self, *arguments):
        return replace(super().advance(*arguments), claims=True)


def test_a_time_limit_does_not_count_the_seconds_of_earlier_runs() -> None:
    """No second of this run has passed when a round turns out not to have been the last."""
    X, y = examples(n=200)
    problem = Problem(TopKHinge(2), *X.shape, M, 1e-3)
    earlier = replace(SolverState.start(problem), seconds=1000.0)
    with SerialExecutor() as executor:
        executor.bind(problem, X, y, keep_duals=True)
        criteria = StoppingCriteria(tol=1e-3, time_limit=100.0)
        run = iterate(
            problem, executor, Hopeful(), criteria, Ends(duals_kept=True), Start(earlier), clock=lambda: 0.0
        )
    assert run.status is Status.SOLVED
    assert len(run.history) > 1
    assert run.state.seconds == 1000.0


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


def test_C_stands_for_lam_and_one_of_them_is_given() -> None:
    X, y = np.random.default_rng(0).normal(size=(60, 5)), np.arange(60) % 3
    by_C, by_lam = (solve(X, y, TopKHinge(1), **given) for given in ({"C": 2.0}, {"lam": 1.0 / 120.0}))
    assert by_C.primal == by_lam.primal
    for given in ({}, {"C": 1.0, "lam": 0.1}):
        with pytest.raises(InvalidProblemError, match="give one of them"):
            solve(X, y, TopKHinge(1), **given)


def test_a_loss_may_be_named_and_a_matrix_lie_by_columns() -> None:
    X, y = np.random.default_rng(0).normal(size=(60, 5)), np.arange(60) % 3
    by_columns, by_rows = csc_matrix(X), csr_matrix(X)
    assert solve(by_columns, y, "softmax", C=1.0).primal == solve(by_rows, y, Softmax(), C=1.0).primal
    with pytest.raises(InvalidProblemError, match="topk_hinge needs k"):
        solve(X, y, "topk_hinge", C=1.0)
