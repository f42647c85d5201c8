"""Measuring a model on held-out rows: the metrics, their records, and the confusions.

`METRICS` is the one list of metrics for everything that shows, compares or promotes models; `register_metric`
adds to it.  `measurement.evaluate` measures a stored model on a split and records the result, and
`confusions.images_to_show` finds the images of a report.
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
