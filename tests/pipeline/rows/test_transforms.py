"""Transforms: fitted in tiles as in one piece, the same after a round trip, honest about sparse rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_matrix
from sklearn.decomposition import PCA as SklearnPCA
from sklearn.kernel_approximation import AdditiveChi2Sampler, RBFSampler
from sklearn.kernel_approximation import Nystroem as SklearnNystroem
from sklearn.metrics.pairwise import rbf_kernel
from sklearn.preprocessing import StandardScaler, normalize
from sklearn.svm import SVC

from tests.pipeline.small_data import small_dataset
from topline.pipeline.certification import certify
from topline.pipeline.errors import ConfigError, InputError
from topline.pipeline.evaluation.measurement import evaluate
from topline.pipeline.export.writing import export_model
from topline.pipeline.options import ClusterConfig, TrainConfig
from topline.pipeline.rows import TRANSFORMS, StoredModel, Transforms
from topline.pipeline.training import train

RNG = np.random.default_rng(5)
X = (RNG.normal(size=(90, 7)) * [1, 5, 0.1, 1, 1, 1, 0] + [100, 0, 0, 3, 0, 0, 2]).astype(np.float32)


DRAWS = np.random.default_rng(5)
DENSE = (DRAWS.normal(size=(90, 7)) + np.eye(7)[0] * 3.0).astype(np.float32)
NEW = DRAWS.normal(size=(11, 7)).astype(np.float32)
GAMMA = SVC().fit(DENSE.astype(np.float64), np.arange(90) % 2)._gamma

RANDOM = np.random.default_rng(2)
#: Histograms with empty bins and an empty row.
COUNTS = (RANDOM.gamma(0.5, size=(40, 6)) * (RANDOM.uniform(size=(40, 6)) > 0.3)).astype(np.float32)
COUNTS[7] = 0.0
SIGNED = (COUNTS * RANDOM.choice([-1, 1], COUNTS.shape)).astype(np.float32)


def fitted(names: str, rows: Any = X, tile: int = 16, seed: int = 0) -> Transforms:
    def tiles() -> Any:
        return (rows[start : start + tile] for start in range(0, rows.shape[0], tile))

    return Transforms.fit([name for name in names.split(",") if name], tiles, seed=seed)


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


def test_sparse_rows_are_transformed_as_dense_ones() -> None:
    rows = np.where(np.abs(X) > 1, X, 0).astype(np.float32)
    rows[3] = 0
    ours = fitted("l2,bias", csr_matrix(rows)).apply(csr_matrix(rows))
    assert ours.format == "csr"
    assert np.allclose(ours.toarray(), fitted("l2,bias").apply(rows), atol=1e-6)


def test_what_makes_sparse_rows_dense_is_refused() -> None:
    with pytest.raises(
        ConfigError,
        match="standardize would make sparse features dense: use some of l2, power, hellinger, chi2, bias",
    ):
        Transforms.fit(["standardize"], list, is_sparse=True)


def test_the_option_names_every_transform() -> None:
    described = TrainConfig.model_fields["transforms"].description or ""
    assert [name for name in TRANSFORMS if name not in described] == []


@pytest.mark.parametrize(("name", "gamma"), [("nystroem:90:0.1", 0.1), ("nystroem:90", GAMMA)])
def test_every_row_a_landmark_is_the_kernel_itself(name: str, gamma: float) -> None:
    transform = fitted(name, DENSE)
    Z, new = transform.apply(DENSE), transform.apply(NEW)
    np.testing.assert_allclose(Z @ Z.T, rbf_kernel(DENSE, gamma=gamma), atol=2e-6)
    np.testing.assert_allclose(new @ Z.T, rbf_kernel(NEW, DENSE, gamma=gamma), atol=2e-6)


def test_nystroem_is_scikit_learns_on_the_same_landmarks() -> None:
    transform = fitted("nystroem:20:0.05", DENSE)
    landmarks = transform.steps[0].landmarks.astype(np.float64)
    peer = SklearnNystroem(gamma=0.05, n_components=20).fit(landmarks)
    Z, theirs = transform.apply(DENSE).astype(float), peer.transform(DENSE.astype(np.float64))
    np.testing.assert_allclose(Z @ Z.T, theirs @ theirs.T, atol=1e-5)
    assert {tuple(row) for row in landmarks} <= {tuple(row) for row in DENSE.astype(np.float64)}
    assert len({tuple(row) for row in landmarks}) == 20


def test_repeated_landmarks_are_counted_once() -> None:
    rows = np.repeat(DENSE[:5], 6, axis=0)
    Z = fitted("nystroem:30:0.1", rows).apply(rows)
    np.testing.assert_allclose(Z @ Z.T, rbf_kernel(rows, gamma=0.1), atol=1e-5)


@pytest.mark.parametrize(("name", "gamma"), [("fourier:6000:0.02", 0.02), ("fourier:6000", GAMMA)])
def test_fourier_features_come_near_the_kernel(name: str, gamma: float) -> None:
    Z = fitted(name, DENSE).apply(DENSE)
    assert Z.shape == (90, 6000)
    error = Z @ Z.T - rbf_kernel(DENSE, gamma=gamma)
    # Means of 6,000 products 2 cos cos, whose square is 1.5 on average at most: sqrt(1.5/6000) = 0.016.
    assert np.sqrt(np.mean(error**2)) < 0.02
    assert np.abs(error).max() < 0.08


def test_fourier_is_scikit_learns_sampler() -> None:
    peer = RBFSampler(gamma=0.3, n_components=40, random_state=7).fit(DENSE)
    np.testing.assert_allclose(
        fitted("fourier:40:0.3", DENSE, seed=7).apply(NEW), peer.transform(NEW), atol=2e-6
    )


@pytest.mark.parametrize(
    ("rows", "names"),
    [(X, names) for names in ("", "l2,bias", "standardize,pca:4,l2,bias", "pca:2,standardize")]
    + [(DENSE, names) for names in ("nystroem:20", "fourier:16:0.1", "standardize,nystroem:9,l2,bias")]
    + [(COUNTS, names) for names in ("power:0.4", "hellinger", "chi2:3,l2")],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_tiles_and_round_trips_change_nothing(rows: Any, names: str) -> None:
    one, many = (fitted(names, rows, tile, seed=3) for tile in (1000, 7))
    assert np.allclose(one.apply(rows), many.apply(rows), atol=1e-4)
    again = Transforms.from_record(one.record(), {**one.arrays(), "W": rows})
    assert np.array_equal(again.apply(rows), one.apply(rows))
    assert again.apply(rows).dtype == np.float32


@pytest.mark.parametrize("names", ["nystroem:20", "fourier:16:0.1", "standardize,nystroem:9,l2,bias"])
def test_another_seed_draws_other_features(names: str) -> None:
    one, other = (fitted(names, DENSE, seed=seed).apply(NEW) for seed in (3, 4))
    assert not np.allclose(other, one, atol=1e-2)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ("whiten", "no transform 'whiten'"),
        ("pca", "pca needs a number"),
        ("pca:8", "between 1 and 7"),
        ("l2:3", "l2"),
        ("nystroem", "nystroem needs a number of features"),
        ("nystroem:0", "not '0'"),
        ("nystroem:5:-1", "gamma above 0"),
        ("nystroem:5:inf", "gamma above 0"),
        ("fourier:many", "as in fourier:300 or fourier:300:0.5, not 'many'"),
        ("nystroem:91", "more landmarks than the 90 training rows"),
        ("power:0", "above 0 and at most 1"),
        ("power:2", "above 0 and at most 1"),
        ("power:nan", "above 0 and at most 1"),
        ("power:half", "not 'half'"),
        ("hellinger:2", "hellinger takes no argument"),
        ("chi2:4", "1, 2 or 3 samples, as in chi2:2, not '4'"),
        ("chi2:many", "1, 2 or 3 samples"),
    ],
)
def test_what_cannot_be_is_refused(names: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        fitted(names)


def trained(store: Path, transforms: str, **options: Any) -> Any:
    config = TrainConfig(store=str(store), transforms=transforms, loss="max_hinge", **options)
    return train(config, ClusterConfig(workers=0))


@pytest.mark.parametrize("name", ["nystroem:60", "fourier:60:0.05"])
def test_a_model_on_such_features_is_certified_and_evaluated(name: str, tmp_path: Path) -> None:
    rows = small_dataset(tmp_path, n=400).rows(0, 5)
    result = trained(tmp_path, f"{name},bias", seed=2)
    assert result.certificate.certified
    assert result.d == 61
    assert certify(result.model).certified
    found = evaluate(result.model)
    assert found.topk[1] > found.majority_baseline
    # A second run draws the same features, another seed draws others.
    drawn = [
        StoredModel.open(trained(tmp_path, name, seed=seed, tol=0.1).model).transforms.steps[0].apply(rows)
        for seed in (2, 2, 3)
    ]
    np.testing.assert_array_equal(drawn[0], drawn[1])
    assert not np.allclose(drawn[0], drawn[2], atol=1e-2)
    exported = export_model(result.model, tmp_path / "model.npz", "npz")
    assert exported.largest_difference == 0.0


def test_onnx_has_cosines_and_refuses_landmarks(tmp_path: Path) -> None:
    small_dataset(tmp_path, n=300)
    model = trained(tmp_path, "fourier:40,bias").model
    assert export_model(model, tmp_path / "model.onnx", "onnx").largest_difference < 1e-4
    assert StoredModel.open(model).transforms.names == ("fourier:40", "bias")
    with pytest.raises(InputError, match="nystroem has no ONNX form: export as npz"):
        export_model(trained(tmp_path, "nystroem:40").model, tmp_path / "other.onnx", "onnx")


def applied(names: str, rows: Any) -> Any:
    return Transforms.fit(names.split(","), lambda: [rows]).apply(rows)


def test_power_is_the_signed_power() -> None:
    for names, exponent in (("power", 0.5), ("power:0.3", 0.3), ("power:1", 1.0)):
        truth = np.sign(SIGNED) * np.abs(SIGNED.astype(float)) ** exponent
        np.testing.assert_allclose(applied(names, SIGNED), truth, rtol=1e-5)


def test_hellinger_is_the_kernel_of_distributions() -> None:
    shares = normalize(COUNTS.astype(float), "l1")
    kernel = np.array([[np.sum(np.sqrt(x * y)) for y in shares] for x in shares])
    Z = applied("hellinger", COUNTS).astype(float)
    np.testing.assert_allclose(Z @ Z.T, kernel, atol=1e-5)
    np.testing.assert_allclose(applied("hellinger", SIGNED), np.sign(SIGNED) * Z, atol=1e-6)
    # Which is square rooting and division by the length, in either order of the two.
    np.testing.assert_allclose(applied("power,l2", COUNTS), Z, atol=1e-5)


@pytest.mark.parametrize(("samples", "error"), [(1, 0.6), (2, 0.15), (3, 0.08)])
def test_chi2_comes_near_the_chi_squared_kernel(samples: int, error: float) -> None:
    pair = COUNTS[:, None, :].astype(float), COUNTS[None, :, :].astype(float)
    total = pair[0] + pair[1]
    product = 2 * pair[0] * pair[1]
    kernel = np.divide(product, total, out=np.zeros_like(total), where=total > 0).sum(axis=2)
    Z = applied(f"chi2:{samples}", COUNTS).astype(float)
    assert Z.shape == (40, 6 * (2 * samples - 1))
    # Relative to sqrt(k(x, x) k(y, y)); more samples of the spectrum come nearer.
    scale = np.sqrt(np.outer(np.diag(kernel), np.diag(kernel))) + 1e-12
    assert np.max(np.abs(Z @ Z.T - kernel) / scale) < error
    theirs = AdditiveChi2Sampler(sample_steps=samples).fit_transform(COUNTS.astype(float))
    np.testing.assert_allclose(Z, theirs, atol=1e-5)
    signs = np.tile(np.sign(SIGNED), 2 * samples - 1)
    np.testing.assert_allclose(applied(f"chi2:{samples}", SIGNED), signs * Z, atol=1e-6)


def test_two_samples_are_the_default() -> None:
    np.testing.assert_array_equal(applied("chi2", COUNTS), applied("chi2:2", COUNTS))


@pytest.mark.parametrize("names", ["power:0.4", "hellinger", "chi2", "chi2:1,power,hellinger,bias"])
def test_sparse_rows_are_mapped_as_dense_ones_and_stay_sparse(names: str) -> None:
    rows = csr_matrix(SIGNED)
    # An explicit zero is a zero.
    rows.data[3] = 0.0
    found = applied(names, rows)
    assert found.format == "csr"
    assert found.dtype == np.float32
    np.testing.assert_allclose(found.toarray(), applied(names, rows.toarray()), atol=1e-6)
