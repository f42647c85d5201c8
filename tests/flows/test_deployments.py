"""deploy/prefect.yaml names flows that exist, with parameters that they take."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from prefect import Flow
from prefect.client.orchestration import get_client
from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture
from prefect.flows import load_flow_from_entrypoint

from topline.flows import environment
from topline.flows.launching import FLOWS
from topline.flows.serving import AUTOMATION

BEAT = "PREFECT_FLOWS_HEARTBEAT_FREQUENCY"
ROOT = Path(__file__).resolve().parents[2]
# What registering reads from the environment.
SETTINGS = {
    "TOPLINE_STORE": "s3://bucket/store",
    "TOPLINE_IMAGES": "/srv/images",
    "TOPLINE_SCHEDULER": "tls://scheduler:8786",
}


def registered(text: str) -> list[dict[str, Any]]:
    """Return the deployments with the settings in their places."""
    for name, value in SETTINGS.items():
        text = text.replace(f"{{{{ ${name} }}}}", value)
    found: list[dict[str, Any]] = yaml.safe_load(text)["deployments"]
    return found


DEPLOYMENTS = registered((ROOT / "deploy" / "prefect.yaml").read_text())


def flow_of(deployment: dict[str, Any]) -> Flow[..., Any]:
    return load_flow_from_entrypoint(deployment["entrypoint"], use_placeholder_flow=False)


@pytest.mark.parametrize("deployment", DEPLOYMENTS, ids=lambda deployment: deployment["name"])
def test_the_entrypoint_is_a_flow_that_takes_the_parameters(deployment: dict[str, Any]) -> None:
    assert flow_of(deployment).validate_parameters(deployment["parameters"])


@pytest.mark.parametrize("deployment", DEPLOYMENTS, ids=lambda deployment: deployment["name"])
def test_a_misspelt_option_is_refused(deployment: dict[str, Any]) -> None:
    parameters = {**deployment["parameters"], "cluster": {"wokers": 2}}
    with pytest.raises(Exception, match=r"wokers|Unexpected parameters|cluster"):
        flow_of(deployment).validate_parameters(parameters)


def test_all_flows_are_deployed_and_nothing_starts_by_itself() -> None:
    assert {flow_of(deployment).name for deployment in DEPLOYMENTS} == set(FLOWS)
    schedules = [schedule for deployment in DEPLOYMENTS for schedule in deployment.get("schedules", [])]
    assert schedules
    assert not any(schedule["active"] for schedule in schedules)


@pytest.mark.parametrize("deployment", DEPLOYMENTS, ids=lambda deployment: deployment["name"])
def test_a_deployment_works_where_nothing_but_the_settings_is_given(deployment: dict[str, Any]) -> None:
    """No relative path, which would be another place for each process, and work by the cluster's workers."""
    parameters = str(deployment["parameters"])
    assert SETTINGS["TOPLINE_STORE"] in parameters or SETTINGS["TOPLINE_IMAGES"] in parameters
    assert "{{" not in parameters
    assert "topline-store" not in parameters
    if "cluster" in deployment["parameters"]:
        assert deployment["parameters"]["cluster"] == {"scheduler": SETTINGS["TOPLINE_SCHEDULER"]}


def test_every_way_of_deploying_sets_what_registering_reads() -> None:
    for page in ("README.md", "compose/compose.yaml", "kubernetes/worker.yaml", "kubernetes/README.md"):
        text = (ROOT / "deploy" / page).read_text()
        wanted = {"TOPLINE_STORE"} if page == "kubernetes/README.md" else set(SETTINGS)
        assert {name for name in wanted if name in text} == wanted


def test_the_page_names_the_pool_and_the_deployments_that_are_there() -> None:
    page = (ROOT / "deploy" / "README.md").read_text()
    assert {deployment["work_pool"]["name"] for deployment in DEPLOYMENTS} == {"topline"}
    assert "work-pool create topline" in page
    assert "deploy --all --prefect-file deploy/prefect.yaml" in page
    flows = {f"{flow_of(deployment).name}/{deployment['name']}" for deployment in DEPLOYMENTS}
    for named in (page, *(path.read_text() for path in (ROOT / "deploy").glob("*/README.md"))):
        assert set(re.findall(r"deployment run (\S+)", named)) <= flows
    assert {"retrain/nightly", "train/train"} <= flows


def test_a_second_run_of_what_writes_is_cancelled() -> None:
    limits = {deployment["name"]: deployment.get("concurrency_limit") for deployment in DEPLOYMENTS}
    assert limits.pop("evaluate") is None
    assert set(map(str, limits.values())) == {str({"limit": 1, "collision_strategy": "CANCEL_NEW"})}


def test_a_run_that_is_killed_beats_often_enough_to_be_found_out_in_two_minutes() -> None:
    automations = yaml.safe_load((ROOT / "deploy" / "automations.yaml").read_text())["automations"]
    crashed, failures = (AutomationCore.model_validate(found) for found in automations)
    assert crashed.name == AUTOMATION
    assert isinstance(crashed.trigger, EventTrigger)
    assert crashed.trigger.posture is Posture.Proactive
    beats = {int(deployment["work_pool"]["job_variables"]["env"][BEAT]) for deployment in DEPLOYMENTS}
    assert beats == {int(environment.ALWAYS[BEAT])} == {30}
    assert max(beats) * 2 < crashed.trigger.within.total_seconds() < 120 - max(beats)
    assert [action.type for action in crashed.actions] == ["change-flow-run-state"]
    assert [action.type for action in failures.actions] == ["pause-deployment"]
    for deployment in DEPLOYMENTS:
        assert "topline" in deployment["tags"], "the automations look for the tag"


@pytest.mark.slow
@pytest.mark.prefect
def test_prefect_registers_all_of_them(prefect_server: str) -> None:
    environ = {**os.environ, **SETTINGS, "PREFECT_API_URL": prefect_server, "CI": "true"}
    prefect = [sys.executable, "-m", "prefect", "--no-prompt"]
    for words in (
        ["work-pool", "create", "topline", "--type", "process"],
        ["deploy", "--all", "--prefect-file", "deploy/prefect.yaml"],
        ["automation", "create", "--from-file", "deploy/automations.yaml"],
    ):
        done = subprocess.run(
            [*prefect, *words],
            cwd=ROOT,
            env=environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=800,
        )
        assert done.returncode == 0, done.stdout + done.stderr
    with get_client(sync_client=True) as client:
        there = {deployment.name: deployment for deployment in client.read_deployments()}
    assert {name: dict(found.parameters) for name, found in there.items()} == {
        deployment["name"]: deployment["parameters"] for deployment in DEPLOYMENTS
    }
    nightly = there["nightly"]
    assert [schedule.active for schedule in nightly.schedules] == [False]
    assert nightly.global_concurrency_limit is not None
    assert nightly.global_concurrency_limit.limit == 1
