"""Exact kernels on stores: the matrix by tiles, the optimum as in memory, models that score and certify."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_matrix
from sklearn.metrics.pairwise import chi2_kernel, linear_kernel, polynomial_kernel, rbf_kernel

from tests.pipeline.small_data import make_features, make_split, small_dataset, write_dataset
from topline import RBFKernel, TopKHinge, UnsupportedCombinationError, open_store, solve
from topline.pipeline.certification import certify
from topline.pipeline.errors import ConfigError, InputError, InterruptedRunError
from topline.pipeline.evaluation.measurement import evaluate
from topline.pipeline.export.writing import export_model
from topline.pipeline.interrupts import StopFlag
from topline.pipeline.options import ClusterConfig, PredictConfig, TrainConfig
from topline.pipeline.prediction.of_datasets import predict_dataset
from topline.pipeline.rows.partition import TrainingRows
from topline.pipeline.rows.stored_model import StoredModel
from topline.pipeline.rows.transforms import Transforms
from topline.pipeline.training import kernel_training, session, train
from topline.pipeline.training.kernel_training import factored_kernel, kernel_of_rows
from topline.pipeline.training.plan import plan_training
from topline.pipeline.training.run import begin_run
from topline.pipeline.training.session import lay_out
from topline.solvers.kernels import ChiSquaredKernel, LinearKernel, PolynomialKernel
from topline.storage.cache import StoredKernel
from topline.storage.datasets import Dataset
from topline.storage.verification import verify_store

HERE = ClusterConfig(workers=0)
NONE = Transforms((), ())


def features(dataset: Dataset, split: str = "train") -> Any:
    rows = TrainingRows(dataset, split)
    return rows[0 : len(rows)]


def dense(X: Any) -> Any:
    return (X.toarray() if isinstance(X, csr_matrix) else X).astype(np.float64)


def trained(store: Path, cluster: ClusterConfig = HERE, **options: Any) -> Any:
    choice = {"loss": "max_hinge", "kernel": "rbf", "kernel_gamma": 0.1, "transforms": "none", **options}
    return train(TrainConfig(store=str(store), **choice), cluster)


@pytest.mark.parametrize(
    ("kernel", "peer"),
    [
        (LinearKernel(), linear_kernel),
        (RBFKernel(0.1), lambda X: rbf_kernel(X, gamma=0.1)),
        (PolynomialKernel(2, 0.5, 1.0), lambda X: polynomial_kernel(X, degree=2, gamma=0.5, coef0=1.0)),
        (ChiSquaredKernel(0.2), lambda X: chi2_kernel(X, gamma=0.2)),
    ],
    ids=["linear", "rbf", "polynomial", "chi2"],
)
def test_tiles_make_the_whole_matrix_and_its_factor(kernel, peer, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(kernel_training, "ROW_TILE", 32)
    monkeypatch.setattr(kernel_training, "COLUMN_TILE", 77)
    dataset = small_dataset(tmp_path, n=300)
    if kernel.name == "chi2":
        dataset = absolute(tmp_path / "positive", features(dataset))
    X = features(dataset)
    n = len(X)
    stored = kernel_of_rows(TrainingRows(dataset), NONE, kernel)
    K = peer(X.astype(np.float64))
    np.testing.assert_allclose(stored.matrix.rows(0, n), K, rtol=1e-11, atol=1e-12)
    F = stored.factor.rows(0, n).astype(np.float64)
    np.testing.assert_allclose(F @ F.T, K, atol=1e-5 * np.abs(K).max())
    if kernel.name == "linear":
        assert F.shape[1] == X.shape[1]


def absolute(folder: Path, X: Any) -> Dataset:
    store = open_store(folder, create=True)
    info = write_dataset(store, np.abs(X), np.arange(len(X)) % 5, np.zeros(len(X), dtype=np.int8))
    return Dataset.open(store, info.id)


def test_a_matrix_is_made_once_for_the_same_rows_and_kernel(tmp_path: Path) -> None:
    small_dataset(tmp_path, n=300)
    store = open_store(tmp_path)
    first = trained(tmp_path, method="sdca")
    assert len(StoredKernel.keys(store)) == 1
    again = trained(tmp_path, method="sdca", C=0.1, loss="topk_hinge", k=2)
    assert len(StoredKernel.keys(store)) == 1
    assert again.primal != first.primal
    trained(tmp_path, method="sdca", kernel_gamma=0.2)
    trained(tmp_path, method="sdca", transforms="standardize")
    assert len(StoredKernel.keys(store)) == 3
    assert not verify_store(store)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("smoothing", [0.0, 0.5])
@pytest.mark.sampled(2)
def test_a_store_gives_what_solve_gives(sparse: bool, smoothing: float, tmp_path: Path) -> None:
    dataset = small_dataset(tmp_path, n=300, sparse=sparse)
    result = trained(tmp_path, loss="topk_hinge", k=2, smoothing=smoothing, tol=1e-5)
    X, y = features(dataset), TrainingRows(dataset).labels()
    lam = 1.0 / len(y)
    best = solve(X, y, TopKHinge(2), lam, smoothing, tol=1e-6, kernel=RBFKernel(0.1), max_passes=5000)
    assert result.solved
    assert result.relative_gap <= 1e-5
    assert result.dual <= best.primal * (1 + 1e-9)
    assert best.dual <= result.primal * (1 + 1e-9)
    assert result.primal == pytest.approx(best.primal, rel=3e-5)
    assert (result.n, result.d, result.m) == (len(y), 12, 5)
    certificate = result.certificate
    assert certificate.certified
    assert certificate.basis == "A"
    assert certificate.primal == pytest.approx(result.primal, rel=1e-8)
    assert certificate.dual == pytest.approx(result.dual, rel=1e-8)
    # Scores of new rows, against the sum written out.
    stored = StoredModel.open(result.model)
    new = features(dataset, "test")
    A = stored.model.duals(0, len(y)).astype(np.float64)
    expected = rbf_kernel(dense(new), dense(X), gamma=0.1) @ A / (lam * len(y))
    np.testing.assert_allclose(stored.scores(new), expected, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"kernel_gamma": None}, "rbf"),
        ({"kernel": "polynomial", "kernel_degree": 2, "kernel_coef0": 1.0}, "polynomial"),
        ({"kernel": "linear", "kernel_gamma": None}, "linear"),
        ({"method": "fw", "tol": 0.05}, "rbf"),
        ({"kernel": "laplacian", "kernel_gamma": "median"}, "laplacian"),
        ({"kernel_gamma": "median"}, "rbf"),
        ({"class_weight": "balanced"}, "rbf"),
        ({"loss": "softmax", "transforms": "l2,bias", "kernel_gamma": "auto"}, "rbf"),
    ],
)
@pytest.mark.sampled(4)
def test_models_with_kernels_are_certified_evaluated_and_not_exported(
    options: dict[str, Any], name: str, tmp_path: Path
) -> None:
    small_dataset(tmp_path, n=400)
    result = trained(tmp_path, **options)
    assert result.certificate.certified
    assert certify(result.model).certified
    model = StoredModel.open(result.model).model
    assert model.record.kernel["name"] == name
    assert "W" not in model.arrays
    found = evaluate(result.model)
    assert found.topk[1] > found.majority_baseline
    with pytest.raises(ConfigError, match=f"has the kernel {name} and scores through its training rows"):
        export_model(result.model, tmp_path / "model.npz", "npz")


@pytest.mark.parametrize("method", ["dual_ascent", "sdca"])
def test_a_kernel_that_tells_no_two_rows_apart_is_certified_as_what_it_is(
    method: str, tmp_path: Path
) -> None:
    """With gamma = 1e12 K is the unit matrix: every row is its own class's, at C = 1 to the last bit."""
    small_dataset(tmp_path, n=300)
    result = trained(tmp_path, kernel_gamma=1e12, method=method)
    assert result.solved
    assert result.certificate.certified
    # A row alone, with alpha_y = a and -a / (m - 1) elsewhere, maximises a - a^2 m / (2 (m - 1)).
    own = (result.m - 1) / result.m
    assert result.certificate.dual == pytest.approx(own - 0.5 * own**2 / own, rel=1e-6)


def test_a_kernel_is_certified_where_the_last_rows_are_no_training_rows(tmp_path: Path) -> None:
    X, y = make_features(300, 12, 5)
    split = np.where(np.arange(300) < 200, 0, 2).astype(np.int8)
    write_dataset(open_store(tmp_path, create=True), X, y, split, m=5)
    assert trained(tmp_path).certificate.certified


def test_a_round_picks_fewer_rows_where_the_limit_of_memory_asks_for_that(tmp_path: Path) -> None:
    """Limits of 300 to 600 MiB: the more memory, the more rows; what holds the fewest is not refused."""
    small_dataset(tmp_path, n=2400)
    plan = plan_training(TrainConfig(store=str(tmp_path), kernel="rbf", transforms="none"))
    limits = [HERE.model_copy(update={"memory_limit": f"{size}MiB"}) for size in range(300, 600)]

    def fits(limit: ClusterConfig) -> bool:
        try:
            return bool(lay_out(plan, limit, None).picked)
        except ConfigError:
            return False

    enough = next(place for place, limit in enumerate(limits) if fits(limit))
    picked = [lay_out(plan, limit, None).picked for limit in limits[enough:]]
    for limit in limits[:enough]:
        with pytest.raises(ConfigError, match="too small for this job"):
            lay_out(plan, limit, None)
    assert sorted(set(picked)) == [256, 512, 1024, 2048]
    assert picked == sorted(picked)
    assert lay_out(plan, HERE, None).picked == 2048
    assert lay_out(plan, ClusterConfig(scheduler="tcp://127.0.0.1:1"), None).picked == 2048


def test_few_rows_a_round_give_a_certified_model_of_the_same_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_dataset(tmp_path, n=2400)
    many = trained(tmp_path)
    monkeypatch.setattr(session, "lay_out", lambda *given: replace(lay_out(*given), picked=256))
    few = trained(tmp_path, seed=1)
    assert few.certificate.certified
    assert few.dual <= many.primal * (1 + 1e-9)
    assert many.dual <= few.primal * (1 + 1e-9)


@pytest.mark.cluster
@pytest.mark.parametrize("method", ["dual_ascent", "sdca"])
@pytest.mark.sampled(2)
def test_workers_give_what_one_process_gives(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel_training, "ROW_TILE", 16)
    small_dataset(tmp_path / "here", n=300)
    small_dataset(tmp_path / "there", n=300)
    options = {"method": method, "blocks": 3} if method == "dual_ascent" else {"method": method}
    here = trained(tmp_path / "here", **options)
    monkeypatch.delattr(kernel_training, "_here")
    there = trained(tmp_path / "there", ClusterConfig(workers=2, dashboard=False), **options)
    assert there.primal == pytest.approx(here.primal, rel=1e-9)
    assert there.certificate.certified


@pytest.mark.parametrize("method", ["dual_ascent", "sdca"])
@pytest.mark.sampled(2)
def test_an_interrupted_run_goes_on(method: str, tmp_path: Path) -> None:
    small_dataset(tmp_path, n=300)
    short = trained(tmp_path, method=method, tol=1e-6, max_passes=2, certify=False)
    assert not short.solved
    resumed = train(TrainConfig(store=str(tmp_path), resume=short.run, max_passes=2000), HERE)
    assert resumed.solved
    assert resumed.passes > 2
    assert resumed.primal == pytest.approx(trained(tmp_path, tol=1e-6).primal, rel=2e-6)


@pytest.mark.parametrize("method", ["fw", "fw_fully_corrective"])
def test_frank_wolfe_goes_on_and_holds_no_matrix(method: str, tmp_path: Path) -> None:
    small_dataset(tmp_path, n=300)
    short = trained(tmp_path, method=method, tol=0.02, max_passes=2, certify=False, blocks=2)
    assert not short.solved
    resumed = train(TrainConfig(store=str(tmp_path), resume=short.run, max_passes=2000, certify=True), HERE)
    assert resumed.solved
    assert resumed.certificate.certified
    best = trained(tmp_path, tol=1e-6)
    assert resumed.dual <= best.primal
    assert best.dual <= resumed.primal
    assert not StoredKernel.keys(open_store(tmp_path))


def test_a_stop_between_tiles_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_dataset(tmp_path, n=300)
    monkeypatch.setattr(kernel_training, "ROW_TILE", 16)
    flag = StopFlag(signal.SIGTERM)
    run = begin_run(plan_training(TrainConfig(store=str(tmp_path), kernel="rbf", method="sdca")))
    with pytest.raises(InterruptedRunError, match="kernel was computed; continue with: topline train"):
        factored_kernel(run, None, None, flag)
    assert not StoredKernel.keys(open_store(tmp_path))
    assert not [one for one in verify_store(open_store(tmp_path)) if "kernel" in one.path]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"kernel_bytes": 1 << 20, "method": "sdca"},
            "more than the 1,048,576 of --kernel-bytes: use the method dual_ascent",
        ),
        (
            {"method": "lbfgs", "loss": "softmax"},
            "made of its dual variables, and the method lbfgs knows none",
        ),
        ({"keep_duals": False}, "made of its dual variables, and keep_duals is off"),
    ],
)
def test_what_cannot_be_is_refused_before_any_work(
    options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    small_dataset(tmp_path, n=700)
    with pytest.raises((ConfigError, UnsupportedCombinationError), match=message):
        trained(tmp_path, **options)
    assert not StoredKernel.keys(open_store(tmp_path))


def test_parameters_need_their_kernel() -> None:
    with pytest.raises(ValueError, match="belong to a kernel: name one"):
        TrainConfig(kernel_gamma=0.5)


def test_chi2_of_sparse_features_is_refused(tmp_path: Path) -> None:
    small_dataset(tmp_path, n=300, sparse=True)
    with pytest.raises(ConfigError, match="chi2 takes no sparse features"):
        trained(tmp_path, kernel="chi2", kernel_gamma=None)


ROWS, CLASSES = 300, 5
X, Y = make_features(ROWS, 12, CLASSES)
SPLIT = make_split(ROWS)
TRAINED = SPLIT == 0
K = rbf_kernel(X.astype(float), X[TRAINED].astype(float), gamma=0.1)


def stored(folder: Path, values: Any = K, split: Any = SPLIT, **options: Any) -> None:
    values = values if isinstance(values, csr_matrix) else np.asarray(values, dtype=np.float32)
    write_dataset(open_store(folder, create=True), values, Y[: values.shape[0]], split, m=CLASSES, **options)


def trained_on_values(folder: Path, cluster: ClusterConfig = HERE, **options: Any) -> Any:
    choice = {"loss": "topk_hinge", "k": 2, "kernel": "precomputed", "tol": 1e-5, **options}
    return train(TrainConfig(store=str(folder), **choice), cluster)


@pytest.mark.parametrize("method", ["dual_ascent", "sdca"])
def test_values_that_rows_hold_train_the_model_of_the_formula(method: str, tmp_path: Path) -> None:
    stored(tmp_path / "values")
    write_dataset(open_store(tmp_path / "rows", create=True), X, Y, SPLIT, m=CLASSES)
    ours = trained_on_values(tmp_path / "values", method=method, max_passes=5000)
    formula = trained_on_values(tmp_path / "rows", kernel="rbf", kernel_gamma=0.1, transforms="none")
    assert ours.solved
    assert ours.certificate.certified
    # Values rounded to float32 move P by that much; each D bounds the other's P.
    assert ours.dual <= formula.primal * (1 + 1e-6)
    assert formula.dual <= ours.primal * (1 + 1e-6)
    assert certify(ours.model).primal == pytest.approx(ours.primal, rel=1e-8)
    assert evaluate(ours.model).topk == pytest.approx(evaluate(formula.model).topk, abs=0.02)


def test_scores_of_other_rows_come_from_their_values_with_the_training_rows(tmp_path: Path) -> None:
    stored(tmp_path)
    model = StoredModel.open(trained_on_values(tmp_path).model)
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
    here = trained_on_values(tmp_path, blocks=1)
    there = trained_on_values(tmp_path, ClusterConfig(workers=2, dashboard=False), blocks=7)
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
        trained_on_values(tmp_path)
    assert not (tmp_path / "runs").exists()


def test_half_precision_is_refused(tmp_path: Path) -> None:
    stored(tmp_path, dtype="float16")
    with pytest.raises(ConfigError, match="import it with --dtype float32"):
        trained_on_values(tmp_path)


def test_values_are_not_transformed() -> None:
    assert TrainConfig(kernel="precomputed").transforms == ()
    with pytest.raises(ValueError, match="transforms l2 would change the values of a precomputed kernel"):
        TrainConfig(kernel="precomputed", transforms="l2")


def test_rows_of_another_width_are_refused(tmp_path: Path) -> None:
    stored(tmp_path)
    model = trained_on_values(tmp_path, tol=1e-2).model
    stored(tmp_path, K[:50, :50], SPLIT[:50], key="narrow")
    with pytest.raises(InputError, match=r"has 50 features per row, and model .* takes 2"):
        predict_dataset(model, PredictConfig(dataset="latest"), HERE)
