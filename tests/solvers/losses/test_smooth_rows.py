"""Gradients, losses and conjugates of softmax and logistic rows against SciPy, in both precisions."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import entr, expit, logsumexp, softmax, xlogy

from topline import LabelSets, OneVsAll, Softmax
from topline.solvers.losses import ranking
from topline.solvers.losses.rows import gradient_rows

#: Digits of either precision that a row keeps.
ROUNDING = {np.float32: 2e-6, np.float64: 1e-14}


def labelled(name, n, m):
    """Return the loss and the numbers of the own classes of rows."""
    random = np.random.default_rng(m)
    form = (Softmax() if name == "softmax" else OneVsAll("logistic")).form(m)
    if name == "sets":
        found, y = LabelSets.from_indicator(random.random((n, m)) < 0.4)
        return form.with_label_sets(found, "one_vs_all_logistic"), y.astype(np.int32)
    return form, random.integers(0, m, n).astype(np.int32)


def exact_rows(name, form, scores, y):
    """Return u (n, m), the losses and the conjugates of rows."""
    if name != "softmax":
        z = np.where(form.own_rows(y), 1.0, -1.0)
        t = -z * scores
        a = expit(t)
        return z * a, np.logaddexp(0.0, t).sum(axis=1), (entr(a) + entr(expit(-t))).sum(axis=1)
    own = np.arange(len(y)), y
    p, others = softmax(scores, axis=1), scores.copy()
    others[own] = -np.inf
    u = -p
    u[own] = 0.0
    u[own] = -u.sum(axis=1)
    loss = np.logaddexp(0.0, logsumexp(others - scores[own][:, None], axis=1))
    return u, loss, -xlogy(p, p).sum(axis=1)


@pytest.mark.parametrize("name", ["softmax", "single", "sets"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("m", [2, 10, 41, 600])
@pytest.mark.parametrize("n", [1, 127, 300])
def test_rows_are_those_of_the_definition(name, dtype, m, n) -> None:
    random = np.random.default_rng(m + n)
    scores = (random.standard_normal((n, m)) * random.choice([0.1, 3.0, 30.0], (n, 1))).astype(dtype)
    form, y = labelled(name, n, m)
    weights = random.uniform(0.5, 2.0, n)
    U, losses, sums = scores.copy(), np.empty(n), np.zeros(ranking.N_SUMS)
    gradient_rows(form, U, y, weights, (0.0, 0.0), U, sums, losses)
    u, loss, conjugate = exact_rows(name, form, scores.astype(np.float64), y)
    rounding = ROUNDING[dtype]
    np.testing.assert_allclose(U, u, rtol=20 * rounding, atol=1e-37)
    np.testing.assert_allclose(losses, loss, rtol=20 * rounding, atol=1e-37)
    totals = {ranking.LOSS: loss, ranking.B_U: conjugate, ranking.U_SQ: (u * u).sum(axis=1)}
    for place, values in totals.items():
        assert sums[place] == pytest.approx(weights @ values, rel=(1 if name == "softmax" else 10) * rounding)
    assert sums[ranking.ACTIVE] == U.any(axis=1).sum()


@pytest.mark.parametrize("name", ["softmax", "single"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("m", [3, 41])
@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_row_that_is_no_numbers_has_no_loss_and_harms_no_other(name, dtype, m, place, bad) -> None:
    scores = np.random.default_rng(0).standard_normal((5, m)).astype(dtype)
    scores[3, place] = bad
    form, _ = labelled(name, 5, m)
    y, weights = np.zeros(5, dtype=np.int32), np.ones(5)
    U, losses, sums = scores.copy(), np.empty(5), np.zeros(ranking.N_SUMS)
    gradient_rows(form, scores, y, weights, (0.0, 0.0), U, sums, losses)
    good = [0, 1, 2, 4]
    alone, found = np.empty((4, m), dtype=dtype), np.empty(4)
    rest = np.zeros(ranking.N_SUMS)
    gradient_rows(form, scores[good], y[good], weights[good], (0.0, 0.0), alone, rest, found)
    np.testing.assert_array_equal(U[good], alone)
    np.testing.assert_array_equal(losses[good], found)
    assert np.isnan(losses[3])
    assert not U[3].any()
    assert np.isnan(sums[ranking.LOSS])
