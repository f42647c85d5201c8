"""Answers on a full disk: shown, said not to be stored, and no success."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.pipeline.cli.test_commands import topline  # noqa: F401 - a fixture
from tests.pipeline.pictures import write_classes
from topline.pipeline.certification import certify
from topline.pipeline.cli.exits import FAILURE
from topline.pipeline.ingest import extract
from topline.pipeline.jobs import end_to_end
from topline.pipeline.jobs.steps import STEPS
from topline.pipeline.options import ClusterConfig, ExtractConfig, TrainConfig
from topline.pipeline.prediction import files
from topline.pipeline.training import train
from topline.storage.models import load_model
from topline.storage.stores import local, open_store

Fill = Callable[[], None]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder, here = tmp_path_factory.mktemp("full"), ClusterConfig(workers=0)
    photos, store = write_classes(folder / "photos", 3, 10), str(folder / "store")
    extract(
        ExtractConfig(images=str(photos), store=store, backbone="hog:size=24,cells=8", val_share=0.2), here
    )
    return train(TrainConfig(store=store, k=2, certify=False), here).model


@pytest.fixture
def fill_the_disk(monkeypatch: pytest.MonkeyPatch) -> Fill:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def fill() -> None:
        monkeypatch.setattr(local, "_write_all", full)
        monkeypatch.setattr(files, "_csv", full)

    return fill


def test_certificates_and_evaluations_are_shown(
    topline: Any,  # noqa: F811
    model: str,
    fill_the_disk: Fill,
    caplog: pytest.LogCaptureFixture,
) -> None:
    before = load_model(model).record.revision
    fill_the_disk()
    certified = topline("certify", model)
    assert (certified.code, "certified from A: relative gap" in certified.out) == (FAILURE, True)
    assert "error: this is not recorded with the model: no space is left to write" in certified.err
    measured = topline("evaluate", model)
    assert (measured.code, "top-1" in measured.out) == (FAILURE, True)
    assert "the calibration is used and not stored: no space is left" in caplog.text
    found = topline("evaluate", model, "--json").json
    assert found["topk"]["1"] > 0.9
    assert (found["error"]["kind"], found["error"]["exit_code"]) == ("NotStoredError", FAILURE)
    assert load_model(model).record.revision == before


def test_a_model_is_shown_whose_certificate_has_no_room(
    topline: Any,  # noqa: F811
    model: str,
    fill_the_disk: Fill,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def on_a_full_disk(*of: Any) -> Any:
        fill_the_disk()
        return certify(*of)

    steps = replace(STEPS, certify=on_a_full_disk)
    monkeypatch.setattr(end_to_end.train_as_asked, "__kwdefaults__", {"search": None, "steps": steps})
    store = str(Path(model).parents[1])
    ran = topline("train", "--store", store, "--k", "1", "--workers", "0")
    assert (ran.code, "certified from A: relative gap" in ran.out) == (FAILURE, True)
    assert "error: this is not recorded with the model: no space is left to write" in ran.err
    assert f"{store}/models/m0002" in ran.out


def test_rows_that_the_store_has_no_room_for_go_to_the_output(
    topline: Any,  # noqa: F811
    model: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(local, "_write_all", full)
    words = ("predict", model, "--dataset", "latest", "--top-k", "3")
    nowhere = topline(*words)
    assert (nowhere.code, nowhere.out) == (FAILURE, "")
    ran = topline(*words, "--output", str(tmp_path / "rows.csv"))
    assert ran.code == FAILURE
    assert "not kept, the store is full" in ran.out
    assert "error: the predictions are not kept: no space is left to write" in ran.err
    assert len((tmp_path / "rows.csv").read_text().splitlines()) == 31


@pytest.mark.parametrize("option", ["--output", "--page"])
def test_predictions_are_shown(
    topline: Any,  # noqa: F811
    model: str,
    fill_the_disk: Fill,
    tmp_path: Path,
    option: str,
) -> None:
    photos = str(Path(model).parents[2] / "photos")
    place = tmp_path / {"--output": "rows.csv", "--page": "rows.html"}[option]
    stored = topline("predict", model, "--dataset", "latest")
    assert stored.code == 0, stored.err
    fill_the_disk()
    for subject in (("--images", photos), ("--dataset", "latest")):
        ran = topline("predict", model, *subject, option, str(place))
        assert ran.code == FAILURE
        assert ("class0" if subject[0] == "--images" else "stored already") in ran.out
        assert "error: " in ran.err
        assert ("no space is left" in ran.err) or ("No space left" in ran.err)
        assert place.name not in ran.out, "it is not there"
        found = topline("predict", model, *subject, option, str(place), "--json").json
        assert found[option.removeprefix("--")] is None
        assert found["error"]["exit_code"] == FAILURE


def test_a_store_that_is_only_read_is_not_called_full(
    topline: Any,  # noqa: F811
    model: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    open_store(str(Path(model).parents[1])).delete_tree("predictions")
    monkeypatch.setattr(local.LocalStore, "is_writable", lambda self: False)
    words = ("predict", model, "--dataset", "latest", "--output")
    ran = topline(*words, str(tmp_path / "rows.csv"))
    assert (ran.code, "not kept, the store is read-only" in ran.out) == (0, True)

    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(files, "_csv", full)
    ran = topline(*words, str(tmp_path / "more.csv"))
    assert (ran.code, "not kept, the store is read-only" in ran.out) == (FAILURE, True)
