"""The first command of the README, on the digits, in a folder of its own."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.free_ports import free_port
from tests.pipeline.small_data import small_dataset
from tests.processes import run_program, until
from topline.storage.runs import list_runs, read_history
from topline.storage.stores import open_store

TOPLINE = Path(sys.executable).with_name("topline")


def topline(folder: Path, *words: str) -> dict[str, Any]:
    done = run_program([TOPLINE, *words, "--json"], cwd=folder)
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


def wait_for_rounds(place: Path, job: subprocess.Popen[Any]) -> None:
    store = open_store(place)
    until(lambda: list_runs(store) and len(read_history(store, "r0001")) >= 20, "20 rounds", by=job)


def test_a_bucket_that_is_gone_in_mid_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Repeated requests are told of, and once it is back the command that was named goes on."""
    address = f"http://127.0.0.1:{(port := free_port())}"
    for name, value in {"ENDPOINT_URL": address, "DEFAULT_REGION": "us-east-1"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY"):
        monkeypatch.setenv(f"AWS_{name}", "k" * 16)
    small_dataset(tmp_path / "data" / "bucket" / "store")
    serve = [sys.executable, "-m", "localbucket", "--port", str(port), str(tmp_path / "data")]
    store, free = "s3://bucket/store", ("--method", "fw", "--smoothing", "0", "--no-keep-duals")
    words = ("train", "--store", store, "--k", "2", "--workers", "0", *free, "--checkpoint-seconds", "0.3")
    endless = ("--tol", "1e-14", "--max-passes", "10000000")
    bucket = subprocess.Popen(serve, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    job = subprocess.Popen([TOPLINE, *words, *endless], stderr=subprocess.PIPE, text=True)
    try:
        wait_for_rounds(tmp_path / "data" / "bucket" / "store", job)
        bucket.kill()
        bucket.wait()
        _, err = job.communicate(timeout=900)
        bucket = subprocess.Popen(serve, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        assert job.returncode == 75, err
        assert "requests repeated" in err
        resume = re.search(r"topline (train .* --resume r0001)", err)
        assert resume is not None, err
        again = [TOPLINE, *resume[1].split(), "--workers", "0", "--tol", "0.01", "--json"]
        # The lock of the run that lost its bucket ends by itself.
        done = until(lambda: (tried := run_program(again)).returncode != 73 and tried, pause=5.0)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["passes"] >= 20
    finally:
        for process in (job, bucket):
            process.kill()
            process.wait()
