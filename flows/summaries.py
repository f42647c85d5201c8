"""The Markdown summary that a flow run shows at its end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from topline.pipeline.evaluation import Evaluation, MultilabelEvaluation, measured
from topline.pipeline.ingest import ExtractResult
from topline.pipeline.jobs import JobResult, RetrainResult
from topline.pipeline.sweep import SweepResult
from topline.pipeline.training import TrainResult
from topline.solvers.counts import how_many


def extraction_summary(result: ExtractResult) -> str:
    """Return the dataset and the outcome of its images."""
    facts = {
        "dataset": f"{result.dataset} in {result.store}",
        "rows, features, classes": f"{result.n:,} x {result.d:,}, {result.m:,}",
        **{f"images {status}": f"{count:,}" for status, count in result.statuses.items()},
    }
    return _table("Features", facts)


def training_summary(result: TrainResult) -> str:
    """Return the model and how good the solution is."""
    return _table("Model", _training_facts(result))


def evaluation_summary(result: Evaluation | MultilabelEvaluation) -> str:
    """Return the accuracies, or the metrics of several labels."""
    if isinstance(result, MultilabelEvaluation):
        facts = {**result.ranking(), "threshold": result.threshold.text()}
        facts |= {name: value for name, value, *_ in result.table()}
        return _table(f"Labels of {how_many(result.rows, f'{result.split} rows')} of {result.dataset}", facts)
    facts = _metrics(result.to_dict())
    return _table(f"Accuracy on {how_many(result.rows, f'{result.split} rows')} of {result.dataset}", facts)


def sweep_summary(result: SweepResult) -> str:
    """Return the best cell, the simplest that is as good, and what finding them took."""
    best, simplest = result.best, result.simplest
    facts = {
        "best": f"{best.variant.name}, C = {best.C:g}: {result.accuracy} {best.mean:.2%}",
        "smallest C within one standard error": f"{simplest.C:g}: {simplest.mean:.2%}",
        "cells": f"{len(result.cells)}, {how_many(result.folds, 'folds')}",
        "cost": f"{how_many(result.passes, 'passes')} over a fold's rows, {result.elapsed:.1f} s",
    }
    if result.trained is not None:
        facts |= _training_facts(result.trained)
    return _table(f"Sweep on {result.dataset}", facts)


def job_summary(result: JobResult) -> str:
    """Return the model, its certificate and its accuracies."""
    facts = {"images": result.images, **_training_facts(result.train)}
    if isinstance(result.evaluation, MultilabelEvaluation):
        facts |= result.evaluation.ranking()
    elif result.evaluation is not None:
        facts |= _metrics(result.evaluation.to_dict())
    return _table("From images to a certified classifier", facts)


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


def _training_facts(result: TrainResult) -> dict[str, str]:
    certificate = result.certificate
    certified = "not asked for" if certificate is None else "yes" if certificate.certified else "no"
    bound = {"dual": f"{result.dual:.8g}", "relative gap": result.relative_gap_text}
    if result.stationarity is not None:
        bound, certified = {}, "no certificate: the loss is not convex"
    return {
        "model": result.model,
        "dataset": f"{result.dataset}: {result.n:,} x {result.d:,}, {how_many(result.m, 'classes')}",
        "ended": f"{result.status} after {how_many(result.passes, 'passes')}, {result.seconds:.1f} s",
        "primal": f"{result.primal:.8g}",
        **bound,
        "certified": certified,
    }


def _metrics(evaluation: Mapping[str, Any]) -> dict[str, str]:
    return {metric.column: metric.said(evaluation) for metric, _ in measured(evaluation)}


def _table(title: str, facts: Mapping[str, str]) -> str:
    # A bar ends a cell of a Markdown table, and may occur in a path.
    rows = [f"| {name} | {value.replace('|', chr(92) + '|')} |" for name, value in facts.items()]
    return "\n".join([f"## {title}", "", "| | |", "|---|---|", *rows])
