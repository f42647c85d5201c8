"""The gradient at W = 0, where features of many classes are summed by class instead of multiplied."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from tests.reference import losses as reference
from topline import SerialExecutor, Softmax, StructuredHinge, TopKHinge
from topline.solvers.blocks.vertices import DenseVertices
from topline.solvers.core.problem import Problem
from topline.solvers.losses import LDRKL, TopKEntropy, TruncatedTopKEntropy
from topline.solvers.operations import FindVertices

N, D, M = 300, 9, 70
random = np.random.default_rng(4)
X, Y = random.standard_normal((N, D)), random.integers(0, M - 3, N)
WEIGHTS = random.choice([0.0, 0.5, 2.0], N)
MARGINS = random.uniform(0.5, 1.5, (M, M)) * (1.0 - np.eye(M))


@pytest.mark.parametrize("make", [np.float64, np.float32, sparse.csr_matrix], ids=lambda make: make.__name__)
@pytest.mark.parametrize(
    ("loss", "gamma"),
    [
        (Softmax(), 0.0),
        (LDRKL(0.5), 0.0),
        (TopKEntropy(3), 0.0),
        (TopKHinge(3), 0.5),
        (StructuredHinge(MARGINS), 0.5),
        (TruncatedTopKEntropy(3), 0.0),
    ],
    ids=str,
)
def test_it_is_the_sum_over_the_rows(loss, gamma, make) -> None:
    """Also of blocks without some classes, of unequal margins, and where ties are broken."""
    features = make(X)
    U = np.array([reference.gradient(loss, np.zeros(M), label, gamma) for label in Y])
    with SerialExecutor(blocks=3) as executor:
        executor.bind(Problem(loss, N, D, M, 0.1, gamma), features, Y, keep_duals=False, weights=WEIGHTS)
        found = executor.run(FindVertices(0, np.zeros((D, M)), envelope=True))
        near = executor.run(FindVertices(0, np.full((D, M), 1e-300), envelope=True))
    rows = features.astype(np.float64)
    size = np.abs(rows).max()
    np.testing.assert_allclose(found.product, rows.T @ (U * WEIGHTS[:, None]), atol=2e-6 * N * size / M)
    np.testing.assert_allclose(found.product, near.product, atol=1e-6 * N * size / M)
    for name in ("loss", "conjugate_u", "u_sq", "active", "rows"):
        np.testing.assert_equal(getattr(found, name), getattr(near, name))


def test_it_is_multiplied_where_entries_depend_on_the_class(monkeypatch) -> None:
    """As those of a loss that prefers a class do."""
    find = DenseVertices.find

    def preferring(self: DenseVertices, scores: np.ndarray, *others: np.ndarray) -> None:
        find(self, scores, *others)
        scores[:, 5] += 0.25

    monkeypatch.setattr(DenseVertices, "find", preferring)
    with SerialExecutor(blocks=2) as executor:
        executor.bind(Problem(Softmax(), N, D, M, 0.1), X, Y, keep_duals=False, weights=WEIGHTS)
        found, near = (executor.run(FindVertices(0, np.full((D, M), w))) for w in (0.0, 1e-300))
    np.testing.assert_allclose(found.product, near.product, atol=1e-9)
