"""Retrainings that are killed at any moment, and two at once: the store stays whole, the champion stays."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.pipeline.fresh_photos import photographs
from topline.storage.models import read_standing
from topline.storage.stores import open_store
from topline.storage.verification import verify_store

pytestmark = [pytest.mark.chaos_long, pytest.mark.timeout(900)]

TOPLINE = [sys.executable, "-m", "topline"]


def retraining(folder: Path, *more: str) -> subprocess.Popen[str]:
    options = ["--images", str(folder / "photos"), "--store", str(folder / "store"), "--workers", "0"]
    options += ["--backbone", "hog:size=24,cells=8", "--k", "2", "--most-feature-drift", "10"]
    words = [*TOPLINE, "retrain", *options, "--json", *more]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ended(process: subprocess.Popen[str]) -> dict[str, Any]:
    answer, said = process.communicate(timeout=300)
    assert process.returncode == 0, said
    found: dict[str, Any] = json.loads(answer)
    return found


def champion(folder: Path) -> str | None:
    return read_standing(open_store(folder / "store")).champion


def test_killed_again_and_again(tmp_path: Path) -> None:
    photographs(tmp_path / "photos", range(60))
    begun = time.monotonic()
    assert ended(retraining(tmp_path))["champion"] == "m0001"
    seconds = time.monotonic() - begun
    photographs(tmp_path / "photos", range(60, 120))
    chance = random.Random(7)
    for _ in range(8):
        process = retraining(tmp_path)
        time.sleep(chance.uniform(0.3, 1.0) * seconds)
        process.kill()
        process.communicate()
        if champion(tmp_path) != "m0001":
            break  # it was done before
        assert read_standing(open_store(tmp_path / "store")).seq == 1
    done = ended(retraining(tmp_path))
    assert champion(tmp_path) == done["model"].rpartition("/")[2] != "m0001"
    findings = verify_store(open_store(tmp_path / "store"))
    assert all(finding.harmless for finding in findings), findings


@pytest.mark.parametrize("overlap", ["refuse", "wait"])
def test_two_at_once(tmp_path: Path, overlap: str) -> None:
    photographs(tmp_path / "photos", range(100))
    both = [retraining(tmp_path, "--overlap", overlap) for _ in range(2)]
    answers = [process.communicate(timeout=300)[0] for process in both]
    codes = sorted(process.returncode for process in both)
    assert codes == ([0, 73] if overlap == "refuse" else [0, 0]), answers
    outcomes = sorted(json.loads(answer).get("outcome", "refused") for answer in answers)
    assert outcomes == ["promoted", "refused" if overlap == "refuse" else "unchanged"]
    assert champion(tmp_path) == "m0001"
    assert verify_store(open_store(tmp_path / "store")) == []
