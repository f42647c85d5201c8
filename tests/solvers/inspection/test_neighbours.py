"""Near rows, against all pairs at once."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from topline import InvalidProblemError
from topline.solvers.inspection import near_duplicates, nearest_neighbours, neighbours, unit_rows


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
def test_pairs_and_neighbours_are_those_of_all_products(monkeypatch, sparse: bool) -> None:
    monkeypatch.setattr(neighbours, "_BLOCK", 16)
    rng = np.random.default_rng(0)
    X = rng.normal(size=(150, 6)) + 1.0
    X[100:140] = 3.0 * X[:40] + 0.02 * rng.normal(size=(40, 6))
    X[[7, 149]] = 0.0
    units = unit_rows(csr_matrix(X) if sparse else X)
    norms = np.linalg.norm(X, axis=1)
    cosines = (X @ X.T) / np.outer(*[np.where(norms > 0, norms, 1.0)] * 2)
    first, second = np.nonzero(np.triu(cosines >= 0.999, 1))
    found = near_duplicates(units, 0.999)
    assert set(zip(found.first.tolist(), found.second.tolist(), strict=True)) == set(
        zip(first.tolist(), second.tolist(), strict=True)
    )
    assert len(found.first) >= 35
    np.testing.assert_allclose(found.cosines, cosines[found.first, found.second], atol=1e-6)
    assert (np.diff(found.cosines) <= 0).all()
    assert len(near_duplicates(units, 0.999, most=5).first) == 5
    np.fill_diagonal(cosines, -np.inf)
    rows = np.array([3, 100, 20])
    near, values = nearest_neighbours(units, rows, 4)
    np.testing.assert_allclose(values, -np.sort(-cosines[rows], axis=1)[:, :4], atol=1e-6)
    np.testing.assert_allclose(cosines[rows[:, None], near], values, atol=1e-6)
    assert nearest_neighbours(units[:3], rows[:1] - 3, 9)[0].shape == (1, 2)


def test_a_cosine_that_is_none_is_refused() -> None:
    with pytest.raises(InvalidProblemError, match=r"is 1\.5; give"):
        near_duplicates(unit_rows(np.eye(3)), 1.5)
