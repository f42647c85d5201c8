"""Measuring a model on held-out rows: the metrics, the records that are kept of them, and the confusions.

`METRICS` is the one list of metrics; whatever shows, compares or promotes models walks over it, and
`register_metric` adds to it.  `measurement.evaluate` measures a stored model on a split and records the
result with it, and `confusions.images_to_show` finds the images that a report shows, right and wrong ones.
"""

from __future__ import annotations

from topline.pipeline.evaluation.metrics import (
    METRICS,
    Metric,
    RowMetric,
    ScoredRows,
    known_intervals,
    measured,
    placed,
    ranks_against_ties,
    register_metric,
    row_metric,
    row_metrics,
    topk_shares,
    with_interval,
)
from topline.pipeline.evaluation.records import Evaluation, MultilabelEvaluation, SizePoint, read_evaluation
