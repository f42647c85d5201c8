"""Whether a challenger becomes champion: the promotion rule, and paired tests on the same rows.

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
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topline.pipeline.certification.recompute import SOURCES, source_of
from topline.pipeline.evaluation import RowMetric, row_metric
from topline.pipeline.options import PromotionRule
from topline.pipeline.registry.drift import ClassChanges, Drift
from topline.storage.models import ModelRecord

__all__ = ["Decision", "Evidence", "PromotionRule", "decide"]


@dataclass(frozen=True)
class Disputed:
    """How many of the challenger's training rows the champion would label differently."""

    rows: int
    share: float
    champion: str


@dataclass(frozen=True)
class Evidence:
    """Measurements of a challenger and a champion; `unmeasured` says why there are none.

    `excluded` counts held-out rows that were training rows of the champion, None if its data is gone, so that
    it may have seen the rows.  `classes` are the changes of classes, if any; with `on_common`, only rows and
    classes known to both count.
    """

    compared: tuple[PairedMetric, ...] = ()
    drift: Drift | None = None
    dataset: str = ""
    split: str = ""
    excluded: int | None = 0
    unmeasured: str = ""
    classes: ClassChanges | None = None
    on_common: bool = False
    disputed: Disputed | None = None

    def of(self, name: str) -> PairedMetric | None:
        """Return the comparison by the metric `name`, or None."""
        return next((found for found in self.compared if found.metric.name == name), None)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON: top-k accuracies by k, and the other metrics by name."""
        return {
            "dataset": self.dataset,
            "split": self.split,
            "excluded": self.excluded,
            "unmeasured": self.unmeasured,
            "accuracies": [found.to_dict() for found in self.compared if found.metric.k is not None],
            "metrics": [found.to_dict() for found in self.compared if found.metric.k is None],
            "drift": None if self.drift is None else self.drift.to_dict(),
            "classes": None if self.classes is None else self.classes.to_dict(),
            "on_common": self.on_common,
            "disputed": None if self.disputed is None else asdict(self.disputed),
        }


@dataclass(frozen=True)
class Decision:
    """Whether to promote, with all reasons for or all reasons against.

    `kinds` are the conditions behind the reasons; `repeated` counts how often in a row, including now, the
    champion was kept because of them (0 if it was not kept).  `metric` is the deciding one, or "".
    """

    promote: bool
    reasons: tuple[str, ...]
    kinds: tuple[str, ...] = ()
    repeated: int = 0
    metric: str = ""

    @property
    def text(self) -> str:
        """All reasons in one line."""
        return "; ".join(self.reasons)


def decide(
    challenger: ModelRecord, champion: ModelRecord | None, evidence: Evidence, rule: PromotionRule
) -> Decision:
    """Apply the rule, without a champion by the certificate alone; raise `ConfigError` for its metric."""
    checks, name = [*_certificate_checks(challenger.certificate, rule)], ""
    if champion is None:
        checks.append(("champion", True, "there was no champion before it"))
    else:
        metric = row_metric(rule.metric_for(challenger))
        name = metric.name
        m = len(evidence.classes.common) if evidence.on_common and evidence.classes else challenger.m
        if metric.classes >= m:
            always = f"{metric.column} of {m} classes is always right, so take a smaller k"
            checks.append(("metric", False, always))
        checks += [
            *_row_checks(challenger, champion, rule),
            *_class_checks(evidence, rule),
            *_gain_checks(metric, evidence, rule),
            *_drift_checks(evidence.drift, rule),
        ]
    promote = all(holds for _, holds, _ in checks)
    told = [(kind, said) for kind, holds, said in checks if holds == promote]
    kinds = tuple(dict.fromkeys(kind for kind, _ in told))
    return Decision(promote, tuple(said for _, said in told), kinds, metric=name)


#: A condition, whether it holds, and a sentence about it.
_Check = tuple[str, bool, str]


def _certificate_checks(certificate: Mapping[str, Any] | None, rule: PromotionRule) -> Iterator[_Check]:
    if not rule.need_certificate:
        return
    if certificate is None:
        yield "certificate", False, "it has no certificate"
        return
    gap, tol = certificate["relative_gap"], certificate["tol"]
    shown = "no gap" if gap is None else f"a relative gap of {gap:.2e}"
    holds = bool(certificate["certified"]) and bool(certificate["valid"])
    word, source = "certified" if holds else "not certified", source_of(str(certificate.get("rests_on")))
    yield "certificate", holds, f"{shown} is {word} from {source} for the tolerance {tol:g}"
    ranks = list(SOURCES)
    if list(SOURCES.values()).index(source) > ranks.index(rule.basis):
        yield "certificate", False, f"the rule wants a certificate from {SOURCES[rule.basis]}"


def _row_checks(challenger: ModelRecord, champion: ModelRecord, rule: PromotionRule) -> Iterator[_Check]:
    """Report missing rows that the champion had: images may be gone by accident."""
    measured, before_it = ((one.evaluation or {}).get("rows") for one in (challenger, champion))
    counts = ("trained", challenger.n, champion.n), ("measured", measured, before_it)
    for what, rows, before in counts:
        if rows is not None and before and rows < rule.least_rows * before:
            said = f"it was {what} on {rows:,} rows and the champion on {before:,}"
            yield "rows", False, f"{said}, of which {rule.least_rows:.0%} are the least: look at the images"


def _class_checks(evidence: Evidence, rule: PromotionRule) -> Iterator[_Check]:
    """Report how classes differ, and the effect on the decision."""
    changes = evidence.classes
    if changes is None or not changes.any:
        return
    if rule.on_class_changes == "refuse" and changes.lost:
        yield "classes", False, f"it does not know {len(changes.lost)} classes of the champion ({changes})"
    elif rule.on_class_changes == "count-misses":
        yield "classes", True, f"rows of a class that one does not know are its misses ({changes})"
    elif evidence.on_common:
        holds = changes.kept >= rule.least_common
        short = "" if holds else f", and {changes.kept:.0%} of the champion's are less than the least"
        said = f"compared on the {len(changes.common)} classes that both know ({changes}){short}"
        yield "classes", holds, said


def _gain_checks(metric: RowMetric, evidence: Evidence, rule: PromotionRule) -> Iterator[_Check]:
    found = evidence.of(metric.name)
    if found is None:
        why = evidence.unmeasured or f"{metric.column} was not among what was measured"
        yield "gain", False, f"the two were not compared on the same rows: {why}"
        return
    gain, low, high, least = (
        metric.text(value, 2, "+") for value in (found.gain, found.low, found.high, rule.least_gain)
    )
    shown = (
        f"{metric.column} {metric.text(found.challenger, 2)} against {metric.text(found.champion, 2)}"
        f" on {found.rows:,} rows (gain {gain}, {found.confidence:.0%} interval {low} to {high},"
        f" p = {found.p_value:.2g})"
    )
    reached = found.low if rule.prove_gain else found.gain
    what = "the lower end" if rule.prove_gain else "the gain"
    if rule.widest_interval is not None and found.high - found.low > rule.widest_interval:
        yield "gain", False, f"{shown}: the interval is wider than {metric.text(rule.widest_interval, 2)}"
    elif reached < rule.least_gain:
        yield "gain", False, f"{shown}: {what} is below {least}"
    elif found.gain < 0 and found.p_value < 1 - rule.confidence:
        yield "gain", False, f"{shown}: it is worse beyond chance"
    else:
        yield "gain", True, f"{shown}: {what} reaches {least}"


def _drift_checks(drift: Drift | None, rule: PromotionRule) -> Iterator[_Check]:
    features, classes, domain = (
        (None, None, None) if drift is None else (drift.features, drift.classes, drift.domain)
    )
    limits = (
        ("features moved", "a stability index of", features, rule.most_feature_drift),
        ("class shares moved", "a total variation of", classes, rule.most_balance_change),
        ("new rows differ", "a domain classifier's ROC area of", domain, rule.most_domain_auc),
    )
    for what, measure, found, most in limits:
        if most is None:
            continue
        if found is None:
            yield "drift", False, f"whether the {what} is not known, and {most:g} is the limit"
        else:
            within = "within" if found <= most else "above"
            yield "drift", found <= most, f"{what} by {measure} {found:.3g}, {within} {most:g}"


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
    """Return the two-sided p-value of gains (n,) in {-1, 0, 1} with `weights` (n,) equal within a class."""
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
