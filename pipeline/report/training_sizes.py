"""Accuracy against the number of training rows: models of nested draws, each a warm start of the next."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topline.pipeline.errors import InputError
from topline.pipeline.evaluation import Evaluation, SizePoint, ranks_against_ties, topk_shares
from topline.pipeline.progress import Progress, advance, begin
from topline.pipeline.rows import StoredModel, TrainingRows, record_if_possible
from topline.solvers.errors import InvalidProblemError
from topline.solvers.losses import Loss, loss_from_dict
from topline.solvers.run import solve
from topline.storage.records import json_object

logger = logging.getLogger(__name__)

#: Number of draws: the largest is half of the training rows or what fits, each next one half as large.
DRAWS = 3
#: Most bytes of drawn rows, and most multiplications per pass unless requested.
MOST_BYTES, CHEAP_PASS = 1 << 28, 1e8
#: Most bytes of all training rows, which are read once, unless requested.
CHEAP_BYTES = 1 << 31
#: Most held-out rows that are scored.
MOST_HELD_OUT = 20_000
TOL, PASSES, SEED = 1e-3, 100, 0


def measure_training_sizes(
    stored: StoredModel, progress: Progress | None = None, *, whatever_it_costs: bool = False
) -> str:
    """Record accuracies of models of nested draws of fewer rows; return why not, "" on success."""
    record = stored.model.record
    if record.evaluation is None:
        return "the model has not been evaluated"
    if stored.kernel is not None:
        return "a model with a kernel is a sum over its training rows"
    if record.config.get("average_top") is not None or record.result.get("gap_kind") == "none":
        return "its objective is not a mean of convex losses"
    if record.multilabel:
        return "models of several labels per row have no such curve yet"
    if record.evaluation.get("sizes"):
        return ""
    rows = stored.rows("train")
    sizes = _sizes(rows, record.m, cheap=not whatever_it_costs)
    if not sizes:
        return "too few rows, or too many to be drawn in passing: topline report --training-sizes asks for it"
    try:
        loss = loss_from_dict(record.loss)
    except InvalidProblemError as error:
        return f"the loss of the model cannot be read any more: {error}"
    points = _points(stored, loss, rows, sizes, progress)
    measured = {**record.evaluation, "sizes": [json_object(point) for point in points]}
    record_if_possible(stored.model.url, measured, evaluation=measured)
    return ""


def _sizes(rows: TrainingRows, m: int, *, cheap: bool) -> list[int]:
    """Return the rows of the draws, ascending; none if they would be too few to learn from."""
    n, d = rows.shape
    most = min(n // 2, MOST_BYTES // (4 * max(d, m)))
    if cheap and rows.nbytes > CHEAP_BYTES:
        return []
    if cheap:
        most = min(most, int(CHEAP_PASS / (d * m)))
    sizes = [most >> step for step in reversed(range(DRAWS))]
    return [size for size in sizes if size >= 2 * m] if most >= 4 * m else []


def _points(
    stored: StoredModel, loss: Loss, rows: TrainingRows, sizes: Sequence[int], progress: Progress | None
) -> list[SizePoint]:
    """Return the points of draws of `rows` of the given sizes, and of the model itself.

    Each draw starts from the dual variables of the one before.
    """
    record = stored.model.record
    evaluation = Evaluation.from_dict(record.evaluation or {})
    held, ks = stored.rows(evaluation.split), list(evaluation.topk)
    wanted = np.arange(0, len(held), -(-len(held) // MOST_HELD_OUT))
    unseen, classes = _picked(held, wanted), held.labels()[wanted].astype(np.int64)

    def ranks_by(W: NDArray[np.float64]) -> NDArray[np.int64]:
        return ranks_against_ties(np.asarray(unseen @ W, dtype=np.float64), classes)

    order = _nested_order(rows.labels())
    drawn = np.sort(order[: sizes[-1]])
    # Rank of each drawn row in the order: a draw of a size has the ranks below it.
    rank = np.argsort(order)[drawn]
    X, y = _picked(rows, drawn), rows.labels()[drawn].astype(np.int64)
    weights = rows.weights(record.class_weights)
    begin(progress, "training sizes", len(sizes), "models")
    whole, points = ranks_by(stored.W), []
    duals = np.zeros((len(drawn), record.m), dtype=np.float32)
    for size in sizes:
        here = np.flatnonzero(rank < size)
        result = solve(
            X[here], y[here], loss, 1.0 / (size * record.C), record.smoothing, "dual_ascent",
            sample_weight=None if weights is None else weights[drawn[here]],
            smoothing_kind=record.smoothing_kind,  # type: ignore[arg-type]
            tol=TOL, max_passes=PASSES, seed=SEED, m=record.m, keep_duals=True,
            duals=[(0, size, duals[here])] if duals.any() else None,
        )  # fmt: skip
        if result.A is None:
            raise InputError("the dual variables of a draw are not in this process")
        duals[here] = result.A
        ranks = ranks_by(result.W)
        differ = np.count_nonzero((ranks == 1) != (whole == 1))
        points.append(SizePoint(size, topk_shares(ranks, ks), float(np.sqrt(differ) / len(whole))))
        advance(progress, 1)
    return [*points, SizePoint(len(rows), topk_shares(whole, ks), 0.0)]


def _nested_order(labels: NDArray[Any]) -> NDArray[np.int64]:
    """Return an order of the rows in which every prefix is stratified by class."""
    rng = np.random.default_rng(SEED)
    shuffled = rng.permutation(len(labels))
    place = np.empty(len(labels))
    for code in np.unique(labels):
        own = shuffled[labels[shuffled] == code]
        place[own] = (np.arange(len(own)) + rng.random()) / len(own)
    return np.argsort(place, kind="stable")


def _picked(rows: TrainingRows, wanted: NDArray[np.int64]) -> Any:
    """Return the rows with these ascending numbers as float32."""
    return rows.at(wanted, rows.transforms).whole()


def size_words(points: Sequence[SizePoint], unit: str = "images") -> str:
    """Return as text whether more training rows, called `unit`, would help; "" if not measured."""
    if len(points) < 2:
        return ""
    last, before = points[-1], points[-2]
    doublings = float(np.log2(last.rows / before.rows))
    gain, error = last.topk[1] - before.topk[1], before.error
    said = (
        f"From {before.rows:,} to {last.rows:,} training rows top-1 went from {before.topk[1]:.1%} to"
        f" {last.topk[1]:.1%}"
    )
    if last.topk[1] == 1.0:
        return f"{said}: nothing is left to gain on these held-out rows."
    margin = f"{gain:+.1%}, standard error {error:.1%}"
    if gain > 2.0 * error and gain / doublings >= 0.002:
        more = f"as many {unit} again may bring up to {gain / doublings:.1%} more"
        return f"{said} ({margin}): more {unit} of the same kind are likely to help, {more}."
    if gain < -2.0 * error:
        return f"{said} ({margin}): more rows made it worse, so look at their labels before adding more."
    return (
        f"{said} ({margin}), which is not more than chance: these held-out rows cannot tell whether more"
        f" {unit} of the same kind help; cleaner labels or other features may."
    )
