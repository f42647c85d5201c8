"""Training with the average top-k risk, from its option to the certificate of what is stored."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.pipeline.conftest import Topline
from tests.pipeline.small_data import make_features, small_dataset, write_dataset
from tests.reference import risks as reference
from topline import AverageTopK, Softmax, UnsupportedCombinationError, open_store, solve
from topline.pipeline.certification import certify
from topline.pipeline.certification.sums import top_weights
from topline.pipeline.cli.table import BAD_INPUT, SHORT_OF_TOLERANCE
from topline.pipeline.errors import CertificateMismatchError, ConfigError
from topline.pipeline.options.train import ClusterConfig, TrainConfig
from topline.pipeline.report import write_report
from topline.pipeline.rows.partition import TrainingRows
from topline.pipeline.training import train
from topline.storage.datasets import Dataset
from topline.storage.models import Model, load_model, save_model

HERE = ClusterConfig(workers=0)
K = 90.5
OPTIONS: dict[str, Any] = {"loss": "topk_hinge", "k": 2, "C": 0.5, "tol": 1e-4, "average_top": K}


def trained(folder: Path, **options: Any) -> Any:
    return train(TrainConfig(store=str(folder), **{**OPTIONS, **options}), HERE)


def altered(model: Model, **arrays: Any) -> str:
    """Publish a copy of a model with other arrays; None leaves one out."""
    kept = {**{name: model.array(name) for name in model.arrays}, **arrays}
    record = dataclasses.replace(model.record, certificate=None)
    return save_model(model.store, record, {name: rows for name, rows in kept.items() if rows is not None})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("average_top") / "store"
    small_dataset(folder, n=200, d=6)
    return folder


@pytest.fixture(scope="module")
def model(folder: Path) -> Model:
    result = trained(folder)
    assert result.solved
    assert not result.collapsed
    return load_model(result.model)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"loss": "softmax", "k": None},
        {"loss": "one_vs_all_hinge", "k": None},
        {"smoothing": 0.4, "tol": 1e-2},
        {"smoothing": 0.4, "smoothing_kind": "others", "tol": 1e-2},
        {"method": "fw_away", "tol": 2e-2},
    ],
    ids=lambda options: "-".join(map(str, options.values())),
)
@pytest.mark.sampled(5)
def test_a_model_is_certified_from_its_cuts(folder: Path, options: dict[str, Any]) -> None:
    """Training and the certificate have their own formulas and find the same P and D."""
    certificate = certify(trained(folder, certify=False, **options).model)
    assert certificate.certified
    assert certificate.basis == "W and its cuts"
    assert certificate.gap_kind == "true"
    assert certificate.smoothed_gap is None
    assert certificate.primal == pytest.approx(certificate.recorded_primal, rel=1e-9)
    assert certificate.dual == pytest.approx(certificate.recorded_dual, rel=1e-9)
    assert certificate.infeasibility == pytest.approx(0.0, abs=1e-12)
    # The bundle method keeps the best W that it met, and its dual point makes another; fw_away has one.
    assert certificate.w_difference < 1e-9 or options.get("method") != "fw_away"


@pytest.mark.parametrize("k", [1.0, 3.5, 6.0])
def test_the_weights_of_the_certificate_are_a_maximum(k: float) -> None:
    losses = np.array([2.0, 0.0, 5.0, 2.0, 5.0, 2.0])
    np.testing.assert_allclose(top_weights(losses, k), reference.top_weights(losses, k), rtol=1e-15)


def test_altered_cuts_are_found(model: Model) -> None:
    """Cuts elsewhere bound the optimum all the same, by less; shares beyond 1 are no dual point."""
    points, shares = model.array("cut_points"), model.array("cut_shares")
    sound = certify(model.url, store=False)
    moved = certify(altered(model, cut_points=points[:, :, ::-1].copy()))
    assert not moved.certified
    assert not moved.agrees
    assert moved.dual < sound.dual
    assert moved.primal == sound.primal
    swollen = certify(altered(model, cut_shares=shares * (1.00001 / shares.sum())))
    assert not swollen.valid
    assert swollen.infeasibility == pytest.approx(1e-5, rel=1e-6)
    alone = certify(altered(model, cut_points=None, cut_shares=None))
    assert alone.basis == "W"
    assert not alone.certified
    assert alone.dual < sound.dual


def test_a_dual_value_above_the_primal_is_refused(model: Model) -> None:
    with pytest.raises(CertificateMismatchError, match="below zero"):
        certify(altered(model, cut_shares=1.2 * model.array("cut_shares")))


def test_steps_without_a_memory_rest_on_b(folder: Path) -> None:
    certificate = certify(trained(folder, method="fw", tol=0.1).model)
    assert certificate.valid
    # The best W comes from an earlier round than the last W(A).
    assert certificate.basis == "W, W(A) and b"


def test_cuts_that_are_too_many_to_keep(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Atoms that became one are no vertex of any point: b and W(A) of the mixture are stored instead."""
    monkeypatch.setattr("topline.solvers.methods.atoms._MOST", 3)
    result = trained(folder, tol=0.05, max_passes=300)
    assert result.solved
    assert result.certificate.certified
    assert result.certificate.basis == "W, W(A) and b"
    assert result.certificate.dual == pytest.approx(result.dual, rel=1e-12)


def test_a_share_counts_rows(folder: Path, model: Model) -> None:
    whole = trained(folder, average_top=K / model.record.n, certify=False)
    assert np.array_equal(load_model(whole.model).array("W"), model.array("W"))


def test_an_interrupted_run_goes_on_to_the_same_model(folder: Path, model: Model) -> None:
    first = trained(folder, max_passes=10)
    assert not first.solved
    second = train(TrainConfig(store=str(folder), resume=first.run, max_passes=1000), HERE)
    assert second.certificate.certified
    found = load_model(second.model)
    for name in ("W", "cut_points", "cut_shares"):
        assert np.array_equal(found.array(name), model.array(name))


def test_a_run_from_an_earlier_model_begins_at_zero(folder: Path, model: Model) -> None:
    again = trained(folder, start_from=model.record.id, certify=False)
    found = load_model(again.model)
    assert np.array_equal(found.array("W"), model.array("W"))
    assert found.record.result["start"]["from"] == "zero"
    assert "not carried over" in found.record.result["start"]["why"]
    # L-BFGS takes weights from anywhere.
    softmax = {"loss": "softmax", "k": None, "certify": False}
    top = trained(folder, **softmax)
    mean = trained(
        folder, **softmax, average_top=None, method="lbfgs", start_from=load_model(top.model).record.id
    )
    assert load_model(mean.model).record.result["start"]["from"] == "weights"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"average_top": 1e6}, "1e[+]06 of .* training rows: give a count from 1 to"),
        ({"average_top": 1e-9}, "give a count from 1 to .* or a share from"),
        ({"class_weight": "balanced"}, "leave class_weight balanced out"),
        ({"kernel": "rbf"}, "does not go with kernel rbf"),
        ({"keep_duals": True}, "leave keep_duals out"),
    ],
)
def test_options_that_do_not_go_together(folder: Path, options: dict[str, Any], words: str) -> None:
    with pytest.raises((ConfigError, UnsupportedCombinationError), match=words):
        trained(folder, **options)


def test_methods_that_do_not_go_with_it(folder: Path) -> None:
    with pytest.raises(UnsupportedCombinationError, match="dual_ascent is for the mean risk"):
        trained(folder, method="dual_ascent")
    with pytest.raises(UnsupportedCombinationError, match="not convex"):
        trained(folder, loss="truncated_topk_entropy")


def test_the_command_line(folder: Path, topline: Topline) -> None:
    words = ["train", "--store", folder, "--loss", "softmax", "--workers", "0"]
    found = topline.printed(*words, "--average-top", "0.2", "--C", "0.1")
    assert found["certificate"]["certified"]
    assert not found["collapsed"]
    assert found["average_top"] == pytest.approx(0.2 * found["n"])
    rows = TrainingRows(Dataset.open(open_store(str(folder)), "latest"), "train")
    assert load_model(found["model"]).record.config["average_top"] == 0.2
    X = np.array(rows[0 : len(rows)], dtype=np.float64)
    X = np.hstack([X / np.linalg.norm(X, axis=1, keepdims=True), np.ones((len(X), 1))])
    n = len(rows)
    same = solve(X, rows.labels(), Softmax(), 1 / (0.1 * n), risk=AverageTopK(0.2 * n), tol=1e-6, m=5)
    assert found["primal"] == pytest.approx(same.primal, rel=1.1e-3)
    assert found["dual"] <= same.primal
    page = Path(write_report(found["model"])).read_text(encoding="utf-8")
    assert "W and its cuts" in page
    assert "softmax, mean of the largest 20 % of the losses" in page
    assert "W = 0 is optimal" not in page
    ran = topline(*words, "--average-top", "-3", "--json")
    assert (ran.code, "--average-top -3" in ran.err) == (BAD_INPUT, True)


def test_a_collapse_is_said(tmp_path: Path, topline: Topline) -> None:
    """Every row twice with two labels: the losses of half of all rows cannot all be below those of W = 0."""
    X, y = make_features(60, 4, 3)
    write_dataset(
        open_store(tmp_path / "store", create=True),
        np.concatenate([X, X]),
        np.concatenate([y, (y + 1) % 3]).astype(np.int32),
        np.zeros(120, dtype=np.int8),
    )
    words = ["train", "--store", str(tmp_path / "store"), "--loss", "max_hinge", "--workers", "0"]
    ran = topline(*words, "--average-top", "5")
    assert ran.code == SHORT_OF_TOLERANCE
    assert "m0001 is not certified: W is 0" in ran.err
    assert topline("certify", tmp_path / "store").code == ran.code
    page = Path(write_report(str(tmp_path / "store" / "models" / "m0001"))).read_text(encoding="utf-8")
    assert "max_hinge, mean of the largest 5 losses" in page
    assert "W = 0 is optimal to the tolerance" in page
    assert "mean of the 5 largest losses" in ran.out
    assert "W = 0 is optimal to the tolerance" in ran.out + ran.err
    assert "use a larger --average-top" in ran.out + ran.err
