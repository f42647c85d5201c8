"""Models with a kernel, exported on few of their rows: they keep what they promise without a store."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.metrics.pairwise import rbf_kernel

from tests.pipeline.small_data import small_dataset
from topline.pipeline.errors import ConfigError
from topline.pipeline.export.estimator import load_estimator
from topline.pipeline.export.writing import export_model
from topline.pipeline.options.train import ClusterConfig, TrainConfig
from topline.pipeline.training import train
from topline.storage.datasets import Dataset
from topline.storage.models import load_model

GAMMA = 0.05


def trained(folder: Path, **options: Any) -> str:
    choice = {"loss": "max_hinge", "kernel": "rbf", "kernel_gamma": GAMMA, "transforms": "none", **options}
    return train(TrainConfig(store=str(folder), **choice), ClusterConfig(workers=0)).model


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return small_dataset(tmp_path_factory.mktemp("compressed") / "store", n=400)


@pytest.fixture(scope="module")
def model(dataset: Dataset) -> str:
    return trained(Path(dataset.store.url.removeprefix("file://")))


def test_the_objective_of_what_is_written_is_within_the_share(
    model: str, dataset: Dataset, tmp_path: Path
) -> None:
    """P of the file alone: |W|^2 and losses from its landmarks and weights, by scikit-learn's kernel."""
    report = export_model(model, tmp_path / "few.npz", "npz", most_loss=0.05)
    found, record = report.compression, load_model(model).record
    assert found is not None
    with np.load(tmp_path / "few.npz") as content:
        kept = json.loads(str(content["record"]))["compression"]
        landmarks, whitening = content["transform.0.landmarks"], content["transform.0.whitening"]
        W = content["W"]
    assert len(landmarks) == found.rows < found.of_rows
    C = whitening @ W
    rows = np.flatnonzero(dataset.split() == 0)
    X, y = dataset.rows(0, 400)[rows].astype(np.float64), dataset.labels()[rows]
    S = rbf_kernel(X, landmarks, gamma=GAMMA) @ C
    losses = (S - S[np.arange(len(y)), y][:, None] + (np.arange(S.shape[1]) != y[:, None])).max(axis=1)
    square = np.sum(C * (rbf_kernel(landmarks, gamma=GAMMA).astype(np.float64) @ C))
    objective = 0.5 * record.lam * square + losses.mean()
    assert found.primal == pytest.approx(objective, rel=1e-4)
    assert found.loss <= 0.05 * 1.01
    assert record.result["dual"] <= found.primal
    assert kept["primal"] == found.primal
    assert kept["rows"] == found.rows


def test_an_estimator_of_few_rows_answers_as_the_model(model: str, dataset: Dataset, tmp_path: Path) -> None:
    report = export_model(model, tmp_path / "few", "sklearn", most_loss=1e-3)
    made, X = load_estimator(tmp_path / "few"), dataset.rows(0, 400)
    names = np.array(dataset.class_names)[dataset.labels()]
    assert made.score(X, names) > 0.5
    assert report.compression is not None
    assert made.primal_ == pytest.approx(report.compression.primal)
    # The store keeps the model as it was.
    assert load_model(model).record.kernel is not None
    assert "compression" not in load_model(model).record.result


@pytest.mark.parametrize(
    ("options", "share", "message"),
    [
        ({}, 2.0, "--compress 2 is not a share of the objective"),
        ({"kernel": None, "kernel_gamma": None}, 0.01, "has no kernel: --compress is for"),
        ({"kernel": "laplacian"}, 0.01, "has the kernel laplacian: --compress is for"),
    ],
)
def test_what_is_not_compressed_is_refused(options: Any, share: float, message: str, tmp_path: Path) -> None:
    small_dataset(tmp_path / "store", n=200)
    url = trained(tmp_path / "store", **options)
    with pytest.raises(ConfigError, match=message):
        export_model(url, tmp_path / "few.npz", most_loss=share)
    assert not (tmp_path / "few.npz").exists()
