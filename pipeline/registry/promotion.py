"""Whether a challenger becomes champion: a pure function of the rule and of what was measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from topline.pipeline.options.promotion import PromotionRule
from topline.pipeline.registry.drift import Drift
from topline.pipeline.registry.mcnemar import PairedAccuracy
from topline.storage.models import ModelRecord

__all__ = ["Decision", "Evidence", "PromotionRule", "decide"]


@dataclass(frozen=True)
class Evidence:
    """What was measured of a challenger and a champion; `unmeasured` says why there are no accuracies.

    `excluded` rows are held out now, and were training rows of the champion; None where its data is gone, so
    that it may have seen rows that it is measured on.
    """

    accuracies: tuple[PairedAccuracy, ...] = ()
    drift: Drift | None = None
    dataset: str = ""
    split: str = ""
    excluded: int | None = 0
    unmeasured: str = ""

    def at(self, k: int) -> PairedAccuracy | None:
        """The accuracies at k, None if they were not measured."""
        return next((found for found in self.accuracies if found.k == k), None)

    def to_dict(self) -> dict[str, Any]:
        """Give plain values for JSON."""
        return {
            "dataset": self.dataset,
            "split": self.split,
            "excluded": self.excluded,
            "unmeasured": self.unmeasured,
            "accuracies": [found.to_dict() for found in self.accuracies],
            "drift": None if self.drift is None else self.drift.to_dict(),
        }


@dataclass(frozen=True)
class Decision:
    """Whether to promote, and why: all that speaks for it, or all that speaks against it."""

    promote: bool
    reasons: tuple[str, ...]

    @property
    def text(self) -> str:
        """The reasons in one line."""
        return "; ".join(self.reasons)


def decide(
    challenger: ModelRecord, champion: ModelRecord | None, evidence: Evidence, rule: PromotionRule
) -> Decision:
    """Apply the rule.  Without a champion the certificate alone decides."""
    checks = [*_certificate(challenger.certificate, rule)]
    if champion is None:
        checks.append((True, "there is no champion yet"))
    else:
        k = rule.k_for(challenger)
        if k >= challenger.m:
            checks.append((False, f"top-{k} of {challenger.m} classes is always right, so take a smaller k"))
        checks += [*_accuracy(k, evidence, rule), *_drift(evidence.drift, rule)]
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


def _accuracy(k: int, evidence: Evidence, rule: PromotionRule) -> Iterator[_Check]:
    found = evidence.at(k)
    if found is None:
        why = evidence.unmeasured or f"top-{k} was not among what was measured"
        yield False, f"the two were not compared on the same rows: {why}"
        return
    shown = (
        f"top-{k} {found.challenger:.2%} against {found.champion:.2%} on {found.rows:,} rows"
        f" (gain {found.gain:+.2%}, {found.confidence:.0%} interval {found.low:+.2%} to {found.high:+.2%},"
        f" p = {found.p_value:.2g})"
    )
    reached = found.low if rule.prove_gain else found.gain
    what = "the lower end" if rule.prove_gain else "the gain"
    if reached < rule.least_gain:
        yield False, f"{shown}: {what} is below {rule.least_gain:+.2%}"
    elif found.gain < 0 and found.p_value < 1 - rule.confidence:
        yield False, f"{shown}: it is worse beyond chance"
    else:
        yield True, f"{shown}: {what} reaches {rule.least_gain:+.2%}"


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
