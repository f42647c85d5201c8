"""Blocks and workers of a training, and the sentence about workers that have nothing to do."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from tests.pipeline.small_data import small_dataset
from topline.pipeline.cluster import open_cluster
from topline.pipeline.options import ClusterConfig, TrainConfig
from topline.pipeline.report.document import ReportData, render_report
from topline.pipeline.training import TrainResult, executor, train
from topline.pipeline.training.executor import Layout, lay_out
from topline.pipeline.training.plan import plan_training
from topline.storage.models import load_model
from topline.storage.runs import read_history, read_run
from topline.storage.stores import open_store


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    small_dataset(tmp_path / "store", n=400)
    return tmp_path / "store"


def config(folder: Path, **options: Any) -> TrainConfig:
    return TrainConfig(store=str(folder), **{"tol": 2e-2, "k": 2, "method": "dual_ascent", **options})


def test_a_sentence_says_why_fewer_workers_work(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        trained = train(config(folder), ClusterConfig(workers=3, threads_per_worker=2, dashboard=False))
    (sentence,) = trained.notes
    assert sentence.startswith(
        "of 3 workers 1 can work, with 6 threads each: dual_ascent keeps 16 GiB of features in"
    )
    assert "--blocks 3 cuts the data all the same" in sentence
    assert [record.getMessage() for record in caplog.records].count(sentence) == 1
    store = open_store(folder)
    outcome = read_run(store, trained.run).outcome
    assert outcome is not None
    assert TrainResult.from_dict(outcome).notes == (sentence,)
    noted = [record["reason"] for record in read_history(store, trained.run) if record.get("event") == "note"]
    assert noted == [sentence]
    record = load_model(trained.model).record
    assert record.result["notes"] == [sentence]
    assert sentence[1:] in render_report(ReportData(record=record))


@pytest.mark.parametrize(
    ("options", "workers", "threads", "expected", "reason"),
    [
        ({}, 2, 1, (1, 2), "--blocks 2 cuts the data all the same"),
        ({}, 1, 3, (1, 3), None),
        ({"blocks": 2}, 5, 2, (2, 5), "--blocks is 2"),
        ({"blocks": 2}, 2, 1, (2, 1), None),
        ({"method": "fw"}, 1000, 1, None, "the data is stored in 25 pieces"),
        ({}, 0, 1, (0, 1), None),
    ],
)
def test_workers_beyond_the_blocks_become_threads(
    folder: Path, options: dict[str, Any], workers: int, threads: int, expected: Any, reason: str | None
) -> None:
    plan = plan_training(config(folder, **options))
    found = lay_out(plan, ClusterConfig(workers=workers, threads_per_worker=threads), None)
    if expected is not None:
        assert (found.cluster.workers, found.cluster.threads_per_worker) == expected
    assert len(found.notes) == (reason is not None)
    assert reason is None or found.notes[0].endswith(reason)


@pytest.mark.parametrize(
    ("limit", "workers", "threads", "note"),
    [
        ("8GiB", 3, 1, None),
        ("1500MiB", 2, 1, "a memory limit of 1500MiB has room for 2 of 3 workers"),
        ("1000MiB", 1, 3, "a memory limit of 1000MiB has room for 1 of 3 workers"),
        ("500MiB", 0, 1, "a memory limit of 500MiB has no room for a worker"),
        ("100MiB", 0, 1, "a memory limit of 100MiB has no room for a worker"),
    ],
)
def test_workers_that_a_limit_does_not_hold_become_threads(
    folder: Path, monkeypatch: pytest.MonkeyPatch, limit: str, workers: int, threads: int, note: str | None
) -> None:
    """A worker process takes some 400 MiB whatever it does, and so does the coordinator."""
    monkeypatch.setattr(executor, "takes_processes", lambda _: True)
    plan = plan_training(config(folder, blocks=3))
    found = lay_out(plan, ClusterConfig(workers=3, threads_per_worker=1, memory_limit=limit), None)
    assert (found.cluster.workers, found.cluster.threads_per_worker) == (workers, threads)
    assert [said.startswith(note or "") for said in found.notes] == [True] * (note is not None)


def test_nothing_is_said_where_nobody_chose(folder: Path) -> None:
    plan = plan_training(config(folder))
    assert lay_out(plan, ClusterConfig(), None).notes == ()
    elsewhere = ClusterConfig(scheduler="tcp://127.0.0.1:1", workers=7)
    assert lay_out(plan, elsewhere, None) == Layout(elsewhere)


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("row_seconds", "options", "blocks"), [(1.0, {}, 2), (0.0, {}, 1), (1.0, {"blocks": 3}, 3)]
)
def test_workers_of_a_running_cluster_share_a_hinge_where_that_takes_less_time(
    folder: Path, monkeypatch: pytest.MonkeyPatch, row_seconds: float, options: dict[str, Any], blocks: int
) -> None:
    """Rows that take a second each are shared, and rows that take none are not."""
    monkeypatch.setattr(executor, "row_seconds", lambda *_: row_seconds)
    monkeypatch.setattr(executor, "_SMALL_BYTES", 0)
    with open_cluster(ClusterConfig(workers=2, threads_per_worker=1), data_bytes=0) as client:
        trained = train(config(folder, **options), client=client)
    assert trained.solved
    record = load_model(trained.model).record
    assert ("2 blocks at the same time, forecast to take" in record.result["why"]) == (blocks == 2)
    assert [note[: len("one worker")] for note in trained.notes] == ["one worker"] * (blocks == 1)


@pytest.mark.cluster
def test_no_more_blocks_are_forecast_than_pieces_are_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four workers would take a block each, but the data has three pieces."""
    small_dataset(tmp_path, n=48)
    monkeypatch.setattr(executor, "row_seconds", lambda *_: 1.0)
    with open_cluster(ClusterConfig(workers=4, threads_per_worker=1), data_bytes=0) as client:
        trained = train(config(tmp_path), client=client)
    assert plan_training(config(tmp_path)).rows.batches == 3
    assert "3 blocks at the same time" in load_model(trained.model).record.result["why"]
