"""The method that nobody named, on dense and sparse rows; all places know what was taken."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.pipeline.small_data import make_features, make_split, small_dataset, write_dataset
from tests.solvers.methods.test_auto import M, N, texts
from topline import OneVsAll, Softmax, open_store, solve
from topline.pipeline.cluster import connection, open_cluster
from topline.pipeline.errors import ConfigError
from topline.pipeline.options import ClusterConfig, TrainConfig
from topline.pipeline.registry.promotion import summary
from topline.pipeline.report import write_report
from topline.pipeline.report.document import ReportData, render_report
from topline.pipeline.rows import TrainingRows
from topline.pipeline.training import TrainResult, session, train
from topline.pipeline.training.plan import plan_training
from topline.pipeline.training.session import Layout, lay_out
from topline.solvers.methods import auto
from topline.storage.arrays import ChunkPlan
from topline.storage.models import load_model
from topline.storage.runs import read_history, read_run

HERE = ClusterConfig(workers=0)
#: Labels that hardly follow from standardised features, a large C, and blocks that undo each other's work.
HARD: dict[str, Any] = {"loss": "max_hinge", "C": 30.0, "blocks": 3, "transforms": ("standardize", "bias")}
SOFTMAX: dict[str, Any] = {"loss": "softmax", "C": 3.0, "tol": 1e-5}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("auto") / "store"
    X, labels = make_features(500, 8, 4, noise=1.3)
    store = open_store(place, create=True)
    write_dataset(store, X[:400], labels[:400], make_split(400), key="before", m=4)
    write_dataset(store, X, labels, make_split(500), m=4)
    return place


@pytest.fixture(scope="module")
def hard(folder: Path) -> TrainResult:
    return trained(folder, **HARD)


def trained(folder: Path, cluster: ClusterConfig = HERE, **options: Any) -> TrainResult:
    return train(TrainConfig(store=str(folder), **options), cluster)


def W_of(result: TrainResult) -> Any:
    return load_model(result.model).array("W")


def id_of(result: TrainResult) -> str:
    return result.model.rpartition("/")[2]


def test_a_hard_problem_goes_over_to_newton_and_everybody_says_so(folder: Path, hard: TrainResult) -> None:
    assert hard.solved
    assert hard.method == "dual_ascent, newton"
    assert re.match(r"newton from pass \d+ on, ", hard.why)
    assert hard.certificate.certified
    record = load_model(hard.model).record
    assert (record.result["method"], record.result["why"]) == (hard.method, hard.why)
    assert (record.method, summary(record)["method"]) == ("auto", hard.method)
    assert hard.why in [line.get("reason") for line in read_history(open_store(folder), hard.run)]
    assert hard.why in Path(write_report(hard.model)).read_text(encoding="utf-8")
    assert TrainResult.from_dict(hard.to_dict()) == hard


def test_workers_change_the_method_where_this_process_does(folder: Path, hard: TrainResult) -> None:
    worked = trained(folder, ClusterConfig(workers=2, dashboard=False), **HARD)
    assert (worked.passes, worked.method) == (hard.passes, hard.method)
    # Products in float32 depend in their last bit on where arrays lie, and line searches carry that on.
    np.testing.assert_allclose(W_of(worked), W_of(hard), atol=1e-4)


@pytest.mark.parametrize("passes", [8, 25], ids=["before the change", "after it"])
def test_a_run_is_taken_up_on_either_side_of_the_change(folder: Path, hard: TrainResult, passes: int) -> None:
    first = trained(folder, **HARD, max_passes=passes, certify=False)
    assert first.status == "max_passes"
    assert first.method == ("dual_ascent" if passes == 8 else hard.method)
    second = trained(folder, resume=first.run, max_passes=1000)
    assert second.solved
    assert second.method == hard.method
    assert second.primal == pytest.approx(hard.primal, rel=2e-3)


def test_a_run_starts_from_the_duals_that_newton_left(folder: Path, hard: TrainResult) -> None:
    """Those of the same problem; the best W is another than their W(A), and is not carried over."""
    again = trained(folder, **HARD, start_from=id_of(hard))
    assert load_model(again.model).record.result["start"]["from"] == "duals"
    assert again.solved
    assert again.passes < hard.passes


def test_a_smooth_loss_starts_from_weights_and_is_taken_up(folder: Path) -> None:
    whole = trained(folder, **SOFTMAX)
    assert (whole.method, whole.solved) == ("lbfgs", True)
    assert "softmax is smooth" in whole.why
    first = trained(folder, **SOFTMAX, max_passes=whole.passes - 3, certify=False)
    assert first.status == "max_passes"
    second = trained(folder, resume=first.run, max_passes=1000)
    assert second.solved
    assert second.primal == pytest.approx(whole.primal, rel=2e-5)
    warm = trained(folder, **SOFTMAX, start_from=id_of(whole))
    assert load_model(warm.model).record.result["start"]["from"] == "weights"
    assert warm.solved
    assert warm.passes < whole.passes


def test_what_a_kernel_and_another_risk_take(folder: Path) -> None:
    kernel = trained(folder, kernel="rbf", loss="max_hinge", tol=1e-2)
    assert (kernel.method, kernel.solved) == ("dual_ascent", True)
    assert "kernel" in kernel.why
    top = trained(folder, average_top=0.5, loss="max_hinge", tol=0.3)
    assert (top.method, top.solved) == ("fw_fully_corrective", True)
    assert "risk" in top.why


LOSSES = {"softmax": Softmax(), "one_vs_all_logistic": OneVsAll("logistic")}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows of words in shards of 128, of which the last is left out of a dataset before."""
    place = tmp_path_factory.mktemp("sparse") / "store"
    store = open_store(place, create=True)
    X, y = texts()
    for rows, key in ((N - 1, "before"), (N, "now")):
        split = np.zeros(rows, dtype=np.int8)
        write_dataset(store, X[:rows], y[:rows], split, plan=ChunkPlan(rows, 32, 128), key=key, m=M)
    return place


def config(store: Path, **options: Any) -> TrainConfig:
    return TrainConfig(
        store=str(store), **({"loss": "softmax", "C": 10.0, "transforms": (), "tol": 1e-6} | options)
    )


def fit(store: Path, cluster: ClusterConfig = HERE, **options: Any) -> TrainResult:
    return train(config(store, **options), cluster)


def without_ascent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no smooth loss take dual ascent."""
    monkeypatch.setattr(auto, "_MOST_DUALS", 0)


@pytest.mark.parametrize(("C", "method"), [(10.0, "dual_ascent"), (100.0, "dual_ascent"), (300.0, "lbfgs")])
@pytest.mark.parametrize("loss", LOSSES)
def test_a_command_takes_the_method_and_the_passes_of_the_library(
    store: Path, loss: str, C: float, method: str
) -> None:
    X, y = texts()
    library = solve(X, y, LOSSES[loss], 1.0 / (N * C))
    command = fit(store, loss=loss, C=C, tol=1e-3)
    assert (command.method, command.why) == (library.method, library.why)
    assert command.method == method
    assert command.passes == library.passes
    np.testing.assert_allclose(W_of(command), library.W, rtol=1e-5, atol=1e-5)


def test_workers_and_records_know_the_choice(store: Path) -> None:
    here, worked = fit(store), fit(store, ClusterConfig(workers=1, dashboard=False))
    assert (worked.method, worked.passes) == (here.method, here.passes)
    assert here.why == "dual_ascent is forecast to take the least time"
    assert load_model(here.model).record.result["why"] == here.why
    assert here.why in Path(write_report(here.model)).read_text(encoding="utf-8")
    assert here.certificate.certified


def test_several_blocks_and_a_start_from_a_model_are_for_lbfgs(store: Path) -> None:
    assert plan_training(config(store)).choice.method == "auto"
    assert plan_training(config(store, blocks=1)).choice.method == "auto"
    assert plan_training(config(store, blocks=2)).choice.method == "lbfgs"
    name = fit(store).model.rpartition("/")[2]
    assert plan_training(config(store, start_from=name)).choice.method == "lbfgs"


@pytest.mark.parametrize("keep_duals", [None, False])
def test_a_run_of_lbfgs_goes_on_by_lbfgs(
    store: Path, monkeypatch: pytest.MonkeyPatch, keep_duals: bool | None
) -> None:
    with monkeypatch.context() as before:
        without_ascent(before)
        whole = fit(store, keep_duals=keep_duals)
        first = fit(store, keep_duals=keep_duals, max_passes=9, certify=False)
    assert (first.status, first.method) == ("max_passes", "lbfgs")
    second = fit(store, resume=first.run, max_passes=1000)
    assert (second.status, second.method, second.passes) == ("solved", "lbfgs", whole.passes)
    assert second.why.endswith("the run began with lbfgs")


def test_a_run_of_dual_ascent_goes_on_by_dual_ascent(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, first = fit(store), fit(store, max_passes=5, certify=False)
    assert (first.status, first.method) == ("max_passes", "dual_ascent")
    without_ascent(monkeypatch)
    second = fit(store, resume=first.run, max_passes=1000)
    assert (second.status, second.method) == ("solved", "dual_ascent")
    assert second.primal == pytest.approx(whole.primal, rel=2e-6)


def test_a_state_in_memory_goes_on_as_it_began(monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = texts()
    for begun, other in (("lbfgs", 1 << 24), ("dual_ascent", 0), ("fw", 0), ("newton", 1 << 24)):
        monkeypatch.setattr(auto, "_MOST_DUALS", other)
        cut = solve(X, y, Softmax(), 0.1 / N, method=begun, max_passes=5, tol=1e-9, keep_duals=True)
        rest = solve(X, y, Softmax(), 0.1 / N, state=cut.state, duals=[(0, N, cut.A)])
        assert rest.method == {"fw": "dual_ascent", "newton": "lbfgs"}.get(begun, begun)
        assert rest.relative_gap <= 1e-3


@pytest.fixture
def wide_store(tmp_path: Path) -> Path:
    small_dataset(tmp_path / "store", n=400)
    return tmp_path / "store"


def arranged(wide_store: Path, **options: Any) -> TrainConfig:
    return TrainConfig(store=str(wide_store), **{"tol": 2e-2, "k": 2, "method": "dual_ascent", **options})


def test_a_sentence_says_why_fewer_workers_work(wide_store: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        trained = train(arranged(wide_store), ClusterConfig(workers=3, threads_per_worker=2, dashboard=False))
    (sentence,) = trained.notes
    assert sentence.startswith(
        "of 3 workers 1 can work, with 6 threads each: dual_ascent keeps 16 GiB of features in"
    )
    assert "--blocks 3 cuts the data all the same" in sentence
    assert [record.getMessage() for record in caplog.records].count(sentence) == 1
    store = open_store(wide_store)
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
    wide_store: Path, options: dict[str, Any], workers: int, threads: int, expected: Any, reason: str | None
) -> None:
    plan = plan_training(arranged(wide_store, **options))
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
    ],
)
def test_workers_that_a_limit_does_not_hold_become_threads(
    wide_store: Path,
    monkeypatch: pytest.MonkeyPatch,
    limit: str,
    workers: int,
    threads: int,
    note: str | None,
) -> None:
    """A worker process takes some 400 MiB whatever it does, and so does the coordinator."""
    monkeypatch.setattr(session, "takes_processes", lambda _: True)
    plan = plan_training(arranged(wide_store, blocks=3))
    found = lay_out(plan, ClusterConfig(workers=3, threads_per_worker=1, memory_limit=limit), None)
    assert (found.cluster.workers, found.cluster.threads_per_worker) == (workers, threads)
    assert [said.startswith(note or "") for said in found.notes] == [True] * (note is not None)
    with pytest.raises(ConfigError, match=r"100 MiB .* is too small for this job"):
        lay_out(plan, ClusterConfig(workers=3, memory_limit="100MiB"), None)


def test_nothing_is_said_where_nobody_chose(wide_store: Path) -> None:
    plan = plan_training(arranged(wide_store))
    assert lay_out(plan, ClusterConfig(), None).notes == ()
    elsewhere = ClusterConfig(scheduler="tcp://127.0.0.1:1", workers=7)
    assert lay_out(plan, elsewhere, None) == Layout(elsewhere)


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("row_seconds", "options", "blocks"), [(1.0, {}, 2), (0.0, {}, 1), (1.0, {"blocks": 3}, 3)]
)
def test_workers_of_a_running_cluster_share_a_hinge_where_that_takes_less_time(
    wide_store: Path,
    monkeypatch: pytest.MonkeyPatch,
    row_seconds: float,
    options: dict[str, Any],
    blocks: int,
) -> None:
    """Rows that take a second each are shared, and rows that take none are not."""
    monkeypatch.setattr(session, "row_seconds", lambda *_: row_seconds)
    monkeypatch.setattr(session, "_SMALL_BYTES", 0)
    with open_cluster(ClusterConfig(workers=2, threads_per_worker=1), data_bytes=0) as client:
        trained = train(arranged(wide_store, **options), client=client)
    assert trained.solved
    record = load_model(trained.model).record
    assert ("2 blocks at the same time, forecast to take" in record.result["why"]) == (blocks == 2)
    assert [note[: len("one worker")] for note in trained.notes] == ["one worker"] * (blocks == 1)


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("row_seconds", "cluster", "options", "shared"),
    [
        (1.0, {}, {}, True),
        (1.0, {"workers": 2}, {}, True),
        (1.0, {"workers": 1}, {}, False),
        (1.0, {"workers": 0}, {}, False),
        (0.0, {"workers": 2}, {}, False),
        (1.0, {"workers": 2, "memory_limit": "1000MiB"}, {}, False),
        (1.0, {"workers": 2, "memory_limit": "500MiB"}, {}, False),
        (1.0, {"workers": 2, "memory_limit": "4GiB"}, {}, True),
        (1.0, {"workers": 2}, {"blocks": 1}, False),
    ],
)
def test_processes_of_this_machine_share_a_hinge_where_that_takes_less_time(
    wide_store: Path,
    monkeypatch: pytest.MonkeyPatch,
    row_seconds: float,
    cluster: dict[str, Any],
    options: dict[str, Any],
    shared: bool,
) -> None:
    """Not where one worker would get both blocks, or where the number of blocks is given."""
    monkeypatch.setattr(session, "row_seconds", lambda *_: row_seconds)
    monkeypatch.setattr(session, "takes_processes", lambda _: True)
    for module in (session, connection):
        monkeypatch.setattr(module, "CPU_COUNT", 2)
    trained = train(arranged(wide_store, **options), ClusterConfig(dashboard=False, **cluster))
    assert trained.solved
    record = load_model(trained.model).record
    assert ("2 blocks at the same time, forecast to take" in record.result["why"]) == shared
    assert trained.certificate is not None
    assert trained.certificate.valid


@pytest.mark.parametrize(
    ("cores", "limit", "workers"), [(2, None, 2), (1, None, 1), (2, 1900, 1), (2, 6000, 2)]
)
def test_a_hinge_is_shared_where_processes_have_cores_and_hold_as_much(
    wide_store: Path, monkeypatch: pytest.MonkeyPatch, cores: int, limit: int | None, workers: int
) -> None:
    """Within 1,900 MiB one process holds 256 MiB of features; two would read some of them every pass."""
    monkeypatch.setattr(session, "row_seconds", lambda *_: 1.0)
    monkeypatch.setattr(session, "takes_processes", lambda _: True)
    monkeypatch.setattr(session, "CPU_COUNT", cores)
    monkeypatch.setattr(TrainingRows, "nbytes", property(lambda _: 256 << 20))
    cluster = ClusterConfig(
        workers=2, threads_per_worker=1, memory_limit=None if limit is None else f"{limit}MiB"
    )
    plan, layout = session._arranged(plan_training(arranged(wide_store)), cluster, None)
    assert layout.cluster.workers == workers
    assert (plan.shared is None or plan.shared.blocks == 1) == (workers == 1)


@pytest.mark.cluster
def test_no_more_blocks_are_forecast_than_pieces_are_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four workers would take a block each, but the data has three pieces."""
    small_dataset(tmp_path, n=48)
    monkeypatch.setattr(session, "row_seconds", lambda *_: 1.0)
    with open_cluster(ClusterConfig(workers=4, threads_per_worker=1), data_bytes=0) as client:
        trained = train(arranged(tmp_path), client=client)
    assert plan_training(arranged(tmp_path)).rows.batches == 3
    assert "3 blocks at the same time" in load_model(trained.model).record.result["why"]
