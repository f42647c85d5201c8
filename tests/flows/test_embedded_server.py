"""`--flow` for a new user: no server configured, an empty home, nobody at the keyboard."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from tests.processes import run_program, until
from topline.flows.doctor_checks import prefect_checks
from topline.pipeline.doctor import run_checks

pytestmark = [pytest.mark.prefect, pytest.mark.slow]

TOPLINE = [sys.executable, "-m", "topline"]

RUNS = """
select flow_run.name, flow_run.state_name, flow_run_state.message
from flow_run join flow_run_state on flow_run_state.id = flow_run.state_id
"""


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """An environment with an empty home and Prefect's own home beside it."""
    (tmp_path / "home").mkdir()
    return {
        "PATH": "/usr/bin:/bin",
        "HOME": str(tmp_path / "home"),
        "PREFECT_HOME": str(tmp_path / "prefect"),
        "CI": "true",
    }


def recorded(environ: dict[str, str]) -> tuple[list[tuple[str, str, str]], set[str]]:
    """Runs (name, state, message) and keys of artifacts in the database that the next server opens."""
    with closing(sqlite3.connect(Path(environ["PREFECT_HOME"], "prefect.db"))) as database:
        keys = {str(key) for (key,) in database.execute("select key from artifact")}
        return database.execute(RUNS).fetchall(), keys


def train_as_flow(environ: dict[str, str], store: str, *more: str) -> subprocess.Popen[str]:
    arguments = ["train", "--store", store, "--workers", "0", "--flow", "--json", *more]
    return subprocess.Popen(
        [*TOPLINE, *arguments],
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def test_a_finished_and_an_interrupted_run_are_kept_by_the_embedded_server(
    store: str, environ: dict[str, str]
) -> None:
    with train_as_flow(environ, store, "--tol", "1e-2") as training:
        answer, said = training.communicate(timeout=800)
    assert training.returncode == 0, said
    assert json.loads(answer)["status"] == "solved"  # one JSON object and nothing else
    assert "Traceback" not in said
    assert "ERROR" not in said

    # Frank-Wolfe, which takes hours to that gap: the run is not to end by itself.
    endless = ("--method", "fw", "--tol", "1e-9", "--max-passes", "100000000")
    with train_as_flow(environ, store, *endless) as training:
        until(Path(store, "runs", "r0002", "history.jsonl").exists, "a training", by=training)
        # As a terminal does: to the whole process group, and so to the embedded server.
        os.killpg(training.pid, signal.SIGINT)
        _, said = training.communicate(timeout=600)
    assert training.returncode == 75, said
    assert "--resume r0002" in said

    runs, keys = recorded(environ)
    assert [name for name, _, _ in runs] == 2 * [f"train softmax on {store}"]
    states = {state: message for _, state, message in runs}
    assert set(states) == {"Completed", "Cancelled"}
    assert "--resume r0002" in states["Cancelled"]
    assert {"train-progress", "gaps", "summary"} <= keys
    assert not Path(environ["HOME"], ".prefect").exists()


def test_an_error_stays_one_sentence_under_flow(store: str, tmp_path: Path, prefect_server: str) -> None:
    failed = run_program(
        [*TOPLINE, "train", "--store", store, "--dataset", "d9999", "--workers", "0"],
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "PREFECT_API_URL": prefect_server},
    )
    assert failed.returncode == 2
    lines = [line for line in failed.stderr.splitlines() if not line.startswith("connect to Prefect")]
    assert len(lines) == 1, failed.stderr
    assert lines[0].startswith("error: ")
    assert "has no dataset d9999" in lines[0]
    assert failed.stdout == ""


def test_a_schedule_fires_with_the_installed_versions() -> None:
    checks = {check.name: check for check in run_checks(checks=prefect_checks(), schedule=True)}
    assert checks["prefect"].ok, checks
    assert checks["prefect schedule"].ok, checks
    assert "had run after" in checks["prefect schedule"].detail
