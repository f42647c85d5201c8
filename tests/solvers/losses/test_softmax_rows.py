"""The gradients, losses and conjugates of softmax rows against SciPy, narrow and wide, in both precisions."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import logsumexp, softmax, xlogy

from topline.solvers.losses import ranking
from topline.solvers.losses.entropy import _NARROW, softmax_rows
from topline.solvers.losses.form import NO_MARGINS

#: Digits of either precision that a row keeps.
ROUNDING = {np.float32: 2e-6, np.float64: 1e-14}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("m", [2, 3, 10, _NARROW, _NARROW + 1, 300])
@pytest.mark.parametrize("n", [1, 127, 300])
def test_rows_are_those_of_the_softmax(dtype, m, n) -> None:
    random = np.random.default_rng(m)
    scores = (random.standard_normal((n, m)) * random.choice([0.1, 3.0, 30.0], (n, 1))).astype(dtype)
    y, weights = random.integers(0, m, n).astype(np.int32), random.uniform(0.5, 2.0, n)
    U, losses, sums = scores.copy(), np.empty(n), np.zeros(ranking.N_SUMS)
    softmax_rows(U, y, NO_MARGINS, weights, U, losses, sums)
    exact, own = scores.astype(np.float64), (np.arange(n), y)
    p, others = softmax(exact, axis=1), exact.copy()
    others[own] = -np.inf
    loss = np.logaddexp(0.0, logsumexp(others - exact[own][:, None], axis=1))
    expected = -p
    expected[own] = 0.0
    expected[own] = -expected.sum(axis=1)
    rounding = ROUNDING[dtype]
    np.testing.assert_allclose(U, expected, rtol=20 * rounding, atol=1e-37)
    np.testing.assert_allclose(losses, loss, rtol=20 * rounding, atol=1e-37)
    totals = {
        ranking.LOSS: loss,
        ranking.B_U: -xlogy(p, p).sum(axis=1),
        ranking.U_SQ: (expected**2).sum(axis=1),
    }
    for place, values in totals.items():
        assert sums[place] == pytest.approx(weights @ values, rel=rounding)
    assert sums[ranking.ACTIVE] == U.any(axis=1).sum()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("m", [3, _NARROW + 1])
@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_row_that_is_no_numbers_has_no_loss_and_harms_no_other(dtype, m, place, bad) -> None:
    scores = np.random.default_rng(0).standard_normal((5, m)).astype(dtype)
    scores[3, place] = bad
    y, weights = np.zeros(5, dtype=np.int32), np.ones(5)
    U, losses, sums = scores.copy(), np.empty(5), np.zeros(ranking.N_SUMS)
    softmax_rows(scores, y, NO_MARGINS, weights, U, losses, sums)
    good = [0, 1, 2, 4]
    alone = np.empty((4, m), dtype=dtype)
    softmax_rows(
        scores[good], y[good], NO_MARGINS, weights[good], alone, np.empty(0), np.zeros(ranking.N_SUMS)
    )
    np.testing.assert_array_equal(U[good], alone)
    assert np.isnan(losses[3])
    assert np.isfinite(losses[good]).all()
    assert not U[3].any()
    assert np.isnan(sums[ranking.LOSS])
