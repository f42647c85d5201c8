"""The flow `retrain`: new images, a challenger, and a decision on the champion."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import copy_context
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from prefect import flow
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.client.schemas.schedules import CronSchedule, IntervalSchedule
from prefect.client.schemas.sorting import FlowRunSort
from prefect.context import FlowRunContext
from prefect.runtime import flow_run
from prefect.states import Cancelled, Completed

from topline.flows.definitions import retraining_summary
from topline.flows.following import MISSED, UNREACHABLE, in_states, of_deployment
from topline.flows.reporting import cancelled_by_signals, watched
from topline.flows.tasks import STEPS
from topline.pipeline.jobs import RetrainResult
from topline.pipeline.jobs import retrain as retrain_in_steps
from topline.pipeline.options import ClusterConfig, RetrainConfig
from topline.pipeline.telemetry import deployed_run
from topline.solvers.counts import how_many
from topline.storage.stores import LeaseHeldError, open_store

logger = logging.getLogger(__name__)

#: Missed runs kept as cancelled or given new options; older ones are deleted.
MISSED_KEPT = 100
#: Most runs that the server deletes per request.
_DELETED_AT_ONCE = 50
DELETING = "topline-missed-runs"


@flow(name="retrain", flow_run_name="retrain {config.store}", persist_result=False, result_serializer="json")
@cancelled_by_signals
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
        with _recorded(config.store), watched(config.train.tol, config.store) as watch:
            by = f"flow run {flow_run.get_id() or ''}".strip()
            result = retrain_in_steps(config, cluster, watch.progress, by=by, steps=STEPS)
            watch.finish(result, retraining_summary(result))
            # Lists of runs and the log of `topline serve` show this message.
            said = f"{result.outcome}: {'; '.join(result.reasons)}"
            return Completed(message=said, data=result)
    except LeaseHeldError as error:
        return Cancelled(message=str(error))


@contextmanager
def _recorded(store: str) -> Iterator[None]:
    """Record in the store the outcome of a scheduled deployment's run."""
    context = FlowRunContext.get()
    run = None if context is None else context.flow_run
    found = None
    if run is not None and run.deployment_id is not None:
        try:
            with get_client(sync_client=True) as client:
                found = client.read_deployment(run.deployment_id)
        except UNREACHABLE as error:
            logger.warning("the schedule of the deployment is not known: %s", error)
    schedules = [] if found is None else [one.schedule for one in found.schedules]
    every, timezone = next(filter(None, map(_options_of, schedules)), ("", "UTC"))
    if found is None or not every:
        yield
        return
    with deployed_run(open_store(store, create=True), every, timezone, f"retrain/{found.name}"):
        yield


def _options_of(schedule: Any) -> tuple[str, str] | None:
    """Return a Prefect schedule as the values of --every and --timezone, None for other kinds."""
    zone = getattr(schedule, "timezone", None) or "UTC"
    if isinstance(schedule, CronSchedule):
        return schedule.cron, zone
    if isinstance(schedule, IntervalSchedule):
        return f"{schedule.interval.total_seconds():.0f}s", zone
    return None


def coalesce_missed_runs() -> list[FlowRun]:
    """Cancel all other due runs of this run's deployment, and return them.

    A server that was down, a machine that slept or a run longer than its interval leaves several due
    runs. The newest are cancelled and the others deleted; if the server does not answer, they stay and find
    nothing new.
    """
    context = FlowRunContext.get()
    run = None if context is None else context.flow_run
    if run is None or run.deployment_id is None:
        return []
    try:
        with get_client(sync_client=True) as client:
            waiting = _waiting(client, run.deployment_id)
            now = datetime.now(UTC)
            others = [
                other
                for other in waiting
                if other.id != run.id and other.expected_start_time and other.expected_start_time <= now
            ]
            # The same message in all of them, so that it is reported once.
            message = f"{MISSED} {how_many(len(others), 'runs')} coalesced into the run {run.name} ({run.id})"
            # By id: to compare two runs takes as long as to write down both.
            surplus = {other.id for other in others[:-MISSED_KEPT] if other.auto_scheduled}
            for missed in (other for other in others if other.id not in surplus):
                client.set_flow_run_state(missed.id, Cancelled(message=message), force=True)
    except UNREACHABLE as error:
        logger.warning("missed runs are not cancelled: %s", error)
        return []
    if others:
        logger.info("%d missed runs are coalesced into this one", len(others))
    if surplus:
        # Not a daemon: the process waits for it.  Prefect's settings are in the context.
        arguments = (_delete, list(map(str, surplus)))
        threading.Thread(target=copy_context().run, args=arguments, name=DELETING).start()
    return others


def renew_waiting_runs(deployment: UUID, parameters: Mapping[str, Any]) -> int:
    """Give a schedule's waiting runs its present parameters, and return how many had others.

    When a deployment changes, Prefect leaves late runs as they are; runs requested by hand keep theirs.
    """
    with get_client(sync_client=True) as client:
        left = [
            run for run in _waiting(client, deployment) if run.auto_scheduled and run.parameters != parameters
        ][:MISSED_KEPT]
        for run in left:
            client.update_flow_run(run.id, parameters=dict(parameters))
    return len(left)


def _delete(runs: Sequence[str]) -> None:
    """Delete runs by id; failures are left to the next run."""
    # Prefect's client has neither a method for it nor the path among its types.
    path: Any = "/flow_runs/bulk_delete"
    try:
        with get_client(sync_client=True) as client:
            for first in range(0, len(runs), _DELETED_AT_ONCE):
                ids = runs[first : first + _DELETED_AT_ONCE]
                client.request("POST", path, json={"flow_runs": {"id": {"any_": ids}}})
    except UNREACHABLE as error:
        logger.warning("missed runs are not deleted: %s", error)


def _waiting(client: SyncPrefectClient, deployment: UUID) -> list[FlowRun]:
    """Return a deployment's runs that have not begun, the first due first."""
    found: list[FlowRun] = []
    while True:
        # The server answers in pages.
        page = client.read_flow_runs(
            flow_run_filter=in_states([StateType.SCHEDULED]),
            deployment_filter=of_deployment(deployment),
            sort=FlowRunSort.EXPECTED_START_TIME_ASC,
            offset=len(found),
        )
        if not page:
            return found
        found += page
