"""Measuring a model on held-out rows: the metrics, the records that are kept of them, and the confusions.

`METRICS` is the one list of metrics; whatever shows, compares or promotes models walks over it, and
`register_metric` adds to it.  `evaluate` measures a stored model on a split and records the result with it.
`worst_classes` finds what a report shows of the classes that a model confuses.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from topline.pipeline.evaluation.metrics import (
    METRICS,
    LabelSetMetric,
    Metric,
    ProbabilityMetric,
    RowMetric,
    ScoredLabelSets,
    ScoredRows,
    measured,
    ranks_against_ties,
    register_metric,
    row_metric,
    row_metrics,
    topk_shares,
)
from topline.pipeline.evaluation.records import (
    Evaluation,
    MultilabelEvaluation,
    ProbabilityQuality,
    SetQuality,
)

if TYPE_CHECKING:
    from topline.pipeline.evaluation.confusions import ReadImage, WorstClass, ranked_worst, worst_classes
    from topline.pipeline.evaluation.measurement import check_split, evaluate

__all__ = [
    "METRICS",
    "Evaluation",
    "LabelSetMetric",
    "Metric",
    "MultilabelEvaluation",
    "ProbabilityMetric",
    "ProbabilityQuality",
    "ReadImage",
    "RowMetric",
    "ScoredLabelSets",
    "ScoredRows",
    "SetQuality",
    "WorstClass",
    "check_split",
    "evaluate",
    "measured",
    "ranked_worst",
    "ranks_against_ties",
    "register_metric",
    "row_metric",
    "row_metrics",
    "topk_shares",
    "worst_classes",
]

_LAZY = {
    "ReadImage": "confusions",
    "WorstClass": "confusions",
    "check_split": "measurement",
    "evaluate": "measurement",
    "ranked_worst": "confusions",
    "worst_classes": "confusions",
}


def __getattr__(name: str) -> Any:
    """Return a name of a module that reads stored models, which is loaded when it is first asked for."""
    if name in _LAZY:
        return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
