"""The flow `evaluate`: accuracies of a stored model."""

from __future__ import annotations

from typing import Literal

from prefect import flow

from topline.flows.reporting import watched
from topline.flows.summaries import evaluation_summary
from topline.flows.tasks import evaluate_model
from topline.pipeline.evaluation import Evaluation, MultilabelEvaluation


@flow(name="evaluate", flow_run_name="evaluate {model_url}", persist_result=False, result_serializer="json")
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
