"""A model over features in a file: what it says of rows of the store it says of the same rows in a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from scipy import sparse
from sklearn.datasets import dump_svmlight_file

from tests.pipeline.small_data import make_features
from topline.pipeline.errors import ConfigError, InputError
from topline.pipeline.ingest import import_features
from topline.pipeline.options import ClusterConfig, ImportConfig, PredictConfig, TrainConfig
from topline.pipeline.prediction import of_features, predict_dataset, predict_features
from topline.pipeline.training import train

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
