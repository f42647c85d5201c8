"""Whether a challenger becomes champion: a pure function of promotion rule and evidence."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from topline.pipeline.certification.recompute import SOURCES, source_of
from topline.pipeline.evaluation import RowMetric, row_metric
from topline.pipeline.options import PromotionRule
from topline.pipeline.registry.class_changes import ClassChanges
from topline.pipeline.registry.drift import Drift
from topline.pipeline.registry.paired_tests import PairedMetric
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
    """Apply the rule; without a champion the certificate alone decides.

    Raises `ConfigError` for a metric that models with one label per row do not have.
    """
    checks, name = [*_certificate(challenger.certificate, rule)], ""
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
            *_rows(challenger, champion, rule),
            *_classes(evidence, rule),
            *_gain(metric, evidence, rule),
            *_drift(evidence.drift, rule),
        ]
    promote = all(holds for _, holds, _ in checks)
    told = [(kind, said) for kind, holds, said in checks if holds == promote]
    kinds = tuple(dict.fromkeys(kind for kind, _ in told))
    return Decision(promote, tuple(said for _, said in told), kinds, metric=name)


#: A condition, whether it holds, and a sentence about it.
_Check = tuple[str, bool, str]


def _certificate(certificate: Mapping[str, Any] | None, rule: PromotionRule) -> Iterator[_Check]:
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


def _rows(challenger: ModelRecord, champion: ModelRecord, rule: PromotionRule) -> Iterator[_Check]:
    """Report missing rows that the champion had: images may be gone by accident."""
    measured = ((one.evaluation or {}).get("rows") for one in (challenger, champion))
    for what, (rows, before) in (
        ("trained", (challenger.n, champion.n)),
        ("measured", (next(measured), next(measured))),
    ):
        if rows is not None and before and rows < rule.least_rows * before:
            said = f"it was {what} on {rows:,} rows and the champion on {before:,}"
            yield "rows", False, f"{said}, of which {rule.least_rows:.0%} are the least: look at the images"


def _classes(evidence: Evidence, rule: PromotionRule) -> Iterator[_Check]:
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
        yield (
            "classes",
            holds,
            f"compared on the {len(changes.common)} classes that both know ({changes}){short}",
        )


def _gain(metric: RowMetric, evidence: Evidence, rule: PromotionRule) -> Iterator[_Check]:
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


def _drift(drift: Drift | None, rule: PromotionRule) -> Iterator[_Check]:
    features, classes, domain = (
        (None, None, None) if drift is None else (drift.features, drift.classes, drift.domain)
    )
    limits = (
        ("features moved", "a stability index of", features, rule.most_feature_drift),
        ("class shares moved", "a total variation of", classes, rule.most_balance_change),
        ("new rows differ", "a domain classifier's ROC area of", domain, rule.most_domain_auc),
    )
    for what, measure, found, most in limits:
        if most is not None and found is None:
            yield "drift", False, f"whether the {what} is not known, and {most:g} is the limit"
        elif most is not None and found is not None:
            yield (
                "drift",
                found <= most,
                f"{what} by {measure} {found:.3g}, {_within(found <= most)} {most:g}",
            )


def _within(holds: bool) -> str:
    return "within" if holds else "above"
