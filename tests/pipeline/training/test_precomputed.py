"""Kernel values in place of features: what the formula gives, predictions on other rows, and refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_matrix
from sklearn.metrics.pairwise import rbf_kernel

from tests.pipeline.small_data import make_features, make_split, write_dataset
from topline.pipeline.certification import certify
from topline.pipeline.errors import ConfigError, InputError
from topline.pipeline.evaluation.measurement import evaluate
from topline.pipeline.options import PredictConfig
from topline.pipeline.options.train import ClusterConfig, TrainConfig
from topline.pipeline.prediction.of_datasets import predict_dataset
from topline.pipeline.rows import StoredModel
from topline.pipeline.training import train
from topline.storage.stores import open_store

HERE = ClusterConfig(workers=0)
ROWS, CLASSES = 300, 5
X, Y = make_features(ROWS, 12, CLASSES)
SPLIT = make_split(ROWS)
TRAINED = SPLIT == 0
K = rbf_kernel(X.astype(float), X[TRAINED].astype(float), gamma=0.1)


def stored(folder: Path, values: Any = K, split: Any = SPLIT, **options: Any) -> None:
    values = values if isinstance(values, csr_matrix) else np.asarray(values, dtype=np.float32)
    write_dataset(open_store(folder, create=True), values, Y[: values.shape[0]], split, m=CLASSES, **options)


def trained(folder: Path, cluster: ClusterConfig = HERE, **options: Any) -> Any:
    choice = {"loss": "topk_hinge", "k": 2, "kernel": "precomputed", "tol": 1e-5, **options}
    return train(TrainConfig(store=str(folder), **choice), cluster)


@pytest.mark.parametrize("method", ["dual_ascent", "sdca"])
def test_values_that_rows_hold_train_the_model_of_the_formula(method: str, tmp_path: Path) -> None:
    stored(tmp_path / "values")
    write_dataset(open_store(tmp_path / "rows", create=True), X, Y, SPLIT, m=CLASSES)
    ours = trained(tmp_path / "values", method=method, max_passes=5000)
    formula = trained(tmp_path / "rows", kernel="rbf", kernel_gamma=0.1, transforms="none")
    assert ours.solved
    assert ours.certificate.certified
    # Values rounded to float32 move P by that much; each D bounds the other's P.
    assert ours.dual <= formula.primal * (1 + 1e-6)
    assert formula.dual <= ours.primal * (1 + 1e-6)
    assert certify(ours.model).primal == pytest.approx(ours.primal, rel=1e-8)
    assert evaluate(ours.model).topk == pytest.approx(evaluate(formula.model).topk, abs=0.02)


def test_scores_of_other_rows_come_from_their_values_with_the_training_rows(tmp_path: Path) -> None:
    stored(tmp_path)
    model = StoredModel.open(trained(tmp_path).model)
    n = int(TRAINED.sum())
    assert model.input_width == n
    A = model.model.duals(0, n).astype(np.float64)
    expected = K[~TRAINED] @ A / (model.model.record.lam * n)
    np.testing.assert_allclose(model.scores(K[~TRAINED]), expected, rtol=1e-12)
    found = predict_dataset(model.model.url, PredictConfig(dataset="latest"), HERE)
    assert found.rows == ROWS


@pytest.mark.cluster
@pytest.mark.parametrize("layout", ["dense", "csr"])
@pytest.mark.sampled(2)
def test_workers_and_blocks_give_what_one_process_gives(layout: str, tmp_path: Path) -> None:
    stored(tmp_path, K if layout == "dense" else csr_matrix(np.where(K > 1e-12, K, 0.0).astype(np.float32)))
    here = trained(tmp_path, blocks=1)
    there = trained(tmp_path, ClusterConfig(workers=2, dashboard=False), blocks=7)
    assert there.certificate.certified
    assert there.dual <= here.primal * (1 + 1e-9)
    assert here.dual <= there.primal * (1 + 1e-9)


def damaged(what: str) -> Any:
    values = K.copy()
    first = np.flatnonzero(TRAINED)
    if what == "asymmetric":
        values[first[3], 7] += 0.01
    elif what == "negative":
        values[first[3], 3] = -0.5
    elif what == "indefinite":
        values[TRAINED] -= 0.9 * np.eye(len(first))
    return values


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (K[:, :-1], "has 199 kernel values per row and 200 training rows: give k of every row"),
        (damaged("asymmetric"), "are not symmetric: those of training row [37] differ by about 0.01"),
        (damaged("negative"), "k of training row 3 with itself is -0.5"),
        (damaged("indefinite"), "is not positive semi-definite"),
    ],
)
def test_what_is_no_kernel_is_refused(values: Any, message: str, tmp_path: Path) -> None:
    stored(tmp_path, values)
    with pytest.raises(ConfigError, match=message):
        trained(tmp_path)
    assert not (tmp_path / "runs").exists()


def test_half_precision_is_refused(tmp_path: Path) -> None:
    stored(tmp_path, dtype="float16")
    with pytest.raises(ConfigError, match="import it with --dtype float32"):
        trained(tmp_path)


def test_values_are_not_transformed() -> None:
    assert TrainConfig(kernel="precomputed").transforms == ()
    with pytest.raises(ValueError, match="transforms l2 would change the values of a precomputed kernel"):
        TrainConfig(kernel="precomputed", transforms="l2")


def test_rows_of_another_width_are_refused(tmp_path: Path) -> None:
    stored(tmp_path)
    model = trained(tmp_path, tol=1e-2).model
    stored(tmp_path, K[:50, :50], SPLIT[:50], key="narrow")
    with pytest.raises(InputError, match=r"has 50 features per row, and model .* takes 2"):
        predict_dataset(model, PredictConfig(dataset="latest"), HERE)
