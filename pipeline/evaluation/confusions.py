"""The classes a model is worst at, with pictures of the images that it gives to another class."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topline.pipeline.errors import PipelineError
from topline.pipeline.evaluation.metrics import ranks_against_ties
from topline.pipeline.evaluation.records import ClassAccuracy, Evaluation
from topline.pipeline.images import thumbnail
from topline.pipeline.rows import StoredModel
from topline.storage.datasets import Dataset

WORST_CLASSES = 6
IMAGES_PER_CLASS = 8

#: RGB pixels (h, w, 3) of the image in a row of the manifest; OSError or PipelineError where there is none.
ReadImage = Callable[[Mapping[str, Any]], NDArray[np.uint8]]


@dataclass(frozen=True)
class ConfusedImage:
    """A held-out image that was given to another class; `picture` is a data URL, or `note` says why not."""

    name: str
    predicted: str
    rank: int
    picture: str | None = None
    note: str = ""


@dataclass(frozen=True)
class WorstClass:
    """A class with its accuracies and a few of its confused images, those with the largest margin first."""

    name: str
    rows: int
    topk: Mapping[int, float]
    images: tuple[ConfusedImage, ...] = ()


@dataclass(frozen=True)
class _Miss:
    row: int
    predicted: int
    rank: int
    margin: float


def worst_classes(stored: StoredModel, dataset: Dataset, read_image: ReadImage) -> list[WorstClass]:
    """Return the classes with the lowest top-1 accuracy, each with a few of the images that were confused.

    Reads the evaluation in the model's record and goes once more over the rows of its split.  A picture that
    cannot be read any more is replaced by a note.  A class without confusions is left out, and so are all
    classes of a model of several labels a row.
    """
    record = stored.model.record
    if record.evaluation is None or record.multilabel:
        return []
    evaluation = Evaluation.from_dict(record.evaluation)
    worst = [part for part in ranked_worst(evaluation.per_class) if part.topk[1] < 1.0][:WORST_CLASSES]
    codes = [record.class_names.index(part.name) for part in worst]
    misses = _misses(stored, evaluation.split, codes)
    manifest = dataset.manifest()
    found = []
    for part, code in zip(worst, codes, strict=True):
        images = [
            _confused_image(miss, record.class_names, manifest.slice(miss.row, 1).to_pylist()[0], read_image)
            for miss in misses[code]
        ]
        found.append(WorstClass(part.name, part.rows, part.topk, tuple(images)))
    return found


def ranked_worst(per_class: Sequence[ClassAccuracy]) -> list[ClassAccuracy]:
    """Return the classes by top-1 accuracy, lowest first; of equals the one with more rows comes first."""
    return sorted(per_class, key=lambda part: (part.topk[1], -part.rows, part.name))


def _misses(stored: StoredModel, split: str, codes: Sequence[int]) -> dict[int, list[_Miss]]:
    """Return the rows of each class that lost by the largest margin; one pass, a few kept of each."""
    rows = stored.rows(split)
    labels = rows.labels()
    kept: dict[int, list[_Miss]] = {code: [] for code in codes}
    for start, stop, X in rows.tiles():
        wanted = np.flatnonzero(np.isin(labels[start:stop], codes))
        if not len(wanted):
            continue
        scores = stored.scores(X[wanted])
        y = labels[start:stop][wanted].astype(np.int64)
        ranks = ranks_against_ties(scores, y)
        own = scores[np.arange(len(y)), y]
        scores[np.arange(len(y)), y] = -np.inf
        firsts = scores.argmax(axis=1)
        for i in np.flatnonzero(ranks > 1):
            miss = _Miss(
                int(rows.indices[start + wanted[i]]),
                int(firsts[i]),
                int(ranks[i]),
                float(scores[i, firsts[i]] - own[i]),
            )
            best = sorted([*kept[int(y[i])], miss], key=lambda seen: -seen.margin)
            kept[int(y[i])] = best[:IMAGES_PER_CLASS]
    return kept


def _confused_image(
    miss: _Miss, names: Sequence[str], entry: Mapping[str, Any], read_image: ReadImage
) -> ConfusedImage:
    name = str(entry["path"] or entry["sample_id"])
    try:
        picture = thumbnail(read_image(entry))
    except (OSError, PipelineError) as error:
        return ConfusedImage(name, names[miss.predicted], miss.rank, note=str(error))
    return ConfusedImage(name, names[miss.predicted], miss.rank, picture=picture)
