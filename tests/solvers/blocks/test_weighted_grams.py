"""Sums of x x^T with several weights a row: right whatever the rows, and in little room beside themselves."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from scipy import sparse

from topline.solvers.blocks.second_order import add_weighted_grams


@pytest.mark.parametrize(
    ("count", "d", "share"), [(3, 20, 1.0), (40, 20, 1.0), (40, 20, 0.2), (13, 130, 1.0)]
)
@pytest.mark.parametrize("kind", [np.float32, np.float64, "csr"])
def test_they_are_added(count, d, share, kind) -> None:
    random = np.random.default_rng(0)
    X = random.standard_normal((300, d)).astype(np.float32 if kind == "csr" else kind)
    weights = random.random((300, count)) * (random.random((300, count)) < share)
    grams = random.standard_normal((count, d, d))
    expected = grams + np.einsum("iq,ij,ik->qjk", weights, X.astype(np.float64), X.astype(np.float64))
    add_weighted_grams(grams, sparse.csr_matrix(X) if kind == "csr" else X, weights)
    np.testing.assert_allclose(grams, expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(("count", "d", "dtype"), [(400, 24, np.float32), (13, 200, np.float64)])
def test_they_take_at_most_one_more_array(count, d, dtype) -> None:
    """The memory plan counts one copy of what blocks sum."""
    X, weights = np.ones((50, d), dtype), np.ones((50, count))
    grams = np.zeros((count, d, d))
    add_weighted_grams(grams, X, weights)
    tracemalloc.start()
    add_weighted_grams(grams, X, weights)
    taken = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert taken <= grams.nbytes
