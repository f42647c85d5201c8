"""Sweeps on a small store: right accuracies, fewer passes, answers that outlive whoever gave them."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from sklearn.metrics import top_k_accuracy_score

from tests.pipeline.small_data import make_features, small_dataset, write_dataset
from tests.reference import losses as reference
from topline import MaxHinge, SerialExecutor, Softmax, TopKHinge, open_store, solve
from topline.pipeline.cluster import WorkersLost, known_workers, open_cluster
from topline.pipeline.errors import ClusterError, ConfigError, InputError, InterruptedRunError
from topline.pipeline.options import Cell, ClusterConfig, SweepConfig, Variant, build
from topline.pipeline.rows.partition import TrainingRows
from topline.pipeline.sweep import SweepResult, plan, sweep
from topline.pipeline.sweep import search as sweeping
from topline.pipeline.sweep.plan import (
    FoldSource,
    SweepPlan,
    fits_every_process,
    fold_data,
    forget_folds,
    plan_sweep,
    stratified_folds,
    stratified_sample,
)
from topline.pipeline.sweep.race import Reached
from topline.pipeline.sweep.search import DaskRunner, HereRunner, PathTask, forget_paths
from topline.solvers.core.problem import Problem
from topline.solvers.errors import DualsReplacedError
from topline.storage.errors import ConflictError, MismatchError
from topline.storage.models import load_model
from topline.storage.records import from_fields
from topline.storage.runs import add_answer, read_answers, read_sweep

HERE = ClusterConfig(workers=0)
GRID = {"C": (0.01, 0.1, 1.0, 10.0), "k": (2,), "topk": 1, "folds": 3}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("sweep") / "store"
    small_dataset(folder, n=700, d=12, m=5)
    return str(folder)


@pytest.fixture(scope="module")
def raced(store: str) -> SweepResult:
    return sweep(SweepConfig(store=store, **GRID), HERE)


def test_folds_share_out_every_class_and_all_rows_evenly() -> None:
    y = np.random.default_rng(0).choice(4, size=501, p=[0.6, 0.3, 0.09, 0.01]).astype(np.int32)
    fold = stratified_folds(y, 5, seed=3)
    for rows in (fold, *(fold[y == c] for c in range(4))):
        counts = np.bincount(rows, minlength=5)
        assert counts.max() - counts.min() <= 1
    assert fold.tolist() == stratified_folds(y, 5, seed=3).tolist()
    assert fold.tolist() != stratified_folds(y, 5, seed=4).tolist()
    few = stratified_sample(y, 100, seed=3)
    assert len(np.unique(few)) == 100
    shares = np.bincount(y[few], minlength=4) - 100 * np.bincount(y) / len(y)
    assert np.abs(shares).max() <= 1.0


def test_a_fold_fits_its_transforms_on_its_own_rows_and_weighs_them(store: str) -> None:
    source = FoldSource(store, "latest", 3, 0, 300, ("standardize", "bias"))
    data = fold_data(source, 1)
    assert data.X.shape == (200, 13)
    assert len(data.held_out_y) == 100
    assert np.abs(data.X[:, :-1].mean(axis=0)).max() < 1e-5
    assert np.abs(data.held_out[:, :-1].mean(axis=0)).max() > 1e-3
    weights = data.weights("balanced")
    assert weights is not None
    totals = np.bincount(data.y, weights)
    assert totals == pytest.approx(np.full(5, 40.0))


def test_without_a_rule_every_cell_is_a_full_cross_validation(store: str) -> None:
    """Its accuracies are those of independent fits on the same folds, measured by scikit-learn."""
    result = sweep(SweepConfig(store=store, rule="none", tol=1e-5, max_passes=5000, **GRID), HERE)
    source = FoldSource(store, result.dataset, 3, 0, None, ("l2", "bias"))
    for cell in result.cells[:3]:
        shares = []
        for fold in range(3):
            data = fold_data(source, fold)
            lam = 1.0 / (len(data.y) * cell.C)
            fit = solve(data.X, data.y, TopKHinge(2), lam, tol=1e-7, max_passes=5000, m=5)
            scores = data.held_out.astype(float) @ fit.W
            shares.append(top_k_accuracy_score(data.held_out_y, scores, k=1, labels=np.arange(5)))
        assert cell.mean == pytest.approx(np.mean(shares), abs=0.011)
        assert cell.low <= np.mean(shares) + 0.002
        assert np.mean(shares) <= cell.high + 0.002
        assert cell.why == "tolerance"
    assert result.n == len(TrainingRows(plan_sweep(SweepConfig(store=store, **GRID)).dataset, "train"))


def test_the_race_spends_fewer_passes_and_chooses_the_same_or_a_neighbour(
    store: str, raced: SweepResult
) -> None:
    full = sweep(SweepConfig(store=store, rule="none", **GRID), HERE)
    assert raced.passes < 0.8 * full.passes
    grid = sorted(GRID["C"])
    assert abs(grid.index(raced.best.C) - grid.index(full.best.C)) <= 1
    assert raced.best.mean == max(cell.mean for cell in raced.cells if cell.state == "finished")
    assert {cell.state for cell in raced.cells} <= {"finished", "pruned"}
    assert raced.simplest.C <= raced.best.C
    page = Path(raced.page).read_text()
    assert page.count("<svg") == 2
    assert ">0.01<" in page  # C itself, not its logarithm
    assert all(f">{cell.C:g}<" in page for cell in raced.cells)
    stored = read_sweep(open_store(store), raced.sweep)
    assert stored.outcome is not None
    assert from_fields(SweepResult, stored.outcome, "the outcome") == raced


def test_a_stopped_sweep_goes_on_and_asks_nothing_twice(
    store: str, raced: SweepResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: Counter[tuple[int, float]] = Counter()
    left = 4

    class Stopped(HereRunner):
        def run(self, tasks):
            nonlocal left
            for task in tasks:
                if left == 0:
                    left = 1000
                    raise KeyboardInterrupt
                left -= 1
                yield from super().run([task])
                asked.update((task.fold, gap) for gap in task.rounds[-1])

    monkeypatch.setattr(sweeping, "HereRunner", Stopped)
    config = SweepConfig(store=store, **GRID)
    with pytest.raises(InterruptedRunError, match=r"topline sweep --store .* --resume s\d+") as error:
        sweep(config, HERE)
    sweep_id = str(error.value).split()[-1]
    assert len(read_answers(open_store(store), sweep_id)) == 4
    resumed = sweep(SweepConfig(store=store, resume=sweep_id), HERE)
    assert max(asked.values()) == 1
    assert resumed.best.C == raced.best.C
    # The first round was whole, so it was decided alike; what came later began anew.
    again = sweep(SweepConfig(store=store, resume=sweep_id), HERE)
    assert max(asked.values()) == 1
    assert again.cells == resumed.cells
    with pytest.raises(MismatchError, match=r"folds was 3, now 4"):
        sweep(SweepConfig(store=store, resume=sweep_id, folds=4), HERE)
    with pytest.raises(ConflictError, match="another process works on sweep"):
        add_answer(open_store(store), sweep_id, 0, {})
    assert read_sweep(open_store(store), sweep_id).id == sweep_id


def test_answers_that_lack_a_cell_are_asked_for_again(store: str, raced: SweepResult) -> None:
    """As those of a version that looked at other cells in this round."""
    plan = plan_sweep(SweepConfig(store=store, **GRID))
    first = read_answers(open_store(store), raced.sweep)[0]
    add_answer(open_store(store), plan.id, 0, {**first, "cells": first["cells"][:1]})
    resumed = sweep(SweepConfig(store=store, resume=plan.id), HERE)
    assert resumed.best.C == raced.best.C
    assert [cell.mean for cell in resumed.cells] == [cell.mean for cell in raced.cells]
    answers = read_answers(open_store(store), plan.id)
    assert [(answer["round"], answer["path"], answer["fold"]) for answer in answers[:2]] == [(0, 0, 0)] * 2


def test_workers_give_the_same_numbers_also_when_one_is_lost_and_nothing_is_remembered(store: str) -> None:
    plan = plan_sweep(SweepConfig(store=store, **GRID))
    first, second = ((0.1, 0.1), (10.0, 0.1)), ((10.0, 0.02),)

    def tasks(name, *rounds):
        path = plan.paths[0]
        return [
            PathTask(name, plan.source(path), path, plan.spec(path), fold, 1, rounds, (10.0,))
            for fold in range(3)
        ]

    def numbers(answers):
        kept = ("C", "fold", "hits", "low", "high", "gap", "passes", "earlier")
        return sorted([getattr(part, name) for name in kept] for _, parts in answers for part in parts)

    here = HereRunner()
    expected = [numbers(here.run(tasks("a/0", first))), numbers(here.run(tasks("a/0", first, second)))]
    with open_cluster(ClusterConfig(workers=2), data_bytes=0) as client:
        runner = DaskRunner(client, heartbeat_timeout=600.0, worker_wait=600.0)
        assert numbers(runner.run(tasks("b/0", first))) == expected[0]
        lost = next(iter(known_workers(client)))
        client.retire_workers([lost], close_workers=True)
        forget_paths("b")  # worker threads share this process's memory
        assert numbers(runner.run(tasks("b/0", first, second))) == expected[1]
        # An answer that was lost on its way is given again.
        assert numbers(runner.run(tasks("b/0", first, second))) == expected[1]
        runner.close("b")
    here.close("a")
    forget_folds()


@pytest.mark.parametrize(("smoothing", "C"), [(0.0, 0.3), (0.0, 30.0), (0.5, 3.0)])
@pytest.mark.sampled(3)
def test_the_dual_value_of_a_smaller_C_is_that_of_its_best_multiple(smoothing: float, C: float) -> None:
    X, y = make_features(80, 6, 4)
    loss, lam = TopKHinge(2), 1.0 / (len(y) * C)
    found = solve(X, y, loss, 1.0 / (len(y) * 0.1), smoothing, tol=1e-6, keep_duals=True)
    values = [reference.dual(X, y, loss, lam, smoothing, s * found.A) for s in np.linspace(0.0, 1.0, 2001)]
    value = Reached(0.1, found.state, found.primal, found.dual, None).dual_for(
        Problem(loss, *X.shape, 4, lam, smoothing)
    )
    assert max(values) <= value * (1 + 1e-9)
    assert value == pytest.approx(max(values), rel=1e-3)


@pytest.mark.parametrize("metric", ["macro-top-1", "tail-top-2"])
@pytest.mark.parametrize("shared", [False, True], ids=["in memory", "shared passes"])
def test_cells_are_compared_by_means_over_classes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, metric: str, shared: bool
) -> None:
    """As scikit-learn measures them over the rows that each fold holds out; tail: the two rarest of five."""
    X, y = make_features(1200, 8, 5, noise=0.5)
    rng = np.random.default_rng(0)
    kept = np.flatnonzero(rng.random(len(y)) < np.array([1.0, 0.6, 0.4, 0.25, 0.15])[y])
    X, y = X[kept], y[kept]
    write_dataset(open_store(str(tmp_path)), X, y, np.zeros(len(y), dtype=np.int8))
    monkeypatch.setattr(plan, "fits_every_process", lambda *_: not shared)
    config = SweepConfig(
        store=str(tmp_path),
        C=(0.1, 1.0),
        loss=("max_hinge",),
        metric=metric,
        folds=3,
        rule="none",
        tol=1e-6,
        max_passes=5000,
    )
    result = sweep(config, HERE)
    k, rarest = int(metric[-1]), np.argsort(np.bincount(y))[:2]
    source = FoldSource(str(tmp_path), result.dataset, 3, 0, None, ("l2", "bias"))
    for cell in result.cells:
        hit: list[list[bool]] = [[] for _ in range(5)]
        for fold in range(3):
            data = fold_data(source, fold)
            lam = 1.0 / (len(data.y) * cell.C)
            fit = solve(data.X, data.y, MaxHinge(), lam, tol=1e-6, max_passes=5000, m=5)
            best = np.argsort(-(data.held_out.astype(float) @ fit.W), axis=1)[:, :k]
            for own, guesses in zip(data.held_out_y.tolist(), best, strict=True):
                hit[own].append(own in guesses)
        shares = np.array([np.mean(part) for part in hit])
        expected = shares.mean() if metric.startswith("macro") else shares[rarest].mean()
        # Both are within 1e-6 of the optimum; one of the 20 rows of the rarest class is 0.025 of the tail.
        assert cell.mean == pytest.approx(expected, abs=0.02)
        assert cell.low <= cell.mean <= cell.high
    assert result.accuracy == metric.replace("-", " ", 1)
    assert from_fields(SweepResult, json.loads(json.dumps(result.to_dict())), "--json") == result
    assert result.accuracy in Path(result.page).read_text(encoding="utf-8")
    forget_folds()


def test_a_metric_that_cannot_compare_cells_is_refused(store: str) -> None:
    for options, said in (
        ({"metric": "macro-top-5"}, "macro top-5 of 5 classes is always right"),
        ({"metric": "log_loss"}, "no metric of one label per row named 'log_loss'; use one of top-1, "),
        ({"metric": "tail-top-1", "rows": 40, "folds": 20}, "one of 20 folds has none of them"),
    ):
        with pytest.raises(ConfigError, match=said):
            plan_sweep(SweepConfig(store=store, **options))
    with pytest.raises(ConfigError, match="not both"):
        build(SweepConfig, {"topk": 1, "metric": "macro-top-1"})


def test_the_command_prints_a_table_and_trains_the_best(store: str, raced: SweepResult, topline) -> None:
    words = ["sweep", "--store", store, "--C", "0.01:10:4", "--k", "2", "--topk", "1", "--folds", "3"]
    found = topline.printed(*words, "--workers", "0", "--train-best")
    assert [cell["mean"] for cell in found["cells"]] == [cell.mean for cell in raced.cells]
    record = load_model(found["trained"]["model"]).record
    assert (record.C, record.config["k"]) == (raced.best.C, 2)
    seen = topline("sweep", "--store", store, "--resume", raced.sweep, "--workers", "0")
    assert "log10" not in seen.out
    assert f"C = {raced.best.C:g}" in seen.out
    assert f"--resume {raced.sweep} --train-best" in seen.out
    assert len([line for line in seen.out.splitlines() if line.startswith("topk_hinge k=2")]) == 4


def test_a_grid_is_every_combination_once() -> None:
    config = SweepConfig(C="1e-2:1e2:5", loss="topk_hinge,softmax", k="1,5", smoothing="0,0.5")
    assert config.grid() == (0.01, 0.1, 1.0, 10.0, 100.0)
    assert set(config.variants()) == {
        *(Variant("topk_hinge", k, gamma) for k in (1, 5) for gamma in (0.0, 0.5)),
        Variant("softmax", None, 0.0),
    }
    trained = config.train_config(Cell(Variant("topk_hinge", 5, 0.5), 10.0))
    assert (trained.loss, trained.k, trained.smoothing, trained.C) == ("topk_hinge", 5, 0.5, 10.0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"C": "1:2"}, "give numbers as in 0.1,1,10, or LOW:HIGH:COUNT"),
        ({"C": "0,1"}, "every C must be a positive number"),
        ({"method": "fw"}, "a sweep goes from C to C with dual_ascent or sdca, not with fw"),
        ({"loss": "truncated_topk_entropy"}, "is not convex and has no certificate"),
        ({"loss": "structured_hinge"}, "needs margins"),
    ],
)
def test_what_cannot_be_tried_is_refused_at_once(changes, message) -> None:
    with pytest.raises(ConfigError, match=message):
        build(SweepConfig, changes)


def test_what_the_data_cannot_bear_is_refused(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="top-5 of 5 classes is always right"):
        sweep(SweepConfig(store=store, topk=5), HERE)
    with pytest.raises(InputError, match="too few for 50 folds"):
        sweep(SweepConfig(store=store, folds=50, rows=60), HERE)
    few = type("M", (), {"available": 1000})
    monkeypatch.setattr("topline.pipeline.sweep.plan.psutil.virtual_memory", lambda: few)
    with pytest.raises(InputError, match=r"standardize makes other rows of every fold.* --rows \d"):
        sweep(SweepConfig(store=store, topk=1, transforms=("standardize",)), HERE)


@pytest.mark.parametrize(
    ("workers", "limit", "fits"),
    [(2, "4GiB", True), (2, "1500MiB", False), (0, "1500MiB", True), (0, "600MiB", False)],
)
def test_a_limit_holds_the_processes_as_well_as_their_rows(
    store: str, monkeypatch: pytest.MonkeyPatch, workers: int, limit: str, fits: bool
) -> None:
    """A worker that outgrows its share is ended by its nanny, and so is the next that does its work.

    80 MiB of rows, in each process with those of five folds; a process takes some 400 MiB without any.
    """
    plan = plan_sweep(SweepConfig(store=store, topk=1, folds=5))
    monkeypatch.setattr(SweepPlan, "nbytes", property(lambda _: 80 << 20))
    free = type("M", (), {"available": 64 << 30})
    monkeypatch.setattr("topline.pipeline.sweep.plan.psutil.virtual_memory", lambda: free)
    assert fits_every_process(plan, ClusterConfig(workers=workers, memory_limit=limit)) is fits


def test_a_sweep_whose_workers_keep_dying_ends_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    class Dying:
        asked = 0

        def wait_for_workers(self, *_: object) -> dict[str, int]:
            return {"tcp://a": 1}

        def run(self, *_: object) -> None:
            self.asked += 1
            raise WorkersLost(["tcp://a"], "is gone")

    runner = DaskRunner(None, heartbeat_timeout=60.0, worker_wait=60.0)
    dying = Dying()
    monkeypatch.setattr(runner, "_calls", dying)
    task = SimpleNamespace(name="a/0", fold=0)
    with pytest.raises(ClusterError, match=r"5 times in a row.*raise --memory-limit"):
        list(runner.run([task]))
    assert dying.asked == 5


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.sampled(2)
def test_rows_that_no_process_can_hold_are_shared_and_the_answer_is_the_same(
    store: str, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    """To the tolerance, which allows some rows to be decided otherwise."""
    options = {"store": store, "rule": "none", "tol": 1e-4, "class_weight": "balanced", **GRID}
    options |= {"C": (0.1, 1.0), "loss": ("topk_hinge", "softmax"), "rows": 300}
    apart = sweep(SweepConfig(**options), HERE)
    few = type("M", (), {"available": 1000})
    monkeypatch.setattr("topline.pipeline.sweep.plan.psutil.virtual_memory", lambda: few)
    together = sweep(SweepConfig(**options), ClusterConfig(workers=workers, cache_bytes=0))
    assert [cell.C for cell in together.cells] == [cell.C for cell in apart.cells]
    for one, other in zip(together.cells, apart.cells, strict=True):
        assert one.relative_gap <= 1e-4
        assert one.mean == pytest.approx(other.mean, abs=0.011)
        assert one.low <= other.high
        assert other.low <= one.high
    assert (together.best.loss, together.best.C) == (apart.best.loss, apart.best.C)


class Disturbed(SerialExecutor):
    """Fails once, on a request of its own: it loses a block's dual variables, or is told to stop."""

    fails_at, stops, requests = 0, False, 0

    def bind(self, *arguments, **options) -> None:
        """Bind, and know how the lost block is made again."""
        super().bind(*arguments, **options)
        self._fresh = SerialExecutor(threads=1)
        self._fresh.bind(*arguments, **options)

    def run(self, request):
        Disturbed.requests += 1
        if Disturbed.requests == Disturbed.fails_at:
            if self.stops:
                raise KeyboardInterrupt
            self._held = self._fresh._held
            raise DualsReplacedError("block 0 begins at 0 again")
        return super().run(request)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("when", ["lost", "lost as hits are counted", "interrupted"])
def test_shared_passes_outlive_lost_dual_variables_and_go_on_where_they_stopped(
    store: str, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    stops = when == "interrupted"
    few = type("M", (), {"available": 1000})
    monkeypatch.setattr("topline.pipeline.sweep.plan.psutil.virtual_memory", lambda: few)
    options = SweepConfig(store=store, **{**GRID, "C": (0.01, 0.1, 1.0), "rows": 300})
    calm = sweep(options, HERE)
    monkeypatch.setattr("topline.pipeline.sweep.search.SerialExecutor", Disturbed)
    Disturbed.requests = Disturbed.fails_at = 0
    sweep(options, HERE)
    # In the middle of the last fits, where most of the cells stand still and wait; the last request counts.
    last = Disturbed.requests
    Disturbed.fails_at, Disturbed.requests = last if "counted" in when else last * 2 // 3, 0
    monkeypatch.setattr(Disturbed, "stops", stops)
    if stops:
        with pytest.raises(InterruptedRunError) as error:
            sweep(options, HERE)
        sweep_id = str(error.value).split()[-1]
        found = sweep(SweepConfig(store=store, resume=sweep_id), HERE)
    else:
        found = sweep(options, HERE)
    assert Disturbed.requests > Disturbed.fails_at > 0
    assert found.best.C == calm.best.C
    for one, other in zip(found.cells, calm.cells, strict=True):
        # Both enclose what the exact solution has.
        assert one.low <= other.high
        assert other.low <= one.high


LOSSES = {"softmax": Softmax(), "topk_hinge": TopKHinge(2)}
EVERY_C, TOL, FOLDS = (0.01, 0.03, 0.1, 1.0, 10.0), 1e-4, 3


def overlapping(seed: int):
    """Make half-empty rows of unit length of five classes that come apart for one row in two."""
    rng = np.random.default_rng(seed)
    y = rng.integers(5, size=450)
    X = np.maximum(rng.normal(size=(450, 16)) + 0.4 * rng.normal(size=(5, 16))[y], 0.0) + 1e-3
    return (X / np.linalg.norm(X, axis=1, keepdims=True)).astype(np.float32), y.astype(np.int32)


@pytest.mark.parametrize("seed", range(3))
def test_no_cell_is_put_out_that_an_exhaustive_search_finds_better(seed: int, tmp_path: Path) -> None:
    """Every cell on every fold is solved from zero here; what was put out had about these accuracies."""
    X, y = overlapping(seed)
    write_dataset(open_store(tmp_path, create=True), X, y, np.zeros(len(y), dtype=np.int8))
    config = SweepConfig(
        store=str(tmp_path), C=EVERY_C, loss=tuple(LOSSES), k=(2,), topk=1, folds=FOLDS, tol=TOL
    )
    result = sweep(config, HERE)
    source = FoldSource(str(tmp_path), result.dataset, FOLDS, 0, None, ("l2", "bias"))
    shares = {}
    for fold in range(FOLDS):
        data = fold_data(source, fold)
        for cell in result.cells:
            fit = solve(data.X, data.y, LOSSES[cell.loss], 1.0 / (len(data.y) * cell.C), tol=TOL, m=data.m)
            right = (data.held_out.astype(float) @ fit.W).argmax(axis=1) == data.held_out_y
            shares.setdefault(cell, []).append(right.mean())
    forget_folds()
    error = 0.5 / np.sqrt(len(y))
    best = np.mean(shares[result.best])
    for cell, exact in shares.items():
        # Those with few looks are known from the first fold alone, to some rows in a hundred.
        assert cell.mean == pytest.approx(exact[0] if cell.state == "pruned" else np.mean(exact), abs=0.1)
        assert np.mean(exact) <= best + 2.0 * error
    assert {cell.state for cell in result.cells} == {"finished", "pruned"}
