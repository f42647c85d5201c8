"""A model over files, datasets and images: what is written is what it says, and no cell runs."""

from __future__ import annotations

import csv
import io
import itertools
import json
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy import sparse
from sklearn.datasets import dump_svmlight_file

from tests.pipeline.pictures import BAD_FILES, png, write_classes
from tests.pipeline.small_data import make_features, make_split, small_dataset, write_dataset
from tests.pipeline.small_network import write_network
from tests.storage.test_integrity import flip_first
from topline.pipeline.cluster import WorkerCalls, WorkersLost, open_cluster
from topline.pipeline.errors import ClusterError, ConfigError, InputError
from topline.pipeline.ingest import extract, import_features
from topline.pipeline.options import ClusterConfig, ImportConfig, PredictConfig, TrainConfig, build
from topline.pipeline.options.ingest import ExtractConfig, InspectConfig
from topline.pipeline.prediction import of_datasets as batch_prediction
from topline.pipeline.prediction import of_features, predict, predict_dataset, predict_features
from topline.pipeline.prediction.files import table_of, table_schema, table_writer
from topline.pipeline.readers import harmless, read_labels
from topline.pipeline.readers.words import as_given
from topline.pipeline.rows.stored_model import StoredModel
from topline.pipeline.training import train
from topline.storage.cache import StoredPredictions
from topline.storage.datasets import Dataset
from topline.storage.errors import IntegrityError
from topline.storage.schema import SPLITS
from topline.storage.stores import open_store
from topline.storage.stores.local import LocalStore
from topline.storage.verification import verify_store

HERE = ClusterConfig(workers=0)
N, D, M = 300, 8, 4

Array = np.ndarray[Any, Any]


def frame() -> pd.DataFrame:
    X, y = make_features(N, D, M, seed=3)
    X[np.abs(X) < 0.5] = 0.0
    return pd.DataFrame(X, columns=[f"f{place}" for place in range(D)]).assign(label=y)


def values(table: pd.DataFrame) -> Array:
    return table.drop(columns="label").to_numpy()


def trained(folder: Path, file: Path, **options: Any) -> str:
    store = str(folder / "store")
    imported = ("labels", "layout", "labels_name")
    given = {name: options.pop(name) for name in imported if name in options}
    import_features(
        ImportConfig(features=str(file), store=store, calibration_share=0.3, val_share=0.1, **given)
    )
    return train(TrainConfig(store=store, tol=0.05, **options), HERE).model


def both_tables(model: str, file: Path, folder: Path, **options: Any) -> tuple[Any, Any]:
    """Return what is written of the rows in the store, and of those in the file."""
    ours, theirs = folder / "ours.parquet", folder / "theirs.parquet"
    predict_dataset(model, PredictConfig(dataset="latest", output=theirs, **options), HERE)
    predict_features(model, PredictConfig(features=str(file), output=ours, **options))
    return pq.read_table(ours), pq.read_table(theirs)


def same(ours: Any, theirs: Any) -> None:
    assert ours.schema == theirs.schema
    if "set" in ours.schema.names:
        # The threshold is what a calibration row scores, and rounding decides about that row.
        rows = np.flatnonzero([split != "calibration" for split in theirs["split"].to_pylist()])
        ours, theirs = ours.take(rows), theirs.take(rows)
    for name in ours.schema.names:
        if name in ("label", "split"):
            continue
        found, expected = ours[name].to_pylist(), theirs[name].to_pylist()
        if name in ("scores", "probabilities", "probability"):
            # Rows go through the products in batches of other sizes.
            np.testing.assert_allclose(
                np.array(found, float), np.array(expected, float), rtol=1e-5, atol=1e-6
            )
        else:
            assert found == expected, name


@pytest.mark.parametrize("layout", ["dense", "csr"])
@pytest.mark.parametrize(
    "options",
    [
        {"transforms": ("l2", "bias")},
        {"loss": "softmax", "transforms": ("l2",)},
        {"kernel": "rbf"},
    ],
    ids=lambda options: str(options.get("kernel") or options.get("loss") or "hinge"),
)
def test_rows_in_a_file_are_answered_as_rows_in_a_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: str, options: dict[str, Any]
) -> None:
    monkeypatch.setattr(of_features, "BATCH_ROWS", 70)
    table = frame()
    table.to_parquet(tmp_path / "t.parquet")
    model = trained(tmp_path, tmp_path / "t.parquet", layout=layout, **options)
    ours, theirs = both_tables(model, tmp_path / "t.parquet", tmp_path, coverage=0.9, top_k=3)
    assert len(ours) == N
    same(ours, theirs)
    assert ours["label"].to_pylist() == list(map(str, table["label"]))
    assert ours["split"].to_pylist() == theirs["split"].to_pylist(), "known by their contents"

    # The same without labels, in other formats, sparse and dense.
    np.save(tmp_path / "t.npy", values(table))
    sparse.save_npz(tmp_path / "t.npz", sparse.csr_matrix(values(table)))
    table.drop(columns="label").to_csv(tmp_path / "t.csv", index=False)
    for name in ("t.npy", "t.npz", "t.csv"):
        again, _ = both_tables(model, tmp_path / name, tmp_path, coverage=0.9, top_k=3)
        same(again, theirs)
        assert set(again["label"].to_pylist()) == {None}


def test_several_labels_a_row_are_answered_by_the_threshold(tmp_path: Path) -> None:
    table = frame()
    pairs = zip(table["f0"], table["label"].astype(str), strict=True)
    lists = [[label, "low"] if first < 0 else [label] for first, label in pairs]
    pd.DataFrame({"features": values(table).tolist(), "label": lists}).to_parquet(tmp_path / "t.parquet")
    model = trained(tmp_path, tmp_path / "t.parquet", loss="multilabel_hinge")
    ours, theirs = both_tables(model, tmp_path / "t.parquet", tmp_path, threshold=0.0)
    found, expected = ours["classes"].to_pylist(), theirs["classes"].to_pylist()
    assert found == expected
    assert len({len(classes) for classes in found}) > 1
    assert ours["label"].to_pylist() == [";".join(labels) for labels in lists]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("features")
    frame().to_csv(folder / "t.csv", index=False)
    return trained(folder, folder / "t.csv", transforms=("standardize", "bias"))


def predicted(model: str, folder: Path, table: pd.DataFrame, **options: Any) -> of_features.FeaturesResult:
    table.to_csv(folder / "new.csv", index=False)
    return predict_features(model, PredictConfig(features=str(folder / "new.csv"), **options))


def test_the_first_rows_are_told_and_all_are_written(model: str, tmp_path: Path) -> None:
    table = (
        frame().rename(columns={"label": "class"}).assign(split="val", sample_id=[f"r{i}" for i in range(N)])
    )
    table.loc[3, "class"] = None
    found = predicted(model, tmp_path, table, output=tmp_path / "p.csv", page=tmp_path / "p.html", top_k=2)
    assert (found.rows, len(found.first)) == (N, of_features.FIRST)
    assert found.first[0]["sample_id"] == "r0"
    assert len(found.first[0]["classes"]) == 2
    written = pd.read_csv(tmp_path / "p.csv")
    assert list(written["sample_id"]) == [f"r{i}" for i in range(N)]
    assert set(written["split"]) == {"val"}
    assert written["label"].isna().sum() == 1
    assert "a file of features has no pictures" in (tmp_path / "p.html").read_text(encoding="utf-8")
    assert found.to_dict()["output"] == str(tmp_path / "p.csv")


def test_columns_are_found_by_their_names(model: str, tmp_path: Path) -> None:
    table = frame().drop(columns="label")
    turned = predicted(model, tmp_path, table[list(table)[::-1]])
    assert turned.first == predicted(model, tmp_path, table).first


def test_groups_and_weights_of_training_are_no_features_of_new_rows(tmp_path: Path) -> None:
    table = frame()
    bare = table.drop(columns="label")
    for name, values_of_rows in (("patient", np.arange(N) // 3), ("often", 1.0 + np.arange(N) % 2)):
        table[name] = values_of_rows
    table.to_csv(tmp_path / "all.csv", index=False)
    store = str(tmp_path / "store")
    import_features(
        ImportConfig(features=str(tmp_path / "all.csv"), store=store, groups="patient", sample_weight="often")
    )
    model = train(TrainConfig(store=store, tol=0.05), HERE).model
    alike = predicted(model, tmp_path, table.drop(columns="label"))
    assert alike.first == predicted(model, tmp_path, bare).first


@pytest.mark.parametrize("first", [0, 1])
def test_columns_of_libsvm_text_count_as_in_training(tmp_path: Path, first: int) -> None:
    X, y = values(frame()).copy(), frame()["label"]
    X[0, 0] = X[0, -1] = 1.0
    for name, rows in (("all.svm", slice(None)), ("some.svm", slice(5, 9))):
        with (tmp_path / name).open("wb") as file:
            dump_svmlight_file(
                X[rows, : D if name == "all.svm" else D - 1], y[rows], file, zero_based=not first
            )
    X[5:9, -1] = 0.0
    np.save(tmp_path / "some.npy", X[5:9])
    model = trained(tmp_path, tmp_path / "all.svm")
    found = [
        predict_features(model, PredictConfig(features=str(tmp_path / f"some.{kind}")))
        for kind in ("svm", "npy")
    ]
    ours, theirs = ([row["scores"] for row in result.first] for result in found)
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
    # Two files in a folder, each with fewer columns than the model takes.
    lines = (tmp_path / "some.svm").read_text(encoding="utf-8").splitlines(keepends=True)
    (tmp_path / "parts").mkdir()
    for name, some in (("1.svm", lines[:2]), ("2.svm", lines[2:])):
        (tmp_path / "parts" / name).write_text("".join(some), encoding="utf-8")
    parts = predict_features(model, PredictConfig(features=str(tmp_path / "parts" / "*.svm")))
    np.testing.assert_allclose([row["scores"] for row in parts.first], ours, rtol=1e-5, atol=1e-6)
    (tmp_path / "new.svm").write_text("0 1:1 9:2\n", encoding="utf-8")
    with pytest.raises(
        InputError, match=rf"has the columns 1 to 9, and model m0001 takes {first} to {first + D - 1}"
    ):
        predict_features(model, PredictConfig(features=str(tmp_path / "new.svm")))


def test_features_that_the_model_was_not_trained_on_are_refused(model: str, tmp_path: Path) -> None:
    table = frame().drop(columns="label")
    refused = {
        r"model m0001 has the features f2, which .*new\.csv does not have": table.drop(columns="f2"),
        r"new\.csv has the features more, which model m0001 does not have": table.assign(more=1.0),
        r"m0001 has the features f2, and .*new\.csv f9 in their place": table.rename(columns={"f2": "f9"}),
        r"has NaN or infinity in row 5, of f1": table.assign(
            f1=[np.nan if i == 5 else 1.0 for i in range(N)]
        ),
    }
    for sentence, wrong in refused.items():
        with pytest.raises(InputError, match=sentence):
            predicted(model, tmp_path, wrong, output=tmp_path / "p.csv")
    assert not (tmp_path / "p.csv").exists()
    np.save(tmp_path / "wide.npy", np.ones((2, D + 1)))
    with pytest.raises(InputError, match="has 9 features per row, and model m0001 takes 8"):
        predict_features(model, PredictConfig(features=str(tmp_path / "wide.npy")))
    with pytest.raises(ConfigError, match="--features is missing"):
        predict_features(model, PredictConfig())
    (tmp_path / "new.svm").write_text("0 1:1 8:2\n", encoding="utf-8")
    with pytest.raises(
        InputError, match="is LIBSVM text, and model m0001 was trained on a file that does not number"
    ):
        predict_features(model, PredictConfig(features=str(tmp_path / "new.svm")))


REJECTED = [0, 65, 699]
WORDS = list(SPLITS)


@pytest.fixture(scope="module")
def dataset_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("predicted") / "store"
    small_dataset(folder)
    url = train(TrainConfig(store=str(folder), k=2, tol=0.05, transforms=("standardize", "bias")), HERE).model
    X, labels = make_features(700, 12, 5, seed=1)
    split = make_split(700)
    labels[REJECTED], split[REJECTED] = -1, 3
    write_dataset(open_store(folder), X, labels, split, key="new", m=5)
    return url


def best_classes(dataset_model: str, k: int) -> tuple[Any, Any]:
    stored = StoredModel.open(dataset_model)
    X = np.asarray(Dataset.open(stored.model.store).rows(0, 700), dtype=np.float64)
    mean, scale = (stored.model.array(f"transform.0.{name}") for name in ("mean", "scale"))
    scores = ((X - mean) * scale) @ stored.W[:-1] + stored.W[-1]
    best = np.argsort(-scores, axis=1)[:, :k]
    return best, np.take_along_axis(scores, best, axis=1)


def check(dataset_model: str, url: str, k: int) -> None:
    store = StoredModel.open(dataset_model).model.store
    found = StoredPredictions.load(store, url.rpartition("/")[2])
    best, scores = best_classes(dataset_model, k)
    best[REJECTED], scores[REJECTED] = -1, np.nan
    assert np.array_equal(found.classes.whole(), best)
    np.testing.assert_allclose(found.scores.whole(), scores, rtol=1e-5, atol=1e-5)


def test_every_row_gets_its_best_classes_once(dataset_model: str, tmp_path: Path) -> None:
    config = PredictConfig(dataset="latest", top_k=3, output=tmp_path / "deep" / "rows.parquet")
    first = predict_dataset(dataset_model, config, HERE)
    assert (first.rows, first.unclassified, first.reused) == (700, 3, False)
    check(dataset_model, first.predictions, 3)
    rows = pq.read_table(tmp_path / "deep" / "rows.parquet").to_pylist()
    assert [row["sample_id"] for row in rows] == [f"row{i:06d}" for i in range(700)]
    assert [place for place, row in enumerate(rows) if row["classes"] is None] == REJECTED
    assert rows[1]["classes"] == [f"class {code}" for code in best_classes(dataset_model, 3)[0][1]]
    labels, splits = make_features(700, 12, 5, seed=1)[1], make_split(700)
    assert [row["label"] for row in rows[1:10]] == [f"class {code}" for code in labels[1:10]]
    assert [row["split"] for row in rows[1:10]] == [WORDS[code] for code in splits[1:10]]
    assert (rows[0]["label"], rows[0]["split"], rows[0]["scores"]) == (None, "rejected", None)
    again = predict_dataset(dataset_model, config, HERE)
    assert (again.reused, again.predictions) == (True, first.predictions)
    store = open_store(dataset_model.rpartition("/models/")[0])
    assert verify_store(store) == []
    folder = StoredPredictions.load(store, first.predictions.rpartition("/")[2]).folder
    flip_first(store, f"{folder}/classes/c/3/0")
    assert [(finding.path, finding.rows) for finding in verify_store(store)] == [
        (f"{folder}/classes/c/3/0", (192, 256))
    ]
    store.delete_tree("predictions")


@pytest.mark.cluster
def test_what_is_lost_with_a_worker_is_dealt_anew(
    dataset_model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    genuine, dealt = WorkerCalls.run, []

    def losing(self: WorkerCalls, calls: Any, **options: Any) -> Any:
        answers = genuine(self, calls, **options)
        work = {call.worker: call.arguments[1] for call in calls if call.arguments}
        dealt.append(work)
        if work and len(dealt) % 2 == 0:
            raise WorkersLost([calls[0].worker], "is gone")
        return answers

    def never(self: WorkerCalls, calls: Any, **options: Any) -> Any:
        raise WorkersLost([calls[0].worker], "is gone")

    monkeypatch.setattr(WorkerCalls, "run", losing)
    monkeypatch.setattr(batch_prediction, "CALL_BYTES", 2 * 64 * 12 * 4)
    monkeypatch.setattr(batch_prediction, "LOSSES", 1)
    with open_cluster(ClusterConfig(workers=2, dashboard=False), data_bytes=0) as client:
        found = predict_dataset(dataset_model, PredictConfig(dataset="latest", top_k=2), client=client)
        monkeypatch.setattr(WorkerCalls, "run", never)
        with pytest.raises(ClusterError, match="2 times in a row"):
            predict_dataset(dataset_model, PredictConfig(dataset="latest", top_k=1), client=client)
    check(dataset_model, found.predictions, 2)
    assert [sorted(itertools.chain(*work.values())) for work in dealt[:5]] == [
        [0, 1, 2, 3], [4, 5, 6, 7], [4, 5, 6, 7], [8, 9], [8, 9],
    ]  # fmt: skip
    assert len(dealt[0]) == 2
    store = open_store(dataset_model.rpartition("/models/")[0])
    assert len(store.list("predictions")) == 2


@pytest.mark.cluster
def test_workers_score_by_the_support_of_a_kernel_model_what_one_process_does(tmp_path: Path) -> None:
    small_dataset(tmp_path, n=300)
    choice = TrainConfig(store=str(tmp_path), loss="max_hinge", kernel="rbf", C=0.1, transforms=(), blocks=3)
    url = train(choice, HERE).model
    stored = StoredModel.open(url)
    support = np.flatnonzero(stored.model.duals(0, stored.model.record.n).any(axis=1))
    np.testing.assert_array_equal(stored.expansion.support, support)
    assert len(stored.expansion.rows) == len(support)
    here = predict_dataset(url, PredictConfig(dataset="latest", top_k=3), HERE)
    kept = StoredPredictions.load(stored.model.store, here.predictions.rpartition("/")[2]).scores.whole()
    stored.model.store.delete_tree("predictions")
    with open_cluster(ClusterConfig(workers=2, dashboard=False), data_bytes=0) as client:
        there = predict_dataset(url, PredictConfig(dataset="latest", top_k=3), client=client)
    found = StoredPredictions.load(stored.model.store, there.predictions.rpartition("/")[2]).scores.whole()
    np.testing.assert_array_equal(found, kept)


def test_a_price_gives_each_row_as_many_classes_as_pay(dataset_model: str, tmp_path: Path) -> None:
    means = []
    for price in (0.01, 10.0):
        config = PredictConfig(dataset="latest", top_k=5, guess_price=price, output=tmp_path / "rows.parquet")
        means.append(predict_dataset(dataset_model, config, HERE).sets["mean_size"])
        rows = [row for row in pq.read_table(config.output).to_pylist() if row["classes"] is not None]
        assert all(row["set"] == row["classes"][: row["set_size"]] for row in rows)
    assert means[0] > means[1] == 1.0
    with pytest.raises(ConfigError, match="--coverage and --guess-price both say"):
        predict_dataset(dataset_model, PredictConfig(dataset="latest", guess_price=0.1, coverage=0.9), HERE)


def test_what_does_not_fit_is_refused(dataset_model: str, tmp_path: Path) -> None:
    other = small_dataset(tmp_path / "other", n=50, d=7)
    with pytest.raises(InputError, match="has 7 features per row, and model m0001 takes 12"):
        predict_dataset(dataset_model, PredictConfig(dataset="latest", store=str(tmp_path / "other")), HERE)
    with pytest.raises(ConfigError, match="top-k 6 is more than the model's 5"):
        predict_dataset(dataset_model, PredictConfig(dataset="latest", top_k=6), HERE)
    assert other.store.list("predictions") == []


def test_few_rows_are_scored_here_unless_somebody_chooses_workers(
    dataset_model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Asked(Exception):
        pass

    def ask(*_: Any, **__: Any) -> None:
        raise Asked

    monkeypatch.setattr("topline.pipeline.cluster.given_or_own_client", ask)
    asked = PredictConfig(dataset="latest", top_k=5)
    assert predict_dataset(dataset_model, asked).rows > 0
    monkeypatch.setattr(batch_prediction, "HERE_BYTES", 0)
    with pytest.raises(Asked):
        predict_dataset(dataset_model, PredictConfig(dataset="latest", top_k=4))
    monkeypatch.undo()
    monkeypatch.setattr("topline.pipeline.cluster.given_or_own_client", ask)
    with pytest.raises(Asked):
        predict_dataset(dataset_model, PredictConfig(dataset="latest", top_k=4), ClusterConfig(workers=2))


def test_a_store_that_is_only_read_gives_a_table_and_keeps_nothing(
    dataset_model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = open_store(dataset_model.rpartition("/models/")[0])
    store.delete_tree("predictions")
    monkeypatch.setattr(LocalStore, "is_writable", lambda self: False)
    config = PredictConfig(dataset="latest", top_k=3, output=tmp_path / "rows.parquet")
    found = predict_dataset(dataset_model, config, ClusterConfig(workers=2))
    assert (found.predictions, found.reused, found.rows) == (None, False, 700)
    assert "is read-only" in caplog.text
    assert store.list("predictions") == []
    rows = pq.read_table(tmp_path / "rows.parquet").to_pylist()
    best = best_classes(dataset_model, 3)[0]
    assert [row["classes"] for row in rows[1:65]] == [
        [f"class {code}" for code in best[i]] for i in range(1, 65)
    ]


def images_trained(tmp_path: Path, backbone: str, **options: Any) -> str:
    """Model of three kinds of stripes under tmp_path/photos."""
    store = str(tmp_path / "store")
    extract(ExtractConfig(images=str(tmp_path / "photos"), store=store, backbone=backbone), HERE)
    return train(TrainConfig(store=store, k=2, certify=False, **options), HERE).model


def test_predictions_repeat_backbone_transforms_and_weights(tmp_path: Path) -> None:
    root = write_classes(tmp_path / "photos", 3, 10)
    model = images_trained(tmp_path, "hog:size=24,cells=8", transforms=("standardize", "pca:8", "l2", "bias"))
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


def test_the_table_says_what_is_known_of_an_image(tmp_path: Path) -> None:
    root = write_classes(tmp_path / "photos", 3, 10)
    model = images_trained(tmp_path, "hog:size=24,cells=8")
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
    # So it is below test/, as a data set comes, and behind links, which are followed on demand.
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "test").symlink_to(root)
    inside = predict(model, PredictConfig(images=str(tmp_path / "data"), follow_links=True, top_k=1)).scored
    assert inside == scored
    closed = predict(model, PredictConfig(images=str(tmp_path / "data"), top_k=1))
    assert closed.scored is None
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
    model = images_trained(tmp_path, "hog:size=24,cells=8")
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
    model = images_trained(tmp_path, f"onnx:{network}")
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


@pytest.mark.parametrize("text", ["=1+1", "+cmd|' /C calc'!A0", "-2+3", "@SUM(A1)", "\t=1", "\r=1", "\n=1"])
def test_a_formula_gets_an_apostrophe(text: str) -> None:
    assert harmless(text) == f"'{text}"


@pytest.mark.parametrize("text", ["-1", "+1", "-1.5e-3", "cat", "a=b", "", "007"])
def test_other_text_stays(text: str) -> None:
    assert harmless(text) == text


def test_no_byte_that_a_terminal_obeys_is_written(tmp_path: Path) -> None:
    names = ["a\x1b]0;title\x07", "b\x9b31m", "c\x7f\x08\x00"]
    rows = {"path": names, "classes": [[name] for name in names]}
    schema = pa.schema([("path", pa.string()), ("classes", pa.list_(pa.string()))])
    with table_writer(tmp_path / "rows.csv", schema) as write:
        write(pa.table(rows, schema))
    text = (tmp_path / "rows.csv").read_text(encoding="utf-8")
    assert all(unicodedata.category(one) != "Cc" or one in "\r\n" for one in text)
    cells = list(csv.DictReader(io.StringIO(text)))
    assert [json.loads(cell["classes"]) for cell in cells] == rows["classes"]
    assert [as_given(cell["path"]) for cell in cells] == names


def test_a_table_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    path, schema = tmp_path / "new" / "a.csv", table_schema("path", sets=True)
    row = {"path": "@x", "label": "-b", "split": None, "classes": ["=1", 'say "no"'], "scores": [0.1, -2.0],
           "probabilities": None, "set": [], "error": "+bad"}  # fmt: skip

    def broken() -> None:
        with table_writer(path, schema) as write:
            write(pa.Table.from_pylist([row], schema=schema))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        broken()
    assert list(path.parent.iterdir()) == []
    with table_writer(path, schema) as write:
        write(table_of(schema, {name: [value] for name, value in row.items()}, several=False))
    # Lists begin with a bracket, so that nothing in them is run.
    assert path.read_bytes().decode() == (
        "path,label,split,classes,scores,probabilities,set,set_size,prediction,probability,error\r\n"
        '\'@x,\'-b,,"[""=1"", ""say \\""no\\""""]","[0.1, -2.0]",,[],0,\'=1,,\'+bad\r\n'
    )


def test_labels_that_a_spreadsheet_would_run_are_read_as_they_were(tmp_path: Path) -> None:
    (tmp_path / "labels.csv").write_text("sample_id,label\r\n'-2,'=two\r\n'@1,one\r\n", encoding="utf-8")
    assert read_labels(tmp_path / "labels.csv", 2, None, ["@1", "-2"]).tolist() == ["one", "=two"]


def test_damage_to_what_is_written_is_no_fault_of_the_file(tmp_path: Path) -> None:
    path, schema = tmp_path / "a.csv", table_schema("path", sets=False)

    def damaged() -> None:
        with table_writer(path, schema):
            raise IntegrityError("scores/c/0/0 is damaged")

    with pytest.raises(IntegrityError, match=r"^scores/c/0/0 is damaged$"):
        damaged()
    assert list(tmp_path.iterdir()) == []


def test_other_files_are_refused_before_any_work() -> None:
    with pytest.raises(ConfigError, match=r"--output '.*rows\.xlsx' is not usable: .*\.parquet or \.csv"):
        build(PredictConfig, {"output": "rows.xlsx"})


@pytest.mark.parametrize("config", [PredictConfig, InspectConfig])
def test_a_page_takes_no_place_of_the_table(config: type[PredictConfig | InspectConfig]) -> None:
    with pytest.raises(ConfigError, match=r"--output and --page are both rows\.csv: name two files"):
        build(config, {"output": "rows.csv", "page": "rows.csv"})
