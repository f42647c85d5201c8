"""Labels, splits and test rows that come in files of their own, beside the features."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from topline.pipeline.errors import InputError
from topline.pipeline.ingest import import_features
from topline.pipeline.options.ingest import ImportConfig
from topline.pipeline.readers import open_features
from topline.storage.datasets import Dataset
from topline.storage.stores import open_store

IDS = ["a", "b", "c", "d"]
LABELS = ["cat", "dog", "dog", "cat"]


def table(path: Path, ids: list[Any] = IDS, columns: str = "pqr", **more: list[str]) -> Path:
    values = {name: np.arange(len(ids)) + 10.0 * "pqrs".index(name) for name in columns}
    pd.DataFrame({**values, "sample_id": ids, **more}).to_parquet(path)
    return path


def stored(folder: Path, features: Path, **options: object) -> Dataset:
    config = ImportConfig.model_validate(
        {"features": str(features), "store": str(folder / "store"), "test_share": 0.0, **options}
    )
    result = import_features(config)
    return Dataset.open(open_store(result.store), result.dataset)


def words(dataset: Dataset) -> list[str]:
    return [dataset.class_names[code] for code in dataset.labels().tolist()]


def test_labels_and_splits_go_to_the_rows_that_they_name(tmp_path: Path) -> None:
    features = table(tmp_path / "rows.parquet")
    (tmp_path / "labels.csv").write_text("sample_id,label\nd,cat\nc,dog\nb,dog\na,cat\ne,cow\n")
    (tmp_path / "split.csv").write_text("split;sample_id\ntest;c\ntrain;a\ntrain;d\ntrain;b\n")
    dataset = stored(tmp_path, features, labels=tmp_path / "labels.csv", split=tmp_path / "split.csv")
    assert words(dataset) == LABELS
    assert dataset.split().tolist() == [0, 0, 2, 0]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("d,cat\nc,dog\nb,dog\nx,cat\n", r"labels.csv lacks 'a' in its column sample_id"),
        ("d,cat\nc,dog\nb,dog\nb,cat\na,cat\n", r"has 'b' twice in its column sample_id.* leave the column"),
    ],
)
def test_labels_of_other_rows_are_refused(tmp_path: Path, rows: str, message: str) -> None:
    (tmp_path / "labels.csv").write_text("sample_id,label\n" + rows)
    with pytest.raises(InputError, match=message):
        stored(tmp_path, table(tmp_path / "rows.parquet"), labels=tmp_path / "labels.csv")


def test_labels_of_rows_without_names_are_taken_in_order(tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", np.eye(4))
    (tmp_path / "labels.csv").write_text("sample_id,label\nd,cat\nc,dog\nb,dog\na,cat\n")
    assert words(stored(tmp_path, tmp_path / "rows.npy", labels=tmp_path / "labels.csv")) == LABELS


def test_the_name_of_the_labels_is_looked_for_in_their_file(tmp_path: Path) -> None:
    features = table(tmp_path / "rows.parquet")
    (tmp_path / "labels.csv").write_text("label,kind\n1,cat\n2,dog\n3,dog\n4,cat\n")
    np.savez(tmp_path / "labels.npz", sort=np.arange(4), kind=np.array(LABELS))
    for name in ("labels.csv", "labels.npz"):
        assert words(stored(tmp_path, features, labels=tmp_path / name, labels_name="kind")) == LABELS
        with pytest.raises(InputError, match=r"no (column|array) 'knd': did you mean 'kind'\?"):
            stored(tmp_path, features, labels=tmp_path / name, labels_name="knd")
    with pytest.raises(InputError, match="has the arrays sort, kind: name one of them labels"):
        stored(tmp_path, features, labels=tmp_path / "labels.npz")


@pytest.mark.parametrize("option", ["features_name", "labels_name"])
def test_names_that_nothing_in_a_file_can_have_are_refused(tmp_path: Path, option: str) -> None:
    np.save(tmp_path / "rows.npy", np.eye(4))
    (tmp_path / "rows.svm").write_text("1 1:1\n0 2:1\n")
    np.save(tmp_path / "labels.npy", np.arange(4))
    (tmp_path / "labels.txt").write_text("\n".join(LABELS))
    flag = "--" + option.replace("_", "-")
    for name in ("rows.npy", "rows.svm"):
        with pytest.raises(InputError, match=rf"{flag} kind names nothing in .*{name}.*: leave {flag} out"):
            stored(tmp_path, tmp_path / name, **{option: "kind"})
    for name in ("labels.npy", "labels.txt"):
        with pytest.raises(InputError, match=rf"{flag} kind names nothing in .*: leave {flag} out"):
            stored(tmp_path, tmp_path / "rows.npy", labels=tmp_path / name, **{option: "kind"})


@pytest.mark.parametrize("form", ["parquet", "arff"])
def test_test_rows_have_the_same_features_in_the_same_order(tmp_path: Path, form: str) -> None:
    def write(name: str, columns: str) -> Path:
        if form == "parquet":
            return table(tmp_path / f"{name}.parquet", columns=columns, label=LABELS)
        path = tmp_path / f"{name}.arff"
        attributes = "".join(f"@attribute {column} numeric\n" for column in columns)
        path.write_text(
            f"@relation r\n{attributes}@attribute class {{cat,dog}}\n@data\n1,2,3,cat\n1,2,3,dog\n"
        )
        return path

    train = write("train", "pqr")
    with pytest.raises(InputError, match="same features in different orders: write the columns in one order"):
        stored(tmp_path, train, test_features=write("turned", "rqp"))
    with pytest.raises(InputError, match=r"has the features r, and .* s in their place"):
        stored(tmp_path, train, test_features=write("others", "pqs"))
    assert stored(tmp_path, train, test_features=write("same", "pqr")).info.d == 3


def test_test_rows_keep_their_names_and_say_what_is_not_taken(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    train = table(tmp_path / "train.parquet", label=LABELS, note=IDS)
    test = table(tmp_path / "test.parquet", ["e", "f"], label=LABELS[:2])
    with caplog.at_level("INFO"):
        assert stored(tmp_path, train, test_features=test).sample_ids() == [*IDS, "e", "f"]
    assert "not taken, as they are no numbers, labels or names of rows: note" in caplog.text
    table(test, ["a", "f"], label=LABELS[:2])
    names = [*(f"train/{name}" for name in IDS), "test/a", "test/f"]
    assert stored(tmp_path, train, test_features=test).sample_ids() == names


def test_a_byte_order_mark_is_no_part_of_the_first_label(tmp_path: Path) -> None:
    path = tmp_path / "rows.svm"
    path.write_text("\ufeff2 1:1\r\n2 2:1\r\n3 1:1\r\n", encoding="utf-8", newline="")
    found = open_features(path).labels()
    assert found is not None
    assert found.tolist() == ["2", "2", "3"]


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (["a", None, "c", None], r"rows.parquet has no sample_id in rows 1, 3: name every row, or leave"),
        (["a", "b", " ", "d"], r"rows.parquet has no sample_id in row 2: "),
        ([1.0, 2.0, None, 4.0], r"rows.parquet has no sample_id in row 2: "),
        (
            ["a", "b", "a", "a"],
            r"rows.parquet names rows 0, 2, 3 alike, 'a': give each row a name of its own",
        ),
    ],
)
def test_rows_without_a_name_of_their_own_are_refused(tmp_path: Path, ids: list[Any], message: str) -> None:
    """Edits, forgetting and tables of labels find rows by their names."""
    with pytest.raises(InputError, match=message):
        stored(tmp_path, table(tmp_path / "rows.parquet", ids, label=LABELS))


def test_whole_numbers_name_rows(tmp_path: Path) -> None:
    dataset = stored(tmp_path, table(tmp_path / "rows.parquet", [7, 3, 5, 9], label=LABELS))
    assert dataset.sample_ids() == ["7", "3", "5", "9"]
