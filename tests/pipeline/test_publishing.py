"""Exports give the scores that we give, and say so; what would not is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from pipeline.errors import ConfigError, PipelineError
from pipeline.publishing import export
from pipeline.stored_model import StoredModel
from pipeline.train_config import ClusterConfig, TrainConfig
from pipeline.training import train
from tests.pipeline.small_data import small_dataset


@pytest.fixture(scope="module", params=["none", "l2,bias", "standardize,pca:6,bias,l2"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("exported") / "store"
    small_dataset(folder, n=300)
    config = TrainConfig(store=str(folder), k=2, tol=0.1, transforms=request.param, method="fw")
    return train(config, ClusterConfig(workers=0)).model


@pytest.mark.parametrize("kind", ["npz", "onnx", "safetensors"])
def test_what_is_written_scores_as_we_do(model: str, kind: str, tmp_path: Path) -> None:
    report = export(model, tmp_path / "deep" / "model.bin", kind)  # type: ignore[arg-type]
    assert report.bytes == (tmp_path / "deep" / "model.bin").stat().st_size
    assert report.rows_checked == 64
    assert report.largest_difference < 1e-4


def test_the_onnx_graph_takes_stored_features_and_names_the_best_classes(model: str, tmp_path: Path) -> None:
    stored = StoredModel.open(model)
    dataset = stored.dataset()
    X = dataset.rows(0, 40)
    export(model, tmp_path / "model.onnx", "onnx", top_k=3)
    session = onnxruntime.InferenceSession(str(tmp_path / "model.onnx"))
    scores, best, classes = session.run(None, {"features": X})
    ours = stored.transforms.apply(X) @ stored.W
    assert np.allclose(scores, ours, atol=1e-4)
    assert np.array_equal(classes, np.argsort(-scores, axis=1, kind="stable")[:, :3])
    assert np.array_equal(best, np.take_along_axis(scores, classes, axis=1))
    names = json.loads(session.get_modelmeta().custom_metadata_map["class_names"])
    assert names == list(stored.model.record.class_names)


def test_scores_that_differ_are_not_exported_silently(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.publishing.run_onnx", lambda path, rows: np.ones((len(rows), 5)))
    with pytest.raises(PipelineError, match="do not use it"):
        export(model, tmp_path / "model.onnx", "onnx")


def test_unknown_formats_and_too_many_classes_are_refused(model: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'pickle': take one of npz, onnx, safetensors"):
        export(model, tmp_path / "model", "pickle")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="top-k 6 is not between 1 and the 5 classes"):
        export(model, tmp_path / "model", "onnx", top_k=6)
