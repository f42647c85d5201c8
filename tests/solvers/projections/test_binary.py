"""One coordinate of a one-vs-all dual, against root finding and a search over the interval."""

from __future__ import annotations

from decimal import Decimal, localcontext

import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from scipy.special import entr, expit

from tests.reference.columns import bisect, solved_column
from topline.solvers.losses import LabelSets, OneVsAll
from topline.solvers.projections.binary import binary_entropy, logistic_weight

HINGE, LOGISTIC = OneVsAll("hinge"), OneVsAll("logistic")
#: Six sets of several own classes, one of them empty.
SETS, _ = LabelSets.from_lists([[], [5], [0, 1], [1, 3, 4], [0, 2, 5], range(6)], 6)
SCALES = 10.0 ** np.array([-9, -5, -1, 0, 0, 1, 2, 5, 9])


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
        q = random.standard_normal(4) * random.choice(SCALES)
        if random.random() < 0.3:
            q[:2] = 1.0, -1.0
        y, c = int(random.integers(4)), float(random.choice([0.0, *SCALES]))
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
        u = float(random.standard_normal() * random.choice(SCALES))
        c = float(random.choice([0.0, *SCALES]) * random.random())
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
