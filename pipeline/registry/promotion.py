"""Two models on the same held-out rows, the drift between their data, and the rule of promotion.

Whether a challenger becomes champion is a matter of paired tests.

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
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topline.pipeline.certification.recompute import SOURCES, source_of
from topline.pipeline.errors import InputError
from topline.pipeline.evaluation import RowMetric, ScoredRows, measured, row_metric, row_metrics
from topline.pipeline.evaluation.measurement import check_split
from topline.pipeline.options import PromotionRule
from topline.pipeline.progress import Progress, advance, begin
from topline.pipeline.registry.drift import ClassChanges, Drift, class_changes, drift_between
from topline.pipeline.rows import StoredModel, TrainingRows, require_single_labels
from topline.storage.datasets import Dataset
from topline.storage.errors import IntegrityError
from topline.storage.models import ModelRecord, load_model, read_standing
from topline.storage.schema import SPLITS
from topline.storage.stores import open_store, split_url

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


def summary(record: ModelRecord) -> dict[str, Any]:
    """Return a one-line summary of a model; `metrics` are all that were measured, by name."""
    certificate, evaluation = record.certificate or {}, record.evaluation or {}
    return {
        "id": record.id,
        "version": record.version,
        "dataset": record.dataset,
        "loss": dict(record.loss),
        "C": record.C,
        "method": record.result.get("method") or record.method,
        "relative_gap": certificate.get("relative_gap"),
        "certified": certificate.get("certified"),
        "accuracy": evaluation.get("topk"),
        "mean_average_precision": evaluation.get("mean_average_precision"),
        "metrics": {metric.name: value for metric, value in measured(evaluation)},
        "passes": record.result.get("passes"),
        "seconds": record.result.get("seconds"),
        "parents": list(record.parents),
        "run": record.run,
        "created": record.created,
    }


def settings(record: ModelRecord) -> dict[str, Any]:
    """Return a model's settings and the size of its data."""
    own = {"code_version": record.code_version, "n": record.n, "d": record.d, "m": record.m}
    skipped = {"store", "resume", "checkpoint_seconds"}
    return own | {name: value for name, value in record.config.items() if name not in skipped}


@dataclass(frozen=True, eq=False)
class ModelClasses:
    """A model's scores of `classes`, each the largest score of the model's own classes that it names."""

    model: StoredModel
    classes: Mapping[str, Sequence[str]]

    @classmethod
    def all_of(cls, model: StoredModel) -> ModelClasses:
        """Return a model with each of its classes."""
        return cls(model, {name: (name,) for name in model.model.record.class_names})

    def scores(self, X: Any) -> NDArray[np.float64]:
        """Return the scores (r, classes) of transformed rows X."""
        place = {name: code for code, name in enumerate(self.model.model.record.class_names)}
        found = self.model.scores(X)
        columns = [[place[name] for name in names] for names in self.classes.values()]
        if columns == [[code] for code in range(found.shape[1])]:
            return found
        return np.stack([found[:, own].max(axis=1) for own in columns], axis=1)

    def codes(self, rows: TrainingRows) -> NDArray[np.int64]:
        """Return the index of each row's class in `classes`, -1 if absent."""
        place = {name: code for code, name in enumerate(self.classes)}
        codes = np.array([place.get(name, -1) for name in rows.dataset.class_names], dtype=np.int64)
        return codes[rows.labels()]


def common_classes(
    challenger: StoredModel, champion: StoredModel, changes: ClassChanges
) -> list[ModelClasses]:
    """Return both models restricted to the classes that both know, the champion second."""
    names = champion.model.record.class_names
    return [
        ModelClasses(challenger, {name: (name,) for name in changes.common}),
        ModelClasses(champion, {name: changes.sources(name, names) for name in changes.common}),
    ]


@dataclass(frozen=True)
class Comparison:
    """Comparison of two models; gains are those of `first` over `second`, `differences` pairs of settings."""

    first: ModelRecord
    second: ModelRecord
    stages: tuple[str, str]
    evidence: Evidence
    differences: Mapping[str, tuple[Any, Any]]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        sides = zip((self.first, self.second), self.stages, strict=True)
        return {
            "models": [{**summary(record), "stage": stage} for record, stage in sides],
            "evidence": self.evidence.to_dict(),
            "differences": {name: list(values) for name, values in self.differences.items()},
        }


def compare(
    first_url: str,
    second_url: str,
    *,
    split: str = "test",
    confidence: float = 0.95,
    progress: Progress | None = None,
) -> Comparison:
    """Compare two models of one store: metrics on the same rows, drift, settings.

    `confidence` is the level of the intervals.  Raises `InputError` for models of two stores, or the same
    one.
    """
    root = split_url(first_url, "models")[0]
    first, second = load_model(first_url).record, load_model(second_url).record
    if open_store(split_url(second_url, "models")[0]) != open_store(root):
        raise InputError(f"{first_url} and {second_url} lie in two stores: compare models of one")
    if first.id == second.id:
        raise InputError(
            f"{first.id} would be compared with itself: name another model, of those that topline models list"
            f" --store {shlex.quote(root)} shows"
        )
    evidence = measure(first_url, second_url, split=split, confidence=confidence, progress=progress)
    standing = read_standing(open_store(root))
    ours, theirs = settings(first), settings(second)
    pairs = {name: (ours.get(name), theirs.get(name)) for name in sorted(ours.keys() | theirs.keys())}
    differences = {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
    stages = standing.stage(first.id), standing.stage(second.id)
    return Comparison(first, second, stages, evidence, differences)


def measure(
    challenger_url: str,
    champion_url: str,
    *,
    metrics: Sequence[RowMetric] = (),
    split: str = "test",
    confidence: float = 0.95,
    drift: bool = True,
    common: bool = False,
    progress: Progress | None = None,
) -> Evidence:
    """Compare two models by all metrics, and by `metrics`, on the `split` rows of the challenger's dataset.

    Rows on which the champion was trained are excluded.  Classes are matched by name: one unknown to a model
    is a miss.  With `common`, only rows of classes known to both count, including renamed and merged ones,
    and only these compete.
    """
    check_split(split)
    challenger, champion = StoredModel.open(challenger_url), StoredModel.open(champion_url)
    try:
        dataset = challenger.dataset()
        require_single_labels(dataset.info, "models are compared")
        misfit = feature_misfit(champion, challenger)
        if misfit is None and challenger.input_width != dataset.info.d:
            misfit = f"dataset {dataset.info.id} has other features than {challenger.model.record.id}"
        if misfit is not None:
            return Evidence(unmeasured=misfit)
        rows = TrainingRows(dataset, split)
        kept, excluded = _held_out(rows, champion)
        changes = _class_changes(challenger, champion, dataset)
        on_common = common and changes.any
        sides = (
            common_classes(challenger, champion, changes)
            if on_common
            else [ModelClasses.all_of(model) for model in (challenger, champion)]
        )
        if on_common:
            kept &= sides[0].codes(rows) >= 0
            if not kept.any():
                return Evidence(
                    unmeasured=f"dataset {dataset.info.id} has no {split} rows of classes that both know"
                )
        most = max(len(side.classes) for side in sides)
        known = _without_repeats(metric for metric in (*row_metrics(), *metrics) if metric.classes < most)
        values = _row_values(rows, sides, known, progress)
    except (InputError, IntegrityError) as error:
        return Evidence(unmeasured=str(error))
    labels = rows.labels()[kept].astype(np.int64)
    trained = TrainingRows(dataset, "train").class_counts()
    return Evidence(
        compared=tuple(
            paired_metric(metric, ours[kept], theirs[kept], labels, trained, confidence)
            for metric, (ours, theirs) in zip(known, values, strict=True)
        ),
        drift=_drift(challenger, champion, changes if on_common else None) if drift else None,
        dataset=dataset.info.id,
        split=split,
        excluded=excluded,
        classes=changes if changes.any else None,
        on_common=on_common,
        disputed=_disputed(dataset, champion, changes) if drift else None,
    )


def feature_misfit(champion: StoredModel, challenger: StoredModel) -> str | None:
    """Return why the champion cannot take the challenger's kind of features, or None."""
    theirs, ours = champion.model.record, challenger.model.record
    if ours.features.get("backbone") != theirs.features.get("backbone"):
        return f"the features of {ours.id} come from another backbone than those of {theirs.id}"
    widths = champion.input_width, challenger.input_width
    if widths[0] != widths[1]:
        return f"{theirs.id} takes rows of {widths[0]} features and {ours.id} rows of {widths[1]}"
    return None


def _held_out(rows: TrainingRows, champion: StoredModel) -> tuple[NDArray[np.bool_], int | None]:
    """Return a mask of rows not used to train the champion, and the count of the others; None if unknown."""
    kept = np.ones(len(rows), dtype=bool)
    theirs = None if champion.model.record.dataset == rows.dataset.info.id else _dataset(champion)
    if theirs is not None:
        ids, split = theirs.sample_ids(), theirs.split()
        trained = {ids[row] for row in np.flatnonzero(split == SPLITS["train"])}
        own = rows.dataset.sample_ids()
        kept = np.array([own[row] not in trained for row in rows.indices], dtype=bool)
    if not kept.any():
        which = f"{rows.split} rows that neither model was trained on"
        raise InputError(f"dataset {rows.dataset.info.id} has no {which}")
    known = theirs is not None or champion.model.record.dataset == rows.dataset.info.id
    return kept, int((~kept).sum()) if known else None


def _dataset(model: StoredModel) -> Dataset | None:
    """Return the dataset of a model, None if it is gone or broken."""
    try:
        return model.dataset()
    except (InputError, IntegrityError):
        return None


def _without_repeats(metrics: Iterable[RowMetric]) -> list[RowMetric]:
    """Return the metrics without repeated names, top-k accuracies by k first."""
    found: dict[str, RowMetric] = {}
    for metric in metrics:
        found.setdefault(metric.name, metric)
    return sorted(found.values(), key=lambda metric: (metric.k is None, metric.k or 0))


def _row_values(
    rows: TrainingRows, sides: Sequence[ModelClasses], metrics: Sequence[RowMetric], progress: Progress | None
) -> list[tuple[NDArray[Any], ...]]:
    """Return each row's value (n,) under each model, for every metric; each row is read once."""
    begin(progress, "compare", len(rows), "rows")
    prepared = [TrainingRows(rows.dataset, rows.split, side.model.transforms) for side in sides]
    codes = [side.codes(rows) for side in sides]
    parts: list[list[list[NDArray[Any]]]] = [[[] for _ in sides] for _ in metrics]
    for batch in range(rows.batches):
        start, stop = rows.batch_span(batch)
        if start == stop:
            continue
        raw = rows.raw_batch(batch)
        for place, side in enumerate(sides):
            own = codes[place][start:stop]
            block = ScoredRows(side.scores(prepared[place].transformed(raw)), np.maximum(own, 0))
            for metric, found in zip(metrics, parts, strict=True):
                values = metric.row_values(block)
                found[place].append(np.where(own >= 0, values, values.dtype.type(metric.unknown_class)))
        advance(progress, stop - start)
    return [tuple(np.concatenate(own) for own in found) for found in parts]


def _class_changes(challenger: StoredModel, champion: StoredModel, dataset: Dataset) -> ClassChanges:
    """Return how the two models' classes differ, comparing contents if names differ."""
    theirs, ours = champion.model.record.class_names, challenger.model.record.class_names
    before = _dataset(champion) if set(theirs) != set(ours) else None
    tables = (None, None) if before is None else (before.manifest(), dataset.manifest())
    return class_changes(theirs, ours, *tables)


def _disputed(dataset: Dataset, champion: StoredModel, changes: ClassChanges) -> Disputed | None:
    """Return how many rows the champion would label differently; None if it has a kernel, for its cost."""
    if champion.kernel is not None:
        return None
    rows = TrainingRows(dataset, "train", champion.transforms)
    side = common_classes(champion, champion, changes)[1]
    codes, wrong = side.codes(rows), 0
    for start, stop, X in rows.tiles():
        own = codes[start:stop]
        wrong += int(((side.scores(X).argmax(axis=1) != own) & (own >= 0)).sum())
    known = int((codes >= 0).sum())
    return Disputed(known, wrong / known, champion.model.record.id) if known else None


def _drift(challenger: StoredModel, champion: StoredModel, changes: ClassChanges | None) -> Drift | None:
    """Return the drift from the champion's training rows to the challenger's, None if those are gone."""
    theirs = _dataset(champion)
    if theirs is None:
        return None
    now = TrainingRows(challenger.dataset(), "train")
    if theirs.info.id == now.dataset.info.id:
        return Drift(0.0, 0.0, 0.0, (), len(now), len(now))
    return drift_between(TrainingRows(theirs, "train"), now, changes)
