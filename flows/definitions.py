"""The flows around one task of the pipeline, or a job, and the summaries that they show."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from prefect import flow

from topline.flows.reporting import cancelled_by_signals, watched
from topline.flows.tasks import STEPS, sweep_grid
from topline.pipeline.evaluation import Evaluation, MultilabelEvaluation, measured
from topline.pipeline.ingest import ExtractResult
from topline.pipeline.jobs import JobResult, RetrainResult, train_as_asked, training_facts
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
from topline.solvers.counts import how_many


@flow(name="extract", flow_run_name="extract {config.images}", persist_result=False, result_serializer="json")
@cancelled_by_signals
def extract(config: ExtractConfig, cluster: ClusterConfig = ClusterConfig()) -> ExtractResult:  # noqa: B008
    """Turn images into a dataset of features; an interrupted extraction continues where it stopped.

    Args:
        config: The images, the store and the backbone
        cluster: Where it runs: workers, memory, a scheduler that is running
    """
    with watched() as watch:
        result = STEPS.extract(config, cluster, watch.progress)
        facts = {
            "dataset": f"{result.dataset} in {result.store}",
            "rows, features, classes": f"{result.n:,} x {result.d:,}, {result.m:,}",
            **{f"images {status}": f"{count:,}" for status, count in result.statuses.items()},
        }
        return watch.finish(result, _table("Features", facts))


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
        return watch.finish(result, _table("Model", training_facts(result)))


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
        trained = {} if result.trained is None else training_facts(result.trained)
        summary = _table(f"Sweep on {result.dataset}", {**result.facts(), **trained})
        return watch.finish(result, summary, result.page)


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
        result: Evaluation | MultilabelEvaluation = STEPS.evaluate(
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
        facts = {"images": result.images, **training_facts(result.train)}
        if isinstance(result.evaluation, MultilabelEvaluation):
            facts |= result.evaluation.ranking()
        elif result.evaluation is not None:
            facts |= _metrics(result.evaluation.to_dict())
        summary = _table("From images to a certified classifier", facts)
        return watch.finish(result, summary, result.report)


def evaluation_summary(result: Evaluation | MultilabelEvaluation) -> str:
    """Return the accuracies, or the metrics of several labels."""
    rows = f"{how_many(result.rows, f'{result.split} rows')} of {result.dataset}"
    if isinstance(result, MultilabelEvaluation):
        facts = {**result.ranking(), "threshold": result.threshold.text()}
        return _table(f"Labels of {rows}", facts | {name: value for name, value, *_ in result.table()})
    return _table(f"Accuracy on {rows}", _metrics(result.to_dict()))


def retraining_summary(result: RetrainResult) -> str:
    """Return what was new, the outcome, and why."""
    facts = {
        "outcome": result.outcome,
        "because": "; ".join(result.reasons),
        "champion": result.champion or "none",
        "model": result.model,
        "dataset": result.dataset,
        **{f"images {name}": f"{count:,}" for name, count in result.changes.to_dict().items()},
        **_metrics(result.evaluation),
        "passes": f"{result.passes:,}, from {result.start['from']} of {result.start['model'] or 'none'}",
    }
    return _table("Retraining", facts)


def _metrics(evaluation: Mapping[str, Any]) -> dict[str, str]:
    return {metric.column: metric.text_in(evaluation) for metric, _ in measured(evaluation)}


def _table(title: str, facts: Mapping[str, str]) -> str:
    # A bar ends a cell of a Markdown table, and may occur in a path.
    rows = [f"| {name} | {value.replace('|', chr(92) + '|')} |" for name, value in facts.items()]
    return "\n".join([f"## {title}", "", "| | |", "|---|---|", *rows])
