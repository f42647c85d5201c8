"""The flow `evaluate`: top-k accuracies of a stored model."""

from __future__ import annotations

from typing import Literal

from prefect import flow

from flows.reporting import watched
from flows.summaries import evaluation_summary
from flows.tasks import evaluate_model
from pipeline.evaluation import Evaluation


@flow(name="evaluate", flow_run_name="evaluate {model_url}", persist_result=False, result_serializer="json")
def evaluate(
    model_url: str, split: Literal["train", "val", "test"] = "test", confused: int = 20
) -> Evaluation:
    """Measure the top-k accuracies of a model on the rows of one split and record them with it."""
    with watched() as watch:
        result = evaluate_model(model_url, split, watch.progress, confused=confused)
        return watch.finish(result, evaluation_summary(result))
