from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from sklearn.metrics.pairwise import rbf_kernel

from tests.pipeline.pictures import BAD_FILES, png, write_classes
from tests.pipeline.small_network import write_network
from topline.pipeline.errors import ConfigError, InputError
from topline.pipeline.ingest import extract, import_features
from topline.pipeline.options.ingest import ExtractConfig, ImportConfig, PredictConfig
from topline.pipeline.options.train import ClusterConfig, TrainConfig
from topline.pipeline.prediction import predict
from topline.pipeline.rows.stored_model import StoredModel
from topline.pipeline.training import train

HERE = ClusterConfig(workers=0)


def trained(tmp_path: Path, backbone: str, **options: Any) -> str:
    """Model of three kinds of stripes under tmp_path/photos."""
    store = str(tmp_path / "store")
    extract(ExtractConfig(images=str(tmp_path / "photos"), store=store, backbone=backbone), HERE)
    return train(TrainConfig(store=store, k=2, certify=False, **options), HERE).model


def test_predictions_repeat_backbone_transforms_and_weights(tmp_path: Path) -> None:
    root = write_classes(tmp_path / "photos", 3, 10)
    model = trained(tmp_path, "hog:size=24,cells=8", transforms=("standardize", "pca:8", "l2", "bias"))
    found = predict(model, PredictConfig(images=str(root), top_k=3, batch=7))
    assert len(found.predictions) == 30
    stored = StoredModel.open(model)
    rows = stored.rows("test")
    manifest = stored.dataset().manifest().to_pylist()
    by_path = {prediction.sample: prediction for prediction in found.predictions}
    for start, stop, X in rows.tiles():
        scores = np.asarray(X, dtype=np.float64) @ stored.W
        for row, own in zip(rows.indices[start:stop].tolist(), scores, strict=True):
            prediction = by_path[manifest[row]["path"]]
            order = np.argsort(-own, kind="stable")
            assert prediction.labels == tuple(f"class{code}" for code in order.tolist())
            # PCA in tiles of other sizes rounds differently in single precision.
            np.testing.assert_allclose(prediction.scores, own[order], rtol=1e-4, atol=1e-5)
    right = [prediction.labels[0] == Path(prediction.sample).parent.name for prediction in found.predictions]
    assert np.mean(right) > 0.9


def test_a_kernel_scores_images_through_the_training_rows(tmp_path: Path) -> None:
    root = write_classes(tmp_path / "photos", 3, 10)
    model = trained(tmp_path, "hog:size=24,cells=8", transforms=("l2",), kernel="rbf", kernel_gamma=2.0)
    found = predict(model, PredictConfig(images=str(root), top_k=3))
    stored = StoredModel.open(model)
    train_rows = stored.rows("train")
    A = np.asarray(stored.model.duals(0, len(train_rows)), dtype=np.float64)
    C = A / (stored.model.record.lam * len(train_rows))
    manifest = stored.dataset().manifest().to_pylist()
    by_path = {prediction.sample: prediction for prediction in found.predictions}
    for start, stop, X in stored.rows("test").tiles():
        scores = rbf_kernel(X.astype(float), train_rows[0 : len(train_rows)].astype(float), gamma=2.0) @ C
        for row, own in zip(stored.rows("test").indices[start:stop].tolist(), scores, strict=True):
            prediction = by_path[manifest[row]["path"]]
            np.testing.assert_allclose(prediction.scores, np.sort(own)[::-1], rtol=1e-5, atol=1e-6)
    right = [prediction.labels[0] == Path(prediction.sample).parent.name for prediction in found.predictions]
    assert np.mean(right) > 0.9


def test_the_table_says_what_is_known_of_an_image(tmp_path: Path) -> None:
    root = write_classes(tmp_path / "photos", 3, 10)
    model = trained(tmp_path, "hog:size=24,cells=8")
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "=cmd.png").write_bytes(png())
    (tmp_path / "new" / "bad.png").write_bytes(b"")
    outputs = [tmp_path / "out" / name for name in ("a.parquet", "a.csv")]
    for output in outputs:
        found = predict(model, PredictConfig(images=str(root), top_k=2, output=output))
    first, second = pq.read_table(outputs[0]).to_pylist(), read_csv(outputs[1])
    lists = ["classes", "scores", "probabilities"]
    columns = ["path", "label", "split", *lists, "prediction", "probability", "error"]
    assert list(first[0]) == list(second[0]) == columns
    splits = {row["path"]: row["split"] for row in StoredModel.open(model).dataset().manifest().to_pylist()}
    for row, cells, one in zip(first, second, found.predictions, strict=True):
        assert (row["path"], row["label"]) == (one.sample, Path(one.sample).parent.name)
        assert row["split"] == splits[one.sample]
        assert row["prediction"] == cells["prediction"] == one.labels[0]
        assert (row["error"], cells["error"]) == (None, "")
        assert tuple(row["classes"]) == one.labels == tuple(json.loads(cells["classes"]))
        np.testing.assert_allclose(row["scores"], one.scores, rtol=1e-6)
        # Seven digits are written.
        np.testing.assert_allclose(json.loads(cells["scores"]), one.scores, rtol=1e-6)
    # A single class by the name of its folder, with the splits of the same contents.
    alone = predict(model, PredictConfig(images=str(root / "class1"), top_k=1)).predictions
    assert {one.label for one in alone} == {"class1"}
    assert [one.split for one in alone] == [splits[f"class1/{one.sample}"] for one in alone]
    # A folder beside those of classes is a class that the model does not have.
    (root / "class1").rename(root / "unicorn")
    scored = predict(model, PredictConfig(images=str(root), top_k=1)).scored
    assert scored is not None
    assert set(scored.unknown) == {"unicorn"}
    page = tmp_path / "out" / "page.html"
    predict(model, PredictConfig(images=str(tmp_path / "new"), top_k=2, output=outputs[1], page=page))
    new = {row["path"]: row for row in read_csv(outputs[1])}
    assert set(new) == {"'=cmd.png", "bad.png"}
    assert all(new["bad.png"][name] == "" for name in ("label", "split", "classes", "scores", "prediction"))
    assert new["bad.png"]["error"]
    text = page.read_text(encoding="utf-8")
    assert text.count('<img src="data:image/') == 1
    assert "=cmd.png" in text
    assert "1 of them could not be read" in text


def read_csv(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_bad_images_keep_their_place(tmp_path: Path) -> None:
    write_classes(tmp_path / "photos", 3, 5)
    model = trained(tmp_path, "hog:size=24,cells=8")
    new = tmp_path / "new"
    new.mkdir()
    for name, data in BAD_FILES.items():
        (new / name).write_bytes(data)
    (new / "good.png").write_bytes(png())
    (new / "notes.txt").write_text("not an image", encoding="utf-8")
    found = predict(model, PredictConfig(images=str(new), top_k=1))
    assert (found.rejected, found.ignored) == (len(BAD_FILES), 1)
    good = {prediction.sample: prediction for prediction in found.predictions if prediction.status == "ok"}
    assert list(good) == ["good.png"]
    assert len(good["good.png"].labels) == 1
    record = found.to_dict()
    assert (record["images"], record["rejected"]) == (7, 6)
    assert all(row["error"] for row in record["predictions"] if row["status"] == "rejected")
    (alone,) = predict(model, PredictConfig(images=str(new / "good.png"), top_k=1)).predictions
    assert (alone.sample, alone.status, alone.labels) == ("good.png", "ok", good["good.png"].labels)
    # A product with one row may be summed in another order than one with seven.
    assert alone.scores == pytest.approx(good["good.png"].scores, rel=1e-12)


def test_what_does_not_fit_the_model_is_refused(tmp_path: Path) -> None:
    root = write_classes(tmp_path / "photos", 3, 5)
    network = write_network(tmp_path / "net.onnx")
    model = trained(tmp_path, f"onnx:{network}")
    config = PredictConfig(images=str(root), top_k=2)
    assert predict(model, config).rejected == 0
    # Five classes are given by default, or all of fewer.
    assert len(predict(model, PredictConfig(images=str(root))).predictions[0].labels) == 3
    with pytest.raises(ConfigError, match=r"--top-k 4 is more than the model's 3 classes"):
        predict(model, config.model_copy(update={"top_k": 4}))
    with pytest.raises(ConfigError, match="--images is missing"):
        predict(model, PredictConfig())
    network.write_bytes(network.read_bytes() + b"\x62\x00")
    with pytest.raises(InputError, match="is not the network that made the features"):
        predict(model, config)
    network.unlink()
    with pytest.raises(InputError, match="there is no network"):
        predict(model, config)


def test_a_model_of_imported_features_takes_no_images(tmp_path: Path) -> None:
    root = write_classes(tmp_path / "photos", 1, 2)
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "a.npz", X=rng.normal(size=(30, 4)), y=np.arange(30) % 3)
    import_features(ImportConfig(features=str(tmp_path / "a.npz"), store=str(tmp_path / "store")))
    model = train(TrainConfig(store=str(tmp_path / "store"), k=2, certify=False), HERE).model
    with pytest.raises(InputError, match="was trained on imported features, so it cannot take images"):
        predict(model, PredictConfig(images=str(root), top_k=2))
