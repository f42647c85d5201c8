"""Euclidean projections, what they are made of, and the updates of one-vs-all duals."""

from __future__ import annotations

from decimal import Decimal, localcontext

import numpy as np
import pytest
from scipy.optimize import isotonic_regression, minimize_scalar
from scipy.special import entr, expit

from tests.reference.columns import bisect, problem_of, solved_column
from tests.reference.euclidean import (
    project_bipartite_simplex,
    project_simplex,
    project_topk_cone,
    project_topk_simplex_alpha,
)
from tests.reference.qp import minimise_qp
from topline import MaxHinge, StructuredHinge
from topline.solvers.losses import LabelSets, OneVsAll
from topline.solvers.losses.one_vs_all import binary_entropy, logistic_weight
from topline.solvers.projections.columns import largest_values, sort_decreasing, violations
from topline.solvers.projections.isotonic import (
    Blocks,
    _derivative,
    _place_own_class,
    block_value,
    next_scale,
    pool_blocks,
)

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


HINGE, LOGISTIC = OneVsAll("hinge"), OneVsAll("logistic")
#: Six sets of several own classes, one of them empty.
SETS, _ = LabelSets.from_lists([[], [5], [0, 1], [1, 3, 4], [0, 2, 5], range(6)], 6)
EXPONENTS = 10.0 ** np.array([-9, -5, -1, 0, 0, 1, 2, 5, 9])


def entropy(a):
    return entr(a) + entr(1.0 - a)


def best_of(value):
    """Give the largest value on [0, 1] and where it lies, ends included."""
    found = minimize_scalar(
        lambda a: -value(a), bounds=(0.0, 1.0), method="bounded", options={"xatol": 1e-13}
    )
    places = [0.0, 1.0, float(found.x)]
    return max((value(a), a) for a in places)


@pytest.mark.parametrize("loss", [HINGE, LOGISTIC], ids=lambda loss: loss.name)
@pytest.mark.parametrize(("m", "several"), [(2, False), (6, False), (6, True)])
def test_every_coordinate_is_the_best_of_its_interval(loss, m, several) -> None:
    random = np.random.default_rng(m)
    linear, form = loss is HINGE, loss.form(m).with_label_sets(SETS if several else None, loss.name)
    for trial in range(60):
        q = random.standard_normal(m) * random.choice([0.1, 1.0, 10.0])
        if trial % 3 == 0:
            q = np.round(q)
        y, c = int(random.integers(m)), float(random.choice([0.0, 1e-3, 0.7, 5.0]))
        c_own = c * float(random.choice([0.0, 0.5, 1.0]))
        alpha, _ = solved_column(form, q, y, c, c_own)
        own = SETS.labels(y) if several else [y]
        for j in range(m):
            z, curvature = (1.0, c_own) if j in own else (-1.0, c)

            def value(a, z=z, curvature=curvature, score=q[j]):
                gain = a * (1.0 - z * score) if linear else entropy(a) - a * z * score
                return gain - 0.5 * curvature * a * a

            a = z * alpha[j]
            assert 0.0 <= a <= 1.0
            highest, place = best_of(value)
            assert value(a) >= highest - 1e-12 * (1.0 + abs(highest))
            if curvature > 0 or not linear:
                assert a == pytest.approx(place, abs=1e-4)


def test_the_hinge_at_every_scale() -> None:
    """(1 - z q) / c cut to [0, 1], to the last digit; with c = 0 a corner, 0 at a score of z."""
    random = np.random.default_rng(5)
    for _ in range(2000):
        q = random.standard_normal(4) * random.choice(EXPONENTS)
        if random.random() < 0.3:
            q[:2] = 1.0, -1.0
        y, c = int(random.integers(4)), float(random.choice([0.0, *EXPONENTS]))
        alpha, (_, support, vertex) = solved_column(HINGE.form(4), q, y, c)
        for j in range(4):
            slack = 1.0 - q[j] if j == y else 1.0 + q[j]
            expected = float(slack > 0) if c == 0 else min(max(slack / c, 0.0), 1.0)
            assert abs(alpha[j]) == pytest.approx(expected, rel=1e-15)
            assert alpha[j] * (1.0 if j == y else -1.0) >= 0.0
        assert support == np.count_nonzero(np.delete(alpha, y))
        assert vertex == bool(np.isin(np.abs(alpha), [0.0, 1.0]).all())


def test_the_logistic_weight_solves_its_equation_at_every_scale() -> None:
    """log(a / (1 - a)) + c a = u; the left side rises in v = log(a / (1 - a)), which is bracketed."""
    random = np.random.default_rng(6)
    for _ in range(4000):
        u = float(random.standard_normal() * random.choice(EXPONENTS))
        c = float(random.choice([0.0, *EXPONENTS]) * random.random())
        a = logistic_weight(u, c)
        assert 0.0 <= a <= 1.0
        v = bisect(lambda v, u=u, c=c: u - v - c * expit(v), u - c, u)
        # An error of 1e-15 of the larger of u and c is left in v, and a changes by a (1 - a) of it at most.
        rounding = 1e-14 * (1.0 + max(abs(u), c))
        slope = expit(v) * expit(-v)
        assert abs(a - expit(v)) <= rounding * slope / (1.0 + c * slope) + 1e-14 * expit(v) + 1e-300


def test_the_logistic_weight_keeps_small_digits() -> None:
    """Where the score is far beyond the margin, a = e^u to full relative precision, down to underflow."""
    for u in (-1.0, -40.0, -300.0, -700.0):
        assert logistic_weight(u, 0.0) == pytest.approx(expit(u), rel=1e-15)
        a = logistic_weight(u, 3.0)
        assert np.log(a) - np.log1p(-a) + 3.0 * a == pytest.approx(u, rel=1e-14)
    assert logistic_weight(-800.0, 1.0) == 0.0


def test_values_that_are_not_finite_do_not_hang() -> None:
    for value in (np.nan, np.inf, -np.inf):
        for loss in (HINGE, LOGISTIC):
            alpha, _ = solved_column(loss.form(3), [0.0, value, 1.0], 0, 1.0)
            assert alpha[0] >= 0


def test_the_binary_entropy() -> None:
    """Against forty decimal digits, for 1 - a has none of a small a's."""
    with localcontext() as context:
        context.prec = 40
        for a in (1e-300, 1e-9, 0.3, 0.5, 1.0 - 1e-12):
            p = Decimal(a)
            expected = -p * p.ln() - (1 - p) * ((1 - p).ln() if a > 1e-30 else -p)
            assert binary_entropy(a) == pytest.approx(float(expected), rel=1e-14)
    for a in (0.0, 1.0, -1e-9, 1.0 + 1e-9):
        assert binary_entropy(a) == 0.0


@pytest.mark.parametrize(
    ("u", "c"),
    [
        (2.82035988, 40.25744701913643),
        (2.7263667692006233, 1029.7854147135001),
        (3.0910976851792404, 313265.81888767093),
    ],
)
def test_newton_does_not_go_to_and_fro(u, c) -> None:
    """Here its steps stay inside the bracket and come no nearer."""
    root = bisect(lambda v: u - v - c * expit(v), u - c, u)
    assert logistic_weight(u, c) == pytest.approx(expit(root), rel=1e-9)


def test_how_many_others_have_weight_and_whether_the_row_is_a_vertex() -> None:
    """A hinge's row is a vertex where no weight is a fraction; the logistic loss has no such row."""
    q = [-3.0, -3.0, 0.5, 3.0]
    for loss, c, expected, told in (
        (HINGE, 0.25, [1.0, 0.0, -1.0, -1.0], (-1.0, 2, True)),
        (HINGE, 2.0, [1.0, 0.0, -0.75, -1.0], (-1.0, 2, False)),
    ):
        alpha, found = solved_column(loss.form(4), q, 0, c)
        assert found == told
        np.testing.assert_array_equal(alpha, expected)
    alpha, found = solved_column(LOGISTIC.form(4), q, 0, 0.25)
    assert found == (-1.0, 3, False)
    assert np.count_nonzero(alpha) == 4


@pytest.mark.parametrize("table", [False, True])
def test_violations_are_the_margins_and_the_differences_of_scores(table) -> None:
    random = np.random.default_rng(5)
    q, y = random.standard_normal(6), 2
    given = random.random((6, 6)) * (1 - np.eye(6)) if table else 1 - np.eye(6)
    form = (StructuredHinge(given) if table else MaxHinge()).form(6)
    out = violations(problem_of(form, q, y, 1.0))
    assert out[y] == 0.0
    np.testing.assert_array_equal(out, q - q[y] + given[y])


def inputs(random, n):
    """Values that are all different, with ties, all equal, rising and falling."""
    values = random.standard_normal(n)
    return [values, np.round(values), np.zeros(n), np.sort(values), np.sort(values)[::-1].copy()]


@pytest.mark.parametrize("n", [0, 1, 2, 11, 12, 13, 24, 25, 47, 100, 300])
def test_the_sort_keeps_the_order_of_ties(n) -> None:
    """As NumPy's stable sort; what lies behind the first n stays."""
    for values in inputs(np.random.default_rng(n), n):
        sorted_values, index = np.append(values, 7.5), np.arange(n + 1)
        sort_decreasing(sorted_values, index, n)
        order = np.argsort(-values, kind="stable")
        assert index.tolist() == [*order, n]
        np.testing.assert_array_equal(sorted_values, [*values[order], 7.5])


@pytest.mark.parametrize("n", [2, 3, 30, 120])
def test_the_largest_values_in_their_order(n) -> None:
    """However many, by insertion and by selection, with a class left out wherever it stands."""
    random = np.random.default_rng(n)
    for values in inputs(random, n):
        for count in sorted({1, 2, 5, n // 3, n // 2, n - 1} & set(range(1, n))):
            for skip in (0, int(np.argmax(values)), n - 1):
                out = np.empty(n)
                largest_values(values, n, count, skip, out)
                rest = np.sort(np.delete(values, skip))[::-1]
                np.testing.assert_array_equal(out[:count], rest[:count])


@pytest.mark.parametrize("ranks", [1, 3, 12])
@pytest.mark.parametrize("ct", [0.0, 0.4, 6.0])
def test_blocks_are_those_of_the_isotonic_regression(ranks, ct) -> None:
    """Non-increasing means of b - ct rho, and elements behind the last block keep their values."""
    random = np.random.default_rng(ranks)
    for trial in range(40):
        b = np.sort(random.standard_normal(12))[::-1].copy()
        b = np.round(b) if trial % 4 == 0 else b
        rho = np.sort(random.random(ranks))[::-1].copy()
        blocks = Blocks(b, np.empty(13, dtype=np.int64), np.empty(13), np.empty(13))
        start, count = blocks.start, pool_blocks(blocks, 12, rho, ct)
        assert count > 0
        assert start[0] == 0
        assert start[count] >= ranks
        found = b.copy()
        for k in range(count):
            found[start[k] : start[k + 1]] = block_value(blocks, k, ct)
            assert blocks.mass[k] == pytest.approx(rho[start[k] : start[k + 1]].sum(), abs=1e-13)
        weights = np.append(rho, np.zeros(12 - ranks))
        expected = isotonic_regression(b - ct * weights, increasing=False).x
        np.testing.assert_allclose(found, expected, atol=1e-13)


def test_the_search_for_a_scale_ends_at_a_root_and_at_the_limit() -> None:
    """A Newton step where it lies inside the bracket, a halving where it does not, and no more at the end."""
    assert next_scale(0.5, 1e-12, -1.0, 1e-9, 0.0, np.inf, 1.0) == (0.5, 0.0, np.inf, False)
    assert next_scale(0.5, 1e-9, -1.0, 1e-9, 0.0, np.inf, 1.0)[3] is False
    assert next_scale(1.0, 0.3, -1.0, 1e-9, 0.0, np.inf, 1.0) == (1.0, 0.0, np.inf, False)
    assert next_scale(0.5, 0.1, -1.0, 1e-9, 0.0, np.inf, 1.0) == (0.6, 0.5, np.inf, True)
    assert next_scale(0.5, -0.1, -1.0, 1e-9, 0.0, np.inf, 1.0) == (0.4, 0.0, 0.5, True)
    assert next_scale(1.0, -0.25, -1.0, 1e-9, 0.0, np.inf, 1.0) == (0.75, 0.0, 1.0, True)
    # Beyond the limit, below the bracket, and without a slope.
    assert next_scale(0.5, 9.0, -1.0, 1e-9, 0.0, np.inf, 1.0)[0] == 1.0
    assert next_scale(0.5, -9.0, -1.0, 1e-9, 0.25, np.inf, 1.0) == (0.375, 0.25, 0.5, True)
    assert next_scale(0.5, -0.1, 0.0, 1e-9, 0.0, np.inf, 1.0) == (0.25, 0.0, 0.5, True)
    assert next_scale(0.5, 0.1, 0.0, 1e-9, 0.0, 0.75, 1.0) == (0.625, 0.5, 0.75, True)
    tight = np.nextafter(0.5, 1.0)
    assert next_scale(0.5, 0.1, 0.0, 1e-9, 0.0, tight, 1.0)[3] is False


@pytest.mark.parametrize("n", [1, 2, 5])
def test_the_own_class_moves_to_where_its_value_belongs(n) -> None:
    """From any place to any, up or down, before and behind all; the others stay in their order."""
    others = -np.arange(n - 1.0)
    for at in range(n):
        for value in (*(others + 0.5), *(others - 0.5), 9.0, -9.0):
            values, index = np.insert(others, at, 0.123), np.insert(np.arange(n - 1), at, 77)
            place = _place_own_class(values, index, n, at, value)
            assert place == np.count_nonzero(others > value)
            assert values[place] == value
            assert index[place] == 77
            np.testing.assert_array_equal(np.delete(values, place), others)
            np.testing.assert_array_equal(np.delete(index, place), np.arange(n - 1))


def test_the_slope_of_a_scale_is_that_of_its_definition() -> None:
    """H(t) = <rho, v> - R v_y of the isotonic regression v, the own class inside blocks, alone and behind."""
    random = np.random.default_rng(4)
    behind = 0
    for _ in range(300):
        n, c = 8, 10.0 ** random.uniform(-1, 1)
        others = np.sort(random.standard_normal(n))[::-1]
        rho = np.sort(random.random(int(random.integers(1, 6))))[::-1].copy()
        total, t = float(rho.sum()), float(random.uniform(0.0, 1.0))

        def at_scale(t, n=n, c=c, others=others, rho=rho, total=total):
            place = int(np.count_nonzero(others > c * t * total))
            values = np.insert(others, place, c * t * total)
            weights = np.append(rho, np.zeros(n + 1 - len(rho)))
            v = isotonic_regression(values - c * t * weights, increasing=False).x
            return values, place, weights @ v - total * v[place]

        values, place, expected = at_scale(t)
        blocks = Blocks(values, np.empty(n + 2, dtype=np.int64), np.empty(n + 2), np.empty(n + 2))
        count = pool_blocks(blocks, n + 1, rho, c * t)
        h, slope, scale = _derivative(blocks, count, place, c, t, total)
        assert h == pytest.approx(expected, abs=1e-12 * (1.0 + scale))
        # The slope is that of one piece: a step that leaves it gives another.
        before, after = (at_scale(t + step)[2] for step in (-1e-7, 1e-7))
        if abs(after + before - 2.0 * expected) <= 1e-12 * (1.0 + scale):
            assert slope == pytest.approx((after - before) / 2e-7, rel=1e-4, abs=1e-5 * (1.0 + scale))
        behind += place == blocks.start[count]
    assert behind > 10
