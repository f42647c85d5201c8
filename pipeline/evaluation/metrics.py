"""The metrics by which models are judged: what each is called, how it is computed, and which way is better.

A metric is one value here, a `RowMetric` for models of one label per row or a `LabelSetMetric` for models of
several.  Evaluation, records, reports, the dashboard, the model registry, its promotion rule and the flows'
summaries walk over `METRICS`, so that a metric that is registered appears in all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topline.pipeline.errors import ConfigError
from topline.pipeline.evaluation.metric_kinds import LabelSetMetric, Metric, ProbabilityMetric, RowMetric

#: The k at which top-k accuracy is reported.
REPORTED_K = (1, 2, 3, 5, 10)


def topk_shares(ranks: NDArray[np.int64], ks: Sequence[int]) -> dict[int, float]:
    """Return the share of rows whose own class ranks among the first k, for each k."""
    return {k: float(np.mean(ranks <= k)) for k in ks}


def top_k_accuracy(k: int, *, headline: bool = True) -> RowMetric:
    """Return top-k accuracy: the share of rows whose own class is among the k best."""
    return RowMetric(
        name=f"top-{k}",
        label=f"top-{k} accuracy",
        column=f"top-{k}",
        headline=headline,
        stored_at=("topk", str(k)),
        row_values=lambda rows: rows.ranks <= k,
        classes=k,
        topk=k,
    )


def macro_top_k_accuracy(k: int) -> RowMetric:
    """Return macro top-k accuracy: the mean over the classes of their top-k accuracies."""
    return replace(
        top_k_accuracy(k),
        name=f"macro-top-{k}",
        label=f"top-{k} accuracy, mean over classes",
        column=f"macro top-{k}",
        headline=False,
        stored_at=(),
        class_weights=lambda classes, trained: np.ones(len(classes)),  # noqa: ARG005 - names say what comes
    )


def tail_top_k_accuracy(k: int) -> RowMetric:
    """Return tail top-k accuracy: the mean over the rarest third of the classes of their top-k accuracies."""
    return replace(
        macro_top_k_accuracy(k),
        name=f"tail-top-{k}",
        label=f"top-{k} accuracy, mean over the rarest third of the classes",
        column=f"tail top-{k}",
        stored_at=(),
        class_weights=lambda classes, trained: rarest_third(trained),  # noqa: ARG005
    )


def rarest_third(trained: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which of p classes with so many training rows are the tail (p,).

    The third with the fewest rows, rounded up, and whoever has as few as the last of them: where all classes
    have equally many the tail is all of them.
    """
    last = -(-len(trained) // 3) - 1
    return np.asarray(trained <= np.sort(trained)[last])


def _partition(name: str, label: str, *, percent: bool = True) -> LabelSetMetric:
    return LabelSetMetric(
        name=name,
        label=label,
        percent=percent,
        higher_is_better=name != "hamming_loss",
        headline=name == "f1_micro",
        compute=lambda rows: rows.partition[name],
    )


#: Every metric by name, in the order of the tables.  `register_metric` adds one.
METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        *(top_k_accuracy(k, headline=k in (1, 5)) for k in REPORTED_K),
        *(kind(k) for kind in (macro_top_k_accuracy, tail_top_k_accuracy) for k in (1, 5)),
        ProbabilityMetric(
            name="log_loss",
            label="log loss",
            higher_is_better=False,
            percent=False,
            headline=False,
            stored_at=("probabilities", "log_loss"),
        ),
        ProbabilityMetric(
            name="calibration_error",
            label="expected calibration error",
            column="ECE",
            higher_is_better=False,
            headline=False,
            stored_at=("probabilities", "calibration_error"),
        ),
        LabelSetMetric(
            name="rank_loss",
            label="rank loss",
            higher_is_better=False,
            percent=False,
            stored_at=("rank_loss",),
            compute=lambda rows: rows.ranking.rank_loss,
        ),
        LabelSetMetric(
            name="mean_average_precision",
            label="mean average precision",
            column="mAP",
            stored_at=("mean_average_precision",),
            compute=lambda rows: rows.ranking.mean_average_precision,
        ),
        _partition("f1_micro", "F1, micro-averaged"),
        _partition("f1_macro", "F1, macro-averaged"),
        _partition("f1_instance", "F1, averaged over rows"),
        _partition("accuracy", "accuracy (Jaccard)"),
        _partition("subset_accuracy", "subset accuracy"),
        _partition("hamming_loss", "Hamming loss", percent=False),
    )
}


_TOP_K: dict[str, Callable[[int], RowMetric]] = {
    "top-": top_k_accuracy,
    "macro-top-": macro_top_k_accuracy,
    "tail-top-": tail_top_k_accuracy,
}


def register_metric(metric: Metric) -> None:
    """Add a metric to all that is measured and shown; `ConfigError` if its name is taken."""
    if metric.name in METRICS:
        raise ConfigError(f"there is a metric {metric.name!r} already: choose another name")
    METRICS[metric.name] = metric


def row_metrics() -> tuple[RowMetric, ...]:
    """Return the metrics of models of one label per row."""
    return tuple(metric for metric in METRICS.values() if isinstance(metric, RowMetric))


def label_set_metrics() -> tuple[LabelSetMetric, ...]:
    """Return the metrics of models of several labels per row."""
    return tuple(metric for metric in METRICS.values() if isinstance(metric, LabelSetMetric))


def row_metric(name: str) -> RowMetric:
    """Return the metric `name` of models of one label per row; top-k accuracies have every k.

    `ConfigError` where there is none.
    """
    found = METRICS.get(name)
    if isinstance(found, RowMetric):
        return found
    for prefix, kind in _TOP_K.items():
        k = name.removeprefix(prefix)
        if name != k and k.isdecimal() and int(k):
            return kind(int(k))
    known = ", ".join(metric.name for metric in row_metrics())
    raise ConfigError(f"models of one label per row have no metric {name!r}: use one of {known}")


def measured(evaluation: Mapping[str, Any] | None) -> list[tuple[Metric, float]]:
    """Return the metrics that an evaluation record holds, with their values; none without a record."""
    if not evaluation:
        return []
    several = evaluation.get("kind") == "multilabel"
    known = [m for m in METRICS.values() if isinstance(m, LabelSetMetric) == several]
    found = ((metric, metric.read(evaluation)) for metric in known)
    return [(metric, value) for metric, value in found if value is not None]


def placed(values: Mapping[str, float]) -> dict[str, Any]:
    """Return values of metrics, by name, under the keys that evaluation records have for them."""
    record: dict[str, Any] = {"metrics": {}}
    for name, value in values.items():
        *parents, key = METRICS[name].stored_at
        into = record
        for parent in parents:
            into = into.setdefault(parent, {})
        into[key] = value
    return record
