"""Held-out images to look at: right, wrong and most confidently wrong ones, and those of the worst classes.

One pass over the evaluated split finds them, over a part of it if it is very long, in bounded memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from topline.pipeline.calibration import calibration_of
from topline.pipeline.evaluation.metrics import ranks_against_ties
from topline.pipeline.evaluation.records import Evaluation, ranked_worst
from topline.pipeline.images import thumbnail_or_reason
from topline.pipeline.rows import StoredModel, TrainingRows
from topline.solvers.calibration import ProbabilityMap
from topline.solvers.core.rows import squared_norms

WORST_CLASSES = 6
IMAGES_PER_CLASS = 8
#: Images of each kind in the gallery.
GALLERY = 12
#: Most rows read; longer splits are sampled in batches.
MOST_ROWS = 100_000
PICTURE_SIDE = 256

#: Returns the RGB pixels (h, w, 3) of a manifest row's image; raises OSError or PipelineError without one.
ReadImage = Callable[[Mapping[str, Any]], NDArray[np.uint8]]


@dataclass(frozen=True)
class ShownImage:
    """A held-out image with its class and rank, the prediction, and a picture or a note why there is none."""

    name: str
    label: str
    predicted: str
    rank: int
    figure: str = ""
    picture: str | None = None
    note: str = ""


@dataclass(frozen=True)
class WorstClass:
    """A class with its accuracies and a few of its confused images, largest margins first."""

    name: str
    rows: int
    topk: Mapping[int, float]
    images: tuple[ShownImage, ...] = ()


@dataclass(frozen=True)
class Gallery:
    """Images by outcome: the most confidently wrong ones, and samples of wrong and of right ones.

    `rows` of the split were read, usually all.  At least the share `settled` of their answers is the same at
    the exact optimum, by the model's gap; None if the gap does not tell.
    """

    confident: tuple[ShownImage, ...] = ()
    wrong: tuple[ShownImage, ...] = ()
    right: tuple[ShownImage, ...] = ()
    rows: int = 0
    settled: float | None = None

    @property
    def pictured(self) -> bool:
        """Whether any image could be read."""
        return any(image.picture for image in (*self.confident, *self.wrong, *self.right))


@dataclass(frozen=True, eq=False)
class _Answers:
    """Answers to rows (r,) by number: `sure` are probabilities or margins, `settled` those of the optimum."""

    rows: NDArray[np.int64]
    labels: NDArray[np.int64]
    predicted: NDArray[np.int64]
    ranks: NDArray[np.int64]
    margins: NDArray[np.float64]
    sure: NDArray[np.float64]
    settled: NDArray[np.bool_]
    draws: NDArray[np.float64]

    def largest(self, values: NDArray[np.float64], kept: NDArray[np.bool_], most: int) -> list[int]:
        """Return the places of the largest of the `values` (r,) that are `kept`, in descending order."""
        order = np.lexsort((self.rows, -values))
        found: list[int] = order[kept[order]][:most].tolist()
        return found


def images_to_show(
    stored: StoredModel, manifest: pa.Table, read_image: ReadImage
) -> tuple[Gallery, list[WorstClass]]:
    """Return the gallery, and the classes of lowest top-1 accuracy with some of their confused images.

    Uses the evaluation in the model's record and reads its split once more; `manifest` is the dataset's.  A
    note replaces a picture that can no longer be read.  Both are empty without an evaluation, and for several
    labels per row.
    """
    record = stored.model.record
    if record.evaluation is None or record.multilabel:
        return Gallery(), []
    evaluation = Evaluation.from_dict(record.evaluation)
    worst = [part for part in ranked_worst(evaluation.per_class) if part.topk[1] < 1.0][:WORST_CLASSES]
    codes = [record.class_names.index(part.name) for part in worst]
    rows = stored.rows(evaluation.split)
    found = calibration_of(stored).probabilities
    answers = _answers(stored, rows, found)
    wrong, seen = answers.ranks > 1, len(answers.rows)
    surest = answers.largest(answers.sure, wrong, GALLERY)
    others = [place for place in answers.largest(answers.draws, wrong, 2 * GALLERY) if place not in surest]
    right = answers.largest(answers.draws, ~wrong, GALLERY)
    show = _pictures(manifest, read_image, record.class_names, answers, probable=found is not None)
    settled = float(answers.settled.mean()) if math.isfinite(reach_of(stored)) and seen else None
    gallery = Gallery(show(surest), show(others[:GALLERY]), show(right), seen, settled)
    misses = (wrong & (answers.labels == code) for code in codes)
    return gallery, [
        WorstClass(
            part.name, part.rows, part.topk, show(answers.largest(answers.margins, missed, IMAGES_PER_CLASS))
        )
        for part, missed in zip(worst, misses, strict=True)
    ]


def reach_of(stored: StoredModel) -> float:
    """Return the most by which two classes' scores of a unit row may differ from the optimum's.

    P is lam-strongly convex, so |W - W*|^2 <= 2 gap / lam, and so is -D in W(A): with |W - W(A)| = r the
    midpoint of both is within sqrt(gap / lam - r^2 / 4) of W*.  Infinite without a certificate, for a kernel,
    and for a gap that bounds no distance.
    """
    record, certificate = stored.model.record, stored.model.record.certificate
    if certificate is None or stored.kernel is not None or certificate.get("gap_kind") != "true":
        return math.inf
    square = max(float(certificate["gap"]), 0.0) / record.lam
    distance, apart = math.sqrt(2.0 * square), certificate.get("w_difference")
    if apart is not None:
        half = 0.5 * float(apart) * float(np.linalg.norm(stored.W))
        distance = min(distance, math.sqrt(max(square - half * half, 0.0)) + half)
    return math.sqrt(2.0) * distance


def _answers(stored: StoredModel, rows: TrainingRows, found: ProbabilityMap | None) -> _Answers:
    """Return the answers to batches of rows."""
    labels, reach, draws = rows.labels(), reach_of(stored), np.random.default_rng(0)
    full = [batch for batch in range(rows.batches) if len(range(*rows.batch_span(batch)))]
    wanted = max(1, len(full) * MOST_ROWS // len(rows))
    parts: list[tuple[NDArray[Any], ...]] = []
    for place in np.unique(np.linspace(0, len(full) - 1, min(wanted, len(full))).astype(int)).tolist():
        start, stop = rows.batch_span(full[place])
        X, y = rows.read_batch(full[place]), labels[start:stop].astype(np.int64)
        scores = stored.scores(X)
        row, ranks = np.arange(len(y)), ranks_against_ties(scores, y)
        own, others = scores[row, y], scores.copy()
        others[row, y] = -np.inf
        firsts = np.where(ranks > 1, others.argmax(axis=1), y)
        margins = np.abs(others.max(axis=1) - own)
        sure = margins if found is None else found.probabilities(scores)[row, firsts]
        best = np.partition(scores, -2, axis=1)[:, -2:]
        settled = best[:, 1] - best[:, 0] > reach * np.sqrt(squared_norms(X))
        draw = draws.random(len(y))
        parts.append((rows.indices[start:stop], y, firsts, ranks, margins, sure, settled, draw))
    return _Answers(*map(np.concatenate, zip(*parts, strict=True)))


def _pictures(
    manifest: pa.Table, read_image: ReadImage, names: Sequence[str], answers: _Answers, *, probable: bool
) -> Callable[[Sequence[int]], tuple[ShownImage, ...]]:
    """Return what makes the shown images of answers by their places; it reads each image once."""

    @cache
    def made(place: int) -> ShownImage:
        entry = manifest.slice(int(answers.rows[place]), 1).to_pylist()[0]
        picture, note = thumbnail_or_reason(lambda: read_image(entry), PICTURE_SIDE)
        return ShownImage(
            name=str(entry["path"] or entry["sample_id"]),
            label=names[answers.labels[place]],
            predicted=names[answers.predicted[place]],
            rank=int(answers.ranks[place]),
            figure=f"{answers.sure[place]:.1%}" if probable else f"by {answers.margins[place]:.3g}",
            picture=picture,
            note=note,
        )

    return lambda places: tuple(map(made, places))
