"""The metrics of a stored model on held-out rows, recorded with the model."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topline.pipeline.calibration import calibration_of, calibration_text, row_draws
from topline.pipeline.errors import ConfigError, InputError
from topline.pipeline.evaluation.metrics import (
    REPORTED_K,
    ScoredLabelSets,
    ScoredRows,
    label_set_metrics,
    placed,
    row_metrics,
    topk_shares,
)
from topline.pipeline.evaluation.records import (
    ClassAccuracy,
    Confusion,
    Evaluation,
    LabelQuality,
    MultilabelEvaluation,
    ProbabilityQuality,
    SetQuality,
    Threshold,
    Tuned,
)
from topline.pipeline.progress import Progress, begin
from topline.pipeline.rows import StoredModel, TrainingRows, record_if_possible
from topline.solvers.calibration import (
    Calibration,
    SetRule,
    Weighing,
    calibration_error,
    conformity,
    reliability,
)
from topline.solvers.errors import InvalidProblemError
from topline.solvers.estimators.multilabel_metrics import (
    PARTITION_METRICS,
    THRESHOLD_RULES,
    average_precisions,
    partition_metrics,
    tuned_thresholds,
)
from topline.solvers.names import not_known
from topline.storage.records import now
from topline.storage.schema import SPLITS

#: Coverages of the measured sets, given enough calibration rows.
COVERAGES = (0.8, 0.9, 0.95)
# Seed of draws for measured rows; calibration rows have other ids, hence independent draws.
SEED = 0


class _TrustMeter:
    """Accumulates blocks of scored rows."""

    def __init__(self, calibration: Calibration) -> None:
        self._calibration = calibration
        self._set_rules = _set_rules(calibration)
        self._losses: list[NDArray[np.float64]] = []
        self._confidence: list[NDArray[np.float64]] = []
        self._held: list[list[NDArray[np.bool_]]] = [[] for _ in self._set_rules]
        self._sizes: list[list[NDArray[np.int64]]] = [[] for _ in self._set_rules]

    def add(self, scores: NDArray[np.float64], labels: NDArray[np.int64], ids: Sequence[str]) -> None:
        """Add rows with scores (r, m), classes (r,) and ids (r,)."""
        place, found, p = np.arange(len(labels)), self._calibration.probabilities, None
        if found is not None:
            logs = found.log_probabilities(scores)
            p = np.exp(logs)
            self._losses.append(-logs[place, labels])
            self._confidence.append(p.max(axis=1))
        if not self._set_rules:
            return
        draws = row_draws(ids, SEED)
        known: dict[Weighing, NDArray[np.float64]] = {}
        for rule, held, sizes in zip(self._set_rules, self._held, self._sizes, strict=True):
            if rule.weighing not in known:
                weights = None if rule.probabilities is None else p
                known[rule.weighing] = conformity(scores, weights, draws, rule.weighing)
            members = known[rule.weighing] <= rule.thresholds
            held.append(members[place, labels])
            sizes.append(members.sum(axis=1))

    def probabilities(self, ranks: NDArray[np.int64]) -> ProbabilityQuality | None:
        """Return the quality of the probabilities, if any; `ranks` (n,) are those of own classes."""
        if not self._losses:
            return None
        bins = reliability(np.concatenate(self._confidence), ranks == 1)
        loss, rows = float(np.concatenate(self._losses).mean()), self._calibration.fitted_rows
        text = calibration_text(self._calibration)
        return ProbabilityQuality(text, rows, loss, calibration_error(bins), bins)

    def sets(self, labels: NDArray[np.int64], ranks: NDArray[np.int64]) -> tuple[SetQuality, ...]:
        """Return the quality of the sets at all coverages; labels and ranks (n,) are those of all rows."""
        return tuple(
            _set_quality(rule, np.concatenate(held), np.concatenate(sizes), labels, ranks)
            for rule, held, sizes in zip(self._set_rules, self._held, self._sizes, strict=True)
        )


def _set_rules(calibration: Calibration) -> list[SetRule]:
    """Return the rules for which there are enough calibration rows, in total or per class."""
    found = []
    for per_class in (False, True):
        for coverage in COVERAGES:
            with suppress(InvalidProblemError):
                found.append(calibration.rule(coverage, per_class=per_class))
    return [rule for rule in found if rule.note is None]


def _set_quality(
    rule: SetRule,
    held: NDArray[np.bool_],
    sizes: NDArray[Any],
    labels: NDArray[np.int64],
    ranks: NDArray[np.int64],
) -> SetQuality:
    n, covered = len(held), int(held.sum())
    known = np.unique(labels)
    shares = np.array([held[labels == code].mean() for code in known])
    fixed_k = _guesses_for(ranks, covered / n)
    if rule.per_class:
        fixed_k = max(_guesses_for(ranks[labels == code], float(shares.min())) for code in known)
    return SetQuality(
        rule.coverage, rule.per_class, rule.sets_by, rows=n, measured=covered / n,
        mean_size=float(sizes.mean()), empty=float(np.mean(sizes == 0)), least_class=float(shares.min()),
        fixed_k=fixed_k,
    )  # fmt: skip


def _guesses_for(ranks: NDArray[np.int64], accuracy: float) -> int:
    """Return the least k whose top-k accuracy on rows of these ranks is at least `accuracy`."""
    # Round first: a share times the number of rows may slightly exceed an integer.
    place = int(np.ceil(round(accuracy * len(ranks), 6)))
    return int(np.sort(ranks)[max(place, 1) - 1])


DEFAULT_RULE = "f1_micro"
# Most scores used to choose a threshold: a gigabyte to sort, and more would not change it.
TUNING_SCORES = 1 << 23
# With more classes only the most frequent confusions are recorded, not the matrix.
MATRIX_CLASSES = 40


def evaluate(
    model_url: str,
    split: str = "test",
    progress: Progress | None = None,
    *,
    confused: int = 20,
    threshold_for: str | None = None,
) -> Evaluation | MultilabelEvaluation:
    """Measure the model at `model_url` on one split of its dataset, and record the result with it.

    `split` is "train", "val" or "test".  With one label per row, `confused` is the number of recorded
    confusions; with several, `threshold_for` is the rule of the threshold, one of `THRESHOLD_RULES`.  Raises
    `InputError` if the split has no rows or the dataset is gone or has changed, `ConfigError` for an unknown
    rule or one for a model of one label, and `NotStoredError` with the evaluation if there is no room to
    record it.
    """
    started = time.perf_counter()
    stored = StoredModel.open(model_url)
    record = stored.model.record
    check_split(split)
    if threshold_for is not None and not record.multilabel:
        raise ConfigError(
            f"model {record.id} predicts one label per row and takes no threshold: leave --threshold-for out"
        )
    if threshold_for not in (None, *THRESHOLD_RULES):
        raise ConfigError(not_known("threshold rule", threshold_for, THRESHOLD_RULES))
    rows = stored.rows(split)
    if len(rows) == 0:
        counted = {name: count for name, count in rows.dataset.info.counts.items() if count}
        counts = ", ".join(f"{name} {count}" for name, count in counted.items())
        own = "the validation rows with --split val, or " if split != "val" in counted else ""
        raise InputError(
            f"dataset {record.dataset} has no {split} rows to evaluate on (it has {counts}): measure {own}new"
            " data with --images or --features"
        )
    head = {"model": record.id, "dataset": record.dataset, "split": split, "rows": len(rows)}
    if record.multilabel:
        found = _label_sets(stored, rows, threshold_for or DEFAULT_RULE, progress)
    else:
        found = _single_labels(stored, rows, confused, progress)
    facts = {**head, **found, "seconds": time.perf_counter() - started, "created": now()}
    if record.multilabel:
        labels = MultilabelEvaluation(**facts)
        threshold = asdict(labels.threshold)
        record_if_possible(stored.model.url, labels, evaluation=labels.to_dict(), threshold=threshold)
        return labels
    earlier = record.evaluation or {}
    # Accuracies by training size are of the same rows.
    sizes = Evaluation.from_dict(earlier).sizes if earlier.get("split") == split else ()
    evaluation = Evaluation(**facts, sizes=sizes)
    record_if_possible(stored.model.url, evaluation, evaluation=evaluation.to_dict())
    return evaluation


def check_split(split: str) -> None:
    """Raise `InputError` for a split that has no rows to evaluate on."""
    if split == "calibration":
        raise InputError("calibration rows serve the prediction sets alone: evaluate on train, val or test")
    if split not in SPLITS or split == "rejected":
        raise InputError(f"there is no split {split!r}: use train, val or test")


def _single_labels(
    stored: StoredModel, rows: TrainingRows, confused: int, progress: Progress | None
) -> dict[str, Any]:
    """Return the measured fields of an `Evaluation`, in one pass over the rows."""
    record, y = stored.model.record, rows.labels().astype(np.int64)
    trained = stored.rows("train").class_counts()
    known = [metric for metric in row_metrics() if metric.classes <= record.m]
    values: dict[str, list[NDArray[Any]]] = {metric.name: [] for metric in known}
    ranks, firsts = np.empty_like(y), np.empty_like(y)
    meter, ids = _TrustMeter(calibration_of(stored, progress)), rows.dataset.sample_ids()
    begin(progress, "evaluate", len(rows), "rows")
    for start, stop, X in rows.tiles(progress):
        block = ScoredRows(stored.scores(X), y[start:stop])
        meter.add(block.scores, block.labels, [ids[row] for row in rows.indices[start:stop].tolist()])
        for metric in known:
            values[metric.name].append(metric.row_values(block))
        ranks[start:stop] = block.ranks
        block.scores[np.arange(stop - start), block.labels] = -np.inf
        firsts[start:stop] = block.scores.argmax(axis=1)
    parts = {metric: np.concatenate(values[metric.name]) for metric in known}
    found = placed({metric.name: metric.mean(part, y, trained) for metric, part in parts.items()})
    intervals = {metric.name: metric.interval(part, y, trained) for metric, part in parts.items()}
    shown = [k for k in REPORTED_K if k <= record.m]
    majority = int(trained.argmax())
    return {
        "topk": {int(k): share for k, share in found["topk"].items()},
        "metrics": found["metrics"],
        "intervals": {name: ends for name, ends in intervals.items() if ends is not None},
        "majority_class": record.class_names[majority],
        "majority_baseline": float(np.mean(y == majority)),
        "per_class": tuple(
            ClassAccuracy(record.class_names[c], int((y == c).sum()), topk_shares(ranks[y == c], shown))
            for c in np.unique(y)
        ),
        **_confusions(y, np.where(ranks > 1, firsts, y), record.class_names, confused),
        "probabilities": meter.probabilities(ranks),
        "sets": meter.sets(y, ranks),
    }


def _confusions(
    y: NDArray[np.int64], given: NDArray[np.int64], names: Sequence[str], most: int
) -> dict[str, Any]:
    """Return the most frequent pairs of own and `given` class, and the matrix unless classes are many."""
    m, wrong = len(names), y != given
    pairs, counts = np.unique(y[wrong] * m + given[wrong], return_counts=True)
    order = np.argsort(-counts, kind="stable")[:most]
    confused = tuple(Confusion(names[pairs[i] // m], names[pairs[i] % m], int(counts[i])) for i in order)
    matrix: list[list[int]] = []
    if m <= MATRIX_CLASSES:
        matrix = np.bincount(y * m + given, minlength=m * m).reshape(m, m).tolist()
    return {"confused": confused, "confusion": tuple(map(tuple, matrix))}


def _label_sets(
    stored: StoredModel, rows: TrainingRows, rule: str, progress: Progress | None
) -> dict[str, Any]:
    """Return the fields of a `MultilabelEvaluation`, with a threshold chosen by `rule` on validation rows."""
    calibration_of(stored, progress)
    m, tuning = stored.model.record.m, stored.rows("val")
    if not len(tuning):
        tuning = stored.rows("train")
    relevant, scores = _labels_and_scores(stored, rows, "evaluate", progress)
    step = -(-len(tuning) * m // TUNING_SCORES)
    known = relevant[::step], scores[::step]
    if tuning.split != rows.split:
        known = _labels_and_scores(stored, tuning, "threshold", progress, step)
    thresholds = tuned_thresholds(*known, _labels_per_row(stored.rows("train")))
    answers = ScoredLabelSets(relevant, scores, scores > thresholds[rule])
    return {
        **placed({metric.name: metric.compute(answers) for metric in label_set_metrics()}),
        "labels_per_row": _labels_per_row(rows),
        "predicted_per_row": float(answers.predicted.sum(axis=1).mean()),
        "precision": dict(answers.ranking.precision),
        "recall": dict(answers.ranking.recall),
        "threshold": Threshold(thresholds[rule], rule, tuning.split, len(known[0])),
        "tuned": {
            name: Tuned(thresholds[name], partition_metrics(relevant, scores > thresholds[name])[name])
            for name in PARTITION_METRICS
        },
        "per_label": _qualities(stored.model.record.class_names, answers),
    }


def _labels_per_row(rows: TrainingRows) -> float:
    return float(rows.class_counts().sum() / len(rows))


def _labels_and_scores(
    stored: StoredModel, rows: TrainingRows, stage: str, progress: Progress | None, step: int = 1
) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
    """Return labels as an indicator, and scores, of every `step`-th row, both (r, m), in one pass."""
    sets = rows.solver_label_sets
    if sets is None:
        raise InputError(f"dataset {rows.dataset.info.id} has one label per row, and the model several")
    begin(progress, stage, len(rows), "rows")
    wanted = np.arange(0, len(rows), step)
    return sets.indicator(rows.labels()[wanted]), stored.scores_of(rows, wanted, progress)


def _qualities(names: tuple[str, ...], answers: ScoredLabelSets) -> tuple[LabelQuality, ...]:
    relevant, predicted = answers.relevant, answers.predicted
    hits, rows, said = (part.sum(axis=0) for part in (relevant & predicted, relevant, predicted))
    average = average_precisions(relevant, answers.scores)
    return tuple(
        LabelQuality(
            name=names[j],
            rows=int(rows[j]),
            precision=float(hits[j] / max(said[j], 1)),
            recall=float(hits[j] / rows[j]),
            f1=float(2.0 * hits[j] / (rows[j] + said[j])),
            average_precision=float(average[j]),
        )
        for j in np.flatnonzero(rows).tolist()
    )
