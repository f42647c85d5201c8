"""The flow `train`: a stored dataset becomes a certified model."""

from __future__ import annotations

from prefect import flow

from topline.flows.reporting import watched
from topline.flows.summaries import training_summary
from topline.flows.tasks import certify_model, fit_model
from topline.pipeline.options import ClusterConfig, TrainConfig
from topline.pipeline.training import TrainResult
from topline.pipeline.training import train as train_in_steps


@flow(
    name="train",
    flow_run_name="train {config.loss} on {config.store}",
    persist_result=False,
    result_serializer="json",
)
def train(config: TrainConfig, cluster: ClusterConfig = ClusterConfig()) -> TrainResult:  # noqa: B008
    """Train a top-k classifier on a stored dataset, publish it and recompute its duality gap.

    Args:
        config: The store, the loss and how to train
        cluster: Where it runs: workers, memory, a scheduler that is running
    """
    with watched(config.tol, config.store) as watch:
        result = train_in_steps(config, cluster, watch.progress, fit=fit_model, certify=certify_model)
        return watch.finish(result, training_summary(result))
