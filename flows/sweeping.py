"""The flow `sweep`: C, k, losses and smoothings compared by cross-validation."""

from __future__ import annotations

from prefect import flow

from topline.flows.reporting import watched
from topline.flows.summaries import sweep_summary
from topline.flows.tasks import sweep_grid
from topline.pipeline.options import ClusterConfig, SweepConfig
from topline.pipeline.sweep import SweepResult


@flow(name="sweep", flow_run_name="sweep on {config.store}", persist_result=False, result_serializer="json")
def sweep(config: SweepConfig, cluster: ClusterConfig = ClusterConfig()) -> SweepResult:  # noqa: B008
    """Find the best cell of a grid, and the simplest that is as good, by cross-validation.

    Args:
        config: The store and the grid
        cluster: Where it runs: workers, memory, a scheduler that is running
    """
    with watched() as watch:
        result = sweep_grid(config, cluster, watch.progress)
        return watch.finish(result, sweep_summary(result), result.page)
