"""The doctor's checks of Prefect: that its server can start, and that a schedule fires.

Some versions of FastAPI and SQLAlchemy that Prefect allows fail only after import: with one the server stops
at start-up, with the other it never creates a scheduled run.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx

from topline.flows import environment
from topline.flows.environment import FlowServerError
from topline.flows.local_server import LOG, START_SECONDS, LocalServer, end_session, local_server
from topline.pipeline.doctor import DEADLINE, Check, CheckFailedError

FIX = 'python -m pip install "prefect>=3.8.8,<3.9" "fastapi<0.151" "sqlalchemy[asyncio]<2.1"'

FIRE_SECONDS = DEADLINE / 2
INTERVAL_SECONDS = 5


def prefect_checks() -> list[Check]:
    """Return the checks that `topline doctor` finds through the entry points "topline.checks"."""
    return [
        Check("prefect", "topline.flows.doctor_checks:server_application", DEADLINE),
        Check(
            "prefect schedule",
            "topline.flows.doctor_checks:schedule_fires",
            START_SECONDS + FIRE_SECONDS + 60.0,
            on_schedule=True,
        ),
    ]


def server_application() -> str:
    """Build the application of Prefect's server, without starting it."""
    begun = time.monotonic()
    try:
        import prefect
        from prefect.server.api.server import create_app

        application = create_app(ephemeral=True)
    except Exception as error:
        raise CheckFailedError(
            f"Prefect's server cannot be built: {type(error).__name__}: {error}", FIX
        ) from error
    seconds = time.monotonic() - begun
    return f"Prefect {prefect.__version__}: {application.title} was built in {seconds:.1f} s"


def schedule_fires() -> str:
    """Start a private server on the loopback interface, serve a flow every few seconds, and see it run."""
    with tempfile.TemporaryDirectory(prefix="topline-doctor-") as home, ExitStack() as stack:
        environ = private_environment(os.environ, Path(home))
        begun = time.monotonic()
        try:
            server = stack.enter_context(local_server(environ))
        except FlowServerError as error:
            said = _last_error(Path(home, LOG))
            raise CheckFailedError(f"Prefect's server ended, or did not answer: {said}", FIX) from error
        started = time.monotonic() - begun
        reached = {"PREFECT_API_URL": server.url, "PREFECT_API_AUTH_STRING": server.password}
        log = Path(home, "serve.log")
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "topline.flows.heartbeat", str(INTERVAL_SECONDS)],
                env={**environ, **reached},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        stack.callback(end_session, process.pid)
        begun = time.monotonic()
        runs = _wait_until_completed(server, Path(home, LOG), log)
        fired = time.monotonic() - begun
    return (
        f"a server started in {started:.0f} s, planned {runs} runs of a deployment that is due every "
        f"{INTERVAL_SECONDS} s, and the first had run after {fired:.0f} s"
    )


def private_environment(environ: Mapping[str, str], home: Path) -> dict[str, str]:
    """Return an environment for a server and its clients, isolated from the user's Prefect."""
    private = {name: value for name, value in environ.items() if not name.startswith("PREFECT_")}
    environment.prepare(private)
    private.update(
        PREFECT_HOME=str(home), PREFECT_RUNNER_POLL_FREQUENCY="2", PREFECT_SERVER_UI_ENABLED="false"
    )
    return private


def _wait_until_completed(server: LocalServer, server_log: Path, serve_log: Path) -> int:
    """Return the number of planned runs once a scheduled run has completed."""
    runs: list[dict[str, Any]] = []
    deadline = time.monotonic() + FIRE_SECONDS
    while time.monotonic() < deadline:
        user, _, word = server.password.partition(":")
        answer = httpx.post(f"{server.url}/flow_runs/filter", json={}, auth=(user, word), timeout=30.0)
        runs = [run for run in answer.raise_for_status().json() if run["auto_scheduled"]]
        if any(run["state_type"] == "COMPLETED" for run in runs):
            return len(runs)
        time.sleep(1.0)
    if not runs:
        raise CheckFailedError(
            f"no run was planned within {FIRE_SECONDS:g} s for a deployment with a schedule: "
            f"{_last_error(server_log)}",
            FIX,
        )
    states = ", ".join(sorted({str(run["state_name"]) for run in runs}))
    raise CheckFailedError(
        f"{len(runs)} runs were planned and none completed within {FIRE_SECONDS:g} s ({states}): "
        f"{_last_error(serve_log)}",
        "Try again while the machine is less busy; scheduled runs start as new Python processes.",
    )


def _last_error(log: Path) -> str:
    """Return the last line of a log that names an error, or its last line."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if "Error" in line]
    return (errors or lines or ["it said nothing"])[-1]
