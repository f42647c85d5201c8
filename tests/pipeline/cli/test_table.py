"""What a line of metrics has room for."""

from __future__ import annotations

from dataclasses import replace

from topline.pipeline.cli.table import metrics_line, without_class_means
from topline.pipeline.evaluation import METRICS
from topline.pipeline.evaluation.metrics import macro_top_k_accuracy


def test_a_short_line_leaves_means_over_classes_to_evaluate() -> None:
    known = [(METRICS[name], 0.5) for name in ("top-1", "top-2", "macro-top-1", "tail-top-1", "log_loss")]
    assert metrics_line(without_class_means(known)) == "top-1 50.0%   top-2 50.0%   log loss 0.5000"
    own = replace(macro_top_k_accuracy(1), headline=True)
    assert without_class_means([(own, 0.5)]) == [(own, 0.5)]
