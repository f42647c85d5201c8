"""The automation that marks a run as crashed when its heartbeat stops."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import StateType
from prefect.events.actions import ChangeFlowRunState
from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture

NAME = "topline: runs without a heartbeat have crashed"

# Beats come every 30 s (topline.flows.environment): two may be late, and two minutes are not over.
HEARTBEAT_TIMEOUT = timedelta(seconds=80)

_BEAT = "prefect.flow-run.heartbeat"
_ENDS = ("Completed", "Failed", "Cancelled", "Crashed", "Paused", "Suspended", "AwaitingRetry")


def ensure_heartbeat_automation() -> UUID:
    """Create the automation unless the server has it, and return its id."""
    wanted = AutomationCore(
        name=NAME,
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
        found = client.read_automations_by_name(NAME)
        return found[0].id if found else client.create_automation(wanted)
