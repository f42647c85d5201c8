"""Plain stochastic dual coordinate ascent: one pass written out, and the optimum of the other methods."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from solvers import (
    MaxHinge,
    OneVsAll,
    Problem,
    Softmax,
    TopKEntropy,
    TopKHinge,
    TopKOthersHinge,
    UsunierHinge,
)
from solvers.projections import column_updates
from solvers.sdca_pass import SdcaPass
from tests.solvers.problems import M, examples

LOSSES = [MaxHinge(), TopKHinge(3), TopKOthersHinge(2), UsunierHinge(2), OneVsAll("hinge")]
SMOOTH = [Softmax(), TopKEntropy(2), OneVsAll("logistic")]


def one_pass(problem, X, y, weights, W, B, order, spread):
    """Give W and the dual rows after a pass, line by line as in the thesis."""
    W, B = W.copy(), B.copy()
    scale = problem.scale * spread
    for i in order:
        own = scale * weights[i] * X[i] @ X[i]
        q = X[i] @ W - own * B[i]
        c, c_own = own + problem.smoothing, own + problem.smoothing_own
        row = column_updates(problem.form, q[None], y[i : i + 1], c, c_own=c_own)[0]
        W += scale * weights[i] * np.outer(X[i], row - B[i])
        B[i] = row
    return W, B


@pytest.mark.parametrize(
    ("loss", "smoothing", "kind"),
    [(loss, 0.0, "moreau") for loss in LOSSES + SMOOTH]
    + [(loss, 0.7, "moreau") for loss in LOSSES]
    + [(loss, 0.7, "others") for loss in LOSSES[:4]],
    ids=lambda value: getattr(value, "name", str(value)),
)
@pytest.mark.parametrize("make", [np.asarray, sparse.csr_array])
def test_a_pass_is_the_algorithm_written_out(loss, smoothing, kind, make) -> None:
    X, y = examples(n=40)
    X[3] = 0.0
    random = np.random.default_rng(1)
    weights = random.uniform(0.0, 3.0, len(y))
    weights[5] = 0.0
    problem = Problem(loss, *X.shape, M, 0.3 / len(y), smoothing, kind)
    A = column_updates(problem.form, random.standard_normal((len(y), M)), y, 2.0)
    W = X.T @ (weights[:, None] * A) * problem.scale
    delta = np.zeros_like(A)
    work = SdcaPass(
        problem, y, weights, W, spread=1.5, dtype=np.dtype(np.float64), sparse=make is sparse.csr_array
    )
    work.run(make(X), A, delta, np.random.default_rng(2))
    same = np.random.default_rng(2)
    same.permutation(1)
    end, B = one_pass(problem, X, y, weights, W, A, same.permutation(len(y)), 1.5)
    assert np.abs(B - A).max() > 0.1
    np.testing.assert_allclose(A + delta, B, atol=1e-11)
    np.testing.assert_allclose(W + 1.5 * problem.scale * work.product, end, atol=1e-11)
