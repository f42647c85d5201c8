"""Kernels and their parameters in a sweep, against fits of scikit-learn on every fold."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import make_moons
from sklearn.metrics.pairwise import polynomial_kernel, rbf_kernel
from sklearn.svm import LinearSVC

from tests.pipeline.small_data import write_dataset
from topline.pipeline.cli import main
from topline.pipeline.errors import ConfigError, InputError
from topline.pipeline.options import ClusterConfig, SweepConfig, build
from topline.pipeline.sweep import SweepResult, sweep
from topline.pipeline.sweep.folds import forget_folds, stratified_folds
from topline.pipeline.sweep.plan import plan_sweep
from topline.solvers.errors import InvalidProblemError
from topline.solvers.kernels import KernelFeatures
from topline.storage.models import load_model
from topline.storage.stores import open_store

HERE = ClusterConfig(workers=0)
COSTS, FOLDS = (0.05, 2.0), 3


@pytest.fixture(scope="module")
def moons() -> tuple[np.ndarray, np.ndarray]:
    X, y = make_moons(150, noise=0.25, random_state=0)
    return X.astype(np.float32), y.astype(np.int32)


@pytest.fixture(scope="module")
def store(moons: tuple[np.ndarray, np.ndarray], tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("moons") / "store"
    X, y = moons
    write_dataset(open_store(str(folder), create=True), X, y, np.zeros(len(y), dtype=np.int8))
    return str(folder)


def features(K, cross):
    """Return features of trained rows and of others whose products are kernel values."""
    L = np.linalg.cholesky(K + 1e-9 * np.eye(len(K)))
    return L, np.linalg.solve(L, cross.T).T


def hits(X, y, fold, kernel, C):
    """Return how many held-out rows scikit-learn's support vector machine gets right, over all folds.

    Of two classes |W|^2 = |v|^2 / 2 with v the difference of their weights, so that the cost is 2 C.
    """
    found = 0
    for out in range(FOLDS):
        rows, rest = X[fold != out].astype(float), X[fold == out].astype(float)
        seen, new = features(kernel(rows, rows), kernel(rest, rows))
        machine = LinearSVC(C=2.0 * C, loss="hinge", fit_intercept=False, tol=1e-8, max_iter=1_000_000)
        machine.fit(seen, y[fold != out])
        found += int((machine.predict(new) == y[fold == out]).sum())
    return found


@pytest.mark.parametrize(
    ("options", "kernels"),
    [
        (
            {"kernel": "rbf", "kernel_gamma": (0.1, 5.0)},
            [partial(rbf_kernel, gamma=gamma) for gamma in (0.1, 5.0)],
        ),
        (
            {"kernel": "polynomial", "kernel_gamma": "1", "kernel_degree": "1,3", "kernel_coef0": "1"},
            [partial(polynomial_kernel, degree=degree, gamma=1.0, coef0=1.0) for degree in (1, 3)],
        ),
    ],
    ids=["rbf", "polynomial"],
)
def test_every_cell_is_what_scikit_learn_gives_on_every_fold(store: str, moons, options, kernels) -> None:
    X, y = moons
    grid = {"C": COSTS, "loss": "topk_hinge", "k": "1", "folds": FOLDS, "transforms": ()}
    config = build(SweepConfig, {"store": store, **grid, "rule": "none", "tol": 1e-6, **options})
    result = sweep(config, HERE)
    fold = stratified_folds(y, FOLDS, config.seed)
    expected = [hits(X, y, fold, kernel, C) for kernel in kernels for C in COSTS]
    # A row on the boundary itself may fall to either side.
    assert [cell.mean * len(y) for cell in result.cells] == pytest.approx(expected, abs=1.01)
    assert len(set(expected)) > 2
    assert max(cell.relative_gap for cell in result.cells) <= 1e-6
    assert SweepResult.from_dict(json.loads(json.dumps(result.to_dict()))) == result
    forget_folds()


def test_losses_and_costs_of_one_gamma_share_one_factor(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    factored = []
    of = KernelFeatures.of
    monkeypatch.setattr(
        KernelFeatures, "of", lambda kernel, X: factored.append((kernel, X.tobytes())) or of(kernel, X)
    )
    forget_folds()
    config = build(
        SweepConfig,
        {"store": store, "C": "0.1,1", "loss": "topk_hinge,softmax", "k": "1", "folds": FOLDS,
         "kernel": "rbf", "kernel_gamma": "1,scale"},
    )  # fmt: skip
    result = sweep(config, HERE)
    assert max(cell.rounds for cell in result.cells) > 1
    # Each gamma on the first fold, and on others where it is still in the race.
    assert len(set(factored)) == len(factored)
    assert FOLDS < len(factored) <= 2 * FOLDS
    names = {cell.variant.name for cell in result.cells}
    assert names == {
        f"{loss} {kernel}"
        for loss in ("topk_hinge k=1", "softmax")
        for kernel in ("rbf gamma=1", "rbf gamma=scale")
    }
    assert all(name in Path(result.page).read_text(encoding="utf-8") for name in names)
    forget_folds()


@pytest.mark.slow
def test_the_command_line_finds_gamma_and_trains_with_it(
    store: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["sweep", "--store", store, "--C", "1", "--k", "1", "--kernel", "rbf", "--kernel-gamma", "1e-4,5"]
    with pytest.raises(SystemExit) as ended:
        main([*words, "--transforms", "none", "--workers", "0", "--train-best", "--json"])
    assert ended.value.code in (0, None)
    found = json.loads(capsys.readouterr().out)
    assert found["best"]["kernel"] == {"name": "rbf", "gamma": 5.0, "degree": None, "coef0": None}
    record = load_model(found["trained"]["model"]).record
    assert (record.config["kernel"], record.config["kernel_gamma"]) == ("rbf", 5.0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kernel_gamma": "1"}, "belong to a kernel: name one"),
        ({"kernel": "precomputed"}, "the columns of a precomputed kernel are rows too"),
        ({"kernel": "rbf", "kernel_gamma": "wide"}, "--kernel-gamma 'wide' is not usable"),
        ({"kernel": "rbf", "kernel_degree": "2"}, "the kernel rbf takes no degree"),
        ({"kernel": "linear", "kernel_gamma": "1"}, "the kernel linear takes no gamma"),
        ({"kernel": "rbf", "kernel_gamma": "-1"}, "gamma of the kernel rbf is -1.0"),
    ],
)
def test_what_no_kernel_takes_is_refused_before_any_work(store: str, options, message) -> None:
    with pytest.raises((ConfigError, InvalidProblemError), match=message):
        plan_sweep(build(SweepConfig, {"store": store, **options}))


def test_a_matrix_that_does_not_fit_is_refused_with_the_rows_that_do(
    store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("topline.pipeline.sweep.plan.MEMORY_BYTES", 24 * 80**2)
    with pytest.raises(InputError, match=r"kernel matrix of the 120 rows of a fold .* at most --rows 100"):
        sweep(build(SweepConfig, {"store": store, "k": "1", "kernel": "rbf"}), HERE)
