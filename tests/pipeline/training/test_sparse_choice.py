"""A smooth loss on sparse rows: library, command and workers take the same method, and a run keeps it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.pipeline.small_data import write_dataset
from tests.solvers.methods.test_auto import M, N, texts
from topline import OneVsAll, Softmax, solve
from topline.pipeline.options import ClusterConfig, TrainConfig
from topline.pipeline.report import write_report
from topline.pipeline.training import TrainResult, train
from topline.pipeline.training.plan import plan_training
from topline.solvers.methods import auto
from topline.storage.arrays import ChunkPlan
from topline.storage.datasets import list_datasets
from topline.storage.models import load_model
from topline.storage.stores import open_store

HERE = ClusterConfig(workers=0)
LOSSES = {"softmax": Softmax(), "one_vs_all_logistic": OneVsAll("logistic")}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows of words in shards of 128, of which the last is left out of a dataset before."""
    place = tmp_path_factory.mktemp("sparse") / "store"
    store = open_store(place, create=True)
    X, y = texts()
    for rows, key in ((N - 1, "before"), (N, "now")):
        split = np.zeros(rows, dtype=np.int8)
        write_dataset(store, X[:rows], y[:rows], split, plan=ChunkPlan(rows, 32, 128), key=key, m=M)
    return place


def config(folder: Path, **options: Any) -> TrainConfig:
    return TrainConfig(
        store=str(folder), **({"loss": "softmax", "C": 10.0, "transforms": (), "tol": 1e-6} | options)
    )


def trained(folder: Path, cluster: ClusterConfig = HERE, **options: Any) -> TrainResult:
    return train(config(folder, **options), cluster)


def W_of(result: TrainResult) -> Any:
    return load_model(result.model).array("W")


def without_ascent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no smooth loss take dual ascent."""
    monkeypatch.setattr(auto, "_MOST_DUALS", 0)


@pytest.mark.parametrize(("C", "method"), [(10.0, "dual_ascent"), (100.0, "dual_ascent"), (300.0, "lbfgs")])
@pytest.mark.parametrize("loss", LOSSES)
def test_a_command_takes_the_method_and_the_passes_of_the_library(
    folder: Path, loss: str, C: float, method: str
) -> None:
    X, y = texts()
    library = solve(X, y, LOSSES[loss], 1.0 / (N * C))
    command = trained(folder, loss=loss, C=C, tol=1e-3)
    assert (command.method, command.why) == (library.method, library.why)
    assert command.method == method
    assert command.passes == library.passes
    np.testing.assert_allclose(W_of(command), library.W, rtol=1e-5, atol=1e-5)


def test_workers_and_records_know_the_choice(folder: Path) -> None:
    here, worked = trained(folder), trained(folder, ClusterConfig(workers=1, dashboard=False))
    assert (worked.method, worked.passes) == (here.method, here.passes)
    assert here.why == "no method was forecast to take less time than dual_ascent"
    assert load_model(here.model).record.result["why"] == here.why
    assert here.why in Path(write_report(here.model)).read_text(encoding="utf-8")
    assert here.certificate is not None
    assert here.certificate.certified


def test_several_blocks_and_a_start_from_a_model_are_for_lbfgs(folder: Path) -> None:
    assert plan_training(config(folder)).choice.method == "auto"
    assert plan_training(config(folder, blocks=1)).choice.method == "auto"
    assert plan_training(config(folder, blocks=2)).choice.method == "lbfgs"
    name = trained(folder).model.rpartition("/")[2]
    assert plan_training(config(folder, start_from=name)).choice.method == "lbfgs"


@pytest.mark.parametrize("keep_duals", [None, False])
def test_a_run_of_lbfgs_goes_on_by_lbfgs(
    folder: Path, monkeypatch: pytest.MonkeyPatch, keep_duals: bool | None
) -> None:
    with monkeypatch.context() as before:
        without_ascent(before)
        whole = trained(folder, keep_duals=keep_duals)
        first = trained(folder, keep_duals=keep_duals, max_passes=9, certify=False)
    assert (first.status, first.method) == ("max_passes", "lbfgs")
    second = trained(folder, resume=first.run, max_passes=1000)
    assert (second.status, second.method, second.passes) == ("solved", "lbfgs", whole.passes)
    assert second.why.endswith("the run began with lbfgs")


def test_a_run_of_dual_ascent_goes_on_by_dual_ascent(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, first = trained(folder), trained(folder, max_passes=5, certify=False)
    assert (first.status, first.method) == ("max_passes", "dual_ascent")
    without_ascent(monkeypatch)
    second = trained(folder, resume=first.run, max_passes=1000)
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


def test_the_optimum_is_that_of_lbfgs(folder: Path) -> None:
    ascended, descended = trained(folder), trained(folder, method="lbfgs")
    assert ascended.primal == pytest.approx(descended.primal, rel=2e-6)
    np.testing.assert_allclose(W_of(ascended), W_of(descended), atol=0.02)


def test_it_starts_from_weights(folder: Path) -> None:
    earlier = trained(folder, dataset=list_datasets(open_store(folder))[0].id)
    cold, name = trained(folder), earlier.model.rpartition("/")[2]
    warm = trained(folder, start_from=name)
    assert load_model(warm.model).record.result["start"]["from"] == "weights"
    assert (warm.status, warm.method) == ("solved", "lbfgs")
    assert warm.passes < cold.passes
    assert warm.primal == pytest.approx(cold.primal, rel=2e-6)
