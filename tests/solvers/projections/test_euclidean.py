from __future__ import annotations

import numpy as np
import pytest

from tests.reference.columns import bisect
from tests.reference.euclidean import (
    project_bipartite_simplex,
    project_simplex,
    project_topk_cone,
    project_topk_simplex_alpha,
)
from tests.reference.qp import minimise_qp
from topline.solvers.errors import InvalidProblemError, NonFiniteError

SCALES = 10.0 ** np.array([-9, -5, 0, 0, 0, 5, 9])


def vector(rng, d, scale=1.0):
    b = rng.standard_normal(d)
    if rng.random() < 0.3:
        b = np.round(b)  # ties
    if rng.random() < 0.2:
        b += rng.choice([-2.0, 2.0])
    return b * scale


def set_of(kind, d, k, radius):
    """Give the set as G x <= h."""
    eye, one = np.eye(d), np.ones((d, d))
    G, h = [-eye], [np.zeros(d)]
    G.append(eye - one / k)
    h.append(np.zeros(d))
    if kind == "alpha":
        G.append(np.ones((1, d)))
        h.append(np.array([radius]))
    return np.vstack(G), np.concatenate(h)


def project(kind, b, k, radius, bias):
    if kind == "cone":
        return project_topk_cone(b, k, bias)
    return project_topk_simplex_alpha(b, k, radius, bias)


@pytest.mark.parametrize("kind", ["cone", "alpha"])
@pytest.mark.parametrize("bias", [0.0, 0.8])
def test_topk_sets_agree_with_a_general_qp_solver(kind, bias):
    rng = np.random.default_rng(3)
    for d, k in [(1, 1), (2, 1), (2, 2), (5, 2), (5, 5), (9, 3), (9, 8)]:
        for radius in (0.4, 3.0):
            b = vector(rng, d)
            G, h = set_of(kind, d, k, radius)
            expected = minimise_qp(np.eye(d) + bias * np.ones((d, d)), -b, G, h)
            np.testing.assert_allclose(project(kind, b, k, radius, bias), expected, atol=2e-5)


def test_the_topk_simplex_is_optimal_and_feasible_at_every_scale():
    rng = np.random.default_rng(4)
    for _ in range(2000):
        d = int(rng.integers(1, 30))
        k, radius, bias = int(rng.integers(1, d + 1)), rng.choice(SCALES), rng.choice([0.0, 0.1, 1.0, 50.0])
        b = vector(rng, d, rng.choice(SCALES))
        x = project_topk_simplex_alpha(b, k, radius, bias)
        assert max(-x.min(), x.sum() - radius, x.max() - x.sum() / k) <= 1e-14 * radius
        g = b - x - bias * x.sum()
        gap = radius * max(0.0, np.sort(g)[::-1][:k].mean()) - g @ x
        assert gap <= 1e-14 * radius * (np.abs(b).max() + (1 + bias) * radius)


def test_cone_satisfies_its_optimality_conditions_at_every_scale():
    """Moreau: <b - x, x> = 0 and b - x in the polar cone, whose members have a non-positive top-k sum."""
    rng = np.random.default_rng(5)
    for _ in range(2000):
        d, scale = int(rng.integers(1, 30)), rng.choice(SCALES)
        k, bias = int(rng.integers(1, d + 1)), rng.choice([0.0, 0.1, 1.0, 50.0])
        b = vector(rng, d, scale)
        x = project_topk_cone(b, k, bias)
        g = b - x - bias * x.sum()
        size = 4 * scale * (1 + bias)
        assert max(-x.min(), x.max() - x.sum() / k) <= 1e-14 * size
        assert abs(g @ x) <= 1e-13 * d * size**2
        assert np.sort(g)[::-1][:k].mean() <= 1e-13 * size


def test_topk_cone_of_one_coordinate_block_is_known():
    """k = d: the cone is the ray of equal coordinates, the projection the positive part of the mean."""
    np.testing.assert_allclose(project_topk_cone([3.0, -1.0, 1.0], 3), [1.0, 1.0, 1.0], rtol=1e-15)
    np.testing.assert_array_equal(project_topk_cone([-3.0, -1.0, 1.0], 3), np.zeros(3))


def test_the_interior_of_the_probability_simplex_stays():
    np.testing.assert_allclose(project_topk_simplex_alpha([0.2, 0.3, 0.1], 1), [0.2, 0.3, 0.1], rtol=1e-15)


def simplex_twin(a, radius):
    t = bisect(lambda s: np.maximum(a - s, 0.0).sum() - radius, a.max() - radius, a.max())
    return np.maximum(a - t, 0.0)


def test_the_simplex_agrees_with_qp_and_twin():
    rng = np.random.default_rng(6)
    for d in (1, 2, 6, 11):
        for radius in (1e-6, 0.3, 1.0, 20.0):
            a = vector(rng, d)
            x = project_simplex(a, radius)
            np.testing.assert_allclose(x, simplex_twin(a, radius), atol=1e-12)
            expected = minimise_qp(np.eye(d), -a, -np.eye(d), np.zeros(d), np.ones((1, d)), [radius])
            np.testing.assert_allclose(x, expected, atol=2e-5)


def test_the_simplex_at_every_scale():
    """Feasible, and no vertex is better."""
    rng = np.random.default_rng(7)
    for _ in range(2000):
        d, radius = int(rng.integers(1, 30)), rng.choice(SCALES)
        a = vector(rng, d, rng.choice(SCALES))
        x = project_simplex(a, radius)
        assert abs(x.sum() - radius) <= 1e-14 * d * radius
        assert x.min() >= 0.0
        g = a - x
        assert radius * g.max() - g @ x <= 1e-13 * d * radius * (np.abs(a).max() + radius)


def bipartite_twin(b, d, radius):
    def excess(t):
        return np.maximum(0, b - t).sum() - np.maximum(0, d + t).sum()

    t = bisect(excess, min(b.min(), -d.max()) - 1, max(b.max(), -d.min()) + 1)
    x, z = np.maximum(0, b - t), np.maximum(0, d + t)
    if x.sum() <= radius:
        return x, z
    return simplex_twin(b, radius), simplex_twin(d, radius)


def test_bipartite_agrees_with_qp_and_twin():
    rng = np.random.default_rng(8)
    capped = 0
    for p, q in [(1, 1), (1, 5), (4, 3), (8, 8)]:
        for _ in range(12):
            b, d, radius = vector(rng, p), vector(rng, q), rng.choice([0.2, 1.0, 20.0])
            x, z = project_bipartite_simplex(b, d, radius)
            for got, expected in zip((x, z), bipartite_twin(b, d, radius), strict=True):
                np.testing.assert_allclose(got, expected, atol=1e-12)
            n = p + q
            sums = np.concatenate([np.ones(p), np.zeros(q)])
            G, h = np.vstack([-np.eye(n), sums]), np.append(np.zeros(n), radius)
            equal = np.concatenate([np.ones(p), -np.ones(q)])[None]
            expected = minimise_qp(np.eye(n), -np.concatenate([b, d]), G, h, equal, [0.0])
            np.testing.assert_allclose(np.concatenate([x, z]), expected, atol=2e-5)
            capped += x.sum() > 0.999 * radius
    assert 5 < capped < 43  # both branches were met


def test_bipartite_at_every_scale():
    rng = np.random.default_rng(9)
    for _ in range(2000):
        radius, scale = rng.choice(SCALES), rng.choice(SCALES)
        b, d = vector(rng, int(rng.integers(1, 20)), scale), vector(rng, int(rng.integers(1, 20)), scale)
        x, z = project_bipartite_simplex(b, d, radius)
        assert abs(x.sum() - z.sum()) <= 1e-14 * radius
        assert x.sum() <= radius * (1 + 1e-14)
        assert min(x.min(), z.min()) >= 0
        left, right = b - x, d - z
        gap = radius * max(0.0, left.max() + right.max()) - left @ x - right @ z
        assert gap <= 1e-14 * radius * (max(np.abs(b).max(), np.abs(d).max()) + radius)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: project_topk_cone([1.0, 2.0], 3), InvalidProblemError, "k is 3"),
        (lambda: project_topk_cone([1.0, 2.0], 0), InvalidProblemError, "k is 0"),
        (lambda: project_topk_cone([1.0], 1, bias=-1.0), InvalidProblemError, "bias is -1"),
        (lambda: project_topk_cone([np.nan], 1), NonFiniteError, "b holds"),
        (lambda: project_topk_simplex_alpha([[1.0]], 1), InvalidProblemError, "give a vector"),
        (lambda: project_topk_simplex_alpha([1.0], 1, radius=0.0), InvalidProblemError, "radius is 0"),
        (lambda: project_bipartite_simplex([1.0], [np.inf]), NonFiniteError, "d holds"),
    ],
)
def test_refuses(call, error, words):
    with pytest.raises(error, match=words):
        call()
