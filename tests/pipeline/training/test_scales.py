"""A table whose columns have different units: one sentence says that one of them drowns the others."""

from __future__ import annotations

from pathlib import Path

import pytest
from sklearn.datasets import load_wine

from tests.pipeline.small_data import make_split, small_dataset, write_dataset
from topline.pipeline.evaluation import evaluate
from topline.pipeline.options import ClusterConfig, TrainConfig
from topline.pipeline.training import train
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
    assert scaled.notes == ()
    top_1 = [evaluate(found.model).topk[1] for found in (plain, scaled)]
    assert top_1[1] > 0.9 > top_1[0]


@pytest.mark.parametrize("sparse", [False, True])
def test_features_of_one_scale_are_not_spoken_of(tmp_path: Path, sparse: bool) -> None:
    small_dataset(tmp_path, n=200, sparse=sparse)
    assert train(TrainConfig(store=str(tmp_path), loss="max_hinge"), HERE).notes == ()
