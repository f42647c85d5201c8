"""The gradients, losses and entropies of one-vs-all logistic rows against SciPy, in both precisions."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import entr, expit

from topline import LabelSets, OneVsAll
from topline.solvers.losses import ranking
from topline.solvers.losses.one_vs_all import logistic_rows

#: Digits of either precision that a row keeps.
ROUNDING = {np.float32: 2e-6, np.float64: 1e-14}


def labelled(n, m, sets):
    """Return the table of the own classes of rows, their y, and the signs z."""
    random = np.random.default_rng(m)
    form = OneVsAll("logistic").form(m)
    if sets:
        found, y = LabelSets.from_indicator(random.random((n, m)) < 0.4)
        form = form.with_label_sets(found, "one_vs_all_logistic")
    else:
        y = random.integers(0, m, n)
    y = y.astype(np.int32)
    return form.table, y, np.where(form.own_rows(y), 1.0, -1.0)


@pytest.mark.parametrize("sets", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("m", [2, 10, 600])
@pytest.mark.parametrize("n", [1, 60])
def test_rows_are_those_of_binary_problems_side_by_side(dtype, m, n, sets) -> None:
    random = np.random.default_rng(n)
    scores = (random.standard_normal((n, m)) * random.choice([0.1, 3.0, 30.0], (n, 1))).astype(dtype)
    table, y, z = labelled(n, m, sets)
    weights = random.uniform(0.5, 2.0, n)
    U, losses, sums = scores.copy(), np.empty(n), np.zeros(ranking.N_SUMS)
    logistic_rows(U, y, table, weights, U, losses, sums)
    t = -z * scores.astype(np.float64)
    a, loss = expit(t), np.logaddexp(0.0, t).sum(axis=1)
    rounding = ROUNDING[dtype]
    np.testing.assert_allclose(U, z * a, rtol=20 * rounding, atol=1e-37)
    np.testing.assert_allclose(losses, loss, rtol=20 * rounding, atol=1e-37)
    totals = {
        ranking.LOSS: loss,
        ranking.B_U: (entr(a) + entr(expit(-t))).sum(axis=1),
        ranking.U_SQ: (a * a).sum(axis=1),
    }
    for place, values in totals.items():
        assert sums[place] == pytest.approx(weights @ values, rel=10 * rounding)
    assert sums[ranking.ACTIVE] == n


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_row_that_is_no_numbers_has_no_loss_and_harms_no_other(dtype, bad) -> None:
    scores = np.random.default_rng(0).standard_normal((5, 4)).astype(dtype)
    table, y, _ = labelled(5, 4, sets=False)
    scores[3, y[3]] = bad
    U, losses, sums = scores.copy(), np.empty(5), np.zeros(ranking.N_SUMS)
    logistic_rows(scores, y, table, np.ones(5), U, losses, sums)
    good = [0, 1, 2, 4]
    alone, found = np.empty((4, 4), dtype=dtype), np.empty(4)
    logistic_rows(scores[good], y[good], table, np.ones(4), alone, found, np.zeros(ranking.N_SUMS))
    np.testing.assert_array_equal(U[good], alone)
    np.testing.assert_array_equal(losses[good], found)
    assert np.isnan(losses[3])
    assert not U[3].any()
    assert np.isnan(sums[ranking.LOSS])
