"""The flow `run`: images become a certified, evaluated model and a report."""

from __future__ import annotations

from prefect import flow

from topline.flows.reporting import watched
from topline.flows.summaries import job_summary
from topline.flows.tasks import STEPS
from topline.pipeline.jobs import JobResult
from topline.pipeline.jobs import run as run_in_steps
from topline.pipeline.options import ClusterConfig, RunConfig


@flow(name="run", flow_run_name="run into {config.store}", persist_result=False, result_serializer="json")
def run(config: RunConfig = RunConfig(), cluster: ClusterConfig = ClusterConfig()) -> JobResult:  # noqa: B008
    """Extract, train, certify, evaluate and report; what is stored already is not made again.

    Args:
        config: The store, and the options of every step
        cluster: Where it runs: workers, memory, a scheduler that is running
    """
    with watched(config.train.tol, config.store) as watch:
        result = run_in_steps(config, cluster, watch.progress, steps=STEPS)
        return watch.finish(result, job_summary(result), result.report)
