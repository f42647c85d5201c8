"""A table whose columns have different units: one sentence says that one of them drowns the others."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_wine

from tests.pipeline.small_data import make_split, small_dataset, write_dataset
from topline.pipeline.evaluation.measurement import evaluate
from topline.pipeline.ingest import import_features
from topline.pipeline.options import ClusterConfig, ImportConfig, TrainConfig
from topline.pipeline.rows import TrainingRows
from topline.pipeline.training import train
from topline.pipeline.training.problem_checks import scale_note
from topline.storage.datasets import Dataset
from topline.storage.stores import open_store

HERE = ClusterConfig(workers=0)


def test_a_column_that_drowns_the_others_is_named_with_what_to_do(tmp_path: Path) -> None:
    # The last column of wine is proline, in mg/l; all others are below 200.
    X, y = load_wine(return_X_y=True)
    write_dataset(open_store(tmp_path, create=True), X.astype("float32"), y, make_split(len(y)))
    asked = TrainConfig(store=str(tmp_path), loss="max_hinge")
    plain = train(asked, HERE)
    (sentence,) = plain.notes
    assert sentence.startswith("feature 12 of 13, counted from 0, makes 9")
    assert sentence.endswith("--transforms standardize,bias puts all on one scale")
    scaled = train(asked.model_copy(update={"transforms": ("standardize", "bias")}), HERE)
    short = train(asked.model_copy(update={"transforms": ("standardize", "bias"), "max_passes": 1}), HERE)
    # The options of a resumed run are those that it began with.
    resumed = train(TrainConfig(store=str(tmp_path), resume=short.run, max_passes=1000), HERE)
    assert (scaled.notes, resumed.notes) == ((), ())
    top_1 = [evaluate(found.model).topk[1] for found in (plain, scaled)]
    assert top_1[1] > 0.9 > top_1[0]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda X: X * np.geomspace(1.0, 200.0, 8), "column 'h' varies .* times as much as most"),
        (lambda X: X + 10.0, r"the means of the 8 features make 9\d\.\d% of the squares"),
    ],
)
def test_imported_columns_that_hardly_count_are_said(tmp_path: Path, change: Any, said: str) -> None:
    """As of silhouettes of vehicles: no column is nearly all, and rows of length 1 are nearly their mean."""
    random = np.random.default_rng(0)
    y = np.arange(400) % 4
    X = change(random.normal(size=(4, 8))[y] + random.normal(size=(400, 8)))
    table, names = np.column_stack([X, y]), "a,b,c,d,e,f,g,h,label"
    np.savetxt(tmp_path / "table.csv", table, delimiter=",", header=names, comments="")
    import_features(ImportConfig(features=str(tmp_path / "table.csv"), store=str(tmp_path / "store")))
    (note,) = train(TrainConfig(store=str(tmp_path / "store"), tol=0.1), HERE).notes
    assert re.search(f"{said}.*--transforms standardize,bias", note)


@pytest.mark.parametrize("sparse", [False, True])
def test_features_of_one_scale_are_not_spoken_of(tmp_path: Path, sparse: bool) -> None:
    small_dataset(tmp_path, n=200, sparse=sparse)
    assert train(TrainConfig(store=str(tmp_path), loss="max_hinge"), HERE).notes == ()


def test_rows_are_looked_at_from_all_over(tmp_path: Path) -> None:
    """The first thousand rows, of one class, have a feature that is far larger; of all rows it is not."""
    X = np.random.default_rng(0).standard_normal((6000, 8)).astype(np.float32)
    X[:1000, 3] *= 1e2
    X[1000:] *= 1e2
    labels = np.minimum(np.arange(6000) // 1000, 3).astype(np.int32)
    store = open_store(tmp_path / "sorted", create=True)
    write_dataset(store, X, labels, np.zeros(6000, dtype=np.int8))
    assert scale_note(TrainConfig(store=store.url), TrainingRows(Dataset.open(store), "train")) is None
