"""Rows that look alike under different labels: they are found, and moved together to the optimum."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from scipy import sparse

from tests.reference.training_qp import optimum
from topline import MaxHinge, SerialExecutor, Status, TopKHinge, solve
from topline.solvers.blocks.ascent.alike_rows import find_groups
from topline.solvers.blocks.ascent.rows import RowFeed
from topline.solvers.methods import dual_ascent
from topline.solvers.methods.dual_ascent import DualAscent

LAYOUTS = pytest.mark.parametrize("layout", [np.asarray, sparse.csr_matrix], ids=["dense", "sparse"])


def with_twins(n, d, m, twins, labels, apart=0.0, scale=1.0, seed=0):
    """Random rows, of which the first `twins` come under so many labels each, nearly the same."""
    random = np.random.default_rng(seed)
    X = random.normal(size=(n, d))
    y = np.append(np.arange(m), random.integers(0, m, n - m))
    first = np.tile(np.arange(twins), labels - 1)
    shifts = np.repeat(np.arange(1, labels), twins)
    X = np.concatenate([X, X[first] + apart * random.normal(size=(len(first), d))])
    y = np.concatenate([y, (y[first] + shifts) % m])
    order = random.permutation(len(y))
    original = np.append(np.arange(n), first)[order]
    return (scale * X[order]).astype(np.float32), y[order], original


@LAYOUTS
@pytest.mark.parametrize("apart", [0.0, 0.05])
def test_rows_under_several_labels_are_found_and_no_others(layout, apart) -> None:
    X, y, original = with_twins(3000, 200, 6, 100, 3, apart)
    groups = find_groups(RowFeed(layout(X), X.dtype), np.arange(len(y)), y.astype(np.int32), X.shape[1])
    assert groups is not None
    assert set(original[groups.rows]) <= set(range(100))
    assert len(groups.rows) >= (300 if apart == 0.0 else 285)
    at = 0
    for low, high in pairwise(groups.starts):
        assert len(set(original[groups.rows[low:high]])) == 1
        rows = X[groups.rows[low:high]].astype(np.float64)
        size = len(rows) ** 2
        np.testing.assert_allclose(groups.grams[at : at + size], (rows @ rows.T).ravel(), rtol=1e-6)
        at += size


def test_the_same_row_under_one_label_is_no_group() -> None:
    X, y, _ = with_twins(500, 100, 6, 50, 2)
    assert find_groups(RowFeed(X, X.dtype), np.arange(len(y)), np.zeros_like(y), X.shape[1]) is None


@LAYOUTS
@pytest.mark.parametrize("blocks", [1, 2])
@pytest.mark.parametrize(("loss", "labels"), [(MaxHinge(), 2), (TopKHinge(3), 5)], ids=str)
def test_twins_are_moved_to_the_optimum(loss, labels, blocks, layout, monkeypatch) -> None:
    """Their dual variables end at their bounds, 1, which visits of single rows reach by steps of 1e-4."""
    X, y, _ = with_twins(100, 120, 6, 5, labels, scale=10.0)
    lam = 1.0 / len(y)

    def run(joins):
        monkeypatch.setattr(DualAscent, "joins", joins)
        executor = SerialExecutor(blocks=blocks)
        return solve(
            layout(X), y, loss, lam, method="dual_ascent", tol=1e-4, max_passes=600, executor=executor
        )

    result = run(True)
    best = optimum(X, y, loss, lam)
    assert result.dual <= best * (1 + 1e-9)
    assert result.primal >= best * (1 - 1e-9)
    duals = [record.dual for record in result.history]
    assert all(after >= before - 1e-6 * best for before, after in pairwise(duals))
    without = run(False)
    assert without.status is Status.MAX_PASSES
    if blocks == 1:
        assert result.status is Status.SOLVED
        assert result.dual == pytest.approx(best, rel=1e-4)
    else:
        # Twins in two blocks are not moved together.
        assert result.dual > 2.0 * without.dual


@LAYOUTS
def test_twins_of_large_features_are_moved_too(layout, monkeypatch) -> None:
    """Beside a Gram matrix of 1e20 the penalties are rounding, and that of equal rows is singular."""
    monkeypatch.setattr(dual_ascent, "_SLOW", 0)
    X, y, _ = with_twins(100, 120, 6, 5, 2, scale=1e9)
    result = solve(layout(X), y, MaxHinge(), 1.0 / len(y), method="dual_ascent", tol=1e-4, max_passes=60)
    assert 0.0 <= result.dual <= result.primal <= 1.0
