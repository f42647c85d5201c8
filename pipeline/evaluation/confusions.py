"""Held-out images to look at: right, wrong and most confidently wrong ones, and those of the worst classes.

One pass over the evaluated split finds them, over a part of it if it is very long, in bounded memory.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
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

    @property
    def right(self) -> bool:
        """Whether the prediction is right."""
        return self.rank == 1


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


@dataclass(frozen=True)
class _Answer:
    """A row with its rank and predicted class; `sure` is a probability or a margin."""

    row: int
    label: int
    predicted: int
    rank: int
    margin: float
    sure: float
    settled: bool
    draw: float


def _largest(most: int, kept: Sequence[_Answer], more: Sequence[_Answer], key: str) -> list[_Answer]:
    """Return the answers with the largest values of a field, in descending order."""
    return heapq.nlargest(most, [*kept, *more], key=lambda one: (getattr(one, key), -one.row))


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
    # Draw enough wrong ones to remain without the most confident.
    surest, wrong, right = list[_Answer](), list[_Answer](), list[_Answer]()
    misses: dict[int, list[_Answer]] = {code: [] for code in codes}
    seen = settled = 0
    for answers in _answers(stored, rows, found):
        seen += len(answers)
        settled += sum(one.settled for one in answers)
        bad = [one for one in answers if one.rank > 1]
        surest, wrong = _largest(GALLERY, surest, bad, "sure"), _largest(2 * GALLERY, wrong, bad, "draw")
        right = _largest(GALLERY, right, [one for one in answers if one.rank == 1], "draw")
        for code in codes:
            own = [one for one in bad if one.label == code]
            misses[code] = _largest(IMAGES_PER_CLASS, misses[code], own, "margin")
    show = _pictures(manifest, read_image, record.class_names, probable=found is not None)
    others = [answer for answer in wrong if answer not in surest][:GALLERY]
    known = math.isfinite(reach_of(stored)) and seen > 0
    gallery = Gallery(show(surest), show(others), show(right), seen, settled / seen if known else None)
    return gallery, [
        WorstClass(part.name, part.rows, part.topk, show(misses[code]))
        for part, code in zip(worst, codes, strict=True)
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


def _answers(
    stored: StoredModel, rows: TrainingRows, found: ProbabilityMap | None
) -> Iterator[list[_Answer]]:
    """Yield the answers to batches of rows."""
    labels, reach, draws = rows.labels(), reach_of(stored), np.random.default_rng(0)
    wanted = max(1, rows.batches * MOST_ROWS // max(len(rows), 1))
    for batch in np.unique(np.linspace(0, rows.batches - 1, min(wanted, rows.batches)).astype(int)).tolist():
        start, stop = rows.batch_span(batch)
        if start == stop:
            continue
        X, y = rows.read_batch(batch), labels[start:stop].astype(np.int64)
        scores = stored.scores(X)
        place, ranks = np.arange(len(y)), ranks_against_ties(scores, y)
        own = scores[place, y]
        others = scores.copy()
        others[place, y] = -np.inf
        firsts = np.where(ranks > 1, others.argmax(axis=1), y)
        margins = np.abs(others.max(axis=1) - own)
        sure = margins if found is None else found.probabilities(scores)[place, firsts]
        best = np.partition(scores, -2, axis=1)[:, -2:]
        settled = best[:, 1] - best[:, 0] > reach * np.sqrt(squared_norms(X))
        columns = (rows.indices[start:stop], y, firsts, ranks, margins, sure, settled, draws.random(len(y)))
        yield [_Answer(*row) for row in zip(*(c.tolist() for c in columns), strict=True)]


def _pictures(
    manifest: pa.Table, read_image: ReadImage, names: Sequence[str], *, probable: bool
) -> Callable[[Sequence[_Answer]], tuple[ShownImage, ...]]:
    """Return what makes the shown images of answers; it reads each image once."""

    @cache
    def made(answer: _Answer) -> ShownImage:
        entry = manifest.slice(answer.row, 1).to_pylist()[0]
        picture, note = thumbnail_or_reason(lambda: read_image(entry), PICTURE_SIDE)
        return ShownImage(
            name=str(entry["path"] or entry["sample_id"]),
            label=names[answer.label],
            predicted=names[answer.predicted],
            rank=answer.rank,
            figure=f"{answer.sure:.1%}" if probable else f"by {answer.margin:.3g}",
            picture=picture,
            note=note,
        )

    return lambda answers: tuple(map(made, answers))
