"""Two classifiers on the same rows: the gain in a metric, its confidence interval, and a test.

If each row is right or wrong, let b of n rows be right for the challenger alone, c for the champion alone.
The gain is (b - c) / n.  The p-value is that of McNemar's exact test, and the interval Bonett and Price's
(2012) for a difference of paired proportions: Wald's on b + 1, c + 1 and n + 2, which has positive width even
for b = c = 0 and keeps its level in small samples.

For other values both come from the t-test of the differences.

With class weights, as in macro and tail accuracy, class c with n_c rows counts v_c, and the gain is the sum
of v_c d_i / n_c over the rows, d_i in {-1, 0, 1}.  A weighted sign test replaces McNemar's: if both models
were equally good on every row, each d_i would have either sign with probability 1/2; the p-value is the share
of random signs whose sum is at least as far from 0 as the observed one, exact up to sampling (`DRAWS` draws
with a fixed seed).  The interval has the variance of that null distribution, sum_c v_c^2 q_c / n_c with q_c
the mean of d_i^2, which is at least the variance of the gain.  The few rows of a rare class may all agree by
chance, and a bootstrap would then call the class certain.  So, as in Bonett and Price's interval, two rows on
which the models differ are spread over all rows, and each q_c is shrunk to the overall mean by two rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topline.pipeline.evaluation import RowMetric

#: Draws of signs in the randomisation test, and how many are in memory at once.
DRAWS, AT_ONCE = 9999, 1111


@dataclass(frozen=True)
class PairedMetric:
    """A metric of challenger and champion on the same `rows`.

    `gain` is positive if the challenger is better, `low`..`high` its interval at level `confidence`,
    `p_value` that of the two-sided test.  `only_challenger` and `only_champion` count rows that one model
    alone has right, None if rows are not right or wrong.
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
    trained: NDArray[np.int64],
    confidence: float = 0.95,
) -> PairedMetric:
    """Compare two models by a metric, given each row's value under both (n,) and its class (n,), n > 0.

    `trained` (m,) is the number of training rows of each class.
    """
    n = len(labels)
    ours, theirs = (metric.mean(values, labels, trained) for values in (challenger, champion))
    right_or_wrong = challenger.dtype == np.bool_
    if right_or_wrong and metric.class_weights is None:
        b, c = int((challenger & ~champion).sum()), int((champion & ~challenger).sum())
        if not metric.higher_is_better:
            b, c = c, b
        low, high = gain_interval(b, c, n, confidence)
        p_value = mcnemar_exact(b, c)
        return PairedMetric(metric, n, ours, theirs, (b - c) / n, low, high, confidence, p_value, b, c)
    sign = 1.0 if metric.higher_is_better else -1.0
    gains = sign * (challenger.astype(np.float64) - champion.astype(np.float64))
    weights = metric.row_weights(labels, trained)
    if right_or_wrong:
        low, high = class_interval(gains, weights, labels, confidence)
        p_value = sign_test(gains, weights, labels)
    else:
        low, high, p_value = t_interval(gains * weights * n, confidence)
    return PairedMetric(metric, n, ours, theirs, sign * (ours - theirs), low, high, confidence, p_value)


def mcnemar_exact(b: int, c: int) -> float:
    """Return the two-sided p-value of equal models: b of b + c is binomial with probability 1/2."""
    from scipy.stats import binomtest

    return float(binomtest(b, b + c).pvalue) if b + c else 1.0


def gain_interval(b: int, c: int, n: int, confidence: float) -> tuple[float, float]:
    """Return Bonett and Price's interval of the gain in accuracy."""
    from scipy.special import ndtri

    p, q = (b + 1) / (n + 2), (c + 1) / (n + 2)
    half = float(ndtri(0.5 + confidence / 2)) * math.sqrt((p + q - (p - q) ** 2) / (n + 2))
    return max(-1.0, p - q - half), min(1.0, p - q + half)


def sign_test(gains: NDArray[Any], weights: NDArray[Any], labels: NDArray[np.int64]) -> float:
    """Return the two-sided p-value of equal models for gains (n,) in {-1, 0, 1}.

    `weights` (n,) are the same for all rows of a class.
    """
    apart = gains != 0.0
    _, first, differ = np.unique(labels[apart], return_index=True, return_counts=True)
    each, rng, as_far = weights[apart][first], np.random.default_rng(0), 0
    # Sums of the same weights in another order differ by rounding.
    observed = abs(float(gains @ weights)) * (1.0 - 1e-9)
    for _ in range(DRAWS // AT_ONCE):
        wins = rng.binomial(differ, 0.5, size=(AT_ONCE, len(differ)))
        as_far += int((np.abs((2 * wins - differ) @ each) >= observed).sum())
    return (1 + as_far) / (1 + DRAWS)


def class_interval(
    gains: NDArray[Any], weights: NDArray[Any], labels: NDArray[np.int64], confidence: float
) -> tuple[float, float]:
    """Return the interval of the weighted sum of gains (n,) in {-1, 0, 1}, with classes as strata."""
    from scipy.special import ndtri

    used = weights > 0.0
    _, own, rows = np.unique(labels[used], return_inverse=True, return_counts=True)
    n = int(rows.sum())
    differ = np.bincount(own, weights=gains[used] ** 2)
    shares = np.bincount(own, weights=weights[used])
    pooled = (differ.sum() + 2.0) / n
    rates = (differ + 2.0 * rows / n + 2.0 * pooled) / (rows + 2.0)
    half = float(ndtri(0.5 + confidence / 2)) * math.sqrt(float((shares**2 * rates / rows).sum()))
    gain = float(gains @ weights)
    return max(-1.0, gain - half), min(1.0, gain + half)


def t_interval(gains: NDArray[np.float64], confidence: float) -> tuple[float, float, float]:
    """Return the interval of the mean of `gains` (n,), and the two-sided p-value of a mean of zero."""
    from scipy.stats import ttest_1samp

    mean = float(gains.mean())
    if len(gains) < 2 or float(gains.std()) <= 1e-12 * max(1.0, abs(mean)):
        # All differences are equal: the test would divide by their standard deviation, 0.
        return mean, mean, 1.0 if mean == 0.0 else 0.0
    tested = ttest_1samp(gains, 0.0)
    interval = tested.confidence_interval(confidence)
    return float(interval.low), float(interval.high), float(tested.pvalue)
