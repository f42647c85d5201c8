"""deploy/prefect.yaml names flows that exist, with parameters that they take."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from prefect import Flow
from prefect.client.orchestration import get_client
from prefect.events.schemas.automations import Posture
from prefect.flows import load_flow_from_entrypoint

from tests.processes import run_program, until
from topline.flows import environment
from topline.flows.deploying import CRASH_SILENT_RUNS, PAUSE_FAILING, POOL
from topline.flows.launching import FLOWS

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
    assert POOL == "topline"
    assert "topline.flows.deploying register deploy/prefect.yaml" in page
    flows = {f"{flow_of(deployment).name}/{deployment['name']}" for deployment in DEPLOYMENTS}
    for named in (page, *(path.read_text() for path in (ROOT / "deploy").glob("*/README.md"))):
        assert set(re.findall(r"deployment run (\S+)", named)) <= flows
    assert {"retrain/nightly", "train/train"} <= flows


def test_a_second_run_of_what_writes_is_cancelled() -> None:
    limits = {deployment["name"]: deployment.get("concurrency_limit") for deployment in DEPLOYMENTS}
    assert limits.pop("evaluate") is None
    assert set(map(str, limits.values())) == {str({"limit": 1, "collision_strategy": "CANCEL_NEW"})}


def test_a_run_that_is_killed_beats_often_enough_to_be_found_out_in_two_minutes() -> None:
    crashed, failures = CRASH_SILENT_RUNS, PAUSE_FAILING
    assert crashed.trigger.posture is Posture.Proactive
    beats = {int(deployment["work_pool"]["job_variables"]["env"][BEAT]) for deployment in DEPLOYMENTS}
    assert beats == {int(environment.ALWAYS[BEAT])} == {30}
    assert max(beats) * 2 < crashed.trigger.within.total_seconds() < 120 - max(beats)
    assert [action.type for action in crashed.actions] == ["change-flow-run-state"]
    assert [action.type for action in failures.actions] == ["pause-deployment"]
    for deployment in DEPLOYMENTS:
        assert "topline" in deployment["tags"], "the automations look for the tag"


RUN = """
import pathlib, signal, sys, time
def end(*_):
    with open(sys.argv[1], "a") as said:
        said.write("saved\\n")
    time.sleep(1)
    sys.exit(1)
signal.signal(signal.SIGTERM, end)
pathlib.Path(sys.argv[1]).touch()
time.sleep(600)
"""
# As Prefect's: it ignores SIGTERM for a while, and takes up the next run once it has none.
WORKER = """
import signal, subprocess, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.run([sys.executable, "-c", sys.argv[1], sys.argv[2]])
with open(sys.argv[2], "a") as said:
    said.write("the next run\\n")
signal.pause()
"""


def test_a_worker_that_is_to_end_lets_its_runs_save_once_and_ends_after_them(tmp_path: Path) -> None:
    said = tmp_path / "said"
    code = (
        "import sys; from topline.flows import deploying;"
        "deploying._PREFECT = (sys.executable, '-c', sys.argv[1], sys.argv[2], sys.argv[3]);"
        "sys.exit(deploying.work([]))"
    )
    words = [sys.executable, "-c", code, WORKER, RUN, str(said)]
    with subprocess.Popen(
        words, cwd=ROOT, env={**os.environ, "PREFECT_SERVER_ANALYTICS_ENABLED": "false"}
    ) as leader:
        until(said.exists, "word of the worker", by=leader)
        leader.send_signal(signal.SIGTERM)
        assert leader.wait(300) == 0
    assert said.read_text() == "saved\n"


def registered_with(server: str) -> None:
    environ = {**os.environ, **SETTINGS, "PREFECT_API_URL": server, "CI": "true"}
    words = [sys.executable, "-m", "topline.flows.deploying", "register", "deploy/prefect.yaml"]
    done = run_program(words, cwd=ROOT, env=environ)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.prefect
def test_prefect_registers_all_of_them(prefect_server: str) -> None:
    registered_with(prefect_server)
    with get_client(sync_client=True) as client:
        there = {deployment.name: deployment for deployment in client.read_deployments()}
    assert {name: dict(found.parameters) for name, found in there.items()} == {
        deployment["name"]: deployment["parameters"] for deployment in DEPLOYMENTS
    }
    nightly = there["nightly"]
    assert [schedule.active for schedule in nightly.schedules] == [False]
    assert nightly.global_concurrency_limit.limit == 1


@pytest.mark.slow
@pytest.mark.prefect
def test_registering_again_keeps_what_somebody_switched_and_makes_nothing_double(prefect_server: str) -> None:
    registered_with(prefect_server)
    own = {
        "schedule": {"cron": "0 12 * * *", "timezone": "UTC"},
        "active": True,
        "parameters": {"cluster": {}},
    }
    with get_client(sync_client=True) as client:
        nightly = client.read_deployment_by_name("retrain/nightly")
        client.update_deployment_schedule(nightly.id, nightly.schedules[0].id, active=True)
        place: Any = f"/deployments/{nightly.id}/schedules"
        client.request("POST", place, json=[own])
        once = client.read_deployment_by_name("run/once")
        client.pause_deployment(once.id)
        # As somebody has it who registered them twice before.
        doubles = [client.create_automation(PAUSE_FAILING) for _ in range(2)]
        for double in doubles:
            client.pause_automation(double)
        client.pause_automation(client.read_automations_by_name(PAUSE_FAILING.name)[0].id)
        for _ in range(2):
            registered_with(prefect_server)
            found = client.read_deployment_by_name("retrain/nightly").schedules
            assert {(str(one.schedule.cron), one.active) for one in found} == {
                ("0 2 * * *", True),
                ("0 12 * * *", True),
            }
            assert len(found) == 2
            assert [one.parameters for one in found if not one.slug] == [{"cluster": {}}]
            assert client.read_deployment_by_name("run/once").paused
            (pausing,) = client.read_automations_by_name(PAUSE_FAILING.name)
            assert not pausing.enabled
            (crashing,) = client.read_automations_by_name(CRASH_SILENT_RUNS.name)
            assert crashing.enabled
