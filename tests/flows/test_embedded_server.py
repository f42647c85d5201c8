"""`--flow` for a new user: no server configured, an empty home, nobody at the keyboard."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from flows.checks import prefect_checks
from pipeline.doctor import run_checks

pytestmark = pytest.mark.prefect

TOPLINE = [sys.executable, "-c", "from pipeline.cli import main; main()"]

LIST = """
import flows, json
from prefect.client.orchestration import get_client
with get_client(sync_client=True) as client:
    runs = [[run.state_name, run.name] for run in client.read_flow_runs()]
    keys = sorted({artifact.key for artifact in client.read_artifacts() if artifact.key})
print(json.dumps([runs, keys]))
"""


def test_the_run_and_its_artifacts_are_there_for_the_next_process(store: str, tmp_path: Path) -> None:
    environ = {
        "PATH": "/usr/bin:/bin",
        "HOME": str(tmp_path / "home"),
        "PREFECT_HOME": str(tmp_path / "prefect"),
        "CI": "true",
    }
    (tmp_path / "home").mkdir()
    arguments = ["train", "--store", store, "--tol", "1e-2", "--workers", "0", "--flow", "--json"]
    trained = subprocess.run(
        [*TOPLINE, *arguments],
        env=environ,
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert trained.returncode == 0, trained.stderr
    result = json.loads(trained.stdout)  # one JSON object and nothing else
    assert result["status"] == "solved"
    assert "Traceback" not in trained.stderr
    assert "ERROR" not in trained.stderr
    assert not (tmp_path / "home" / ".prefect").exists()

    listed = subprocess.run(
        [sys.executable, "-c", LIST], env=environ, capture_output=True, text=True, check=True, timeout=280
    )
    runs, keys = json.loads(listed.stdout)
    assert runs == [["Completed", f"train topk_hinge on {store}"]]
    assert {"train-progress", "gaps", "summary"} <= set(keys)


def test_an_error_stays_one_sentence_under_flow(store: str, tmp_path: Path, prefect_server: str) -> None:
    failed = subprocess.run(
        [*TOPLINE, "train", "--store", store, "--dataset", "d9999", "--workers", "0"],
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "PREFECT_API_URL": prefect_server},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert failed.returncode == 2
    lines = [line for line in failed.stderr.splitlines() if not line.startswith("connect to Prefect")]
    assert len(lines) == 1, failed.stderr
    assert lines[0].startswith("error: ")
    assert "has no dataset d9999" in lines[0]
    assert failed.stdout == ""


@pytest.mark.timeout(600)
def test_a_schedule_fires_with_the_installed_versions() -> None:
    checks = {check.name: check for check in run_checks(probes=prefect_checks(), schedule=True)}
    assert checks["prefect"].ok, checks
    assert checks["prefect schedule"].ok, checks
    assert "had run after" in checks["prefect schedule"].detail
