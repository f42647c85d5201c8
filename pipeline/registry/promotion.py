"""Whether a challenger becomes champion: a pure function of the promotion rule and of the evidence."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from topline.pipeline.evaluation import RowMetric, row_metric
from topline.pipeline.options import PromotionRule
from topline.pipeline.registry.drift import Drift
from topline.pipeline.registry.paired_tests import PairedMetric
from topline.storage.models import ModelRecord

__all__ = ["Decision", "Evidence", "PromotionRule", "decide"]


@dataclass(frozen=True)
class Evidence:
    """What was measured of a challenger and a champion; `unmeasured` says why nothing was compared.

    `excluded` rows are held out now, and were training rows of the champion; None where its data is gone, so
    that it may have seen rows that it is measured on.
    """

    compared: tuple[PairedMetric, ...] = ()
    drift: Drift | None = None
    dataset: str = ""
    split: str = ""
    excluded: int | None = 0
    unmeasured: str = ""

    def of(self, name: str) -> PairedMetric | None:
        """Return the comparison by the metric `name`, None if it was not measured."""
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
        }


@dataclass(frozen=True)
class Decision:
    """Whether to promote, and why: all that speaks for it, or all that speaks against it."""

    promote: bool
    reasons: tuple[str, ...]

    @property
    def text(self) -> str:
        """All reasons in one line."""
        return "; ".join(self.reasons)


def decide(
    challenger: ModelRecord, champion: ModelRecord | None, evidence: Evidence, rule: PromotionRule
) -> Decision:
    """Apply the rule; without a champion the certificate alone decides.

    `ConfigError` if the rule names a metric that models of one label a row do not have.
    """
    checks = [*_certificate(challenger.certificate, rule)]
    if champion is None:
        checks.append((True, "there is no champion yet"))
    else:
        metric = row_metric(rule.metric_for(challenger))
        if metric.classes >= challenger.m:
            always = f"{metric.column} of {challenger.m} classes is always right, so take a smaller k"
            checks.append((False, always))
        checks += [*_gain(metric, evidence, rule), *_drift(evidence.drift, rule)]
    promote = all(holds for holds, _ in checks)
    return Decision(promote, tuple(said for holds, said in checks if holds == promote))


_Check = tuple[bool, str]


def _certificate(certificate: Mapping[str, Any] | None, rule: PromotionRule) -> Iterator[_Check]:
    if not rule.need_certificate:
        return
    if certificate is None:
        yield False, "it has no certificate"
        return
    gap, tol = certificate["relative_gap"], certificate["tol"]
    shown = "no gap" if gap is None else f"a relative gap of {gap:.2e}"
    holds = bool(certificate["certified"]) and bool(certificate["valid"])
    yield holds, f"{shown} is {'certified' if holds else 'not certified'} for the tolerance {tol:g}"


def _gain(metric: RowMetric, evidence: Evidence, rule: PromotionRule) -> Iterator[_Check]:
    found = evidence.of(metric.name)
    if found is None:
        why = evidence.unmeasured or f"{metric.column} was not among what was measured"
        yield False, f"the two were not compared on the same rows: {why}"
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
    if reached < rule.least_gain:
        yield False, f"{shown}: {what} is below {least}"
    elif found.gain < 0 and found.p_value < 1 - rule.confidence:
        yield False, f"{shown}: it is worse beyond chance"
    else:
        yield True, f"{shown}: {what} reaches {least}"


def _drift(drift: Drift | None, rule: PromotionRule) -> Iterator[_Check]:
    features, classes = (None, None) if drift is None else (drift.features, drift.classes)
    limits = (
        ("features moved", "a stability index of", features, rule.most_feature_drift),
        ("class shares moved", "a total variation of", classes, rule.most_balance_change),
    )
    for what, measure, found, most in limits:
        if most is not None and found is None:
            yield False, f"whether the {what} is not known, and {most:g} is the limit"
        elif most is not None and found is not None:
            yield found <= most, f"{what} by {measure} {found:.3g}, {_within(found <= most)} {most:g}"


def _within(holds: bool) -> str:
    return "within" if holds else "above"
