"""Compare two stored models on the same held-out rows, and the drift between their data."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topline.pipeline.errors import InputError
from topline.pipeline.evaluation import RowMetric, ScoredRows, measured, row_metrics
from topline.pipeline.evaluation.measurement import check_split
from topline.pipeline.progress import Progress, advance, begin
from topline.pipeline.registry.drift import ClassChanges, Drift, class_changes, drift_between
from topline.pipeline.registry.promotion import Disputed, Evidence, paired_metric
from topline.pipeline.rows import StoredModel, TrainingRows, require_single_labels
from topline.storage.datasets import Dataset
from topline.storage.errors import IntegrityError
from topline.storage.models import ModelRecord, load_model, read_standing
from topline.storage.schema import SPLITS
from topline.storage.stores import open_store, split_url


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
