"""Exports answer as `predict` does, with a kernel on few rows as well; what would not is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pyarrow.parquet as pq
import pytest
from PIL import Image
from safetensors import safe_open
from safetensors.numpy import load_file
from sklearn.base import clone
from sklearn.metrics.pairwise import rbf_kernel

from tests.pipeline.small_data import make_features, make_split, small_dataset, write_dataset
from topline.pipeline.calibration import row_draws
from topline.pipeline.errors import ConfigError, InputError, PipelineError
from topline.pipeline.export import FORMATS
from topline.pipeline.export import onnx as onnx_graphs
from topline.pipeline.export.estimator import load_estimator
from topline.pipeline.export.writing import export_model
from topline.pipeline.images import decode
from topline.pipeline.ingest import extract, import_features
from topline.pipeline.options import ClusterConfig, ExportOptions, ImportConfig, TrainConfig
from topline.pipeline.options.ingest import ExtractConfig, PredictConfig
from topline.pipeline.prediction import predict
from topline.pipeline.prediction.answers import AnswerRule
from topline.pipeline.rows.stored_model import StoredModel
from topline.pipeline.training import train
from topline.storage.datasets import Dataset
from topline.storage.models import load_model
from topline.storage.schema import SPLITS
from topline.storage.stores import open_store


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
    with pytest.raises(ConfigError, match="'pickle'; use one of npz, onnx, safetensors, sklearn"):
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


HERE = ClusterConfig(workers=0)


def answers_of(model: Path, names: list[str], **inputs: Any) -> list[Any]:
    return list(onnxruntime.InferenceSession(str(model)).run(names, inputs))


@pytest.mark.parametrize(
    ("loss", "per_class"),
    [("softmax", False), ("softmax", True), ("max_hinge", False), ("one_vs_all_hinge", False)],
)
def test_probabilities_and_sets_are_those_of_predict(loss: str, per_class: bool, tmp_path: Path) -> None:
    """A set of the graph holds that of `predict`, whatever it draws, and no more than the draw decides."""
    X, labels = make_features(900, 12, 5)
    split = make_split(900)
    # Half of the test rows are for calibration.
    split[np.flatnonzero(split == 2)[::2]] = SPLITS["calibration"]
    write_dataset(open_store(tmp_path / "store", create=True), X, labels, split, m=5)
    url = train(TrainConfig(store=str(tmp_path / "store"), loss=loss, tol=0.05), HERE).model
    options = ExportOptions(coverage=0.8, per_class=per_class, input_type="float64")
    export_model(url, tmp_path / "model.onnx", "onnx", options)
    X, labels, split = X[:300], labels[:300], split[:300]
    p, sets = answers_of(tmp_path / "model.onnx", ["probabilities", "sets"], features=X.astype(np.float64))
    stored = StoredModel.open(url)
    rule = AnswerRule.of(stored, PredictConfig(features="x", coverage=0.8, per_class=per_class))
    scores = stored.scores(stored.transforms.apply(X))
    assert np.allclose(p, rule.probabilities.probabilities(scores), atol=1e-5)
    ids = [str(row) for row in range(300)]
    assert not (rule.sets.sets(scores, row_draws(ids, 7)) & ~sets).any()
    assert np.array_equal(sets, rule.sets.sets(scores, np.zeros(300)))
    held = np.flatnonzero(split == 2)
    assert sets[held, labels[held]].mean() > 0.7


def test_what_a_graph_cannot_give_is_refused(tmp_path: Path) -> None:
    small_dataset(tmp_path / "store", n=200)
    url = train(TrainConfig(store=str(tmp_path / "store"), tol=0.1), HERE).model
    for options, words in (
        (ExportOptions(per_class=True), "--per-class is about sets: give their --coverage"),
        (ExportOptions(with_backbone=True), "trained on imported features: leave --with-backbone out"),
        (ExportOptions(coverage=0.9), "there are no calibration rows"),
    ):
        with pytest.raises(Exception, match=words):
            export_model(url, tmp_path / "model.onnx", "onnx", options)
    with pytest.raises(
        ConfigError, match="--with-backbone changes nothing in npz: leave it out, or export as onnx"
    ):
        export_model(url, tmp_path / "model.npz", "npz", ExportOptions(with_backbone=True))
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


def test_what_one_file_cannot_hold_goes_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_dataset(tmp_path / "store", n=200, d=300)
    url = train(TrainConfig(store=str(tmp_path / "store"), tol=0.1), HERE).model
    monkeypatch.setattr(onnx_graphs, "LARGEST", 1000)
    report = export_model(url, tmp_path / "out" / "model.onnx", "onnx")
    files = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert files == ["model.onnx", "model.onnx.data"]
    assert report.bytes == sum((tmp_path / "out" / name).stat().st_size for name in files)
    with monkeypatch.context() as roomy:
        roomy.setattr(onnx_graphs, "LARGEST", 1 << 30)
        export_model(url, tmp_path / "out" / "model.onnx", "onnx")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["model.onnx"]
    export_model(url, tmp_path / "out" / "model.onnx", "onnx")
    moved = (tmp_path / "out").rename(tmp_path / "elsewhere")
    X = np.ones((2, 300), np.float32)
    assert answers_of(moved / "model.onnx", ["scores"], features=X)[0].shape == (2, 5)


def write_pictures(folder: Path) -> None:
    """Write pictures of two kinds and any shape, as cameras do: turned, CMYK, grey of 16 bits."""
    rng = np.random.default_rng(0)
    for number in range(24):
        kind = ("waves", "noise")[number % 2]
        h, w = (int(side) for side in rng.integers(40, 700, 2))
        y, x = np.mgrid[0:h, 0:w]
        waves = np.stack(
            [127 + 120 * np.sin((x * a + y * b) / 30) for a, b in rng.normal(size=(3, 2))], axis=2
        )
        pixels = (waves if kind == "waves" else rng.integers(0, 256, (h, w, 3))).astype(np.uint8)
        place = folder / kind / str(number)
        place.parent.mkdir(parents=True, exist_ok=True)
        picture = Image.fromarray(pixels)
        if number % 6 < 2:
            turned = Image.Exif()
            turned[0x0112] = 6
            picture.save(place.with_suffix(".jpg"), exif=turned)
        elif number % 6 < 4:
            picture.convert("CMYK").save(place.with_suffix(".jpg"), quality=90)
        else:
            Image.fromarray(pixels[:, :, 0].astype(np.uint16) * 257).save(place.with_suffix(".png"))


def test_a_picture_goes_through_its_network_as_in_predict(tmp_path: Path) -> None:
    """The graph takes pixels as `decode` or a browser leaves them; what it resizes is equal to the byte."""
    write_pictures(tmp_path / "photos")
    store = str(tmp_path / "store")
    extract(ExtractConfig(images=str(tmp_path / "photos"), store=store, backbone="efficientnet_lite0"), HERE)
    url = train(TrainConfig(store=store, tol=0.1), HERE).model
    export_model(url, tmp_path / "whole.onnx", "onnx", ExportOptions(with_backbone=True))
    predict(url, PredictConfig(images=str(tmp_path / "photos"), output=tmp_path / "table.parquet"))
    rows = pq.read_table(tmp_path / "table.parquet").to_pylist()
    assert len(rows) == 24
    for row in rows:
        image = decode((tmp_path / "photos" / row["path"]).read_bytes())
        top, names, p = answers_of(
            tmp_path / "whole.onnx", ["top_scores", "top_names", "probabilities"], image=image
        )
        assert names[0].tolist() == row["classes"]
        assert np.allclose(top[0], row["scores"], atol=1e-5 * np.abs(row["scores"]).max())
        assert np.allclose(np.sort(p[0])[::-1], row["probabilities"], atol=1e-5)
    about = onnxruntime.InferenceSession(str(tmp_path / "whole.onnx")).get_modelmeta().custom_metadata_map
    assert json.loads(about["class_names"]) == ["noise", "waves"]
    assert str(tmp_path) not in (tmp_path / "whole.onnx").read_bytes().decode("latin-1")


GAMMA = 0.05


def trained(folder: Path, **options: Any) -> str:
    choice = {"loss": "max_hinge", "kernel": "rbf", "kernel_gamma": GAMMA, "transforms": "none", **options}
    return train(TrainConfig(store=str(folder), **choice), ClusterConfig(workers=0)).model


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return small_dataset(tmp_path_factory.mktemp("compressed") / "store", n=400)


@pytest.fixture(scope="module")
def kernel_model(dataset: Dataset) -> str:
    return trained(Path(dataset.store.url.removeprefix("file://")))


def test_the_objective_of_what_is_written_is_within_the_share(
    kernel_model: str, dataset: Dataset, tmp_path: Path
) -> None:
    """P of the file alone: |W|^2 and losses from its landmarks and weights, by scikit-learn's kernel."""
    report = export_model(kernel_model, tmp_path / "few.npz", "npz", most_loss=0.05)
    found, record = report.compression, load_model(kernel_model).record
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


def test_an_estimator_of_few_rows_answers_as_the_model(
    kernel_model: str, dataset: Dataset, tmp_path: Path
) -> None:
    report = export_model(kernel_model, tmp_path / "few", "sklearn", most_loss=1e-3)
    made, X = load_estimator(tmp_path / "few"), dataset.rows(0, 400)
    names = np.array(dataset.class_names)[dataset.labels()]
    assert made.score(X, names) > 0.5
    assert made.primal_ == pytest.approx(report.compression.primal)
    # The store keeps the model as it was.
    assert load_model(kernel_model).record.kernel is not None
    assert "compression" not in load_model(kernel_model).record.result


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
