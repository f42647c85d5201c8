"""The method that nobody named: what it takes, and that workers, checkpoints, models and reports know it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.pipeline.small_data import make_features, make_split, write_dataset
from topline.pipeline.options import ClusterConfig, TrainConfig
from topline.pipeline.registry.comparison import summary
from topline.pipeline.report import write_report
from topline.pipeline.training import TrainResult, train
from topline.storage.models import load_model
from topline.storage.runs import read_history
from topline.storage.stores import open_store

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
    assert hard.certificate is not None
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
