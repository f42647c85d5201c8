"""Rows with several labels (Lapin's thesis, tables 6.10 and 6.11)."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import label_ranking_loss

from tests.reproduce.formats import Examples
from tests.reproduce.score import printed
from tests.reproduce.table import Figure, Reproduction, Setting, Table, over_splits, run_all
from topline.solvers.estimators.multilabel_metrics import tuned_thresholds
from topline.solvers.kernels import KernelFeatures, RBFKernel
from topline.solvers.losses import Loss, MultilabelHinge, MultilabelSoftmax
from topline.solvers.run import regularisation_path

Floats = NDArray[np.float64]

#: Columns of the thesis, as our metrics call them; the first two are better where smaller.
METRICS = {
    "RLoss": "rank_loss",
    "HLoss": "hamming_loss",
    "Acc": "accuracy",
    "SAcc": "subset_accuracy",
    "F1mic": "f1_micro",
    "F1mac": "f1_macro",
    "F1inst": "f1_instance",
}
LOSSES = ("rank_loss", "hamming_loss")
PAPER = printed("thesis.multilabel")
#: Rows of the training part: of the published division, or as many as that has.
TRAINING = {
    "emotions": 391, "yeast": 1500, "enron": 1123, "bibtex": 4880, "scene": 1211, "medical": 645,
    "corel5k": 4500,
}  # fmt: skip
#: Sets of the table that goes on from 6.10.
SECOND_PART = frozenset({"medical", "scene", "yeast"})


#: Passes of a hinge with a kernel and without smoothing.  On a fold of yeast they are too few at widths of
#: 0.1 and 0.25 with C >= 16 alone, and with 500 these are behind a width of 1 by every metric.
HINGE_PASSES = 200


@dataclass(frozen=True)
class Row:
    """A row of the tables: a loss with its smoothing, linear or RBF.

    `scaled` brings columns to [0, 1], where the thesis's rows take them as they are; `constant` adds one.
    """

    name: str
    loss: Loss
    smoothing: float = 0.0
    rbf: bool = False
    scaled: bool = False
    constant: bool = False

    def candidates(
        self, X: Floats, Y: NDArray[Any], others: Sequence[Floats], grid: Grid
    ) -> list[tuple[Floats, ...]]:
        """Train on X, Y for every width and C; gives the scores of each set of `others`, in that order."""
        found: list[tuple[Floats, ...]] = []
        method = "lbfgs" if isinstance(self.loss, MultilabelSoftmax) and not self.rbf else "dual_ascent"
        spread = float(X.var()) * X.shape[1] or 1.0
        for width in grid.widths if self.rbf else (None,):
            kernel = None if width is None else self._features(RBFKernel(width / spread), X)
            passes = grid.passes if kernel is None or self.smoothing else min(grid.passes, HINGE_PASSES)
            results = regularisation_path(
                X, Y, self.loss, grid.Cs, self.smoothing, method, kernel=kernel, tol=grid.tol,
                max_passes=passes,
            )  # fmt: skip
            for result in results:
                if kernel is None:
                    found.append(tuple(part @ result.W for part in others))
                else:
                    found.append(tuple(result.decision_function(part) for part in others))
        return found

    def _features(self, kernel: RBFKernel, X: Floats) -> KernelFeatures:
        """Give the factor of a kernel matrix, for a hinge in float32: a pass takes two thirds of the time.

        Where exponentials take most of a pass float64 stays.  What comes out is certified on the matrix.
        """
        features = KernelFeatures.of(kernel, X)
        if isinstance(self.loss, MultilabelHinge):
            return replace(features, rows=np.asarray(features.rows, np.float32))
        return features


@dataclass(frozen=True)
class Grid:
    """Values that are tried, folds that choose among them, and how far a training goes."""

    Cs: tuple[float, ...]
    widths: tuple[float, ...]
    folds: int
    tol: float
    passes: int


ROWS = (
    Row("LR_ML", MultilabelSoftmax()),
    Row("SVM_ML", MultilabelHinge()),
    Row("SVM_ML_1", MultilabelHinge(), 1.0),
    Row("LR_ML (RBF)", MultilabelSoftmax(), rbf=True),
    Row("SVM_ML (RBF)", MultilabelHinge(), rbf=True),
    Row("SVM_ML_1 (RBF)", MultilabelHinge(), 1.0, rbf=True),
    Row("SVM_ML_1, constant", MultilabelHinge(), 1.0, constant=True),
    Row("SVM_ML_1, scaled", MultilabelHinge(), 1.0, scaled=True),
    Row("SVM_ML_1, scaled, constant", MultilabelHinge(), 1.0, scaled=True, constant=True),
    Row("SVM_ML_1 (RBF), scaled", MultilabelHinge(), 1.0, rbf=True, scaled=True),
)

#: Rows that a quick run leaves out.
QUICKLY_LEFT_OUT = frozenset(
    {"LR_ML (RBF)", "SVM_ML (RBF)", "SVM_ML_1, scaled, constant", "SVM_ML_1 (RBF), scaled"}
)

#: Labels from which on grids are coarser, and rows from which on a quick run has no kernel matrix.
LARGE, HUGE = 20, 3000


def grid(setting: Setting, *, large: bool) -> Grid:
    """Give C and the widths of the RBF kernel, in multiples of 1 / (d var X); fewer for many labels."""
    Cs = tuple(2.0**power for power in setting.of(range(-8, 13, 2), range(-8, 13, 4), range(1)))
    widths = setting.of((0.1, 0.25, 0.5, 1.0, 2.0), (0.1, 0.5), (1.0,))
    tol, passes = setting.of((1e-3, 500), (1e-2, 200), (0.1, 3))
    if large:
        return Grid(Cs[1:-2], widths[1:3], setting.of(3, 2, 2), tol, setting.of(100, 30, 3))
    return Grid(Cs, widths, setting.of(5, 3, 2), tol, passes)


def run(name: str, setting: Setting) -> Reproduction:
    """Cross-validate C, the width and the threshold for every metric by itself, as the thesis does."""
    data = setting.data.load(name, alone=False)
    tried = grid(setting, large=data.m > LARGE)
    huge = len(data.y) > HUGE
    splits = _splits(setting, data, name)[: setting.of(3, 2, 2) if huge else None]
    left_out = setting.of(frozenset[str](), QUICKLY_LEFT_OUT, frozenset[str]())
    without = setting.of(False, huge, False)
    rows = [row for row in ROWS if row.name not in left_out and not (row.rbf and without)]
    if huge:
        rows = rows[: setting.of(None, 3, None)]
    jobs = [
        partial(_trial, row, data, train, test, tried, setting.seed) for row in rows for train, test in splits
    ]
    trials = run_all(setting, "train", jobs, "rows")
    figures: list[Figure] = []
    for at, row in enumerate(rows):
        found = trials[at * len(splits) : (at + 1) * len(splits)]
        # Every label tied with every other.
        untrained = max(trial["rank_loss"] for trial in found) == 1.0
        of_paper = PAPER[name].get(row.name)
        for place, (column, metric) in enumerate(METRICS.items()):
            small = metric in LOSSES
            values = [100.0 * trial[metric] for trial in found]
            paper = None if of_paper is None else of_paper[place] * (100.0 if small else 1.0)
            figures.append(
                over_splits(
                    row.name,
                    column,
                    values,
                    paper,
                    note="e" if untrained else _note(row, name, column),
                    better="lower" if small else "higher",
                )
            )
    return Reproduction(
        tuple(figures),
        _protocol(data, splits, tried, name),
        _notes(name, tried, {figure.note for figure in figures}, without_rbf=without),
    )


def _note(row: Row, name: str, column: str) -> str:
    if name == "bibtex" and column == "F1mac":
        return "d"
    return "b" if name in {"yeast", "emotions"} and not row.rbf else "a"


def _splits(setting: Setting, data: Examples, name: str) -> list[tuple[NDArray[np.intp], NDArray[np.intp]]]:
    """Give the division of the files where there is one, then random ones of the same sizes."""
    n, train = len(data.y), TRAINING[name]
    if n <= train:
        train = 2 * n // 3
    rows = np.arange(n)
    splits = [(rows[:train], rows[train:])] if data.parts else []
    for seed in range(setting.of(4, 3, 2) - len(splits)):
        mixed = setting.rng(seed).permutation(n)
        splits.append((mixed[:train], mixed[train:]))
    return splits


@dataclass(frozen=True, eq=False)
class Scored:
    """What a division gave for every candidate: a pair of C and width.

    Attributes
    ----------
    relevant, wanted : labels of training (n, m) and test rows, as booleans.
    held : scores of the training rows (candidates, n, m), each by a model that has not seen the row.
    final : scores of the test rows, by models of all training rows.
    """

    relevant: NDArray[np.bool_]
    wanted: NDArray[np.bool_]
    held: Floats
    final: list[Floats]


def scored(
    row: Row, data: Examples, train: NDArray[np.intp], test: NDArray[np.intp], tried: Grid, seed: int
) -> Scored:
    """Train every candidate on the folds and on all training rows."""
    X, last = _prepared(row, data, train, test)
    Y = data.y[train]
    count = len(tried.Cs) * (len(tried.widths) if row.rbf else 1)
    held = np.zeros((count, *Y.shape))
    parts = np.array_split(np.random.default_rng([seed, 7]).permutation(len(train)), tried.folds)
    for part in parts:
        inner = np.setdiff1d(np.arange(len(train)), part)
        for place, (scores,) in enumerate(row.candidates(X[inner], Y[inner], [X[part]], tried)):
            held[place, part] = scores
    final = [scores for (scores,) in row.candidates(X, Y, [last], tried)]
    return Scored(Y > 0, data.y[test] > 0, held, final)


def validated(found: Scored) -> dict[str, float]:
    """Give the test value of each metric, with the parameters and threshold that are best for it."""
    relevant = found.relevant
    cardinality = float(relevant.sum(axis=1).mean())
    thresholds = [tuned_thresholds(relevant, scores, cardinality) for scores in found.held]
    tested: dict[str, float] = {}
    for metric in METRICS.values():
        values = [
            value_of(metric, relevant, scores, cut.get(metric, 0.0))
            for scores, cut in zip(found.held, thresholds, strict=True)
        ]
        best = int(np.argmin(values) if metric in LOSSES else np.argmax(values))
        cut = thresholds[best].get(metric, 0.0)
        tested[metric] = value_of(metric, found.wanted, found.final[best], cut)
    return tested


def _trial(
    row: Row, data: Examples, train: NDArray[np.intp], test: NDArray[np.intp], tried: Grid, seed: int
) -> dict[str, float]:
    return validated(scored(row, data, train, test, tried, seed))


def value_of(metric: str, relevant: NDArray[np.bool_], scores: Floats, threshold: float) -> float:
    """Give one metric; of all of them `multilabel_metrics` makes a table, which takes far longer."""
    if metric == "rank_loss":
        return float(label_ranking_loss(relevant, scores))
    predicted = scores > threshold
    if metric == "hamming_loss":
        return float(np.mean(relevant != predicted))
    if metric == "subset_accuracy":
        return float(np.mean((relevant == predicted).all(axis=1)))
    axis = {"f1_micro": None, "f1_macro": 0}.get(metric, 1)
    hits = np.sum(relevant & predicted, axis=axis)
    if metric == "accuracy":
        either = np.sum(relevant | predicted, axis=axis)
        return float(np.mean(np.where(either > 0, hits / np.maximum(either, 1), 1.0)))
    both = np.sum(relevant, axis=axis) + np.sum(predicted, axis=axis)
    empty = 1.0 if metric == "f1_instance" else 0.0
    return float(np.mean(np.where(both > 0, 2.0 * hits / np.maximum(both, 1), empty)))


def _prepared(
    row: Row, data: Examples, train: NDArray[np.intp], test: NDArray[np.intp]
) -> tuple[Floats, Floats]:
    """Scale the columns, and divide all by one number that gives training rows a mean square of 1."""
    X = data.X.toarray() if hasattr(data.X, "toarray") else data.X
    if row.scaled:
        low, high = X[train].min(axis=0), X[train].max(axis=0)
        X = (X - low) / np.where(high > low, high - low, 1.0)
    X = X / np.sqrt(np.mean(np.sum(X[train] ** 2, axis=1)))
    if row.constant:
        X = np.column_stack([X, np.ones(len(X))])
    return X[train], X[test]


def _protocol(data: Examples, splits: Sequence[Any], tried: Grid, name: str) -> dict[str, str]:
    given = "the division of its files and random ones" if data.parts else "random divisions"
    train, test = splits[0]
    return {
        "data": f"{name}: {len(train):,} training and {len(test):,} test rows, d {data.X.shape[1]:,}, m"
        f" {data.y.shape[1]}; {len(splits)} times: {given}",
        "model": f"C of {tried.Cs[0]:g} to {tried.Cs[-1]:g} ({len(tried.Cs)} values), {len(tried.widths)} RBF"
        f" widths around 1/(d var X), by {tried.folds}-fold cross-validation for each metric by itself, with"
        " the threshold; RLoss and HLoss times 100",
    }


def _notes(name: str, tried: Grid, used: AbstractSet[str], *, without_rbf: bool) -> dict[str, str]:
    notes = {
        "a": "the thesis has Mulan's division, 10-fold cross-validation, finer grids and 71 thresholds;"
        " ours are coarser grids, fewer folds and the best threshold there is. It does not say whether"
        " features are scaled nor whether there is a constant one: as they are and without one they give"
        " its figures, and rows 'scaled' and 'constant' tell what these would change"
    }
    if name == "yeast":
        notes["b"] = (
            "the linear rows of the thesis are far behind its RBF ones because there is no constant feature:"
            " the features of yeast lie around 0, and a linear score without one cannot favour the labels"
            " that most rows have (rows 'constant' and 'scaled', where linear comes near RBF)"
        )
    if name == "emotions":
        notes["b"] = (
            "the features of emotions differ in scale by a factor of thousands, so that trainings on them as"
            " they are end with their budget of passes, and short of the optimum at large C: ours with"
            f" {tried.passes} passes; the thesis's figures lie between these and those of rows 'scaled'"
        )
    if name == "bibtex":
        seen = 100.0 * (1.0 - 1.0 / tried.folds)
        notes["d"] = (
            f"by {tried.folds} folds thresholds are chosen on scores of machines that saw {seen:.0f} % of the"
            " training rows, and macro F1 pays for it: SVM_ML_1 is 3.8 points below the thesis with two folds"
            " and 0.2 above with six; features and division are not the cause (bibtex-causes --quick)"
        )
    if "e" in used:
        notes["e"] = (
            f"of weights 0: within {tried.passes} passes no training of a division found any with a smaller"
            " objective, so that all labels tie and RLoss is 100; these figures say nothing of the loss"
        )
    if without_rbf:
        notes["c"] = "rows of the RBF kernel are left out of a quick run, for their matrices take hours"
    return notes


TABLES = tuple(
    Table(
        f"multilabel-{name}", f"Metrics of multilabel losses on {name} (%)",
        f"Lapin's thesis, table 6.1{1 if name in SECOND_PART else 0}", partial(run, name), (name,),
    )
    for name in PAPER
)  # fmt: skip
