"""Transforms: fitted in tiles as in one piece, the same after a round trip, honest about sparse rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_matrix
from sklearn.decomposition import PCA as SklearnPCA
from sklearn.preprocessing import StandardScaler, normalize

from topline.pipeline.errors import ConfigError
from topline.pipeline.options import TrainConfig
from topline.pipeline.rows import TRANSFORMS, Transforms

RNG = np.random.default_rng(5)
X = (RNG.normal(size=(90, 7)) * [1, 5, 0.1, 1, 1, 1, 0] + [100, 0, 0, 3, 0, 0, 2]).astype(np.float32)


def fitted(names: str, rows: Any = X, tile: int = 16) -> Transforms:
    def tiles() -> Any:
        return (rows[start : start + tile] for start in range(0, rows.shape[0], tile))

    return Transforms.fit([name for name in names.split(",") if name], tiles)


def test_standardize_is_scikit_learns_and_a_constant_becomes_zero() -> None:
    ours = fitted("standardize").apply(X)
    assert np.allclose(ours[:, :6], StandardScaler().fit_transform(X.astype(np.float64))[:, :6], atol=2e-4)
    assert not ours[:, 6].any()


def test_pca_is_scikit_learns_up_to_sign() -> None:
    ours = fitted("pca:3").apply(X)
    theirs = SklearnPCA(3).fit_transform(X.astype(np.float64))
    assert np.allclose(np.abs(ours), np.abs(theirs), atol=2e-4)


def test_l2_is_scikit_learns_and_zero_rows_stay() -> None:
    rows = np.vstack([X, np.zeros((1, 7), dtype=np.float32)])
    assert np.allclose(fitted("l2").apply(rows), normalize(rows), atol=1e-6)


def test_the_order_is_as_asked() -> None:
    assert np.allclose(fitted("l2,bias").apply(X)[:, -1], 1.0)
    assert np.allclose(np.linalg.norm(fitted("bias,l2").apply(X), axis=1), 1.0, atol=1e-6)


@pytest.mark.parametrize("names", ["", "l2,bias", "standardize,pca:4,l2,bias", "pca:2,standardize"])
def test_tiles_and_round_trips_change_nothing(names: str) -> None:
    one, many = fitted(names, tile=1000), fitted(names, tile=7)
    assert np.allclose(one.apply(X), many.apply(X), atol=1e-4)
    again = Transforms.from_record(one.record(), {**one.arrays(), "W": X})
    assert np.array_equal(again.apply(X), one.apply(X))
    assert again.apply(X).dtype == np.float32


def test_sparse_rows_are_transformed_as_dense_ones() -> None:
    rows = np.where(np.abs(X) > 1, X, 0).astype(np.float32)
    rows[3] = 0
    ours = fitted("l2,bias", csr_matrix(rows)).apply(csr_matrix(rows))
    assert ours.format == "csr"
    assert np.allclose(ours.toarray(), fitted("l2,bias").apply(rows), atol=1e-6)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ("whiten", "no transform 'whiten'"),
        ("pca", "pca needs a number"),
        ("pca:8", "between 1 and 7"),
        ("l2:3", "l2"),
    ],
)
def test_what_cannot_be_is_refused(names: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        fitted(names)


def test_what_makes_sparse_rows_dense_is_refused() -> None:
    with pytest.raises(
        ConfigError,
        match="standardize would make sparse features dense: use some of l2, power, hellinger, chi2, bias",
    ):
        Transforms.fit(["standardize"], list, is_sparse=True)


def test_the_option_names_every_transform() -> None:
    described = TrainConfig.model_fields["transforms"].description or ""
    assert [name for name in TRANSFORMS if name not in described] == []
