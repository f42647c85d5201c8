"""Checkpoints of a run, and training that goes on from an earlier model, from its A or its W."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client

from tests.pipeline.small_data import make_features, make_split, write_dataset
from topline import SerialExecutor, ThreadExecutor, TopKHinge, view_run
from topline.pipeline.cluster import DaskExecutor
from topline.pipeline.options.train import ClusterConfig, TrainConfig
from topline.pipeline.training import TrainResult, train
from topline.pipeline.training.plan import MovedDuals, plan_training
from topline.pipeline.training.run import (
    SAVING_SHARE,
    Pace,
    RunPlace,
    find_checkpoint,
    save_state,
    written_where_held,
)
from topline.solvers.core.dual_points import PendingStep
from topline.solvers.core.problem import Problem
from topline.solvers.core.state import Point, SolverState
from topline.solvers.executors import Executor
from topline.solvers.operations import FindVertices
from topline.storage.arrays import DualWriter, StoredDuals, duals
from topline.storage.datasets import Dataset, list_datasets
from topline.storage.errors import DiskFullError
from topline.storage.models import load_model
from topline.storage.runs import Checkpoint, RunLock, create_run
from topline.storage.runs.checkpoints import checkpoint_rounds
from topline.storage.stores import FileSet, Store, open_store
from topline.storage.verification import verify_store

N, D, M = 300, 10, 5
X, Y = make_features(N, D, M)
W = np.random.default_rng(0).standard_normal((D, M))
CUTS = (0, 1, 120, 200, N)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunPlace:
    monkeypatch.setattr(duals, "PART_BYTES", 50 * M * 4)
    store = open_store(tmp_path, create=True)
    return RunPlace(store, create_run(store, {}), {"C": 1.0}, {}, keep_duals=True)


def bound(executor: Executor) -> Executor:
    executor.bind(Problem(TopKHinge(2), N, D, M, 0.05, 0.5), X, Y, keep_duals=True)
    return executor


def saved(
    place: RunPlace, executor: Executor, round_: int, pending_step: PendingStep | None = None
) -> Checkpoint:
    save_state(place, SolverState(Point(round_, W)), written_where_held(executor, pending_step), RunLock())
    found = find_checkpoint(place)
    assert found is not None
    return found


def test_saving_takes_a_twentieth_of_a_run_at_most() -> None:
    """Rounds of 1 s and saves of 0 to 30 s: after each but the first, 5 % of the time at most."""
    for cost in (0.0, 1.0, 5.0, 30.0):
        pace, now, spent, saves = Pace(60.0, began=100.0), 100.0, 0.0, []
        while now < 20_000.0:
            now += 1.0
            if pace.is_due(now):
                pace = pace.after(now, now + cost)
                now, spent = now + cost, spent + cost
                saves.append(now)
                assert len(saves) == 1 or spent <= SAVING_SHARE * (now - 100.0) + 1e-9
        assert saves[0] == 160.0 + cost, "the first one is not put off"
        assert min(np.diff(saves)) >= 60.0
        assert len(saves) >= (300 if cost <= 1.0 else 0.8 * SAVING_SHARE * 20_000.0 / cost)


def test_every_executor_stores_and_loads_the_same_rows(threads: Client, place: RunPlace) -> None:
    """Each saves in its own cut, with the step that waits applied; each goes on from what another saved."""
    pending_step = PendingStep(0, 0.5)
    with SerialExecutor(blocks=1) as serial:
        bound(serial).run(FindVertices(0, W))
        (_, _, A), *_ = list(serial.duals(pending_step))
        assert 0 < np.count_nonzero(A) < A.size
    executors: list[Executor] = [
        SerialExecutor(blocks=3),
        ThreadExecutor(2, bounds=CUTS),
        DaskExecutor(threads, blocks=7),
    ]
    for number, executor in enumerate(executors):
        bound(executor).run(FindVertices(0, W))
        found = saved(place, executor, number + 1, pending_step)
        np.testing.assert_array_equal(found.dual_blocks().rows(0, N), A)
        assert len(list(found.dual_blocks())) >= 6
        for other in executors:
            bound(other).load_duals(found.dual_blocks())
            np.testing.assert_array_equal(np.concatenate([rows for _, _, rows in other.duals()]), A)
    for executor in executors:
        executor.close()


def test_a_disk_that_fills_under_one_worker_leaves_the_checkpoint_before(
    threads, place: RunPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the other worker goes on to write is nobody's, and the next save clears it away."""
    from topline.storage.stores.local import LocalStore

    write = LocalStore.write_bytes

    def full(store: LocalStore, path: str, data: bytes) -> None:
        if "/duals/0000000002" in path:
            raise DiskFullError("no room is left")
        write(store, path, data)

    with DaskExecutor(threads, blocks=7) as executor:
        bound(executor)
        saved(place, executor, 1)
        with monkeypatch.context() as patch:
            patch.setattr(LocalStore, "write_bytes", full)
            with pytest.raises(DiskFullError):
                saved(place, executor, 2)
        found = find_checkpoint(place)
        assert (found.round, found.skipped) == (1, ())
        assert all(finding.harmless for finding in verify_store(place.store))
        saved(place, executor, 3)
        assert checkpoint_rounds(place.store, "r0001") == [1, 3]
        assert verify_store(place.store) == []


BEFORE, NOW, WIDTH, CLASSES = 500, 620, 12, 5


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Four datasets: some rows, more of them with a few other labels, just more of them, and a few less."""
    place = open_store(tmp_path_factory.mktemp("start") / "store", create=True)
    X, labels = make_features(NOW, WIDTH, CLASSES)
    split = make_split(NOW)
    other = labels.copy()
    other[100:130] = (other[100:130] + 1) % CLASSES
    write_dataset(place, X[:BEFORE], labels[:BEFORE], split[:BEFORE], key="before", m=CLASSES)
    write_dataset(place, X[20:], other[20:], split[20:], key="other", m=CLASSES)
    write_dataset(place, X, labels, split, key="more", m=CLASSES)
    write_dataset(place, X[: BEFORE - 5], labels[: BEFORE - 5], split[: BEFORE - 5], key="fewer", m=CLASSES)
    return place


def fitted(store: Store, dataset: int, **options: Any) -> TrainResult:
    name = [info.id for info in list_datasets(store)][dataset]
    chosen = {"k": 2, "tol": 1e-2, "C": 3.0, **options}
    return train(TrainConfig(store=store.url, dataset=name, **chosen), ClusterConfig(workers=0))


def test_rows_and_classes_find_their_places(tmp_path: Path) -> None:
    """Against a plain loop; read as a whole and by any part, in any order of the earlier rows."""
    store, rng = open_store(tmp_path, create=True), np.random.default_rng(0)
    A = rng.normal(size=(90, 4)).astype(np.float32)
    entries = DualWriter(store, "model").write([(0, 50, A[:50]), (50, 90, A[50:])])
    places = rng.permutation(np.concatenate([np.arange(60), np.full(30, -1)]))
    columns = np.array([2, -1, 0, 3, 1])
    moved = MovedDuals(StoredDuals(FileSet(store, "model", entries, "a model")), places, columns)
    expected = np.zeros((90, 5), dtype=np.float32)
    for i, place in enumerate(places):
        for j, column in enumerate(columns):
            if place >= 0 and column >= 0:
                expected[i, j] = A[place, column]
    assert np.array_equal(np.concatenate([rows for _, _, rows in moved]), expected)
    for start, stop in ((0, 1), (17, 64), (89, 90)):
        found = list(moved.between(start, stop))
        assert (found[0][0], found[-1][1]) == (start, stop)
        assert np.array_equal(np.concatenate([rows for _, _, rows in found]), expected[start:stop])


def test_the_model_says_what_it_started_from(store: Store) -> None:
    first = fitted(store, 0).model.rpartition("/")[2]
    warm = load_model(fitted(store, 1, start_from=first).model).record
    old, new = (Dataset(store, info) for info in list_datasets(store)[:2])
    known = dict(zip(old.sample_ids(), old.labels() * 10 + old.split(), strict=True))
    same = [
        known.get(name) == label * 10 + split and split == 0
        for name, label, split in zip(new.sample_ids(), new.labels(), new.split(), strict=True)
    ]
    assert warm.parents == (first,)
    assert warm.result["start"] == {"model": first, "from": "duals", "rows": sum(same), "why": ""}
    assert warm.certificate["certified"]


def test_a_low_rank_model_is_the_start_of_the_exact_kernel(store: Store) -> None:
    options = {"kernel": "rbf", "kernel_gamma": 0.1, "transforms": (), "method": "fw_pairwise", "tol": 4e-2}
    low = fitted(store, 0, transforms=("nystroem:60:0.1",)).model.rpartition("/")[2]
    cold, warm = fitted(store, 0, **options), fitted(store, 0, **options, start_from=low)
    first = {result.run: view_run(store, result.run).columns["dual"][0] for result in (cold, warm)}
    assert load_model(warm.model).record.result["start"]["from"] == "duals"
    assert first[cold.run] == 0.0 < 0.5 * warm.primal < first[warm.run] <= warm.primal
    assert warm.primal == pytest.approx(cold.primal, rel=4.2e-2), "each is within its gap of the optimum"
    assert warm.certificate.certified


def test_a_model_of_nearly_the_same_rows_and_settings_is_near(store: Store) -> None:
    first = fitted(store, 0).model.rpartition("/")[2]

    def near(dataset: int, **options: Any) -> bool:
        name = [info.id for info in list_datasets(store)][dataset]
        config = TrainConfig(
            **{"k": 2, "tol": 1e-2, "C": 3.0, **options}, store=store.url, dataset=name, start_from=first
        )
        start = plan_training(config).start
        assert start.duals is not None
        return start.near

    assert near(3)
    assert near(3, tol=1e-4)
    assert not near(3, C=30.0)
    assert not near(3, k=3)
    assert not near(0), "the start may be the answer"
    assert not near(2), "a fifth of the rows are new"


def test_frank_wolfe_goes_on_from_w_while_all_rows_are_there(store: Store) -> None:
    """With the sums of its A over more rows W is a dual feasible point of the larger problem."""
    options: dict[str, Any] = {"method": "fw", "tol": 0.2, "C": 0.3}
    first = fitted(store, 0, keep_duals=False, **options)
    name = first.model.rpartition("/")[2]
    datasets = [info.id for info in list_datasets(store)]
    config = TrainConfig(
        store=store.url, dataset=datasets[2], k=2, start_from=name, keep_duals=False, **options
    )
    plan = plan_training(config)
    assert plan.start.state is not None
    problem = plan.problem
    state = plan.start.state
    # D n / C is what A alone makes: zeros add nothing to it.
    assert problem.dual(state.W, state.point.conjugate_mean, 0.0) * len(plan.rows) == pytest.approx(
        first.dual * first.n, rel=1e-6
    )
    warm = fitted(store, 2, start_from=name, keep_duals=False, **options)
    assert warm.certificate.valid
    assert load_model(warm.model).record.result["start"]["from"] == "weights"
    gone = load_model(fitted(store, 1, start_from=name, keep_duals=False, **options).model).record
    assert (gone.parents, gone.result["start"]["from"]) == ((), "zero")
    assert "changed, and its dual variables are not stored" in gone.result["start"]["why"]
