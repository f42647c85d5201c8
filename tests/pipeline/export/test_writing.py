"""Exports give the scores that we give, and say so; what would not is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file
from sklearn.base import clone

from tests.pipeline.small_data import small_dataset
from topline.pipeline.errors import ConfigError, InputError, PipelineError
from topline.pipeline.export import FORMATS
from topline.pipeline.export import onnx as onnx_graphs
from topline.pipeline.export.estimator import load_estimator
from topline.pipeline.export.writing import export_model
from topline.pipeline.ingest import import_features
from topline.pipeline.options import ClusterConfig, ExportOptions, ImportConfig, TrainConfig
from topline.pipeline.rows.stored_model import StoredModel
from topline.pipeline.training import train


@pytest.fixture(
    scope="module", params=["none", "l2,bias", "standardize,pca:6,bias,l2", "power:0.7,chi2:3,hellinger,bias"]
)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("exported") / "store"
    small_dataset(folder, n=300)
    config = TrainConfig(store=str(folder), k=2, tol=0.1, transforms=request.param, method="fw")
    return train(config, ClusterConfig(workers=0)).model


@pytest.mark.parametrize("kind", sorted(FORMATS))
def test_what_is_written_scores_as_we_do(model: str, kind: str, tmp_path: Path) -> None:
    place = tmp_path / "deep" / "model.bin"
    report = export_model(model, place, kind)
    files = [place] if place.is_file() else list(place.iterdir())
    assert report.bytes == sum(file.stat().st_size for file in files)
    assert report.rows_checked == 64
    assert report.largest_difference < 1e-4
    assert (report.dataset_rows, report.top_k) == (300, 5)
    assert [path.name for path in place.parent.iterdir()] == ["model.bin"]


@pytest.mark.parametrize(
    ("m", "transforms"), [(12, "standardize,l2,bias"), (2, "bias"), (3, "bias,l2"), (3, "none")]
)
def test_the_estimator_predicts_names_as_we_do(m: int, transforms: str, tmp_path: Path) -> None:
    """Also where names are not in the order of their codes ("class 10" comes before "class 2")."""
    dataset = small_dataset(tmp_path / "store", n=300, m=m)
    config = TrainConfig(store=str(tmp_path / "store"), k=1, tol=0.1, transforms=transforms, method="fw")
    url = train(config, ClusterConfig(workers=0)).model
    report = export_model(url, tmp_path / "model", "sklearn")
    assert report.tied_rows == 0
    made = load_estimator(tmp_path / "model")
    X, stored = dataset.rows(0, 300), StoredModel.open(url)
    scores = np.asarray(stored.transforms.apply(X) @ stored.W)
    names = np.array(dataset.class_names)
    expected = names[np.argsort(-scores, axis=1)]
    assert np.array_equal(made.predict(X), expected[:, 0])
    assert np.array_equal(made.predict_top_k(X, m), expected)
    assert made.top_k_score(X, names[dataset.labels()], 1) == np.mean(
        expected[:, 0] == names[dataset.labels()]
    )
    assert made.relative_gap_ == stored.model.record.result["relative_gap"]
    fresh = clone(made).set_params(tol=0.1).fit(X, names[dataset.labels()])
    assert fresh.coef_.shape == (1 if m == 2 else m, 12)
    assert np.mean(fresh.predict(X) == names[dataset.labels()]) > 0.5
    data = bytearray((tmp_path / "model" / "arrays.npz").read_bytes())
    data[len(data) // 2] ^= 1
    (tmp_path / "model" / "arrays.npz").write_bytes(data)
    with pytest.raises(InputError, match=r"arrays\.npz is damaged"):
        load_estimator(tmp_path / "model")
    with pytest.raises(InputError, match="not an estimator that topline exported"):
        load_estimator(tmp_path / "store")


def test_the_onnx_graph_takes_stored_features_and_names_the_best_classes(model: str, tmp_path: Path) -> None:
    stored = StoredModel.open(model)
    dataset = stored.dataset()
    X = dataset.rows(0, 40)
    export_model(model, tmp_path / "model.onnx", "onnx", ExportOptions(top_k=3))
    session = onnxruntime.InferenceSession(str(tmp_path / "model.onnx"))
    outputs = ["scores", "top_scores", "top_classes", "top_names"]
    scores, best, classes, names = session.run(outputs, {"features": X})
    ours = stored.transforms.apply(X) @ stored.W
    assert np.allclose(scores, ours, atol=1e-4)
    assert np.array_equal(classes, np.argsort(-scores, axis=1, kind="stable")[:, :3])
    assert np.array_equal(best, np.take_along_axis(scores, classes, axis=1))
    class_names = json.loads(session.get_modelmeta().custom_metadata_map["class_names"])
    assert class_names == list(stored.model.record.class_names)
    assert names.tolist() == [[class_names[code] for code in row] for row in classes]


def test_what_predicts_otherwise_is_not_kept(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    export_model(model, tmp_path / "model.onnx", "onnx")
    before = (tmp_path / "model.onnx").read_bytes()
    genuine = onnx_graphs.run_onnx
    monkeypatch.setattr(onnx_graphs, "run_onnx", lambda path, rows: genuine(path, rows) + 0.5)
    with pytest.raises(
        PipelineError, match=r"differ from those of model m0001 by 5\.00e-01: it was not kept"
    ):
        export_model(model, tmp_path / "model.onnx", "onnx")

    def swapped(path: str, rows: Any) -> Any:
        # The best two of a row change places, by scores that are all but right.
        scores = genuine(path, rows)
        first, second = np.argsort(-scores, axis=1)[:, :2].T
        place = np.arange(len(rows))
        close = np.abs(scores[place, first] - scores[place, second]) < 0.5
        middle = (scores[place, first] + scores[place, second]) / 2
        scores[place[close], first[close]] = middle[close] - 1e-3
        scores[place[close], second[close]] = middle[close] + 1e-3
        return scores

    monkeypatch.setattr(onnx_graphs, "run_onnx", swapped)
    monkeypatch.setattr("topline.pipeline.export.writing.CLOSE", 1.0)
    with pytest.raises(PipelineError, match=r"other top-5 classes than model m0001 in \d+ of \d+ rows"):
        export_model(model, tmp_path / "model.onnx", "onnx")
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]
    assert (tmp_path / "model.onnx").read_bytes() == before
    with pytest.raises(ConfigError, match="is a folder and not an earlier export"):
        export_model(model, tmp_path, "npz")
    export_model(model, tmp_path / "model", "sklearn")
    export_model(model, tmp_path / "model", "sklearn")
    assert load_estimator(tmp_path / "model").n_features_in_ == 12


def test_no_export_names_a_folder_of_this_machine(tmp_path: Path) -> None:
    rng, store = np.random.default_rng(0), str(tmp_path / "store")
    np.savez(tmp_path / "secret.npz", X=rng.normal(size=(60, 3)), y=np.arange(60) % 2)
    import_features(ImportConfig(features=str(tmp_path / "secret.npz"), store=store))
    model = train(TrainConfig(store=store, tol=0.1), ClusterConfig(workers=0)).model
    for kind in ("npz", "onnx", "safetensors"):
        export_model(model, tmp_path / kind, kind)
        assert str(tmp_path).encode() not in (tmp_path / kind).read_bytes()


def test_safetensors_are_what_the_package_reads(model: str, tmp_path: Path) -> None:
    export_model(model, tmp_path / "model.safetensors", "safetensors")
    (tmp_path / "other").touch()
    # Readable by whom other files of the folder are.
    assert (tmp_path / "model.safetensors").stat().st_mode == (tmp_path / "other").stat().st_mode
    arrays, stored = load_file(tmp_path / "model.safetensors"), StoredModel.open(model)
    assert np.array_equal(arrays["W"], stored.W)
    assert set(arrays) == {"W", *stored.transforms.arrays()}
    with safe_open(tmp_path / "model.safetensors", framework="numpy") as content:
        record = json.loads(content.metadata()["record"])
    assert record["class_names"] == list(stored.model.record.class_names)


def test_what_is_no_exported_estimator_is_told_how_one_is_made(model: str, tmp_path: Path) -> None:
    export_model(model, tmp_path / "file", "npz")
    for place in (tmp_path / "absent", tmp_path / "file", tmp_path):
        with pytest.raises(InputError, match=r"that topline exported: topline export MODEL --format sklearn"):
            load_estimator(place)


def test_unknown_formats_and_too_many_classes_are_refused(model: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'pickle': use one of npz, onnx, safetensors, sklearn"):
        export_model(model, tmp_path / "model", "pickle")
    with pytest.raises(ConfigError, match="--top-k 6 is more than the model's 5 classes"):
        export_model(model, tmp_path / "model", "onnx", ExportOptions(top_k=6))
    for kind in ("npz", "safetensors", "sklearn"):
        with pytest.raises(ConfigError, match=f"--top-k 2 changes nothing in {kind}"):
            export_model(model, tmp_path / "model", kind, ExportOptions(top_k=2))


def test_where_nothing_can_be_written_another_output_is_asked_for(model: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"file/model.npz cannot be written \(.*\): name another --output"):
        export_model(model, tmp_path / "file" / "model.npz", "npz")


def test_a_folder_takes_no_place_of_a_file(model: str, tmp_path: Path) -> None:
    place = tmp_path / "labels.npy"
    place.write_text("mine")
    with pytest.raises(ConfigError, match=r"labels.npy is a file, and the export is a folder: name"):
        export_model(model, place, "sklearn")
    assert place.read_text() == "mine"
