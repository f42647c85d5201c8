"""The flow `retrain`: new images, a challenger, and a decision on the champion."""

from __future__ import annotations

from typing import Any

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.runtime import flow_run
from prefect.states import Cancelled

from topline.flows.missed_runs import stand_in_for_missed_runs
from topline.flows.reporting import watched
from topline.flows.summaries import retraining_summary
from topline.flows.tasks import retrain_store
from topline.pipeline.jobs.retraining import RetrainResult
from topline.pipeline.options.config import ClusterConfig, RetrainConfig
from topline.storage.stores.lease import LeaseHeldError


@flow(name="retrain", flow_run_name="retrain {config.store}", persist_result=False, result_serializer="json")
def retrain(
    config: RetrainConfig = RetrainConfig(),  # noqa: B008
    cluster: ClusterConfig = ClusterConfig(),  # noqa: B008
) -> RetrainResult | State[Any]:
    """Take in new and changed images, train on from the last model, promote the result by the rule or keep.

    Scheduled runs that were missed are made up for by one.  Where another retraining works on the store, the
    run is cancelled and says who that is.
    """
    stand_in_for_missed_runs()
    try:
        with watched(config.train.tol, config.store) as watch:
            by = f"flow run {flow_run.get_id() or ''}".strip()
            result = retrain_store(config, cluster, watch.progress, by=by)
            return watch.finish(result, retraining_summary(result))
    except LeaseHeldError as error:
        return Cancelled(message=str(error))
