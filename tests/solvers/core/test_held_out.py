"""Bounds of a sweep: the shortest move that changes a decision, and intervals around exact accuracies."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.sparse import csr_matrix

from tests.pipeline.small_data import make_features
from topline import Softmax, TopKHinge, solve
from topline.pipeline.evaluation import ranks_against_ties
from topline.solvers.core.held_out import HitCount, ball_radius, count_hits, decisions


def shortest_move(scores, y, k, hit):
    """The least |move|^2 after which the decision is the other one, by a general solver over all choices."""
    others = [j for j in range(len(scores)) if j != y]
    order = sorted(others, key=lambda j: -scores[j])
    group, sign = (order[:k], 1.0) if hit else (order[k - 1 :], -1.0)
    # The others of the group end at the own class's score, above it where it hits and below where it misses.
    constraints = [
        {"type": "ineq", "fun": lambda v, j=j: sign * (scores[j] + v[j] - scores[y] - v[y])} for j in group
    ]
    start = np.zeros(len(scores))
    start[y] = -sign * 2.0 * np.abs(scores).max()
    found = minimize(lambda v: v @ v, start, jac=lambda v: 2 * v, constraints=constraints, method="SLSQP")
    assert found.success
    return float(found.fun)


@pytest.mark.parametrize("k", [1, 2, 4])
def test_the_distance_is_that_of_the_nearest_scores_with_another_decision(k) -> None:
    rng = np.random.default_rng(k)
    y = rng.integers(6, size=25)
    scores = (rng.normal(size=(25, 6)) + 1.5 * (np.arange(6) == y[:, None]) * (4 - k) / 3).round(1)
    scores[0] = 0.3  # all tied
    hit, distance = decisions(scores, y, k)
    assert hit.tolist() == (ranks_against_ties(scores, y) <= k).tolist()
    assert 5 <= hit.sum() <= 20
    expected = [shortest_move(*row, k, did) for *row, did in zip(scores, y, hit, strict=True)]
    assert distance**2 == pytest.approx(expected, abs=1e-5)


def test_with_as_many_guesses_as_classes_nothing_can_change() -> None:
    hit, distance = decisions(np.zeros((3, 4)), np.array([0, 1, 2]), 4)
    assert hit.all()
    assert np.isinf(distance).all()


@pytest.mark.parametrize(
    ("loss", "smoothing", "k"), [(TopKHinge(1), 0.0, 1), (TopKHinge(3), 0.5, 3), (Softmax(), 0.0, 2)]
)
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.sampled(3)
def test_intervals_hold_the_accuracy_of_the_exact_solution_at_every_gap(loss, smoothing, k, sparse) -> None:
    X, y = make_features(360, 10, 6, noise=1.0)
    X, held, y, held_y = X[:240], X[240:], y[:240], y[240:]
    if sparse:
        X, held = csr_matrix(np.where(abs(X) > 0.5, X, 0)), csr_matrix(np.where(abs(held) > 0.5, held, 0))
    for C in (0.003, 0.3):
        lam = 1.0 / (len(y) * C)
        options = {"smoothing": smoothing, "max_passes": 20000, "m": 6}
        exact = solve(X, y, loss, lam, tol=1e-8, **options)
        truth = count_hits(held, held_y, exact.W, k, 0.0).hits
        narrow = []
        for tol in (0.3, 1e-2, 1e-4, 1e-6):
            found = solve(X, y, loss, lam, tol=tol, **options)
            radius, near = (
                ball_radius(one.gap, one.primal, lam, of_duals=one.W_dual is None and one.found_at is None)
                for one in (found, exact)
            )
            assert np.linalg.norm(found.W - exact.W) <= radius + near
            interval = count_hits(held, held_y, found.W, k, radius)
            assert interval.low <= interval.hits <= interval.high
            assert interval.low <= truth <= interval.high
            narrow.append(interval.high - interval.low)
        assert narrow[-1] <= 0.15 * len(held_y) < narrow[0]


def test_a_gap_that_is_not_known_bounds_nothing() -> None:
    X, y = make_features(30, 4, 3)
    interval = count_hits(X, y, np.ones((4, 3)), 1, ball_radius(float("nan"), 1.0, 0.1))
    assert (interval.low, interval.high) == (0, 30)
    assert ball_radius(0.5, 1.0, 0.5, of_duals=False) == pytest.approx(np.sqrt(2) * ball_radius(0.5, 1, 0.5))


def test_a_row_counts_as_often_as_its_class_says() -> None:
    X, y = make_features(90, 5, 3, noise=1.0)
    W, often = np.random.default_rng(0).normal(size=(5, 3)), (0.5, 2.0, 0.0)
    found = count_hits(X, y, W, 1, 0.3, often)
    for c in range(3):
        alone, again = (count_hits(X[y == c], y[y == c], W, 1, 0.3) for _ in range(2))
        assert alone == again
        found += HitCount(*(-often[c] * getattr(alone, name) for name in ("rows", "hits", "low", "high")))
    assert [found.rows, found.hits, found.low, found.high] == pytest.approx([0.0] * 4, abs=1e-9)


@pytest.mark.parametrize("k", [1, 3, 8])
def test_rounding_of_float32_products_makes_no_difference(k) -> None:
    """Whether scores are as good as tied, ends of a move lie at the radius, or products overflow."""
    rng = np.random.default_rng(k)
    X, y = rng.normal(size=(400, 60)).astype(np.float32), rng.integers(8, size=400)
    W = rng.normal(size=(60, 1)) + 1e-7 * rng.normal(size=(60, 8))
    wide = X.astype(np.float64)
    single = decisions((X @ W.astype(np.float32)).astype(np.float64), y, k)[0]
    exact, distance = decisions(wide @ W, y, k)
    assert k == 8 or np.count_nonzero(single != exact) > 20
    at = float(distance[0] / np.linalg.norm(wide[0]))
    for radius in (0.0, at * (1 - 1e-9), at * (1 + 1e-9), 1.0):
        assert count_hits(X, y, W, k, radius) == count_hits(wide, y, W, k, radius)
    assert count_hits(X, y, 1e40 * W, k, 0.0) == count_hits(wide, y, W, k, 0.0)
