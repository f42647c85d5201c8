"""What the rule lets go goes, what it keeps stays whole, and nobody who reads or writes is hurt."""

from __future__ import annotations

import gc
import multiprocessing
import os
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest

from tests.storage.datasets.test_racing_commits import Killed, Watched, killed
from tests.storage.models.test_records import ARRAYS, record
from tests.storage.samples import CLASSES, assignments, begin, dense, write_dataset, write_units
from topline.storage.arrays import ChunkPlan
from topline.storage.datasets import Dataset, DatasetInfo, DatasetWriter, list_datasets
from topline.storage.errors import IntegrityError, NotFoundError
from topline.storage.models import DecisionRecord, list_models, read_standing, record_decision, save_model
from topline.storage.retention import RetentionPolicy, plan_pruning, prune
from topline.storage.runs import create_run, finish_run, list_runs, read_run
from topline.storage.stores import Store, open_store
from topline.storage.stores.sealed import sealed, unsealed
from topline.storage.verification import verify_store

PLAN = ChunkPlan(n_rows=60, chunk_rows=8, shard_rows=32)
PATIENCE = 240.0
"""Seconds for another process to come to a point, on a machine that is busy with others."""

FORK = multiprocessing.get_context("fork")
NEWEST = RetentionPolicy(keep=1, days=0)


def later(days: float = 100) -> datetime:
    """A time after all that these tests write."""
    return datetime.now(UTC) + timedelta(days=days)


def version(store: Store, number: int) -> DatasetInfo:
    """A dataset of which only the second unit is its own."""
    X = dense(60, 4)
    X[40] = number
    return write_dataset(store, X, PLAN, key=f"version {number}")


def decide(store: Store, action: str, model: str) -> None:
    record_decision(store, read_standing(store), DecisionRecord(action, model, "a test", "a test"))


def filled(store: Store, versions: int = 5) -> list[DatasetInfo]:
    """Versions, each with a run and its model; the first two are champion one after the other."""
    infos = []
    for number in range(versions):
        info = version(store, number)
        run = create_run(store, {}, dataset=info.id)
        finish_run(store, run, {})
        save_model(store, replace(record(dataset=info.id, dataset_digest=info.digest), run=run), ARRAYS)
        infos.append(info)
    decide(store, "promote", "m0001")
    decide(store, "promote", "m0002")
    return infos


def kinds(store: Store) -> tuple[list[str], list[str], list[int]]:
    models, runs = [own.id for own in list_models(store)], [run.id for run in list_runs(store)]
    return models, runs, [info.seq for info in list_datasets(store)]


@pytest.mark.parametrize("any_store", ["local", "memory"], indirect=True)
def test_what_the_rule_keeps_stays_whole(any_store: Store) -> None:
    infos = filled(any_store)
    decide(any_store, "pin", "m0003")
    young = plan_pruning(any_store, RetentionPolicy(keep=1, days=30), datetime.now(UTC))
    assert young.going == ()
    plan = plan_pruning(any_store, NEWEST, later(0))
    assert [(item.kind, item.name) for item in plan.going if item.kind not in ("unit", "manifest")] == [
        ("model", "m0004"),
        ("run", "r0004"),
        ("dataset", infos[3].id),
    ]
    assert len(plan.of("unit")) == 1, "the one of its two units that no other version has"
    assert verify_store(any_store) == [], "nothing has changed"
    done = prune(any_store, NEWEST, later(0))
    if not any_store.locks:
        assert {item.kind for item in done.in_use} == {"model", "dataset"}, "they go when a day has passed"
        done = prune(any_store, NEWEST, later(2))
    assert kinds(any_store) == (
        ["m0001", "m0002", "m0003", "m0005"],
        ["r0001", "r0002", "r0003", "r0005"],
        [1, 2, 3, 5],
    )
    assert [item for item in verify_store(any_store) if not item.harmless] == []
    if any_store.locks:
        assert done.bytes == plan.bytes
        assert verify_store(any_store) == []
    for info in (*infos[:3], infos[4]):
        assert Dataset(any_store, info).rows(0, 60).shape == (60, 4)
    with pytest.raises(NotFoundError, match=r"run r0004 was removed .* not among the newest 1"):
        read_run(any_store, "r0004")
    assert create_run(any_store, {}) == "r0006"
    decide(any_store, "unpin", "m0003")
    assert [item.name for item in plan_pruning(any_store, NEWEST, later()).of("model")] == ["m0003"]


@pytest.mark.slow
def test_a_bucket_is_pruned_as_memory_is(s3_store: Store) -> None:
    infos = [version(s3_store, number) for number in range(2)]
    assert prune(s3_store, NEWEST, later(0)).in_use, "it goes when a day has passed"
    assert {item.kind for item in prune(s3_store, NEWEST, later(2)).gone} == {"dataset", "unit"}
    assert list_datasets(s3_store) == [infos[1]]
    assert Dataset(s3_store, infos[1]).rows(0, 60).shape == (60, 4)
    assert [finding for finding in verify_store(s3_store) if not finding.harmless] == []


def test_an_object_store_keeps_the_bytes_for_a_day(memory_store: Store) -> None:
    infos = filled(memory_store)
    held = Dataset(memory_store, infos[2])
    now = later(0)
    first = prune(memory_store, NEWEST, now)
    assert {item.name for item in first.in_use} == {"m0003", "m0004", infos[2].id, infos[3].id}
    assert [info.seq for info in list_datasets(memory_store)] == [1, 2, 5]
    assert held.rows(0, 60).shape == (60, 4), "whoever has opened it goes on"
    assert prune(memory_store, NEWEST, now + timedelta(hours=23)).gone == ()
    last = prune(memory_store, NEWEST, now + timedelta(hours=25))
    assert {item.kind for item in last.gone} == {"model", "dataset", "unit"}
    assert [finding for finding in verify_store(memory_store) if not finding.harmless] == []


def die_while_pruning(url: str) -> None:
    """Fall dead with half of the files of a dataset deleted."""
    import signal

    store = open_store(url)
    delete_tree = type(store).delete_tree

    def dying(self: Store, path: str) -> None:
        if not path.startswith("datasets/"):
            delete_tree(self, path)
            return
        (self.local_path / path / "files.json").unlink()
        os.kill(os.getpid(), signal.SIGKILL)

    type(store).delete_tree = dying
    prune(store, NEWEST, later())


def test_a_pruning_that_was_killed_is_finished_by_the_next(local_store: Store) -> None:
    filled(local_store)
    worker = FORK.Process(target=die_while_pruning, args=(local_store.url,))
    worker.start()
    worker.join(PATIENCE)
    assert worker.exitcode == -9
    assert [finding for finding in verify_store(local_store) if not finding.harmless] == []
    prune(local_store, NEWEST, later())
    assert verify_store(local_store) == []
    assert kinds(local_store)[2] == [1, 2, 5]


def test_staging_that_nobody_finished_goes_when_it_is_old(local_store: Store) -> None:
    X = dense(60, 4)
    write_units(begin(local_store, X, PLAN, key="half"), X, [0])
    version(local_store, 1)
    assert prune(local_store, NEWEST, datetime.now(UTC) - timedelta(days=1)).gone == ()
    done = prune(local_store, NEWEST, later())
    assert [item.kind for item in done.gone] == ["staging"], "the unit is another version's too"
    assert verify_store(local_store) == []
    np.testing.assert_array_equal(Dataset.open(local_store).rows(0, 32), X[:32])


def dying(store: Store, X: Any) -> DatasetWriter:
    """A writer that has listed its files and falls dead before it commits."""
    watched: Any = Watched(store, killed)
    writer = begin(watched, X, PLAN, key="listed")
    write_units(writer, X)
    with pytest.raises(Killed):
        writer.commit(*assignments(60), CLASSES)
    return writer


def test_what_a_writer_listed_and_never_committed_goes_when_it_is_dead(local_store: Store) -> None:
    """The second one's files differ, and lie beside those of the first."""
    version(local_store, 0)
    X = dense(60, 4, seed=1)
    writers = [dying(local_store, X), dying(local_store, X + 1)]
    folders = {f"datasets/{name}" for name in local_store.list("datasets")}
    listed = {path for path in folders if path.startswith(writers[0].folder)}
    assert len(listed) == 2
    done = prune(local_store, NEWEST, later())
    assert {item.path for item in done.in_use} == listed, "their writers live"
    assert all(local_store.exists(f"{folder}/files.json") for folder in listed)
    writers.clear()
    gc.collect()
    done = prune(local_store, NEWEST, later())
    assert {item.path for item in done.gone if item.kind == "staging"} == listed
    assert verify_store(local_store) == []


def aged(store: Store, *folders: str) -> None:
    """Let stagings have been begun two days ago."""
    for path in (f"{folder}/staging.json" for folder in folders):
        begun = (datetime.now(UTC) - timedelta(days=2)).isoformat()
        store.write_bytes(path, sealed(path, {**unsealed(store, path), "begun": begun}))


def test_what_is_old_in_a_bucket_is_given_up_a_day_before_it_goes(memory_store: Store) -> None:
    """Who writes on still commits; others begin elsewhere, and all but the first come too late."""
    X = dense(60, 4, seed=1)
    first, _ = dying(memory_store, X), dying(memory_store, X + 1)
    (beside,) = {f"datasets/{name}" for name in memory_store.list("datasets")} - {first.folder}
    resumed = begin(memory_store, X, PLAN, key="listed")
    aged(memory_store, first.folder, beside)
    done = prune(memory_store, NEWEST, datetime.now(UTC))
    assert ({item.path for item in done.in_use}, done.gone) == ({first.folder, beside}, ())
    other = begin(memory_store, X, PLAN, key="listed")
    assert other.folder not in (first.folder, beside)
    write_units(other, X)
    write_units(resumed, X)
    info = resumed.commit(*assignments(60), CLASSES)
    assert other.commit(*assignments(60), CLASSES) == info
    assert info.folder == first.folder
    done = prune(memory_store, NEWEST, later())
    assert {item.path for item in done.gone if item.kind == "staging"} == {beside, other.folder}
    assert verify_store(memory_store) == []
    np.testing.assert_array_equal(Dataset(memory_store, info).rows(0, 60), X)


def test_nobody_begins_again_where_something_was_given_up(memory_store: Store) -> None:
    X = dense(60, 4, seed=1)
    write_units(begin(memory_store, X, PLAN, key="half"), X, [0])
    folders = []
    for _ in range(2):
        folders.append(begin(memory_store, X, PLAN, key="half").folder)
        prune(memory_store, NEWEST, later())
        assert memory_store.walk("datasets") == [f"{folder}/deleted.json" for folder in sorted(folders)]
    info = write_dataset(memory_store, X, PLAN, key="half")
    assert info.folder not in folders
    assert verify_store(memory_store) == []


def test_a_damaged_list_of_what_was_never_committed_is_named(memory_store: Store) -> None:
    writer = dying(memory_store, dense(60, 4))
    path = f"{writer.folder}/units.json"
    memory_store.write_bytes(path, memory_store.read_bytes(path)[:-9])
    assert (path, True) in [(finding.path, finding.harmless) for finding in verify_store(memory_store)]
    with pytest.raises(IntegrityError, match=r"units\.json is damaged"):
        prune(memory_store, NEWEST, later(0))
