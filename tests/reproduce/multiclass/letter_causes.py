"""What could give the thesis's figures of the truncated top-k entropy on Letter, far above ours at top-1.

The loss is not convex.  The thesis says that it goes down the gradient with a line search from the solution
of the softmax, and not when it stops; `letter` goes on by L-BFGS until the gradient vanishes.  A cause is
another start, an end, or another choice of C.
Source: M. Lapin, "Image classification with limited training data and class ambiguity", 2017, section 6.5.2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numpy.typing import NDArray

from tests.reproduce.formats import Examples
from tests.reproduce.learners import Labels, Trained, Weights
from tests.reproduce.multiclass.thesis import KS, LETTER, budget, letter_splits
from tests.reproduce.selection import Split, topk_percent
from tests.reproduce.table import Figure, Reproduction, Setting, Table, over_splits, run_all
from topline.solvers.core.state import SolverState
from topline.solvers.losses import Loss, Softmax, TopKEntropy, TruncatedTopKEntropy
from topline.solvers.run import solve

#: The row that ours is farthest from.
DOUBTED = 10
Floats = NDArray[np.float64]

#: Armijo's share of the slope, and by what a step grows before and shrinks within its search.
SLOPE, GROWTH, SHRINKAGE = 1e-4, 2.0, 0.5


@dataclass(frozen=True)
class Cause:
    """A way down: from the solution of which loss, and how many steps along the gradient.

    Without steps it is L-BFGS, to a gradient that is `tol` of the first; None starts at W = 0.
    """

    name: str
    start: Loss | None = field(default_factory=Softmax)
    steps: int = 0
    tol: float = 1e-3


@dataclass(frozen=True)
class Tried:
    """Accuracies in percent for every C by k, in the order of `KS`, on validation and on test rows."""

    validation: list[list[float]]
    test: list[list[float]]

    def by_column(self) -> list[float]:
        """Choose C for each column by itself; equal choices go to the smaller C."""
        best = np.argmax(self.validation, axis=0)
        return [self.test[place][column] for column, place in enumerate(best)]

    def by_one(self, k: int) -> list[float]:
        """Choose one C for all columns, by top-k accuracy."""
        return self.test[int(np.argmax(np.array(self.validation)[:, KS.index(k)]))]


#: How `letter` goes down, and how it would be left unfinished.
AS_LETTER, UNFINISHED = Cause("as letter"), Cause("25 steps", steps=25)


def causes(setting: Setting, k: int) -> tuple[Cause, ...]:
    """Give what is tried; a quick run tries most of it for the row in doubt alone."""
    if setting.of(False, False, True):
        return (AS_LETTER, Cause("2 steps", steps=2))
    if setting.of(False, True, False) and k != DOUBTED:
        return (AS_LETTER, UNFINISHED)
    return (
        AS_LETTER,
        Cause("to a gradient of 1e-6", tol=1e-6),
        Cause("from W = 0", None),
        Cause(f"from top-{k} Ent", TopKEntropy(k)),
        Cause("10 steps", steps=10),
        UNFINISHED,
        Cause("100 steps", steps=100),
    )


def truncated(X: Floats, y: Labels, W: Weights, k: int, C: float) -> tuple[float, Weights]:
    """Give |W|^2 / 2 + C sum_i log(1 + sum of exp(s_j - s_y) over the m - k lowest others), and its slope."""
    rows = np.arange(len(y))
    scores = X @ W
    ahead = scores - scores[rows, y][:, None]
    ahead[rows, y] = -np.inf
    if k > 1:
        np.put_along_axis(ahead, np.argpartition(-ahead, k - 2, axis=1)[:, : k - 1], -np.inf, axis=1)
    top = np.maximum(ahead.max(axis=1), 0.0)
    shares = np.exp(ahead - top[:, None])
    total = np.exp(-top) + shares.sum(axis=1)
    shares /= total[:, None]
    shares[rows, y] = -shares.sum(axis=1)
    loss = float(np.sum(np.log(total) + top))
    return C * loss + 0.5 * float(np.sum(W * W)), C * (X.T @ shares) + W


def down(X: Floats, y: Labels, W: Weights, k: int, C: float, steps: int) -> Weights:
    """Give W after steps along minus the gradient, each halved until the objective falls as Armijo asks."""
    value, slope = truncated(X, y, W, k, C)
    step = 1.0 / (C * len(y))
    for _ in range(steps):
        step *= GROWTH
        while True:
            new = W - step * slope
            reached, after = truncated(X, y, new, k, C)
            if reached <= value - SLOPE * step * float(np.sum(slope * slope)):
                break
            step *= SHRINKAGE
            if step * float(np.abs(slope).max()) <= 1e-12 * float(np.abs(W).max()):
                return W
        W, value, slope = new, reached, after
    return W


def tried(setting: Setting, data: Examples, split: Split, Cs: Sequence[float], k: int, cause: Cause) -> Tried:
    """Train for every C and test all of it."""
    goal, (train, validation) = budget(setting), split.folds[0]
    X, y = np.asarray(data.X[train], np.float64), data.y[train]
    starts = [np.zeros((X.shape[1], data.m))] * len(Cs)
    if cause.start is not None:
        starts = Trained("start", cause.start, method="lbfgs").path(X, y, data.m, Cs, goal)
    found = Tried([], [])
    for C, W in zip(Cs, starts, strict=True):
        if cause.steps:
            W = down(X, y, W, k, C, cause.steps)
        else:
            W = solve(
                X, y, TruncatedTopKEntropy(k), 1.0 / (C * len(y)), method="lbfgs", m=data.m,
                tol=min(cause.tol, goal.tol), max_passes=goal.passes * (10 if cause.tol < goal.tol else 1),
                state=SolverState.at(W),
            ).W  # fmt: skip
        for rows, into in ((validation, found.validation), (split.test, found.test)):
            accuracy = topk_percent(data.X[rows], data.y[rows], W, KS)
            into.append([accuracy[k] for k in KS])
    return found


def run(setting: Setting) -> Reproduction:
    """Try every cause on every division."""
    data = setting.data.load("letter", alone=True)
    splits = letter_splits(setting, data)[: setting.of(4, 2, 1)]
    Cs = [10.0**power for power in setting.of(range(-2, 5), range(4), range(1))]
    keys = [
        (k, cause)
        for k in setting.of((3, 5, DOUBTED), (3, 5, DOUBTED), (DOUBTED,))
        for cause in causes(setting, k)
    ]
    jobs = [partial(tried, setting, data, split, Cs, k, cause) for k, cause in keys for split in splits]
    results = iter(run_all(setting, "train", jobs, "paths of C"))
    figures: list[Figure] = []
    for k, cause in keys:
        trials = [next(results) for _ in splits]
        figures += _figures(k, cause.name, [trial.by_column() for trial in trials])
        if k == DOUBTED and cause in (AS_LETTER, UNFINISHED):
            figures += _figures(k, f"{cause.name}, one C", [trial.by_one(k) for trial in trials])
    protocol = {
        "data": f"Letter: {len(splits[0].folds[0][0]):,} training, {len(splits[0].folds[0][1]):,} validation,"
        f" {len(splits[0].test):,} test rows; {len(splits)} of the divisions of the table 'letter'",
        "model": f"C of {Cs[0]:g} to {Cs[-1]:g} ({len(Cs)} values), chosen for each column on validation rows"
        " or, 'one C', for all columns by top-k accuracy; from the softmax of the same C and by L-BFGS as"
        " 'letter' unless a row says otherwise; 'steps' are along the gradient, each first twice as long as"
        f" the last one and then halved until it passes Armijo's test with {SLOPE:g}",
    }
    return Reproduction(tuple(figures), protocol, {"a": _said(figures)})


def _figures(k: int, said: str, accuracies: Sequence[Sequence[float]]) -> list[Figure]:
    paper = LETTER[f"top-{k} Ent_tr"]
    columns = zip(KS, paper, zip(*accuracies, strict=True), strict=True)
    return [
        over_splits(f"top-{k} Ent_tr: {said}", f"top-{j}", values, printed, note="a", counts=False)
        for j, printed, values in columns
    ]


def _said(figures: Sequence[Figure]) -> str:
    """Say how far from the thesis each way ends where it is farthest, over the four columns."""
    farthest: dict[str, float] = {}
    for figure in figures:
        farthest[figure.row] = max(farthest.get(figure.row, 0.0), abs(figure.difference or 0.0))
    return "farthest from the thesis in any column, in points: " + "; ".join(
        f"{row} {points:.1f}" for row, points in farthest.items()
    )


TABLE = Table(
    "letter-causes", "Top-k accuracy (%) of the truncated top-k entropy on Letter by how it is trained",
    "Lapin's thesis, table 6.6", run, ("letter",),
)  # fmt: skip
