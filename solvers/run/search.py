"""The loss, C and scaling with the best held-out accuracy, found for about the cost of a few fits.

The first fit is the default, to its full tolerance, and sets the cost of a fit.  All others go to a relative
gap of `GAP`, each along C from the previous fit, and are certified to it.  On the first fold the loss of the
default is tried with every scaling, then each other loss near the best C so far, with the scalings that are
not behind.  A path ends where a larger C is worse by more than a standard error.  The remaining cells go on
to the next folds while the budget lasts.

A cell is behind if the paired difference of its hits to the leader's is more than `ERRORS` standard errors
below zero.  Costs are counted in passes, so data and seed determine the choice unless a time is up first.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topline.solvers.core.rows import is_sparse
from topline.solvers.core.state import SolveResult
from topline.solvers.counts import how_many
from topline.solvers.losses import Loss, MaxHinge, Softmax, TopKHinge
from topline.solvers.run.api import solve, start_from
from topline.solvers.run.task import ProblemSpec, compile_jit_functions

#: Relative gap of the fits that are compared.
GAP = 0.02
#: Maximal cost of a search: this multiple of the passes of a fit or, where these are fewer, this many
#: multiplications and seconds of processor time, whichever is less.
FITS, LEAST, SECONDS = 6, 2.0**33, 10.0
#: Multiplications that take as long as what a pass does with a row besides its d m.
PER_ROW = 2000
#: Values of C times the mean of |x|^2.
SCALES = (10.0, 100.0, 1000.0)
#: Other losses are tried at these multiples of the first loss's best C.
NEAR = (0.1, 1.0, 10.0)
#: Smoothing of the smooth hinge among the trials.
SMOOTHED = 1.0
#: Passes that usually suffice for all trials.
LOOKED_AT = 500
#: Maximal passes of one fit, and the least seconds of the first under any limit.
MOST_PASSES, LEAST_SECONDS = 1000, 0.01
#: Standard errors of a paired difference at which a cell falls behind.
ERRORS = 2.0


@dataclass(frozen=True)
class Goal:
    """The accuracy that ranks cells: the share of rows right within k guesses, or its mean over classes."""

    k: int = 1
    per_class: bool = False

    def worth(self, y: NDArray[Any]) -> NDArray[np.float64]:
        """Return the weight of each row (n,), 1 on average."""
        if not self.per_class:
            return np.ones(len(y))
        _, own, counts = np.unique(y, return_inverse=True, return_counts=True)
        return np.asarray(len(y) / (len(counts) * counts[own]))

    def losses(self, m: int) -> list[tuple[Loss, float]]:
        """Return the losses to try for m classes, each with its smoothing, the default first."""
        found: list[tuple[Loss, float]] = [(Softmax(), 0.0), (MaxHinge(), 0.0), (MaxHinge(), SMOOTHED)]
        return [*found, (TopKHinge(self.k), 0.0)] if self.k > 1 and 2 * self.k <= m else found


@dataclass(frozen=True)
class Trial:
    """A loss with its smoothing on rows of a scaling: one path of C."""

    scaling: str
    loss: Loss
    smoothing: float = 0.0


@dataclass(frozen=True, eq=False)
class Part:
    """The rows of one fold, X (n, d) with labels (n,) and weights (n,) or None, and its held-out rows."""

    X: Any
    y: NDArray[Any]
    held_out: Any
    held_out_y: NDArray[Any]
    weights: NDArray[np.float64] | None = None


@dataclass(eq=False)
class Cell:
    """A trial at one C: the ranks of the true classes of held-out rows, fold by fold, and the cost."""

    trial: Trial
    C: float
    ranks: list[NDArray[np.int64]] = field(default_factory=list)
    passes: list[int] = field(default_factory=list)
    relative_gap: float = 0.0
    behind: bool = False


@dataclass(frozen=True, eq=False)
class Found:
    """The result of a search: cells in opening order, the best one, and the default.

    `labels` belong to the rows held out by the `folds` visited, `fits` is the cost in fits of the default,
    and `ended` says why the search stopped.
    """

    cells: tuple[Cell, ...]
    best: Cell
    default: Cell
    labels: NDArray[Any]
    folds: int
    fits: float
    ended: str

    def share(self, cell: Cell, goal: Goal) -> float:
        """Return the accuracy of a cell on the folds that it has seen."""
        return _share(cell, self.labels, goal)


def _share(cell: Cell, labels: NDArray[Any], goal: Goal) -> float:
    """Return the accuracy of a cell on the first of these labels, those of the folds that it has seen."""
    hits = np.concatenate(cell.ranks) <= goal.k
    return float(np.mean(goal.worth(labels[: len(hits)]) * hits))


@dataclass(frozen=True, eq=False)
class Search:
    """A search that can begin.

    `part_of` gives the rows of a scaling and fold, of `n` rows in all and `m` classes; the first of `trials`
    at C is the default; a non-empty `Cs` fixes the values of C.  `told` is called after every fit.
    """

    part_of: Callable[[str, int], Part]
    trials: Sequence[Trial]
    n: int
    m: int
    goal: Goal = Goal()
    C: float = 1.0
    Cs: tuple[float, ...] = ()
    folds: int = 5
    tol: float = 1e-3
    seed: int = 0
    time_limit: float | None = None
    told: Callable[[], object] = tuple

    @staticmethod
    def rows(n: int, d: int, m: int) -> int:
        """Return how many of n rows to search on, so that the budget is likely to suffice for all trials."""
        return min(n, max(n // 4, int(LEAST / (LOOKED_AT * (d * m + PER_ROW))), 2 * m))

    def find(self) -> Found:
        """Return the best cell; ties go to the default, then to the cell opened first."""
        return _Searching(self).to_the_end()

    def scores(self, cell: Cell, part: Part) -> NDArray[np.float32]:
        """Return the scores (r, m) of a part's held-out rows, by a fit of the cell to the other rows."""
        result = self.fit(cell, part, max_passes=MOST_PASSES, time_limit=self.time_limit)
        return np.asarray(part.held_out @ result.W.astype(np.float32))

    def fit(self, cell: Cell, part: Part, tol: float = GAP, **options: Any) -> SolveResult:
        """Fit a cell to the rows of a part."""
        rows, trial = len(part.y), cell.trial
        return solve(
            part.X, part.y, trial.loss, 1.0 / (rows * cell.C), trial.smoothing, sample_weight=part.weights,
            tol=tol, seed=self.seed, m=self.m, **options,
        )  # fmt: skip


class _Searching:
    """A search in progress."""

    def __init__(self, search: Search) -> None:
        self._search, self._part = search, lru_cache(maxsize=2)(search.part_of)
        limit = search.time_limit
        self._ends = math.inf if limit is None else time.monotonic() + limit
        # Processor time at which a search on small data ends, however busy the machine is.
        self._computed = math.inf
        self._cells: list[Cell] = []
        self._labels: list[NDArray[Any]] = []
        # Row visits so far, of one fit, and allowed.
        self._spent, self._one, self._budget = 0.0, 1.0, math.inf
        self._why = f"all {search.folds} folds were looked at"

    def to_the_end(self) -> Found:
        """Run the search and return its result."""
        search, default = self._search, self._default()
        leading = [trial for trial in search.trials if trial.loss == default.trial.loss]
        for trial in leading:
            self._take(trial, search.Cs or self._grid(trial))
        self._judge()
        for trial in search.trials:
            there = [cell for cell in self._alive if cell.trial.scaling == trial.scaling]
            near = [cell for cell in there if cell.trial in leading]
            if trial not in leading and near:
                best = self._best(near)
                self._take(trial, search.Cs or [_round(times * best.C) for times in NEAR])
        self._judge()
        if not search.Cs:
            best = self._best(self._alive)
            self._take(best.trial, [_round(best.C / 3.0), _round(best.C * 3.0)])
            self._judge()
        fold = 1
        while fold < search.folds and self._next_fold(fold):
            fold += 1
        return Found(
            tuple(self._cells), self._best(self._alive), default, np.concatenate(self._labels), fold,
            self._spent / self._one, self._why,
        )  # fmt: skip

    def _default(self) -> Cell:
        """Fit the default to the training tolerance, which sets the budget."""
        search, trial = self._search, self._search.trials[0]
        part = self._part(trial.scaling, 0)
        self._labels.append(part.held_out_y)
        cell = self._cell(trial, search.C)
        self._fit(cell, part, search.tol, None)
        self._one = float(search.n * cell.passes[0])
        self._budget, least = FITS * self._one, LEAST / (part.X.shape[1] * search.m + PER_ROW)
        if least > self._budget:
            self._budget = least
            # What the trials run is compiled first, which is no part of their cost.
            for loss, smoothing in dict.fromkeys((one.loss, one.smoothing) for one in search.trials):
                spec = ProblemSpec(loss, C=search.C, smoothing=smoothing)
                compile_jit_functions(spec, part.X.shape[1], search.m, sparse=is_sparse(part.X))
            self._computed = time.process_time() + SECONDS
        return cell

    def _take(self, trial: Trial, Cs: Iterable[float]) -> None:
        """Follow C on the first fold until a larger one is worse."""
        part, last, best = self._part(trial.scaling, 0), None, None
        for C in sorted(set(Cs)):
            cell = self._cell(trial, C)
            if not cell.ranks and self._is_over(len(part.y)):
                self._cells.remove(cell)
                return
            if not cell.ranks:
                last = self._fit(cell, part, GAP, last)
            if best is not None and self._lag(best, cell, errors=1.0) > 0.0:
                return
            best = cell if best is None or self._mean(cell) > self._mean(best) else best

    def _next_fold(self, fold: int) -> bool:
        """Take the remaining cells to another fold; return False if that is unnecessary or did not finish."""
        alive, rows = self._alive, len(self._part(self._cells[0].trial.scaling, fold).y)
        if self._is_over(rows):
            return False
        if len(alive) == 1:
            self._why = "one was left"
            return False
        if self._spent + rows * sum(cell.passes[0] for cell in alive) > self._budget:
            self._why = "the budget was spent"
            return False
        for trial in dict.fromkeys(cell.trial for cell in alive):
            part, last = self._part(trial.scaling, fold), None
            for cell in sorted((cell for cell in alive if cell.trial == trial), key=lambda cell: cell.C):
                if self._is_over(rows):
                    for seen in self._cells:
                        del seen.ranks[fold:]
                    return False
                last = self._fit(cell, part, GAP, last)
        self._labels.append(part.held_out_y)
        self._judge()
        return True

    def _is_over(self, rows: int) -> bool:
        """Return whether the time is up, or the budget is short of a pass over `rows` rows."""
        if time.monotonic() >= self._ends or time.process_time() >= self._computed:
            self._why = "the time was up"
            return True
        if self._spent + rows > self._budget:
            self._why = "the budget was spent"
            return True
        return False

    def _fit(self, cell: Cell, part: Part, gap: float, last: SolveResult | None) -> SolveResult:
        """Fit a cell and rank the true classes of the held-out rows."""
        search, rows = self._search, len(part.y)
        most = min((self._budget - self._spent) / rows, MOST_PASSES)
        seconds = max(self._ends - time.monotonic(), LEAST_SECONDS)
        result = search.fit(
            cell, part, gap, max_passes=int(most), time_limit=None if math.isinf(seconds) else seconds,
            **({} if last is None else start_from(last)),
        )  # fmt: skip
        self._spent += result.passes * rows
        cell.passes.append(result.passes)
        cell.relative_gap = max(cell.relative_gap, result.relative_gap)
        scores = np.asarray(part.held_out @ result.W.astype(np.float32))
        own = np.take_along_axis(scores, part.held_out_y[:, None].astype(np.int64), axis=1)
        # Ties and NaN count against the model.
        cell.ranks.append((~(scores < own)).sum(axis=1))
        search.told()
        return result

    def _judge(self) -> None:
        """Mark the cells that the best one leads beyond chance as behind."""
        best = self._best(self._alive)
        for cell in self._alive:
            cell.behind = cell is not best and self._lag(best, cell) > 0.0

    def _lag(self, best: Cell, cell: Cell, errors: float = ERRORS) -> float:
        """Return the lead of one cell over another on their common folds, minus `errors` standard errors."""
        seen = min(len(best.ranks), len(cell.ranks))
        hits = [np.concatenate(one.ranks[:seen]) <= self._search.goal.k for one in (best, cell)]
        ahead = self._search.goal.worth(np.concatenate(self._labels[:seen])) * (hits[0] - 1.0 * hits[1])
        return float(ahead.mean() - errors * ahead.std() / math.sqrt(len(ahead)))

    def _mean(self, cell: Cell) -> float:
        return _share(cell, np.concatenate(self._labels[: len(cell.ranks)]), self._search.goal)

    def _best(self, cells: Sequence[Cell]) -> Cell:
        return max(cells, key=self._mean)

    def _grid(self, trial: Trial) -> list[float]:
        """Return values of C for the scale of the rows, and the default's."""
        X = self._part(trial.scaling, 0).X
        values = X.ravel() if isinstance(X, np.ndarray) else X.data
        square = float(values @ values) / X.shape[0]
        return [*(_round(scale / max(square, 1e-30)) for scale in SCALES), self._search.C]

    def _cell(self, trial: Trial, C: float) -> Cell:
        """Return the cell of a trial at C, opening it if needed."""
        for cell in self._cells:
            if cell.trial == trial and cell.C == C:
                return cell
        self._cells.append(Cell(trial, C))
        return self._cells[-1]

    @property
    def _alive(self) -> list[Cell]:
        return [cell for cell in self._cells if not cell.behind]


def _round(C: float) -> float:
    return float(f"{C:.0e}")


def unseen_classes(
    y: NDArray[Any], folds: Iterable[tuple[Any, Any]], names: Sequence[str] | None = None
) -> str:
    """Return a sentence on held-out rows whose class their fold does not train on, "" where there are none.

    `y` (n,) has the class of each row, or its place in `names`; a fold is its training and held-out rows.
    """
    lost = (y[out][~np.isin(y[out], y[train])].tolist() for train, out in folds)
    found = Counter(label if names is None else names[label] for labels in lost for label in labels)
    if not found:
        return ""
    told = [f"{label} {rows:,}" for label, rows in found.most_common()]
    more = f" and {len(told) - 3:,} more classes" * (len(told) > 3)
    return (
        f"{how_many(found.total(), 'held-out rows')} count as errors, as their fold trains on no row of the"
        f" class ({', '.join(told[:3])}{more}): give it more rows or groups, or leave it out"
    )
