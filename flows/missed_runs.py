"""A schedule that was missed is caught up with once, not many times.

A server that was down, a machine that slept or a run that took longer than its interval leaves several runs
due.  Each would do the work of all, so the first to start cancels the others.
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import Any

import httpx
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import (
    DeploymentFilter,
    DeploymentFilterId,
    FlowRunFilter,
    FlowRunFilterState,
    FlowRunFilterStateType,
)
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.context import FlowRunContext
from prefect.exceptions import PrefectException
from prefect.states import Cancelled

logger = logging.getLogger(__name__)


def stand_in_for_missed_runs() -> list[FlowRun]:
    """Cancel all other runs of this run's deployment that are due by now, and give them.

    A server that does not answer leaves them as they are: each will find nothing new.
    """
    context = FlowRunContext.get()
    run = None if context is None else context.flow_run
    if run is None or run.deployment_id is None:
        return []
    try:
        with get_client(sync_client=True) as client:
            waiting = client.read_flow_runs(
                flow_run_filter=FlowRunFilter(
                    state=FlowRunFilterState(type=FlowRunFilterStateType(any_=[StateType.SCHEDULED]))
                ),
                deployment_filter=DeploymentFilter(id=DeploymentFilterId(any_=[run.deployment_id])),
            )
            others = [other for other in waiting if other.id != run.id and _is_missed(other)]
            for missed in others:
                state: State[Any] = Cancelled(
                    message=f"missed: the run {run.name} ({run.id}) stands in for it"
                )
                client.set_flow_run_state(missed.id, state, force=True)
    except (httpx.HTTPError, PrefectException, RuntimeError) as error:
        logger.warning("runs that were missed are not cancelled: %s", error)
        return []
    if others:
        logger.info("%d runs were missed; this one stands in for them", len(others))
    return others


def _is_missed(run: FlowRun) -> bool:
    """Whether a run was planned for a time that is over."""
    due = run.expected_start_time
    return due is not None and due <= datetime.now(UTC)
