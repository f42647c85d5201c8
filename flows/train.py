"""The flow `train`: a stored dataset becomes a certified model."""

from __future__ import annotations

from prefect import flow

from topline.flows.reporting import watched
from topline.flows.summaries import training_summary
from topline.flows.tasks import train_model
from topline.pipeline.options import ClusterConfig, TrainConfig
from topline.pipeline.training import TrainResult


@flow(
    name="train",
    flow_run_name="train {config.loss} on {config.store}",
    persist_result=False,
    result_serializer="json",
)
def train(config: TrainConfig, cluster: ClusterConfig = ClusterConfig()) -> TrainResult:  # noqa: B008
    """Train a top-k classifier on a stored dataset, publish it and recompute its duality gap."""
    with watched(config.tol, config.store) as watch:
        result = train_model(config, cluster, watch.progress)
        return watch.finish(result, training_summary(result))
