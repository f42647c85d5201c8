"""A search before a training: on the command line, in the model, and once for the same data and options."""

from __future__ import annotations

import json
import re
import tracemalloc
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse
from scipy.optimize import minimize_scalar
from scipy.special import softmax
from sklearn.datasets import make_moons
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.metrics.pairwise import polynomial_kernel, rbf_kernel
from sklearn.svm import LinearSVC

from tests.pipeline.conftest import Topline
from tests.pipeline.small_data import write_dataset
from topline.pipeline.calibration import calibration_of, calibration_text
from topline.pipeline.cluster.memory_plan import ALONE_BYTES
from topline.pipeline.errors import ConfigError, InputError
from topline.pipeline.evaluation.measurement import evaluate
from topline.pipeline.ingest import import_features
from topline.pipeline.jobs import train_as_asked
from topline.pipeline.options import (
    ClusterConfig,
    ImportConfig,
    SearchConfig,
    SweepConfig,
    TrainConfig,
    build,
)
from topline.pipeline.rows import StoredModel
from topline.pipeline.sweep import SweepResult, choose, sweep
from topline.pipeline.sweep import choice as choosing
from topline.pipeline.sweep import plan as sweep_plan
from topline.pipeline.sweep.plan import FoldSource, fold_data, forget_folds, plan_sweep, stratified_folds
from topline.solvers.errors import InvalidProblemError
from topline.solvers.kernels import KernelFeatures
from topline.solvers.run import search as searching
from topline.storage.datasets import Dataset
from topline.storage.models import load_model
from topline.storage.records import from_fields
from topline.storage.stores import open_store


def imported(folder: Path, X: np.ndarray, y: np.ndarray) -> str:
    np.save(folder / "X.npy", X.astype(np.float32))
    np.save(folder / "y.npy", y)
    files = {"features": str(folder / "X.npy"), "labels": str(folder / "y.npy")}
    import_features(ImportConfig(**files, store=str(folder / "store")))
    return str(folder / "store")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Three columns that tell six classes apart, and one of a thousand times their size that does not."""
    folder = tmp_path_factory.mktemp("choice")
    random = np.random.default_rng(0)
    y = np.arange(600) % 6
    X = np.column_stack([random.normal(size=(6, 3))[y] + 0.4 * random.normal(size=(600, 3)),
                         1000.0 * random.normal(size=600)])  # fmt: skip
    return imported(folder, X, y)


def test_columns_of_other_sizes_are_standardised(
    store: str, topline, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = topline.printed("train", "--workers", "0", "--store", store, "--auto", "--for", "top-2")
    record = load_model(result["model"]).record
    assert [part["name"] for part in record.transforms] == ["standardize", "bias"]
    chosen = record.config["chosen"]
    assert result["chosen"] == chosen
    best, default = (next(cell for cell in chosen["cells"] if cell[which]) for which in ("best", "default"))
    assert (best["loss"], best["C"]) == (record.config["loss"], record.C)
    assert (default["loss"], default["C"], default["transforms"]) == ("softmax", 1.0, ["l2", "bias"])
    assert best["accuracy"] == best["topk"]["2"] > default["accuracy"] + 0.1
    assert {cell["loss"] for cell in chosen["cells"]} == {"softmax", "max_hinge", "topk_hinge"}
    # Once for the same data and options.
    monkeypatch.setattr(choosing.Search, "find", lambda _: pytest.fail("searched again"))
    again = topline.printed(
        "train", "--workers", "0", "--store", store, "--auto", "--for", "top-2", "--no-certify"
    )
    assert again["chosen"] == chosen


def test_probabilities_of_a_search_are_those_of_the_rows_that_it_held_out(store: str, tmp_path: Path) -> None:
    """The temperature of scikit-learn's scores of the same fold; new rows' log loss is the nearer for it."""
    config = TrainConfig(store=store, loss="softmax", C=0.02, transforms=("standardize", "bias"))
    model = train_as_asked(config, ClusterConfig(workers=0), search=SearchConfig(auto=True)).model
    known = calibration_of(StoredModel.open(model))
    dataset = Dataset.open(open_store(store))
    data = fold_data(FoldSource(store, dataset.info.id, 5, config.seed, None, config.transforms), 0)
    peer = LogisticRegression(C=0.02, fit_intercept=False, tol=1e-8, max_iter=1000).fit(data.X, data.y)
    scores, y = data.held_out @ peer.coef_.T, data.held_out_y.astype(int)

    def loss(slope: float) -> float:
        return log_loss(y, softmax(slope * scores, axis=1))

    assert (known.fitted_rows, "held out" in calibration_text(known)) == (len(y), True)
    best = minimize_scalar(loss, bounds=(0.1, 100.0), method="bounded")
    assert loss(known.probabilities.slope) == pytest.approx(best.fun, rel=1e-3)
    found = evaluate(model)
    stored = StoredModel.open(model)
    rows = stored.rows("test")
    own = softmax(stored.scores(next(iter(rows.tiles()))[2]), axis=1)
    assert found.probabilities.log_loss < log_loss(rows.labels(), own) - 0.1


def test_rows_of_a_class_that_the_fold_misses_say_nothing_of_probabilities(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """All rows of the last class are one group, such as the photographs of one afternoon."""
    y = np.repeat([0, 1, 2], [90, 90, 30])
    X = np.random.default_rng(0).normal(size=(210, 3)) + 2.0 * np.eye(3)[y]
    groups = np.where(y == 2, 999, np.arange(210))
    seed = next(seed for seed in range(99) if not stratified_folds(y, 5, seed, groups)[y == 2].any())
    for name, values in (("X", X.astype(np.float32)), ("y", y), ("g", groups)):
        np.save(tmp_path / f"{name}.npy", values)
    files = {"features": "X", "labels": "y", "groups": "g"}
    named = {name: str(tmp_path / f"{file}.npy") for name, file in files.items()}
    store = str(tmp_path / "store")
    import_features(ImportConfig(**named, store=store, test_share=0.0))
    config = TrainConfig(store=store, loss="softmax", C=0.1, transforms=("bias",), seed=seed)
    model = train_as_asked(config, ClusterConfig(workers=0), search=SearchConfig(auto=True)).model
    plan_sweep(SweepConfig(store=store, folds=5, seed=seed))
    said = "30 held-out rows count as errors, as their fold trains on no row of the class (2 30): give it"
    assert [record.message.startswith(said) for record in caplog.records].count(True) == 2
    info = Dataset.open(open_store(store)).info
    data = fold_data(FoldSource(store, info.id, 5, seed, None, config.transforms), 0)
    assert set(data.y.tolist()) == {0, 1}
    assert calibration_of(StoredModel.open(model)).fitted_rows == (data.held_out_y != 2).sum() > 0


def test_what_is_given_is_not_searched(store: str) -> None:
    config = TrainConfig(store=store, loss="max_hinge", C=2.0, transforms=("l2", "bias"))
    found = choose(config, SearchConfig(auto=True))
    assert (found.loss, found.C, found.transforms) == ("max_hinge", 2.0, ("l2", "bias"))
    assert len(found.chosen["cells"]) == 1


@pytest.mark.parametrize(
    ("train", "auto", "searches"),
    [({}, None, True), ({"tol": 1e-2}, None, True), ({"C": 1.0}, None, False), ({"k": 2}, None, False),
     ({"loss": "softmax"}, None, False), ({}, False, False), ({"C": 1.0}, True, True)],
)  # fmt: skip
def test_explicit_options_mean_one_fit_unless_a_search_is_asked_for(
    train: dict[str, Any], auto: bool | None, searches: bool
) -> None:
    assert SearchConfig(auto=auto).searches(TrainConfig(**train)) == searches


def test_what_cannot_be_searched_is_refused(store: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="leave out --average-top or --auto"):
        SearchConfig(auto=True).searches(TrainConfig(average_top=0.5))
    for search, train in (
        (SearchConfig(goal="top-3"), {"C": 1.0}),
        (SearchConfig(auto=False, goal="macro"), {}),
    ):
        with pytest.raises(
            ConfigError, match=f"--for {search.goal} says what a search goes by, and nothing is"
        ):
            search.searches(TrainConfig(**train))
    with pytest.raises(ConfigError, match="--for top-6 is always right of 6 classes"):
        choose(TrainConfig(store=store), SearchConfig(goal="top-6"))
    few = imported(tmp_path, np.eye(6), np.arange(6) % 2)
    with pytest.raises(InputError, match="training rows, too few to search on"):
        choose(TrainConfig(store=few), SearchConfig(auto=True))
    config = TrainConfig(store=few)
    assert choose(config, SearchConfig()) == config, "a whole job makes one fit then"


def test_train_refuses_a_search_that_it_would_not_make(store: str, topline: Topline) -> None:
    for options, said in (
        (("--for", "top-2"), "add --auto"),
        (("--auto", "--from", store), "--auto searches anew"),
    ):
        ran = topline("train", "--store", store, *options)
        assert (ran.code, said in ran.err) == (2, True)


def test_a_search_without_transforms_tries_none(store: str) -> None:
    found = choose(TrainConfig(store=store, transforms=()), SearchConfig(auto=True))
    assert found.transforms == ()
    assert all(cell["transforms"] == [] for cell in found.chosen["cells"])


def test_rows_are_read_once_for_all_folds_and_scalings(store: str) -> None:
    forget_folds()
    for transforms in (("l2",), ("standardize", "bias"), ()):
        source = FoldSource(store, Dataset.open(open_store(store), "latest").info.id, 3, 0, None, transforms)
        assert {len(fold_data(source, fold).y) for fold in range(3)} == {320}
    assert sweep_plan._all_rows.cache_info().misses == 1
    forget_folds()


def test_the_search_takes_no_more_than_it_says(
    store: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few columns: what six fits take is next to nothing, and the bound is a time."""
    monkeypatch.setattr(searching, "SECONDS", 0.0)
    with caplog.at_level("INFO"):
        found = choose(TrainConfig(store=store), SearchConfig(auto=True)).chosen
    assert "the work of 6 trainings at most, or 10 seconds of computing where that is more" in caplog.text
    assert found["ended"] == "the time was up"


def test_a_memory_limit_is_kept_by_the_search(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """All that NumPy takes beside the process itself is counted by Python's own tracer."""
    random = np.random.default_rng(0)
    y = np.arange(4000) % 4
    place = imported(tmp_path, random.normal(size=(4, 400))[y] + random.normal(size=(4000, 400)), y)
    room = 32 << 20
    limit = f"{ALONE_BYTES + room}B"
    forget_folds()
    # What compiles, and modules that are loaded.
    choose(TrainConfig(store=place, C=1.0, loss="softmax"), SearchConfig(auto=True))
    tracemalloc.start()
    with caplog.at_level("INFO"):
        choose(TrainConfig(store=place), SearchConfig(auto=True), None, ClusterConfig(memory_limit=limit))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    said = re.findall(r"on ([\d,]+) of 3,\d+ training rows", caplog.text)
    assert 100 < int(said[-1].replace(",", "")) < 2500
    assert peak <= room


def test_a_search_can_be_made_by_a_flow(store: str, topline, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is asked of the flow holds the search; nothing is searched before it."""
    asked: dict[str, Any] = {}

    def run_flow(name: str, parameters: dict[str, Any], progress: Any) -> Any:
        asked.update(parameters, name=name)
        return train_as_asked(**parameters, progress=progress)

    monkeypatch.setattr("topline.pipeline.cli.command.flow_runner", lambda: run_flow)
    result = topline.printed("train", "--workers", "0", "--store", store, "--auto", "--C", "0.5", "--flow")
    assert (asked["name"], asked["config"].chosen, asked["search"].auto) == ("train", None, True)
    assert result["chosen"]["given"] == ["C"]


def test_sparse_rows_count_by_what_they_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A row of 2^22 columns with few entries is no row of 16 MiB, of which 16 would be searched on."""

    class SaidError(Exception):
        pass

    def end(_: object, __: object) -> None:
        raise SaidError

    columns = np.random.default_rng(0).integers(1 << 22, size=800)
    X = sparse.csr_matrix((np.ones(800, dtype=np.float32), columns, np.arange(0, 801, 4)), (200, 1 << 22))
    X.sort_indices()
    sparse.save_npz(tmp_path / "X.npz", X)
    np.save(tmp_path / "y.npy", np.arange(200) % 3)
    place = str(tmp_path / "store")
    import_features(ImportConfig(features=str(tmp_path / "X.npz"), labels=tmp_path / "y.npy", store=place))
    monkeypatch.setattr(choosing._Task, "find", end)
    with caplog.at_level("INFO"), pytest.raises(SaidError):
        choose(TrainConfig(store=place), SearchConfig(auto=True))
    found = re.search(r"on (\d+) of (\d+) training rows", caplog.text)
    assert found[1] == found[2] > "100"


HERE = ClusterConfig(workers=0)
COSTS, FOLDS = (0.05, 2.0), 3


@pytest.fixture(scope="module")
def moons() -> tuple[np.ndarray, np.ndarray]:
    X, y = make_moons(150, noise=0.25, random_state=0)
    return X.astype(np.float32), y.astype(np.int32)


@pytest.fixture(scope="module")
def moons_store(moons: tuple[np.ndarray, np.ndarray], tmp_path_factory: pytest.TempPathFactory) -> str:
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
def test_every_cell_is_what_scikit_learn_gives_on_every_fold(
    moons_store: str, moons, options, kernels
) -> None:
    X, y = moons
    grid = {"C": COSTS, "loss": "topk_hinge", "k": "1", "folds": FOLDS, "transforms": ()}
    config = build(SweepConfig, {"store": moons_store, **grid, "rule": "none", "tol": 1e-6, **options})
    result = sweep(config, HERE)
    fold = stratified_folds(y, FOLDS, config.seed)
    expected = [hits(X, y, fold, kernel, C) for kernel in kernels for C in COSTS]
    # A row on the boundary itself may fall to either side.
    assert [cell.mean * len(y) for cell in result.cells] == pytest.approx(expected, abs=1.01)
    assert len(set(expected)) > 2
    assert max(cell.relative_gap for cell in result.cells) <= 1e-6
    assert from_fields(SweepResult, json.loads(json.dumps(result.to_dict())), "--json") == result
    forget_folds()


def test_losses_and_costs_of_one_gamma_share_one_factor(
    moons_store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    factored = []
    of = KernelFeatures.of
    monkeypatch.setattr(
        KernelFeatures, "of", lambda kernel, X: factored.append((kernel, X.tobytes())) or of(kernel, X)
    )
    forget_folds()
    config = build(
        SweepConfig,
        {"store": moons_store, "C": "0.1,1", "loss": "topk_hinge,softmax", "k": "1", "folds": FOLDS,
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
def test_the_command_line_finds_gamma_and_trains_with_it(moons_store: str, topline: Topline) -> None:
    words = ("--C", "1", "--k", "1", "--kernel", "rbf", "--kernel-gamma", "1e-4,5", "--transforms", "none")
    found = topline.printed("sweep", "--store", moons_store, *words, "--workers", "0", "--train-best")
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
def test_what_no_kernel_takes_is_refused_before_any_work(moons_store: str, options, message) -> None:
    with pytest.raises((ConfigError, InvalidProblemError), match=message):
        plan_sweep(build(SweepConfig, {"store": moons_store, **options}))


def test_a_matrix_that_does_not_fit_is_refused_with_the_rows_that_do(
    moons_store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("topline.pipeline.sweep.plan.MEMORY_BYTES", 24 * 80**2)
    with pytest.raises(InputError, match=r"kernel matrix of the 120 rows of a fold .* at most --rows 100"):
        sweep(build(SweepConfig, {"store": moons_store, "k": "1", "kernel": "rbf"}), HERE)
