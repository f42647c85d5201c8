"""Products with few columns are those of NumPy, for every remainder of their groups."""

from __future__ import annotations

import numpy as np
import pytest

from topline.solvers.core.answers import Scratch
from topline.solvers.crew import ALONE, add_rows_times, is_narrow, multiply_rows

rng = np.random.default_rng(0)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("m", [1, 4, 5, 8, 10])
@pytest.mark.parametrize("rows", [4, 5, 7, 8, 19])
def test_products_are_those_of_numpy(rows, m, dtype):
    """Rows and columns beside the groups of four and five count as those within."""
    X, W = rng.normal(size=(rows, 131)).astype(dtype), rng.normal(size=(131, m)).astype(dtype)
    U, out = rng.normal(size=(rows, m)).astype(dtype), np.full((rows, m), np.nan, dtype)
    few = 200.0 * np.finfo(dtype).eps
    multiply_rows(X, np.ascontiguousarray(W.T), out)
    np.testing.assert_allclose(out, X.astype(np.float64) @ W.astype(np.float64), rtol=few, atol=few)
    product = np.full((m, 131), 2.0)
    add_rows_times(U, X, product)
    expected = 2.0 + U.T.astype(np.float64) @ X.astype(np.float64)
    np.testing.assert_allclose(product, expected, rtol=few, atol=few)


def test_a_row_has_one_score_whichever_rows_are_beside_it():
    """What the last group shares with the one before is written twice, to the same bits."""
    X, W = rng.normal(size=(40, 256)).astype(np.float32), rng.normal(size=(7, 256)).astype(np.float32)
    whole, part = np.empty((40, 7), np.float32), np.empty((23, 7), np.float32)
    multiply_rows(X, W, whole)
    multiply_rows(X[:23], W, part)
    np.testing.assert_array_equal(part, whole[:23])


def test_tiles_take_them_where_they_are_quicker():
    """Scores and sums of a tile are right for narrow weights, for others, and after the weights changed."""
    assert is_narrow(np.empty((4, 128)), 10)
    assert not is_narrow(np.empty((3, 128)), 10)
    assert not is_narrow(np.empty((512, 64)), 10)
    assert not is_narrow(np.empty((512, 1024)), 100)
    X = rng.normal(size=(50, 128))
    for m in (10, 100):
        scratch, product = Scratch(64, m, np.dtype(np.float64)), np.zeros((m, 128))
        for W in rng.normal(size=(2, 128, m)):
            np.testing.assert_allclose(scratch.scores_of(X, W), X @ W, rtol=1e-12, atol=1e-12)
        U = rng.normal(size=(50, m))
        ALONE.add_product(U, X, product)
        np.testing.assert_allclose(product, U.T @ X, rtol=1e-12, atol=1e-12)
