"""Measuring a model on held-out rows: the metrics, the records that are kept of them, and the confusions.

`METRICS` is the one list of metrics; whatever shows, compares or promotes models walks over it, and
`register_metric` adds to it.  `evaluate` measures a stored model on a split and records the result with it.
`images_to_show` finds the images that a report shows, right and wrong ones.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from topline.pipeline.evaluation.metric_kinds import (
    LabelSetMetric,
    Metric,
    ProbabilityMetric,
    RowMetric,
    ScoredLabelSets,
    ScoredRows,
    ranks_against_ties,
)
from topline.pipeline.evaluation.metrics import (
    METRICS,
    measured,
    register_metric,
    row_metric,
    row_metrics,
    topk_shares,
)
from topline.pipeline.evaluation.records import Evaluation, MultilabelEvaluation, SizePoint

if TYPE_CHECKING:
    from topline.pipeline.evaluation.confusions import (
        Gallery,
        ReadImage,
        WorstClass,
        images_to_show,
        ranked_worst,
    )
    from topline.pipeline.evaluation.measurement import check_split, evaluate

__all__ = [
    "METRICS",
    "Evaluation",
    "Gallery",
    "LabelSetMetric",
    "Metric",
    "MultilabelEvaluation",
    "ProbabilityMetric",
    "ReadImage",
    "RowMetric",
    "ScoredLabelSets",
    "ScoredRows",
    "SizePoint",
    "WorstClass",
    "check_split",
    "evaluate",
    "images_to_show",
    "measured",
    "ranked_worst",
    "ranks_against_ties",
    "register_metric",
    "row_metric",
    "row_metrics",
    "topk_shares",
]

_LAZY = {
    "Gallery": "confusions",
    "ReadImage": "confusions",
    "WorstClass": "confusions",
    "check_split": "measurement",
    "evaluate": "measurement",
    "images_to_show": "confusions",
    "ranked_worst": "confusions",
}


def __getattr__(name: str) -> Any:
    """Return a name of a module that reads stored models, which is loaded when it is first asked for."""
    if name in _LAZY:
        return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
