"""Plain stochastic dual coordinate ascent: one pass written out, and the optimum of the other methods."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from tests.solvers.problems import M, examples
from topline import (
    MaxHinge,
    OneVsAll,
    SerialExecutor,
    Softmax,
    Status,
    TopKEntropy,
    TopKHinge,
    TopKOthersHinge,
    UsunierHinge,
    solve,
)
from topline.solvers.blocks.ascent.rounds import BlockAscent
from topline.solvers.core.dual_rows import DenseStore
from topline.solvers.core.problem import Problem
from topline.solvers.core.rows import RowRange
from topline.solvers.losses.rows import column_updates
from topline.solvers.operations import Ascend

LOSSES = [MaxHinge(), TopKHinge(3), TopKOthersHinge(2), UsunierHinge(2), OneVsAll("hinge")]
SMOOTH = [Softmax(), TopKEntropy(2), OneVsAll("logistic")]


def one_pass(problem, X, y, weights, W, B, order, safety_factor):
    """Give W and the dual rows after a pass, line by line as in the thesis."""
    W, B = W.copy(), B.copy()
    scale = problem.scale * safety_factor
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
@pytest.mark.covering(2)
def test_a_pass_is_the_algorithm_written_out(loss, smoothing, kind, make) -> None:
    X, y = examples(n=40)
    X[3] = 0.0
    random = np.random.default_rng(1)
    weights = random.uniform(0.0, 3.0, len(y))
    weights[5] = 0.0
    problem = Problem(loss, *X.shape, M, 0.3 / len(y), smoothing, kind)
    A = column_updates(problem.form, random.standard_normal((len(y), M)), y, 2.0)
    W = X.T @ (weights[:, None] * A) * problem.scale
    start, change = (DenseStore(*A.shape, A.dtype) for _ in range(2))
    start.write(0, len(A), A)
    labels = y.astype(np.int32)
    block = BlockAscent(problem, RowRange(make(X), 0, len(y)), labels, weights, 7, np.dtype(np.float64))
    stats = block.run(Ascend(round=4, W=W, safety_factor=1.5, seed=2), start, change)
    random = np.random.default_rng((2, 4, 7))
    # What counts for nothing is left alone.
    visits = random.permutation(np.flatnonzero(weights))
    end, B = one_pass(problem, X, y, weights, W, A, visits, 1.5)
    assert np.abs(B - A).max() > 0.1
    assert not change.read(5, 6).any()
    np.testing.assert_allclose(A + change.read(0, len(A)), B, atol=1e-11)
    np.testing.assert_allclose(W + 1.5 * problem.scale * stats.product, end, atol=1e-11)


def solved(X, y, loss, lam_n, smoothing=0.0, **options):
    options = {"method": "sdca", "tol": 1e-5, "max_passes": 5000, "m": M, **options}
    return solve(X, y, loss, lam_n / len(y), smoothing, **options)


@pytest.mark.parametrize(
    ("loss", "smoothing"),
    [(loss, 0.0) for loss in LOSSES + SMOOTH] + [(loss, 0.5) for loss in LOSSES],
    ids=lambda value: getattr(value, "name", str(value)),
)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.sampled(9)
def test_it_ends_where_dual_ascent_ends(loss, smoothing, weighted) -> None:
    """And its dual never falls, for one block or several."""
    X, y = examples(n=40)
    weights = np.random.default_rng(3).uniform(0.0, 2.0, len(y)) if weighted else None
    tol = 1e-5 if smoothing or loss in SMOOTH else 1e-3
    best = solved(X, y, loss, 0.5, smoothing, sample_weight=weights, tol=1e-7, method="dual_ascent")
    for blocks in (1, 3):
        result = solved(
            X, y, loss, 0.5, smoothing, sample_weight=weights, tol=tol, executor=SerialExecutor(blocks=blocks)
        )
        assert result.status is Status.SOLVED
        assert best.dual - 1e-9 <= result.primal <= best.primal * (1 + tol)
        duals = np.array([record.dual for record in result.history])
        assert np.diff(duals).min() > -1e-12 * duals.max()
