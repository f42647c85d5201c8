"""Datasets without some rows or with corrected labels, and models that continue on them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy.sparse import issparse

from tests.pipeline.small_data import small_dataset
from topline.pipeline.cli.making import _edited
from topline.pipeline.errors import ConfigError, InputError
from topline.pipeline.ingest import Edits, edited_dataset, import_features, tell_edits
from topline.pipeline.inspection import inspect_model
from topline.pipeline.options import ClusterConfig, ImportConfig, InspectConfig, TrainConfig
from topline.pipeline.prediction.files import table_writer
from topline.pipeline.rows import StoredModel
from topline.pipeline.training import train
from topline.storage.datasets import Dataset
from topline.storage.stores import open_store
from topline.storage.verification import verify_store

HERE = ClusterConfig(workers=0)
GONE = [0, 5, 63, 64, 300, 699]


def name(row: int) -> str:
    return f"row{row:06d}"


def dense(rows: Any) -> Any:
    return rows.toarray() if issparse(rows) else rows


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
def test_rows_are_gone_and_labels_are_corrected(
    tmp_path: Path, sparse: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="topline.pipeline.ingest")
    dataset = small_dataset(tmp_path / "store", sparse=sparse)
    (tmp_path / "gone.txt").write_text("\n".join(name(row) for row in GONE[1:]))
    table = "\ufeffsample_id;label;decided\nrow000001;class 3;wrong\nrow000000;;wrong\nrow000002;'=x;right\n"
    (tmp_path / "corrected.csv").write_text(table)
    with pytest.raises(InputError, match="'=x' of row000002 is not one of the 5 classes"):
        edited_dataset(dataset, Edits.read(None, tmp_path / "corrected.csv"))
    (tmp_path / "corrected.csv").write_text(table.replace("'=x", "class 1"))
    edits = Edits.read(str(tmp_path / "gone.txt"), tmp_path / "corrected.csv")
    edited = Dataset.open(dataset.store, edited_dataset(dataset, edits).id)
    kept = np.setdiff1d(np.arange(700), GONE)
    assert edited.sample_ids() == [name(row) for row in kept.tolist()]
    assert np.array_equal(dense(edited.rows(0, len(kept))), dense(dataset.rows(0, 700))[kept])
    assert np.array_equal(edited.split(), dataset.split()[kept])
    labels = dataset.labels().copy()
    labels[[1, 2]] = 3, 1
    assert np.array_equal(edited.labels(), labels[kept])
    assert edited_dataset(dataset, edits).id == edited.info.id
    tell_edits(dataset, edited)
    assert (
        f"dataset {edited.info.id}, made of {dataset.info.id}: 2 labels changed, 6 rows left" in caplog.text
    )
    tell_edits(dataset, dataset)
    assert f"no label differs from those of {dataset.info.id}" in caplog.text
    assert edited_dataset(dataset, Edits(frozenset(), {})).id == dataset.info.id
    assert verify_store(dataset.store) == []


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_names_come_back_from_the_table_that_was_written(tmp_path: Path, form: str) -> None:
    names = [
        "=cmd()",
        "-a",
        "\tb",
        "\nc",
        "d\ne",
        "f,g",
        "h\x0bi",
        "\u2028j",
        "\x1b[2Jm",
        "n\\u001bo",
        "\x9b1mp",
        'k"l',
        "-5",
        " m ",
    ]
    path, schema = tmp_path / f"rows.{form}", pa.schema([("sample_id", pa.string()), ("label", pa.string())])
    with table_writer(path, schema) as write:
        write(pa.table({"sample_id": names, "label": [f"={name}" for name in names]}, schema))
    assert Edits.read(None, path).labels == {name: f"={name}".strip() for name in names}
    assert Edits.read(str(path), None).without == set(names)


def test_names_that_hold_commas_are_given_in_quotes(tmp_path: Path) -> None:
    assert Edits.read('"a,b/1.png", c"d.png,e', None).without == {"a,b/1.png", 'c"d.png', "e"}
    dataset = small_dataset(tmp_path / "store", n=80)
    with pytest.raises(InputError, match=r"has no row 'a' and 1 other: .* in double quotes"):
        edited_dataset(dataset, Edits.read("a,b/1.png", None))


@pytest.mark.parametrize("form", ["{}", "{}.0"], ids=["now", "before version 0.2"])
def test_rows_that_numbers_name_are_found_by_either_form(
    tmp_path: Path, form: str, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [f"{form.format(row)},{row * 0.5},{'ab'[row % 2]}" for row in range(20)]
    (tmp_path / "rows.csv").write_text("\n".join(["sample_id,x,label", *rows]))

    def imported(name: str) -> Dataset:
        config = ImportConfig(features=str(tmp_path / name), store=str(tmp_path / "store"))
        found = import_features(config)
        return Dataset(open_store(config.store), found.info)

    dataset = imported("rows.csv")
    names = np.arange(20.0)
    pq.write_table(pa.table({"sample_id": names[[4, 7]], "label": ["b", ""]}), tmp_path / "corrected.parquet")
    edited = Dataset(dataset.store, edited_dataset(dataset, Edits.read(None, tmp_path / "corrected.parquet")))
    recorded = edited.edits()
    assert recorded is not None
    assert recorded.labels == {form.format(4): ("a", "b")}
    assert set(dataset.sample_ids()) - set(edited.sample_ids()) == {form.format(7)}
    # Files are called as they are called.
    named = Edits(frozenset({"a.0", "v1", "2.0"}), {}).by(["a", "v1.0", "2"])
    assert named.without == {"a.0", "v1", "2"}
    labels = ["ab"[row % 2] for row in range(20)]
    pq.write_table(pa.table({"sample_id": names, "x": names, "label": labels}), tmp_path / "again.parquet")
    assert imported("again.parquet").sample_ids()[7] == "7"
    assert f"without the edits of {edited.info.id} (1 label corrected, 1 row left out)" in caplog.text


def test_what_no_row_or_file_is_called_is_refused(tmp_path: Path) -> None:
    dataset = small_dataset(tmp_path / "store", n=80)
    for text, words in (
        ("sample_id,label\nrow000001,class 1\nrow000001,class 2\n", "two labels of row000001"),
        ("id,label\nrow000001,class 1\n", "no column sample_id, its first line has id, label: give a table"),
        ("row000001,class 1\n", "no column sample_id, its first line has row000001, class 1"),
        ("sample_id,label\n", "has no rows"),
        ("", "has no rows"),
    ):
        (tmp_path / "bad.csv").write_text(text)
        with pytest.raises(InputError, match=words):
            Edits.read(None, tmp_path / "bad.csv")
    with pytest.raises(InputError, match="cannot be read"):
        Edits.read(str(tmp_path / "none.csv"), None)
    with pytest.raises(InputError, match=r"none\.txt cannot be read: No such file or directory"):
        Edits.read(str(tmp_path / "none.txt"), None)
    (tmp_path / "bad.csv").write_text("sample_id,label\nrow000001,clas 1\n")
    with pytest.raises(InputError, match=r"'clas 1' of row000001 .*: did you mean 'class 1'"):
        edited_dataset(dataset, Edits.read(None, tmp_path / "bad.csv"))
    with pytest.raises(InputError, match="has no row 'row98x' and 1 other:"):
        edited_dataset(dataset, Edits.read("row000001, row99,row98x", None))
    with pytest.raises(InputError, match="nothing is left"):
        edited_dataset(dataset, Edits(frozenset(dataset.sample_ids()), {}))
    with pytest.raises(ConfigError, match="--resume"):
        _edited(TrainConfig(resume="r1"), None, "row000001", None)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("edited") / "store"
    small_dataset(folder)
    return train(
        TrainConfig(store=str(folder), k=2, C=0.5, tol=1e-4, transforms=("standardize",)), HERE
    ).model


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.cluster)])
def test_a_model_forgets_rows(model: str, workers: int) -> None:
    """It is the one that never saw them: same optimum, settings of the first, nothing of them kept."""
    before = StoredModel.open(model)
    train_rows = before.rows("train").indices
    gone = [name(row) for row in train_rows[::100].tolist()]
    config = _edited(TrainConfig(tol=1e-4), model, ",".join(gone), None)
    assert (config.C, config.k, config.transforms) == (0.5, 2, ("standardize",))
    warm = train(config, ClusterConfig(workers=workers))
    cold = train(config.model_copy(update={"start_from": None}), HERE)
    assert warm.certificate is not None
    assert warm.certificate.certified
    assert warm.primal == pytest.approx(cold.primal, rel=2e-4)
    assert warm.passes < cold.passes
    after = StoredModel.open(warm.model)
    record = after.model.record
    assert (record.n, record.parents) == (len(train_rows) - len(gone), (before.model.record.id,))
    assert record.result["start"]["rows"] == record.n
    ids = after.dataset().sample_ids()
    assert set(ids).isdisjoint(gone)
    assert after.model.duals(0, record.n).shape[0] == record.n
    assert not any(word in str(record.to_json()) for word in gone)


def test_corrections_of_an_inspection_are_fed_back(model: str, tmp_path: Path) -> None:
    table = tmp_path / "suspects.csv"
    found = inspect_model(model, InspectConfig(output=table, max_passes=0))
    lines = table.read_text().splitlines()
    first, label, suggested = lines[1].split(",")[:3]
    lines[1] = lines[1].replace(f"{label},{suggested}", f"{suggested},{suggested}")
    table.write_text("\n".join(lines))
    config = _edited(TrainConfig(), model, None, table)
    assert config.dataset != found.dataset
    edited = Dataset.open(StoredModel.open(model).model.store, config.dataset)
    place = edited.sample_ids().index(first)
    assert edited.class_names[edited.labels()[place]] == suggested
    assert (edited.labels() != StoredModel.open(model).dataset().labels()).sum() == 1
