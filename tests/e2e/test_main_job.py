"""The first command of the README, on the digits, in a folder of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

TOPLINE = Path(sys.executable).with_name("topline")


def topline(folder: Path, *words: str) -> dict[str, Any]:
    done = subprocess.run(
        [TOPLINE, *words, "--json"], cwd=folder, capture_output=True, text=True, check=False, timeout=800
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 1
    found = json.loads(done.stdout)
    assert isinstance(found, dict)
    return found


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("job")
    return folder, topline(folder, "run")


def test_digits_become_a_certified_model_with_a_report(job: tuple[Path, dict[str, Any]]) -> None:
    folder, result = job
    assert sum(1 for _ in (folder / "topline-digits").rglob("*.png")) == 1797
    assert result["status"] == "solved"
    assert result["certificate"]["certified"] is True
    assert 0 <= result["certificate"]["relative_gap"] <= 1e-3
    # A linear classifier on gradient histograms of the digits gets 97 to 99 % of them right.
    assert result["accuracy"]["1"] > 0.95
    assert result["accuracy"]["1"] <= result["accuracy"]["3"] <= result["accuracy"]["5"]
    assert result["counts"]["train"] + result["counts"]["test"] + result["counts"]["val"] <= 1797
    page = Path(result["report"]).read_text(encoding="utf-8")
    assert "Certified" in page
    assert "data:image/jpeg;base64," in page
    assert len(page) < 5_000_000


def test_the_same_job_again_makes_nothing_twice(job: tuple[Path, dict[str, Any]]) -> None:
    folder, result = job
    again = topline(folder, "run")
    assert again["reused"] is True
    assert (again["model"], again["dataset"]) == (result["model"], result["dataset"])
    assert again["accuracy"] == result["accuracy"]
    assert len(topline(folder, "models", "list")["models"]) == 1


def test_other_options_make_another_model_of_the_same_dataset(job: tuple[Path, dict[str, Any]]) -> None:
    folder, result = job
    other = topline(folder, "run", "--k", "1", "--tol", "0.05")
    assert other["dataset"] == result["dataset"]
    assert other["model"] != result["model"]


def test_new_images_are_classified_as_they_were_learnt(
    job: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    folder, result = job
    names = ("zero", "three", "six")
    for name in names:
        source = min((folder / "topline-digits" / name).iterdir())
        (tmp_path / f"{name}.png").write_bytes(source.read_bytes())
    found = topline(folder, "predict", result["model"], "--images", str(tmp_path), "--top-k", "3")
    best = {Path(one["sample"]).stem: one["labels"][0] for one in found["predictions"]}
    assert best == {name: name for name in names}
    assert all(len(one["labels"]) == 3 for one in found["predictions"])


def test_the_store_is_in_order_and_the_model_exports(job: tuple[Path, dict[str, Any]]) -> None:
    folder, _ = job
    assert topline(folder, "fsck", "topline-run")["ok"] is True
    exported = topline(folder, "export", "topline-run", "--format", "onnx")
    assert (folder / exported["path"]).stat().st_size == exported["bytes"]
