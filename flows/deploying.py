"""`python -m topline.flows.deploying`: what `deploy/` registers on a Prefect server, and its worker.

python -m topline.flows.deploying register deploy/prefect.yaml
python -m topline.flows.deploying work --name "$(hostname)"
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import httpx
import psutil
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.objects import StateType
from prefect.client.schemas.responses import DeploymentResponse
from prefect.events.actions import ActionTypes, ChangeFlowRunState, PauseDeployment
from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture
from prefect.exceptions import ObjectNotFound
from prefect.states import Crashed

POOL: Final = "topline"
_PREFECT: Final = (sys.executable, "-m", "prefect", "--no-prompt")

# Time for a run's checkpoint before it ends; pods and containers end after two minutes.
RUN_SECONDS: Final = 100.0

# Heartbeats come every 30 s (topline.flows.environment): two may be missed within two minutes.
HEARTBEAT_TIMEOUT: Final = timedelta(seconds=80)
_BEAT: Final = "prefect.flow-run.heartbeat"
_ENDS: Final = ("Completed", "Failed", "Cancelled", "Crashed", "Paused", "Suspended", "AwaitingRetry")
_OF_RUNS = partial(
    EventTrigger,
    match={"prefect.resource.id": "prefect.flow-run.*"},
    match_related={"prefect.resource.id": "prefect.tag.topline", "prefect.resource.role": "tag"},
)


def _automation(name: str, description: str, trigger: EventTrigger, action: ActionTypes) -> AutomationCore:
    return AutomationCore(
        name=f"topline: {name}", description=description, enabled=True, trigger=trigger, actions=[action]
    )


#: Without this, a killed run stays Running forever and occupies its deployment's only slot.
CRASH_SILENT_RUNS: Final = _automation(
    "runs without a heartbeat have crashed",
    "The process of a run that sends no heartbeat was killed, or its machine is gone.",
    _OF_RUNS(
        after={_BEAT},
        expect={_BEAT, *(f"prefect.flow-run.{end}" for end in _ENDS)},
        for_each={"prefect.resource.id"},
        posture=Posture.Proactive,
        threshold=1,
        within=HEARTBEAT_TIMEOUT,
    ),
    ChangeFlowRunState(
        name=None,
        state=StateType.CRASHED,
        message=f"no heartbeat for {HEARTBEAT_TIMEOUT.total_seconds():g} s: its process or machine is gone",
        force=False,
    ),
)

#: Stops retrying a broken source of images every night; `topline status` reports overdue runs.
PAUSE_FAILING: Final = _automation(
    "three failures pause a schedule",
    "Three failed or crashed runs of a deployment within a day pause it: deploy/README.md says what to do.",
    _OF_RUNS(
        expect={"prefect.flow-run.Failed", "prefect.flow-run.Crashed"},
        for_each={"related:deployment:prefect.resource.id"},
        posture=Posture.Reactive,
        threshold=3,
        within=timedelta(days=1),
    ),
    PauseDeployment(source="inferred", deployment_id=None),
)


def ensure_automation(wanted: AutomationCore) -> UUID:
    """Create or update the automation of this name, enabled or not as before; return its id."""
    with get_client(sync_client=True) as client:
        found = client.read_automations_by_name(wanted.name)
        if not found:
            return client.create_automation(wanted)
        kept, *doubles = found
        for double in doubles:
            client.delete_automation(double.id)
        client.update_automation(kept.id, wanted.model_copy(update={"enabled": kept.enabled}))
        return kept.id


def register(prefect_file: Path) -> None:
    """Register pool, deployments and automations; repeated, it keeps what users paused or scheduled."""
    with get_client(sync_client=True) as client:
        try:
            client.read_work_pool(POOL)
        except ObjectNotFound:
            # A worker that starts at the same time may be quicker.
            _prefect("work-pool", "create", POOL, "--type", "process", check=False)
            client.read_work_pool(POOL)
        before = _deployments(client)
        _prefect("deploy", "--all", "--prefect-file", str(prefect_file))
        after = _deployments(client)
        for number, deployment in before.items():
            if number in after:
                _restore(client, deployment, after[number])
    for automation in (CRASH_SILENT_RUNS, PAUSE_FAILING):
        ensure_automation(automation)


def _prefect(*words: str, check: bool = True) -> None:
    subprocess.run([*_PREFECT, *words], stdin=subprocess.DEVNULL, check=check)


def _deployments(client: SyncPrefectClient) -> dict[UUID, DeploymentResponse]:
    """Return all deployments of a server, page by page."""
    found: dict[UUID, DeploymentResponse] = {}
    while page := client.read_deployments(offset=len(found)):
        found |= {deployment.id: deployment for deployment in page}
    return found


def _restore(client: SyncPrefectClient, before: DeploymentResponse, now: DeploymentResponse) -> None:
    """Restore a deployment's and its schedules' states, and schedules that are in no file."""
    if before.paused is not now.paused:
        (client.pause_deployment if before.paused else client.resume_deployment)(now.id)
    for old in before.schedules:
        # Before 0.2 schedules had no names.
        name = "slug" if old.slug else "schedule"
        same = [new for new in now.schedules if getattr(new, name) == getattr(old, name)]
        for new in same:
            if new.active is not old.active:
                client.update_deployment_schedule(now.id, new.id, active=old.active)
        if not same:
            # The client's own method cannot set a schedule's parameters.
            path: Any = f"/deployments/{now.id}/schedules"
            wanted = old.model_dump(mode="json", include={"schedule", "active", "parameters", "slug"})
            client.request("POST", path, json=[wanted])


def work(words: Sequence[str]) -> int:
    """Run Prefect's worker with further options, and return its exit status.

    On SIGTERM, Prefect's worker interrupts its runs twice or waits until it is killed.  Here each run gets
    the signal once, so that training writes its checkpoint and says how to resume; then the worker ends.
    """
    asked = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: asked.set())
    # A terminal sends Ctrl-C to the worker and its runs directly.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    worker = psutil.Popen([*_PREFECT, "worker", "start", "--pool", POOL, *words])
    while worker.poll() is None:
        if asked.wait(0.5):
            _end(worker)
            return os.EX_OK
    return int(worker.returncode)


def _end(worker: psutil.Popen) -> None:
    """End a worker after its runs, while it accepts no further one."""
    with suppress(psutil.NoSuchProcess):
        worker.suspend()
        runs = worker.children()
        numbers = {}
        for run in runs:
            with suppress(psutil.NoSuchProcess):
                if number := run.environ().get("PREFECT__FLOW_RUN_ID"):
                    numbers[run] = number
                run.terminate()
        until = time.monotonic() + RUN_SECONDS
        while any(map(_is_alive, runs)) and time.monotonic() < until:
            time.sleep(0.2)
        # Resumed, it would accept the next run before it ends.  Its runs have reported their ends.
        worker.kill()
        worker.wait()
        if silent := [number for run, number in numbers.items() if not _is_alive(run)]:
            _crash_unended(silent)


def _crash_unended(runs: Sequence[str]) -> None:
    """Mark runs that ended without a final state as crashed: each would keep its slot for minutes."""
    try:
        with get_client(sync_client=True) as client:
            for run in map(UUID, runs):
                state = client.read_flow_run(run).state
                if state is None or not state.is_final():
                    client.set_flow_run_state(run, Crashed(message="ended with its worker"), force=True)
    except httpx.HTTPError as error:
        sys.stderr.write(f"Prefect's server was not told which runs ended with the worker: {error}\n")


def _is_alive(process: psutil.Process) -> bool:
    # A suspended parent does not notice the end of its child.
    with suppress(psutil.NoSuchProcess):
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    return False


def main(words: Sequence[str]) -> int:
    """Run the command line's command."""
    match list(words):
        case ["register", place] if Path(place).is_file():
            register(Path(place))
            return os.EX_OK
        case ["work", *rest]:
            return work(rest)
    sys.stderr.write(f"{__doc__}\n")
    return os.EX_USAGE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
