"""Two stored models on the same held-out rows, and how the data moved from one to the other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topline.pipeline.errors import InputError
from topline.pipeline.evaluation import RowMetric, ScoredRows, check_split, row_metrics
from topline.pipeline.progress import Progress
from topline.pipeline.readers import require_single_labels
from topline.pipeline.registry.drift import Drift, drift_between
from topline.pipeline.registry.paired_tests import paired_metric
from topline.pipeline.registry.promotion import Evidence
from topline.pipeline.registry.summary import settings, summary
from topline.pipeline.rows import StoredModel, TrainingRows
from topline.storage.datasets import Dataset
from topline.storage.errors import IntegrityError
from topline.storage.models import ModelRecord, load_model, read_standing
from topline.storage.schema import SPLITS
from topline.storage.stores import open_store, split_url


@dataclass(frozen=True)
class Comparison:
    """Two models side by side; gains are those of `first` over `second`.

    `differences` has both values of each setting that differs.
    """

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

    `confidence` is the level of the intervals.  `InputError` if the models lie in two stores.
    """
    root = split_url(first_url, "models")[0]
    first, second = load_model(first_url).record, load_model(second_url).record
    if open_store(split_url(second_url, "models")[0]) != open_store(root):
        raise InputError(f"{first_url} and {second_url} lie in two stores: compare models of one")
    evidence = measure(first_url, second_url, split=split, confidence=confidence, progress=progress)
    standing = read_standing(open_store(root))
    ours, theirs = settings(first), settings(second)
    pairs = {name: (ours.get(name), theirs.get(name)) for name in sorted(ours.keys() | theirs.keys())}
    return Comparison(
        first,
        second,
        (standing.stage(first.id), standing.stage(second.id)),
        evidence,
        {name: pair for name, pair in pairs.items() if pair[0] != pair[1]},
    )


def measure(
    challenger_url: str,
    champion_url: str,
    *,
    metrics: Sequence[RowMetric] = (),
    split: str = "test",
    confidence: float = 0.95,
    drift: bool = True,
    progress: Progress | None = None,
) -> Evidence:
    """Compare two models by all metrics, and by `metrics`, on the `split` rows of the challenger's dataset.

    Rows that the champion was trained on do not count, and classes go by their names: a class that a model
    does not know is a miss.  Where the rows are gone or the champion cannot take them, `unmeasured` says why.
    """
    check_split(split)
    challenger, champion = StoredModel.open(challenger_url), StoredModel.open(champion_url)
    try:
        dataset = challenger.dataset()
        require_single_labels(dataset.info, "models are compared")
        _check_features(champion, challenger, dataset)
        rows = TrainingRows(dataset, split)
        kept, excluded = _held_out(rows, champion)
        most = max(challenger.model.record.m, champion.model.record.m)
        known = _without_repeats(metric for metric in (*row_metrics(), *metrics) if metric.classes < most)
        values = _row_values(rows, (challenger, champion), known, progress)
    except (InputError, IntegrityError) as error:
        return Evidence(unmeasured=str(error))
    labels = rows.labels()[kept].astype(np.int64)
    return Evidence(
        compared=tuple(
            paired_metric(metric, ours[kept], theirs[kept], labels, confidence)
            for metric, (ours, theirs) in zip(known, values, strict=True)
        ),
        drift=_drift(challenger, champion) if drift else None,
        dataset=dataset.info.id,
        split=split,
        excluded=excluded,
    )


def feature_misfit(champion: StoredModel, challenger: StoredModel) -> str | None:
    """Return why features of the challenger's kind are not the champion's, None if they are."""
    theirs, ours = champion.model.record, challenger.model.record
    kinds = [record.features.get("backbone") for record in (ours, theirs)]
    if kinds[0] != kinds[1]:
        return f"the features of {ours.id} come from another backbone than those of {theirs.id}"
    if champion.input_width != challenger.input_width:
        return (
            f"{theirs.id} takes rows of {champion.input_width} features and {ours.id} rows of"
            f" {challenger.input_width}"
        )
    return None


def _check_features(champion: StoredModel, challenger: StoredModel, dataset: Dataset) -> None:
    misfit = feature_misfit(champion, challenger)
    if misfit is not None:
        raise InputError(misfit)
    if challenger.input_width != dataset.info.d:
        raise InputError(f"dataset {dataset.info.id} has other features than {challenger.model.record.id}")


def _held_out(rows: TrainingRows, champion: StoredModel) -> tuple[NDArray[np.bool_], int | None]:
    """Return a mask of the rows that the champion was not trained on, and the number of the others.

    The number is None where the champion's data is gone.
    """
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
    """Return the metrics, the first of each name, top-k accuracies by k before the others."""
    found: dict[str, RowMetric] = {}
    for metric in metrics:
        found.setdefault(metric.name, metric)
    return sorted(found.values(), key=lambda metric: (metric.k is None, metric.k or 0))


def _row_values(
    rows: TrainingRows,
    models: Sequence[StoredModel],
    metrics: Sequence[RowMetric],
    progress: Progress | None,
) -> list[tuple[NDArray[Any], ...]]:
    """Return each row's value (n,) under each model, for every metric; each row is read once."""
    if progress is not None:
        progress.begin("compare", len(rows), "rows")
    prepared = [TrainingRows(rows.dataset, rows.split, model.transforms) for model in models]
    codes = [_codes(rows, model.model.record.class_names) for model in models]
    parts: list[list[list[NDArray[Any]]]] = [[[] for _ in models] for _ in metrics]
    for batch in range(rows.batches):
        start, stop = rows.batch_span(batch)
        if start == stop:
            continue
        raw = rows.raw_batch(batch)
        for place, model in enumerate(models):
            own = codes[place][start:stop]
            block = ScoredRows(model.scores(prepared[place].transformed(raw)), np.maximum(own, 0))
            for metric, found in zip(metrics, parts, strict=True):
                values = metric.row_values(block)
                found[place].append(np.where(own >= 0, values, values.dtype.type(metric.unknown_class)))
        if progress is not None:
            progress.advance(stop - start)
    return [tuple(np.concatenate(own) for own in found) for found in parts]


def _codes(rows: TrainingRows, class_names: Sequence[str]) -> NDArray[np.int64]:
    """Return the code of each row's class in another order of classes, -1 where it has none."""
    place = {name: code for code, name in enumerate(class_names)}
    codes = np.array([place.get(name, -1) for name in rows.dataset.class_names], dtype=np.int64)
    return codes[rows.labels()]


def _drift(challenger: StoredModel, champion: StoredModel) -> Drift | None:
    """Return the drift from the champion's training rows to the challenger's, None where those are gone."""
    theirs = _dataset(champion)
    if theirs is None:
        return None
    now = TrainingRows(challenger.dataset(), "train")
    if theirs.info.id == now.dataset.info.id:
        return Drift(0.0, 0.0, 0.0, (), len(now), len(now))
    return drift_between(TrainingRows(theirs, "train"), now)
