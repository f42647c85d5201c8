"""deploy/prefect.yaml names flows that exist, with parameters that they take."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from prefect import Flow
from prefect.client.orchestration import get_client
from prefect.flows import load_flow_from_entrypoint

ROOT = Path(__file__).resolve().parents[2]
DEPLOYMENTS: list[dict[str, Any]] = yaml.safe_load((ROOT / "deploy" / "prefect.yaml").read_text())[
    "deployments"
]


def flow_of(deployment: dict[str, Any]) -> Flow[..., Any]:
    return load_flow_from_entrypoint(str(ROOT / deployment["entrypoint"]), use_placeholder_flow=False)


@pytest.mark.parametrize("deployment", DEPLOYMENTS, ids=lambda deployment: deployment["name"])
def test_the_entrypoint_is_a_flow_that_takes_the_parameters(deployment: dict[str, Any]) -> None:
    assert flow_of(deployment).validate_parameters(deployment["parameters"])


@pytest.mark.parametrize("deployment", DEPLOYMENTS, ids=lambda deployment: deployment["name"])
def test_a_misspelt_option_is_refused(deployment: dict[str, Any]) -> None:
    parameters = {**deployment["parameters"], "cluster": {"wokers": 2}}
    with pytest.raises(Exception, match=r"wokers|Unexpected parameters|cluster"):
        flow_of(deployment).validate_parameters(parameters)


def test_all_flows_are_deployed_and_nothing_starts_by_itself() -> None:
    assert {flow_of(deployment).name for deployment in DEPLOYMENTS} == {"extract", "train", "evaluate", "run"}
    schedules = [schedule for deployment in DEPLOYMENTS for schedule in deployment.get("schedules", [])]
    assert schedules
    assert not any(schedule["active"] for schedule in schedules)


def test_the_page_names_the_pool_and_the_deployments_that_are_there() -> None:
    page = (ROOT / "deploy" / "README.md").read_text()
    assert {deployment["work_pool"]["name"] for deployment in DEPLOYMENTS} == {"topline"}
    assert "work-pool create topline" in page
    assert "run/nightly" in page
    assert "--host 127.0.0.1" in page


@pytest.mark.prefect
def test_prefect_registers_all_of_them(prefect_server: str) -> None:
    environ = {**os.environ, "PREFECT_API_URL": prefect_server, "CI": "true"}
    prefect = [sys.executable, "-m", "prefect", "--no-prompt"]
    for words in (
        ["work-pool", "create", "topline", "--type", "process"],
        ["deploy", "--all", "--prefect-file", "deploy/prefect.yaml"],
    ):
        done = subprocess.run(
            [*prefect, *words],
            cwd=ROOT,
            env=environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=240,
        )
        assert done.returncode == 0, done.stdout + done.stderr
    with get_client(sync_client=True) as client:
        registered = {deployment.name: deployment for deployment in client.read_deployments()}
    assert set(registered) == {deployment["name"] for deployment in DEPLOYMENTS}
    nightly = registered["nightly"]
    assert [schedule.active for schedule in nightly.schedules] == [False]
    assert nightly.global_concurrency_limit is not None
    assert nightly.global_concurrency_limit.limit == 1
