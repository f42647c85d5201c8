"""Runs whose process is gone, and the tasks that they left: how Prefect's server comes to know.

An automation of the server marks a run as crashed when its heartbeat stops, whoever serves it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from datetime import timedelta
from typing import Any
from uuid import UUID

import httpx
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import (
    DeploymentFilter,
    DeploymentFilterId,
    FlowRunFilter,
    FlowRunFilterState,
    FlowRunFilterStateType,
    TaskRunFilter,
    TaskRunFilterState,
    TaskRunFilterStateType,
)
from prefect.client.schemas.objects import State, StateType
from prefect.events.actions import ChangeFlowRunState
from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture
from prefect.exceptions import PrefectException
from prefect.states import Cancelled, Crashed

from topline.pipeline.jobs import LEASE
from topline.storage.stores import LeaseHeldError, held_lease, open_store

logger = logging.getLogger(__name__)

AUTOMATION = "topline: runs without a heartbeat have crashed"

# Beats come every 30 s (topline.flows.environment): two may be late, and two minutes are not over.
HEARTBEAT_TIMEOUT = timedelta(seconds=80)

_BEAT = "prefect.flow-run.heartbeat"
_ENDS = ("Completed", "Failed", "Cancelled", "Crashed", "Paused", "Suspended", "AwaitingRetry")
_ALIVE = [StateType.RUNNING, StateType.PENDING, StateType.CANCELLING]
# In these a run does not end by itself: its process has reported no outcome of its tasks.
_CUT_OFF = [StateType.CRASHED, StateType.CANCELLED]


def crash_killed_runs(deployment: UUID, store_url: str) -> int:
    """Mark the runs of a deployment whose process is gone as crashed, and return how many there were."""
    try:
        with held_lease(open_store(store_url, create=True), LEASE, "topline serve"):
            return _crash(deployment)
    except LeaseHeldError as error:
        logger.warning("%s", error)
        return 0


def _crash(deployment: UUID) -> int:
    with get_client(sync_client=True) as client:
        found = client.read_flow_runs(
            flow_run_filter=FlowRunFilter(state=FlowRunFilterState(type=FlowRunFilterStateType(any_=_ALIVE))),
            deployment_filter=DeploymentFilter(id=DeploymentFilterId(any_=[deployment])),
        )
        for run in found:
            state: State[Any] = Crashed(
                message="its process died; noticed when the schedule was served again"
            )
            client.set_flow_run_state(run.id, state, force=True)
    return len(found)


def cancel_interrupted_runs(runs: Iterable[UUID], ended_by: str) -> int:
    """Mark the runs whose processes ended with the serving as cancelled, and return how many there were.

    A server that does not answer leaves them as they are: the next serving marks them.
    """
    why = f"interrupted: the serving was ended by {ended_by}; the next run does its work"
    count = 0
    try:
        with get_client(sync_client=True) as client:
            for number in runs:
                before = client.read_flow_run(number).state
                if before is not None and before.type in _ALIVE:
                    state: State[Any] = Cancelled(message=why)
                    client.set_flow_run_state(number, state, force=True)
                    count += 1
    except (httpx.HTTPError, PrefectException, RuntimeError) as error:
        logger.warning("interrupted runs are not marked as such: %s", error)
    return count


def crash_orphaned_tasks(deployment: UUID) -> int:
    """Mark the tasks that crashed and cancelled runs left as running, and return how many there were.

    A server that does not answer leaves them as they are: the next serving marks them.
    """
    of_runs = FlowRunFilter(state=FlowRunFilterState(type=FlowRunFilterStateType(any_=_CUT_OFF)))
    alive = TaskRunFilter(state=TaskRunFilterState(type=TaskRunFilterStateType(any_=_ALIVE)))
    marked: set[UUID] = set()
    try:
        with get_client(sync_client=True) as client:
            # The server answers with some at a time; those that are marked are not among the next, but a
            # server that is behind shows them again.
            while True:
                found = client.read_task_runs(
                    flow_run_filter=of_runs,
                    task_run_filter=alive,
                    deployment_filter=DeploymentFilter(id=DeploymentFilterId(any_=[deployment])),
                    offset=0,
                )
                fresh = [task for task in found if task.id not in marked]
                if not fresh:
                    break
                for task in fresh:
                    state: State[Any] = Crashed(message="its run has ended, and its process is gone")
                    client.set_task_run_state(task.id, state, force=True)
                marked.update(task.id for task in fresh)
    except (httpx.HTTPError, PrefectException, RuntimeError) as error:
        logger.warning("tasks of runs that were cut off are not marked as such: %s", error)
    return len(marked)


def ensure_heartbeat_automation() -> UUID:
    """Create the automation unless the server has it, and return its id."""
    wanted = AutomationCore(
        name=AUTOMATION,
        description="The process of a run that sends no heartbeat was killed, or its machine is gone.",
        enabled=True,
        trigger=EventTrigger(
            after={_BEAT},
            expect={_BEAT, *(f"prefect.flow-run.{end}" for end in _ENDS)},
            match={"prefect.resource.id": "prefect.flow-run.*"},
            for_each={"prefect.resource.id"},
            posture=Posture.Proactive,
            threshold=1,
            within=HEARTBEAT_TIMEOUT,
        ),
        actions=[
            ChangeFlowRunState(
                name=None,
                state=StateType.CRASHED,
                message=f"no heartbeat for {HEARTBEAT_TIMEOUT.total_seconds():g} s",
                force=False,
            )
        ],
    )
    with get_client(sync_client=True) as client:
        found = client.read_automations_by_name(AUTOMATION)
        return found[0].id if found else client.create_automation(wanted)
