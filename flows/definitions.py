"""The flows around one task of the pipeline, or a job: `extract`, `train`, `sweep`, `evaluate` and `run`."""

from __future__ import annotations

from typing import Literal

from prefect import flow

from topline.flows.reporting import cancelled_by_signals, watched
from topline.flows.summaries import (
    evaluation_summary,
    extraction_summary,
    job_summary,
    sweep_summary,
    training_summary,
)
from topline.flows.tasks import STEPS, evaluate_model, extract_images, sweep_grid
from topline.pipeline.evaluation import Evaluation, MultilabelEvaluation
from topline.pipeline.ingest import ExtractResult
from topline.pipeline.jobs import JobResult, train_as_asked
from topline.pipeline.jobs import run as run_in_steps
from topline.pipeline.options import (
    ClusterConfig,
    ExtractConfig,
    RunConfig,
    SearchConfig,
    SweepConfig,
    TrainConfig,
)
from topline.pipeline.sweep import SweepResult
from topline.pipeline.training import TrainResult


@flow(name="extract", flow_run_name="extract {config.images}", persist_result=False, result_serializer="json")
@cancelled_by_signals
def extract(config: ExtractConfig, cluster: ClusterConfig = ClusterConfig()) -> ExtractResult:  # noqa: B008
    """Turn images into a dataset of features; an interrupted extraction continues where it stopped.

    Args:
        config: The images, the store and the backbone
        cluster: Where it runs: workers, memory, a scheduler that is running
    """
    with watched() as watch:
        result = extract_images(config, cluster, watch.progress)
        return watch.finish(result, extraction_summary(result))


@flow(
    name="train",
    flow_run_name="train {config.loss} on {config.store}",
    persist_result=False,
    result_serializer="json",
)
@cancelled_by_signals
def train(
    config: TrainConfig,
    cluster: ClusterConfig = ClusterConfig(),  # noqa: B008
    search: SearchConfig | None = None,
) -> TrainResult:
    """Train a top-k classifier on a stored dataset, publish it and recompute its duality gap.

    Args:
        config: The store, the loss and how to train
        cluster: Where it runs: workers, memory, a scheduler that is running
        search: What is searched before, as far as the options leave it open
    """
    with watched(config.tol, config.store) as watch:
        result = train_as_asked(config, cluster, watch.progress, search=search, steps=STEPS)
        return watch.finish(result, training_summary(result))


@flow(name="sweep", flow_run_name="sweep on {config.store}", persist_result=False, result_serializer="json")
@cancelled_by_signals
def sweep(config: SweepConfig, cluster: ClusterConfig = ClusterConfig()) -> SweepResult:  # noqa: B008
    """Find the best cell of a grid, and the simplest that is as good, by cross-validation.

    Args:
        config: The store and the grid
        cluster: Where it runs: workers, memory, a scheduler that is running
    """
    with watched() as watch:
        result = sweep_grid(config, cluster, watch.progress)
        return watch.finish(result, sweep_summary(result), result.page)


@flow(name="evaluate", flow_run_name="evaluate {model_url}", persist_result=False, result_serializer="json")
@cancelled_by_signals
def evaluate(
    model_url: str,
    split: Literal["train", "val", "test"] = "test",
    confused: int = 20,
    threshold_for: str | None = None,
) -> Evaluation | MultilabelEvaluation:
    """Measure and record top-k accuracies of a model on one split, or the metrics of several labels.

    Args:
        model_url: The model, or a store for its newest one
        split: Rows that are measured
        confused: Most confused pairs of classes that are listed
        threshold_for: For several labels per row: metric by which the threshold is chosen
    """
    with watched() as watch:
        result = evaluate_model(
            model_url, split, watch.progress, confused=confused, threshold_for=threshold_for
        )
        return watch.finish(result, evaluation_summary(result))


@flow(name="run", flow_run_name="run into {config.store}", persist_result=False, result_serializer="json")
@cancelled_by_signals
def run(config: RunConfig = RunConfig(), cluster: ClusterConfig = ClusterConfig()) -> JobResult:  # noqa: B008
    """Extract, train, certify, evaluate and report; what is stored already is not made again.

    Args:
        config: The store, and the options of every step
        cluster: Where it runs: workers, memory, a scheduler that is running
    """
    with watched(config.train.tol, config.store) as watch:
        result = run_in_steps(config, cluster, watch.progress, steps=STEPS)
        return watch.finish(result, job_summary(result), result.report)
