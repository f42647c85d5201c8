"""Two classifiers on the same rows: the gain in a metric, its confidence interval, and a test.

Where each row is right or wrong, let b of n rows be those that only the challenger has right, and c those
that only the champion has.  The gain is (b - c) / n; rows that both have right, or neither, say nothing.  The
p-value is that of McNemar's exact test, and the interval Bonett and Price's (2012) for a difference of paired
proportions: Wald's on b + 1, c + 1 and n + 2.  Unlike Wald's own it has some width where b = c = 0, and holds
its level in small samples.

For other values, and where rows have weights, both come from the t-test of the weighted differences.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topline.pipeline.evaluation import RowMetric


@dataclass(frozen=True)
class PairedMetric:
    """A metric of challenger and champion on the same `rows`.

    `gain` is positive where the challenger is better, `low`..`high` its interval at the level `confidence`
    and `p_value` that of the two-sided test.  `only_challenger` and `only_champion` count the rows that one
    alone has right, None where rows are not right or wrong.
    """

    metric: RowMetric
    rows: int
    challenger: float
    champion: float
    gain: float
    low: float
    high: float
    confidence: float
    p_value: float
    only_challenger: int | None = None
    only_champion: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        values = {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "metric"}
        k = self.metric.k
        return {"metric": self.metric.name} | values if k is None else {"k": k} | values


def paired_metric(
    metric: RowMetric,
    challenger: NDArray[Any],
    champion: NDArray[Any],
    labels: NDArray[np.int64],
    confidence: float = 0.95,
) -> PairedMetric:
    """Compare two models by a metric, given the value of each row under both and the rows' classes.

    All three have the shape (n,), n > 0.
    """
    n = len(labels)
    ours, theirs = metric.mean(challenger, labels), metric.mean(champion, labels)
    if challenger.dtype == np.bool_ and metric.row_weights is None:
        b, c = int((challenger & ~champion).sum()), int((champion & ~challenger).sum())
        if not metric.higher_is_better:
            b, c = c, b
        low, high = gain_interval(b, c, n, confidence)
        p_value = mcnemar_exact(b, c)
        return PairedMetric(metric, n, ours, theirs, (b - c) / n, low, high, confidence, p_value, b, c)
    sign = 1.0 if metric.higher_is_better else -1.0
    gains = sign * (challenger.astype(np.float64) - champion.astype(np.float64))
    if metric.row_weights is not None:
        weights = metric.row_weights(labels)
        gains *= weights / weights.mean()
    low, high, p_value = t_interval(gains, confidence)
    return PairedMetric(metric, n, ours, theirs, sign * (ours - theirs), low, high, confidence, p_value)


def mcnemar_exact(b: int, c: int) -> float:
    """Return the two-sided p-value of "both are as good": b of b + c is binomial with probability 1/2."""
    from scipy.stats import binomtest

    return float(binomtest(b, b + c).pvalue) if b + c else 1.0


def gain_interval(b: int, c: int, n: int, confidence: float) -> tuple[float, float]:
    """Return the interval of the gain in accuracy, by Bonett and Price."""
    from scipy.special import ndtri

    p, q = (b + 1) / (n + 2), (c + 1) / (n + 2)
    half = float(ndtri(0.5 + confidence / 2)) * math.sqrt((p + q - (p - q) ** 2) / (n + 2))
    return max(-1.0, p - q - half), min(1.0, p - q + half)


def t_interval(gains: NDArray[np.float64], confidence: float) -> tuple[float, float, float]:
    """Return the interval of the mean of `gains` (n,), and the two-sided p-value of a mean of zero."""
    from scipy.stats import ttest_1samp

    mean = float(gains.mean())
    if len(gains) < 2 or float(gains.std()) <= 1e-12 * max(1.0, abs(mean)):
        # All rows agree: the test divides by their standard deviation.
        return mean, mean, 1.0 if mean == 0.0 else 0.0
    tested = ttest_1samp(gains, 0.0)
    interval = tested.confidence_interval(confidence)
    return float(interval.low), float(interval.high), float(tested.pvalue)
