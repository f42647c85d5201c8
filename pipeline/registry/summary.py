"""The record of a model in brief, and the settings that two models are compared by."""

from __future__ import annotations

from typing import Any

from topline.pipeline.evaluation import measured
from topline.storage.models import ModelRecord


def summary(record: ModelRecord) -> dict[str, Any]:
    """Return what is shown of a model in a line; `metrics` are all that were measured, by name."""
    certificate, evaluation = record.certificate or {}, record.evaluation or {}
    return {
        "id": record.id,
        "version": record.version,
        "dataset": record.dataset,
        "loss": dict(record.loss),
        "C": record.C,
        "method": record.result.get("method") or record.method,
        "relative_gap": certificate.get("relative_gap"),
        "certified": certificate.get("certified"),
        "accuracy": evaluation.get("topk"),
        "mean_average_precision": evaluation.get("mean_average_precision"),
        "metrics": {metric.name: value for metric, value in measured(evaluation)},
        "passes": record.result.get("passes"),
        "seconds": record.result.get("seconds"),
        "parents": list(record.parents),
        "run": record.run,
        "created": record.created,
    }


def settings(record: ModelRecord) -> dict[str, Any]:
    """Return what was chosen for a model, and the size of its data."""
    own = {"code_version": record.code_version, "n": record.n, "d": record.d, "m": record.m}
    skipped = {"store", "resume", "checkpoint_seconds"}
    return own | {name: value for name, value in record.config.items() if name not in skipped}
