"""The flow `retrain`: new images, a challenger, and a decision on the champion."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import Any

import httpx
from prefect import flow
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
from prefect.runtime import flow_run
from prefect.states import Cancelled, Completed

from topline.flows.following import MISSED
from topline.flows.reporting import watched
from topline.flows.summaries import retraining_summary
from topline.flows.tasks import STEPS
from topline.pipeline.jobs import RetrainResult
from topline.pipeline.jobs import retrain as retrain_in_steps
from topline.pipeline.options import ClusterConfig, RetrainConfig
from topline.storage.stores import LeaseHeldError

logger = logging.getLogger(__name__)


@flow(name="retrain", flow_run_name="retrain {config.store}", persist_result=False, result_serializer="json")
def retrain(
    config: RetrainConfig = RetrainConfig(),  # noqa: B008
    cluster: ClusterConfig = ClusterConfig(),  # noqa: B008
) -> RetrainResult | State[Any]:
    """Take in new and changed images, train on from the last model, promote the result by the rule or keep.

    Missed scheduled runs are coalesced into one.  Where another retraining holds the store, the run is
    cancelled and says whose it is.

    Args:
        config: The store, and the options of every step and of the rule
        cluster: Where it runs: workers, memory, a scheduler that is running
    """
    coalesce_missed_runs()
    try:
        with watched(config.train.tol, config.store) as watch:
            by = f"flow run {flow_run.get_id() or ''}".strip()
            result = retrain_in_steps(config, cluster, watch.progress, by=by, steps=STEPS)
            watch.finish(result, retraining_summary(result))
            # The message is what lists of runs and the log of `topline serve` show.
            said = f"{result.outcome}: {'; '.join(result.reasons)}"
            return Completed(message=said, data=result)
    except LeaseHeldError as error:
        return Cancelled(message=str(error))


def coalesce_missed_runs() -> list[FlowRun]:
    """Cancel all other runs of this run's deployment that are due by now, and return them.

    A server that was down, a machine that slept or a run that took longer than its interval leaves several
    runs due, each of which would do the work of all.  A server that does not answer leaves them as they are:
    each will find nothing new.
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
            # The same words in all of them, by which they are told once.
            count = f"{len(others)} run{'s' if len(others) > 1 else ''}"
            for missed in others:
                state: State[Any] = Cancelled(
                    message=f"{MISSED} {count} coalesced into the run {run.name} ({run.id})"
                )
                client.set_flow_run_state(missed.id, state, force=True)
    except (httpx.HTTPError, PrefectException, RuntimeError) as error:
        logger.warning("missed runs are not cancelled: %s", error)
        return []
    if others:
        logger.info("%d missed runs are coalesced into this one", len(others))
    return others


def _is_missed(run: FlowRun) -> bool:
    """Return whether a run was planned for a time in the past."""
    due = run.expected_start_time
    return due is not None and due <= datetime.now(UTC)
