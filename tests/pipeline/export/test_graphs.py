"""ONNX graphs answer as `predict` does: probabilities, sets, and pictures through their network."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pyarrow.parquet as pq
import pytest
from PIL import Image

from tests.pipeline.small_data import make_features, make_split, small_dataset, write_dataset
from topline.pipeline.calibration import row_draws
from topline.pipeline.errors import ConfigError
from topline.pipeline.export import onnx as onnx_graphs
from topline.pipeline.export.writing import export_model
from topline.pipeline.images import decode
from topline.pipeline.ingest import extract
from topline.pipeline.options.ingest import ExportOptions, ExtractConfig, PredictConfig
from topline.pipeline.options.train import ClusterConfig, TrainConfig
from topline.pipeline.prediction import predict
from topline.pipeline.prediction.answers import AnswerRule
from topline.pipeline.rows import StoredModel
from topline.pipeline.training import train
from topline.storage.schema import SPLITS
from topline.storage.stores import open_store

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
    assert rule.probabilities is not None
    assert rule.sets is not None
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
    """The graph takes pixels as `decode` or a browser leaves them; scores are within 1e-3 of the largest."""
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
        assert np.allclose(top[0], row["scores"], atol=1e-3 * np.abs(row["scores"]).max())
        assert np.allclose(np.sort(p[0])[::-1], row["probabilities"], atol=1e-3)
    about = onnxruntime.InferenceSession(str(tmp_path / "whole.onnx")).get_modelmeta().custom_metadata_map
    assert json.loads(about["class_names"]) == ["noise", "waves"]
    assert str(tmp_path) not in (tmp_path / "whole.onnx").read_bytes().decode("latin-1")
