"""Nystroem and random Fourier features: near the kernel, the same after a round trip, drawn by the seed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.kernel_approximation import Nystroem as SklearnNystroem
from sklearn.kernel_approximation import RBFSampler
from sklearn.metrics.pairwise import rbf_kernel
from sklearn.svm import SVC

from tests.pipeline.small_data import small_dataset
from topline.pipeline.certification import certify
from topline.pipeline.errors import ConfigError, InputError
from topline.pipeline.evaluation.measurement import evaluate
from topline.pipeline.export.writing import export_model
from topline.pipeline.options.train import ClusterConfig, TrainConfig
from topline.pipeline.rows.stored_model import StoredModel
from topline.pipeline.rows.transforms import Transforms
from topline.pipeline.training import train

RNG = np.random.default_rng(5)
X = (RNG.normal(size=(90, 7)) + np.eye(7)[0] * 3.0).astype(np.float32)
NEW = RNG.normal(size=(11, 7)).astype(np.float32)
GAMMA = SVC().fit(X.astype(np.float64), np.arange(90) % 2)._gamma


def fitted(names: str, rows: Any = X, tile: int = 16, seed: int = 0) -> Transforms:
    def tiles() -> Any:
        return (rows[start : start + tile] for start in range(0, rows.shape[0], tile))

    return Transforms.fit(names.split(","), tiles, seed=seed)


@pytest.mark.parametrize(("name", "gamma"), [("nystroem:90:0.1", 0.1), ("nystroem:90", GAMMA)])
def test_every_row_a_landmark_is_the_kernel_itself(name: str, gamma: float) -> None:
    transform = fitted(name)
    Z, new = transform.apply(X), transform.apply(NEW)
    np.testing.assert_allclose(Z @ Z.T, rbf_kernel(X, gamma=gamma), atol=2e-6)
    np.testing.assert_allclose(new @ Z.T, rbf_kernel(NEW, X, gamma=gamma), atol=2e-6)


def test_nystroem_is_scikit_learns_on_the_same_landmarks() -> None:
    transform = fitted("nystroem:20:0.05")
    landmarks = transform.steps[0].landmarks.astype(np.float64)
    peer = SklearnNystroem(gamma=0.05, n_components=20).fit(landmarks)
    Z, theirs = transform.apply(X).astype(float), peer.transform(X.astype(np.float64))
    np.testing.assert_allclose(Z @ Z.T, theirs @ theirs.T, atol=1e-5)
    assert {tuple(row) for row in landmarks} <= {tuple(row) for row in X.astype(np.float64)}
    assert len({tuple(row) for row in landmarks}) == 20


def test_repeated_landmarks_are_counted_once() -> None:
    rows = np.repeat(X[:5], 6, axis=0)
    Z = fitted("nystroem:30:0.1", rows).apply(rows)
    np.testing.assert_allclose(Z @ Z.T, rbf_kernel(rows, gamma=0.1), atol=1e-5)


@pytest.mark.parametrize(("name", "gamma"), [("fourier:6000:0.02", 0.02), ("fourier:6000", GAMMA)])
def test_fourier_features_come_near_the_kernel(name: str, gamma: float) -> None:
    Z = fitted(name).apply(X)
    assert Z.shape == (90, 6000)
    error = Z @ Z.T - rbf_kernel(X, gamma=gamma)
    # Means of 6,000 products 2 cos cos, whose square is 1.5 on average at most: sqrt(1.5/6000) = 0.016.
    assert np.sqrt(np.mean(error**2)) < 0.02
    assert np.abs(error).max() < 0.08


def test_fourier_is_scikit_learns_sampler() -> None:
    peer = RBFSampler(gamma=0.3, n_components=40, random_state=7).fit(X)
    np.testing.assert_allclose(fitted("fourier:40:0.3", seed=7).apply(NEW), peer.transform(NEW), atol=2e-6)


@pytest.mark.parametrize("names", ["nystroem:20", "fourier:16:0.1", "standardize,nystroem:9,l2,bias"])
def test_tiles_round_trips_and_seeds(names: str) -> None:
    one, many = fitted(names, tile=1000, seed=3), fitted(names, tile=7, seed=3)
    assert np.allclose(one.apply(NEW), many.apply(NEW), atol=1e-4)
    again = Transforms.from_record(one.record(), {**one.arrays(), "W": X})
    assert np.array_equal(again.apply(NEW), one.apply(NEW))
    assert again.apply(NEW).dtype == np.float32
    assert not np.allclose(fitted(names, seed=4).apply(NEW), one.apply(NEW), atol=1e-2)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ("nystroem", "nystroem needs a number of features"),
        ("nystroem:0", "not '0'"),
        ("nystroem:5:-1", "gamma above 0"),
        ("nystroem:5:inf", "gamma above 0"),
        ("fourier:many", "as in fourier:300 or fourier:300:0.5, not 'many'"),
        ("nystroem:91", "more landmarks than the 90 training rows"),
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
