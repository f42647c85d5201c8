"""Margins without a row, against classifiers that were trained without it, one for each row."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_matrix
from sklearn.datasets import load_iris, load_wine

from topline import (
    AverageTopK,
    InvalidProblemError,
    LabelSets,
    MaxHinge,
    OneVsAll,
    RBFKernel,
    Softmax,
    StructuredHinge,
    TopKEntropy,
    TopKHinge,
    TruncatedTopKEntropy,
    UnsupportedCombinationError,
    UsunierHinge,
    solve,
)
from topline.solvers.core.state import SolverState
from topline.solvers.inspection import (
    leave_one_out,
    leave_out_each,
    near_duplicates,
    nearest_neighbours,
    neighbours,
    second_opinion,
    trained_point,
    unit_rows,
)

#: The largest error of a margin that brute force at this relative gap can have here, from sqrt(2) |x| sqrt(2
#: gap / lam) with |x| <= 2, C <= 3 and P <= 1 for n = 178.
GAP, ERROR = 1e-9, 4e-3


@cache
def three_sets() -> dict[str, tuple[Any, Any]]:
    """Give small sets with some wrong labels, with a constant feature."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(6, 5))
    made = centres.repeat(12, axis=0) + 0.8 * rng.normal(size=(72, 5)), np.arange(6).repeat(12)
    sets = {"iris": load_iris(return_X_y=True), "wine": load_wine(return_X_y=True), "made": made}
    found = {}
    for name, (X, y) in sets.items():
        X = np.hstack([(X - X.mean(axis=0)) / X.std(axis=0), np.ones((len(X), 1))]) / 3.0
        y = y.copy()
        wrong = rng.permutation(len(y))[: len(y) // 15]
        y[wrong] = (y[wrong] + 1) % (y.max() + 1)
        found[name] = X, y
    return found


def brute_force(X: Any, y: Any, k: int = 1, weights: Any = None, **problem: Any) -> Any:
    """Train once for each row without it: with n - 1 rows and the lam of the same C."""
    n, margins = len(y), np.empty(len(y))
    for row in range(n):
        others = np.arange(n) != row
        part = {**problem, "lam": problem["lam"] * n / (n - 1), "m": int(y.max()) + 1}
        given = None if weights is None else weights[others]
        W = solve(X[others], y[others], tol=GAP, max_passes=20_000, sample_weight=given, **part).W
        scores = X[row] @ W
        own, scores[y[row]] = scores[y[row]], -np.inf
        margins[row] = own - np.sort(scores)[-k]
    return margins


def agrees(found: Any, exact: Any) -> None:
    assert (found.low <= exact + ERROR).all()
    assert (exact - ERROR <= found.high).all()
    assert (found.low <= found.margins).all()
    assert (found.margins <= found.high).all()
    assert (exact[found.right] > -ERROR).all()
    assert (exact[found.wrong] < ERROR).all()


SLOW = pytest.mark.slow


@pytest.mark.parametrize("name", [pytest.param("iris", marks=SLOW), pytest.param("wine", marks=SLOW), "made"])
def test_every_row_of_three_sets_is_judged_as_brute_force_judges_it(name: str) -> None:
    X, y = three_sets()[name]
    problem: dict[str, Any] = {"loss": TopKHinge(2) if name == "made" else MaxHinge(), "lam": 1.0 / len(y)}
    exact = brute_force(X, y, **problem)
    result = solve(X, y, tol=1e-3, **problem)
    found = leave_one_out(X, y, result, max_passes=100_000)
    agrees(found, exact)
    assert not (found.open & (np.abs(exact) > ERROR)).any()
    least, most = found.error_bounds()
    assert least <= (exact < 0).mean() <= most
    agrees(leave_one_out(X, y, result), exact)
    agrees(leave_one_out(X, y, result, max_passes=0), exact)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("loss", "options"),
    [
        (Softmax(), {}), (TopKEntropy(2), {}), (OneVsAll("hinge"), {}), (OneVsAll("logistic"), {}),
        (UsunierHinge(2), {}), (MaxHinge(), {"smoothing": 0.5}), (TopKHinge(2), {"smoothing": 1.0}),
        (TopKHinge(2), {"smoothing": 1.0, "smoothing_kind": "others"}),
        (StructuredHinge(1.0 - np.eye(6) + np.eye(6, k=1)), {}), (MaxHinge(), {"method": "newton"}),
    ],
    ids=lambda value: "-".join(map(str, value.values())) if isinstance(value, dict) else value.name,
)  # fmt: skip
def test_so_is_every_row_under_every_loss(loss: Any, options: dict[str, Any]) -> None:
    X, y = three_sets()["made"]
    problem = {"loss": loss, "lam": 1.0 / (3.0 * len(y)), **options}
    exact = brute_force(X, y, **{**problem, "method": "auto"})
    result = solve(X, y, tol=1e-3, **problem)
    found = leave_one_out(X, y, result, max_passes=100_000)
    agrees(found, exact)
    assert not (found.open & (np.abs(exact) > ERROR)).any()


@pytest.mark.parametrize("loss", [MaxHinge(), Softmax()], ids=["hinge", "softmax"])
def test_held_out_folds_estimate_what_brute_force_finds_where_training_margins_are_too_large(
    loss: Any,
) -> None:
    X, y = three_sets()["made"]
    problem: dict[str, Any] = {"loss": loss, "lam": 1.0 / (10.0 * len(y))}
    exact = brute_force(X, y, **problem)
    result = solve(X, y, tol=1e-3, keep_duals=True, **problem)
    plain, found = (leave_one_out(X, y, result, max_passes=0, folds=folds) for folds in (0, 24))
    agrees(found, exact)
    assert np.abs(found.margins - exact).mean() < 0.7 * np.abs(plain.margins - exact).mean()
    assert (plain.error, found.folds) == (None, 24)
    assert found.error is not None
    assert abs(found.error - (exact < 0.0).mean()) <= 3.0 / len(y)


def test_a_class_of_one_row_is_wrong_without_it() -> None:
    X, y = np.eye(4)[[0, 0, 0, 1, 1, 1, 2]], np.array([0, 0, 0, 1, 1, 1, 2])
    found = leave_one_out(X, y, solve(X, y, MaxHinge(), 0.1), max_passes=0, folds=3)
    assert found.margins[-1] <= 0.0


@pytest.mark.parametrize("loss", [TopKHinge(3), Softmax()], ids=["hinge", "softmax"])
def test_weights_sparse_rows_and_more_guesses_count(loss: Any) -> None:
    X, y = three_sets()["made"]
    X, y = X[::3], y[::3]
    weights = np.random.default_rng(1).uniform(0.0, 2.0, len(y))
    weights[3] = 0.0
    exact = brute_force(X, y, k=2, weights=weights, loss=loss, lam=1.0 / len(y))
    result = solve(X, y, loss, 1.0 / len(y), sample_weight=weights)
    for rows in (X, csr_matrix(X)):
        found = leave_one_out(rows, y, result, sample_weight=weights, k=2, max_passes=20_000)
        agrees(found, exact)
        assert found.open.sum() <= 1


def test_a_row_without_a_dual_variable_is_judged_by_the_classifier_itself() -> None:
    X, y = three_sets()["iris"]
    result = solve(X, y, MaxHinge(), 1.0 / len(y), tol=1e-8, max_passes=20_000)
    found = leave_one_out(X, y, result, max_passes=0, folds=0)
    idle = ~np.asarray(result.A).any(axis=1)
    assert idle.sum() > 50
    scores = X @ result.W
    own = scores[np.arange(len(y)), y].copy()
    scores[np.arange(len(y)), y] = -np.inf
    np.testing.assert_allclose(found.margins[idle], (own - scores.max(axis=1))[idle], atol=1e-9)
    assert (found.high - found.low)[idle].max() < 0.01
    assert found.right[idle].all()
    assert found.passes == 0


def test_more_passes_prove_more_and_are_not_overdrawn_by_much() -> None:
    X, y = three_sets()["wine"]
    result = solve(X, y, MaxHinge(), 1.0 / len(y))
    told: list[int] = []
    founds = [
        leave_one_out(X, y, result, max_passes=passes, folds=0, watch=told.append) for passes in (0, 60, 2000)
    ]
    none, few, _ = (int(found.open.sum()) for found in founds)
    assert few <= none + 3  # a few passes move the point that bounds start from, for better or worse
    assert founds[-1].open.sum() == 0
    assert founds[1].passes <= 62
    founds.append(leave_one_out(X, y, result, max_passes=0, folds=5, watch=told.append))
    assert sum(told) == sum(found.passes for found in founds)
    assert founds[-1].passes > 0


def test_given_folds_are_held_out_whole() -> None:
    X, y = three_sets()["made"]
    problem: dict[str, Any] = {"loss": Softmax(), "lam": 1.0 / len(y)}
    result = solve(X, y, tol=1e-8, **problem)
    fold = np.random.default_rng(0).integers(3, size=len(y))
    point = trained_point(result.problem, X, y.astype(np.int32), result.W, None)
    found = leave_out_each(point, 1, 0, folds=3, fold=fold)
    for held in range(3):
        others = fold != held
        rows = np.flatnonzero(~others)
        W = solve(X[others], y[others], Softmax(), len(y) / others.sum() / len(y), tol=GAP, m=6).W
        scores = X[rows] @ W
        own = scores[np.arange(len(rows)), y[rows]]
        scores[np.arange(len(rows)), y[rows]] = -np.inf
        exact = np.clip(own - scores.max(axis=1), found.low[rows], found.high[rows])
        # The folds end at a relative gap of 1e-3.
        np.testing.assert_allclose(found.margins[rows], exact, atol=0.15)


def test_suspicion_finds_flipped_labels() -> None:
    X, y = load_wine(return_X_y=True)
    X = np.hstack([(X - X.mean(axis=0)) / X.std(axis=0), np.ones((len(X), 1))]) / 3.0
    flipped = np.random.default_rng(0).permutation(len(y))[:10]
    given = y.copy()
    given[flipped] = (y[flipped] + 1) % 3
    found = leave_one_out(X, given, solve(X, given, MaxHinge(), 1.0 / len(y)), max_passes=5000)
    assert set(found.suspects[:10].tolist()) == set(flipped.tolist())
    assert (found.suggested[flipped] == y[flipped]).all()
    assert (np.diff(found.suspicion()[found.suspects]) <= 0.0).all()
    assert found.suspicion().min() >= 0.0
    assert found.suspicion()[found.margins < 0].min() > 0.5


@pytest.mark.parametrize("weighted", [False, True])
def test_a_second_opinion_on_a_hinge_bounds_what_brute_force_finds_for_a_softmax(weighted: bool) -> None:
    """Its rows have a mean |x|^2 of 2/3, for which the softmax has a C of 9."""
    (X, y), near = three_sets()["made"], 9.0
    assert np.isclose(np.einsum("ij,ij->i", X, X).mean(), 2.0 / 3.0)
    weights = np.random.default_rng(1).uniform(0.1, 10.0, len(y)) if weighted else None
    lam = 1.0 / (len(y) * near)
    exact = brute_force(X, y, weights=weights, loss=Softmax(), lam=lam)
    for C in (0.01, 1e4):
        hinge = solve(X, y, TopKHinge(2), 1.0 / (len(y) * C), sample_weight=weights)
        found = second_opinion(X, y, replace(hinge, A=None), sample_weight=weights)
        agrees(found, exact)
        softmax = solve(X, y, Softmax(), lam, sample_weight=weights, state=SolverState.at(hinge.W))
        same = leave_one_out(X, y, softmax, sample_weight=weights, max_passes=0, folds=0)
        np.testing.assert_allclose(found.margins, same.margins, rtol=1e-6, atol=1e-9)
        assert np.corrcoef(found.margins, exact)[0, 1] > 0.9


def test_what_has_no_second_opinion_is_refused_by_name() -> None:
    X, y = three_sets()["made"]
    n = len(y)
    hinge = solve(X, y, MaxHinge(), 1.0 / n)
    with pytest.raises(InvalidProblemError, match="are not those of the result"):
        second_opinion(X[:-1], y[:-1], hinge)
    with pytest.raises(InvalidProblemError, match="k is 6"):
        second_opinion(X, y, hinge, k=6)
    with pytest.raises(UnsupportedCombinationError, match="kernel"):
        second_opinion(X, y, solve(X, y, MaxHinge(), 1.0 / n, kernel=RBFKernel(0.5)))


def test_what_cannot_be_bounded_is_refused_by_name() -> None:
    X, y = three_sets()["made"]
    n = len(y)
    hinge = solve(X, y, MaxHinge(), 1.0 / n)
    with pytest.raises(InvalidProblemError, match="k is 6"):
        leave_one_out(X, y, hinge, k=6)
    with pytest.raises(InvalidProblemError, match="1 folds to hold out"):
        leave_one_out(X, y, hinge, folds=1)
    with pytest.raises(InvalidProblemError, match="are not those of the result"):
        leave_one_out(X[:-1], y[:-1], hinge)
    with pytest.raises(UnsupportedCombinationError, match="keep_duals"):
        leave_one_out(X, y, replace(hinge, A=None))
    with pytest.raises(UnsupportedCombinationError, match="kernel"):
        leave_one_out(X, y, solve(X, y, MaxHinge(), 1.0 / n, kernel=RBFKernel(0.5)))
    with pytest.raises(UnsupportedCombinationError, match="not convex"):
        leave_one_out(X, y, solve(X, y, TruncatedTopKEntropy(2), 1.0 / n, method="lbfgs"))
    with pytest.raises(UnsupportedCombinationError, match="risk"):
        leave_one_out(X, y, solve(X, y, MaxHinge(), 1.0 / n, risk=AverageTopK(10)))
    sets = LabelSets.from_lists([[code] for code in range(6)], 6)[0]
    both = solve(X, y, OneVsAll("hinge"), 1.0 / n, label_sets=sets)
    with pytest.raises(UnsupportedCombinationError, match="label sets"):
        leave_one_out(X, y, both)


def test_without_the_only_row_that_counts_nothing_is_told_from_anything() -> None:
    X, y, weights = np.eye(3), np.arange(3), np.array([0.0, 0.0, 2.0])
    result = solve(X, y, MaxHinge(), 0.1, sample_weight=weights, tol=0.1)
    found = leave_one_out(X, y, result, sample_weight=weights, max_passes=100)
    assert (found.low[2], found.margins[2], found.high[2]) == (0.0, 0.0, 0.0)
    assert found.decided[2] == "open"


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
def test_pairs_and_neighbours_are_those_of_all_products(monkeypatch, sparse: bool) -> None:
    monkeypatch.setattr(neighbours, "_BLOCK", 16)
    rng = np.random.default_rng(0)
    X = rng.normal(size=(150, 6)) + 1.0
    X[100:140] = 3.0 * X[:40] + 0.02 * rng.normal(size=(40, 6))
    X[[7, 149]] = 0.0
    units = unit_rows(csr_matrix(X) if sparse else X)
    norms = np.linalg.norm(X, axis=1)
    cosines = (X @ X.T) / np.outer(*[np.where(norms > 0, norms, 1.0)] * 2)
    first, second = np.nonzero(np.triu(cosines >= 0.999, 1))
    found = near_duplicates(units, 0.999)
    assert set(zip(found.first.tolist(), found.second.tolist(), strict=True)) == set(
        zip(first.tolist(), second.tolist(), strict=True)
    )
    assert len(found.first) >= 35
    np.testing.assert_allclose(found.cosines, cosines[found.first, found.second], atol=1e-6)
    assert (np.diff(found.cosines) <= 0).all()
    assert len(near_duplicates(units, 0.999, most=5).first) == 5
    np.fill_diagonal(cosines, -np.inf)
    rows = np.array([3, 100, 20])
    near, values = nearest_neighbours(units, rows, 4)
    np.testing.assert_allclose(values, -np.sort(-cosines[rows], axis=1)[:, :4], atol=1e-6)
    np.testing.assert_allclose(cosines[rows[:, None], near], values, atol=1e-6)
    assert nearest_neighbours(units[:3], rows[:1] - 3, 9)[0].shape == (1, 2)


def test_a_cosine_that_is_none_is_refused() -> None:
    with pytest.raises(InvalidProblemError, match=r"is 1\.5; give"):
        near_duplicates(unit_rows(np.eye(3)), 1.5)
