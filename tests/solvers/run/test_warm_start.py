"""Dual variables from elsewhere: whatever they are, what is certified from them holds."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.preprocessing import normalize

from tests.solvers.problems import Requests, examples
from topline import (
    InvalidProblemError,
    MaxHinge,
    OneVsAll,
    RBFKernel,
    SerialExecutor,
    Softmax,
    Status,
    TopKEntropy,
    TopKHinge,
    TopKOthersHinge,
    UsunierHinge,
    solve,
)
from topline.solvers.core.state import SolverState
from topline.solvers.operations import PutInside, Rebuild

N, LAM = 60, 0.05
X, Y = examples(n=N, d=8, spread=1.5)
LOSSES = [
    MaxHinge(), TopKHinge(2), UsunierHinge(2), TopKOthersHinge(2), Softmax(), TopKEntropy(2),
    OneVsAll("hinge"), OneVsAll("logistic"),
]  # fmt: skip


def distortions(A):
    """Give A as it is not: too long, noisy, with the wrong sign, of other examples."""
    noise = np.random.default_rng(0).normal(size=A.shape)
    return {
        "longer": 1.05 * A,
        "much longer": 30.0 * A,
        "noisy": A + 0.03 * noise,
        "noise": noise,
        "turned": -A,
        "of other rows": A[::-1],
        "float32": (A + 0.03 * noise).astype(np.float32),
    }


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.name)
@pytest.mark.parametrize("method", ["auto", "dual_ascent", "fw"])
@pytest.mark.sampled(6)
def test_rows_outside_their_domain_claim_no_dual_value_beyond_the_optimum(loss, method) -> None:
    """The dual bounds every primal value from below, the optimal one of a run from zero too."""
    best = solve(X, Y, loss, LAM, tol=1e-6, max_passes=20_000, keep_duals=True)
    for name, A in distortions(best.A).items():
        result = solve(
            X, Y, loss, LAM, method=method, keep_duals=True, tol=3e-2, max_passes=2000, duals=[(0, N, A)],
            executor=SerialExecutor(blocks=3),
        )  # fmt: skip
        assert result.status is Status.SOLVED, name
        for record in result.history:
            assert record.dual <= best.primal * (1 + 1e-5), name
        assert result.dual <= best.primal * (1 + 1e-9), name


def test_duals_of_other_weights_start_a_run() -> None:
    weights = np.random.default_rng(1).uniform(0.2, 3.0, N)
    weighted = solve(X, Y, TopKHinge(2), LAM, tol=1e-4, max_passes=5000, sample_weight=weights)
    best = solve(X, Y, TopKHinge(2), LAM, tol=1e-6, max_passes=20_000)
    result = solve(X, Y, TopKHinge(2), LAM, tol=1e-4, max_passes=5000, duals=[(0, N, weighted.A)])
    assert result.status is Status.SOLVED
    assert result.primal == pytest.approx(best.primal, rel=2e-4)
    assert result.dual <= best.primal * (1 + 1e-9)


@pytest.mark.parametrize("d", [8, 140], ids=["newton", "lbfgs"])
def test_a_smooth_loss_goes_on_from_duals_by_the_method_that_it_takes_anyway(d) -> None:
    X, y = examples(n=N, d=d, spread=1.5)
    far = solve(X, y, Softmax(), LAM, tol=1e-8, keep_duals=True)
    near = solve(X, y, Softmax(), 0.9 * LAM, tol=1e-8, duals=[(0, N, far.A)])
    cold = solve(X, y, Softmax(), 0.9 * LAM, tol=1e-8)
    assert near.method == cold.method == far.method
    assert near.history[0].gap < 0.2 * cold.history[0].gap
    assert near.primal == pytest.approx(cold.primal, rel=1e-7)
    assert near.A is not None


@pytest.mark.parametrize(
    ("duals", "message"),
    [
        (np.zeros((N, 5)), r"give \[\(0, n, result.A\)\]"),
        ([(0, N, "A")], r"give \[\(0, n, result.A\)\]"),
        ([(0, N, np.full((N, 5), np.nan))], f"rows 0:{N} hold NaN"),
    ],
    ids=["an array", "words", "NaN"],
)
@pytest.mark.parametrize(
    "options", [{}, {"kernel": RBFKernel(0.1), "method": "fw_away"}], ids=["linear", "kernel"]
)
def test_what_are_no_duals_is_refused(duals, message, options) -> None:
    with pytest.raises(InvalidProblemError, match=message):
        solve(X, Y, MaxHinge(), LAM, duals=duals, **options)


def test_duals_of_nearly_the_same_rows_are_gone_on_from_in_fewer_passes() -> None:
    """Four of 400 rows are left out: the same optimum within the gap, two rounds are not measured."""
    rows, y = load_digits(return_X_y=True)
    rows, y = normalize(rows[:400]), y[:400]
    kept = np.sort(np.random.default_rng(0).permutation(400)[4:])
    passes = {False: 0, True: 0}
    for C in (1.0, 10.0):
        before = solve(rows, y, MaxHinge(), 1.0 / (400 * C), tol=1e-4, keep_duals=True)
        found = {
            near: solve(
                rows[kept], y[kept], MaxHinge(), 1.0 / (396 * C), tol=1e-4,
                duals=[(0, 396, before.A[kept])], duals_near=near,
            )
            for near in passes
        }  # fmt: skip
        assert found[True].dual <= found[False].primal
        assert found[False].dual <= found[True].primal
        for near, result in found.items():
            assert result.status is Status.SOLVED
            passes[near] += result.passes
        # The first round is not measured; where its gap is small enough the certificate follows at once.
        at_zero = [record.primal for record in found[True].history[:3]]
        assert at_zero[0] == pytest.approx(1.0)
        assert at_zero[2] < 1.0
    assert passes[True] < 0.8 * passes[False]  # 55 of 72


@pytest.mark.parametrize("tol", [0.1, 1e-5])
def test_a_smooth_loss_moves_from_a_near_start_and_takes_few_passes(tol) -> None:
    """All of its rows move, so that none of them is gone over alone before the others."""
    before = solve(X, Y, Softmax(), LAM, method="dual_ascent", tol=1e-6)
    kept = np.arange(N) >= 2
    rest = partial(solve, X[kept], Y[kept], Softmax(), LAM * N / (N - 2), method="dual_ascent", tol=tol)
    anew, result = rest(), rest(duals=[(0, N - 2, before.A[kept])], duals_near=True)
    assert result.status is Status.SOLVED
    assert result.passes < anew.passes
    assert np.abs(result.A - before.A[kept]).max() > 1e-4
    assert result.dual <= anew.primal


def test_several_blocks_measure_every_round_of_a_near_start() -> None:
    before = solve(X, Y, MaxHinge(), LAM, tol=1e-4, keep_duals=True)
    kept = np.arange(N) >= 2
    A = [(0, N - 2, before.A[kept])]
    with SerialExecutor(blocks=3) as executor:
        result = solve(
            X[kept],
            Y[kept],
            MaxHinge(),
            LAM * N / (N - 2),
            tol=1e-4,
            duals=A,
            duals_near=True,
            executor=executor,
        )
    assert result.status is Status.SOLVED
    assert result.history[0].primal != pytest.approx(1.0)


@pytest.mark.parametrize("method", ["newton", "lbfgs"])
def test_weights_that_other_rows_made_are_no_answer_however_good_they_are(method) -> None:
    """Two of 60 rows are left out; with a tolerance of a tenth the weights of all of them would do."""
    kept, lam = np.arange(N) >= 2, LAM * N / (N - 2)
    before = solve(X, Y, Softmax(), LAM, method=method, tol=1e-6)
    start = SolverState.at(before.W)
    stays, leaves = (
        solve(X[kept], Y[kept], Softmax(), lam, method=method, tol=0.1, state=state)
        for state in (start, replace(start, left_behind=True))
    )
    exact = solve(X[kept], Y[kept], Softmax(), lam, method=method, tol=1e-6)
    assert np.array_equal(stays.W, before.W)
    assert leaves.status is Status.SOLVED
    assert leaves.primal < stays.primal
    assert np.linalg.norm(leaves.W - exact.W) < 0.7 * np.linalg.norm(before.W - exact.W)


def test_plain_passes_of_a_near_start_are_certified_once() -> None:
    """What they leave nobody has looked at: the rounds' own measurements say when the certificate follows."""
    rows, y = load_digits(return_X_y=True)
    rows, y = normalize(rows[:400]), y[:400]
    before = solve(rows, y, TopKHinge(2), 0.01, tol=1e-5, keep_duals=True)
    kept = np.arange(400) >= 4
    executor = Requests()
    result = solve(
        rows[kept], y[kept], TopKHinge(2), 0.01 * 400 / 396, method="sdca", tol=1e-5, max_passes=600,
        duals=[(0, 396, before.A[kept])], duals_near=True, executor=executor,
    )  # fmt: skip
    assert result.status is Status.SOLVED
    assert sum(isinstance(each, PutInside | Rebuild) for each in executor.seen) < 10
