"""Coverage and size of prediction sets over random splits, and probabilities beside scikit-learn's.

    python -m tests.benchmarks.models.trust [--data FOLDER] [--splits 1000] [--quick]

The rows that are not for training are the 10,000 and 7,532 rows of two published tables of class
probabilities (the test sets of CIFAR-10 and of 20 Newsgroups), and those of models that are trained here.  A
fifth of them is for validation: it fits the probabilities and chooses how classes are weighed (marked *).
The others are split again and again into calibration rows and rows on which the sets are measured.

The bar: the mean of the measured coverage lies between the coverage and 1/(n + 1) above it, give or take
three standard errors, on average and in every class, where as many more as make the worst of m classes as
unlikely to miss it by chance (3.6 for ten).  The chosen sets are smaller on average than the fixed
number of guesses for which the same calibration rows promise the same coverage (in every class: the largest
that a class needs), averaged over the splits.  Log loss and expected calibration error after fitting are no
higher than those of scikit-learn's temperature on the same rows; where ours is another map than theirs, as of
one-vs-all losses, by no more than two standard errors of the difference, by the bootstrap.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import norm
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.calibration import CalibratedClassifierCV
from sklearn.frozen import FrozenEstimator

from tests.benchmarks.datasets import DATA_DIR, load
from tests.benchmarks.harness import read_options
from topline import TopKClassifier
from topline.solvers.calibration import (
    Calibration,
    CalibrationRows,
    ProbabilityMap,
    SetsBy,
    calibration_error,
    conformity,
    fit_probabilities,
    least_rows,
    reliability,
    tuned_weighings,
)

TABLES = ("cifar10", "20news")
MODELS = (
    ("usps", "topk_hinge", 5), ("usps", "max_hinge", 1), ("usps", "one_vs_all_hinge", 1),
    ("usps", "softmax", 1),
    ("letter", "topk_hinge", 3), ("letter", "one_vs_all_logistic", 1),
    ("googlenet", "usunier_hinge", 3), ("digits", "topk_hinge", 3),
)  # fmt: skip
COVERAGES = (0.8, 0.9, 0.95)
SETS_BY: tuple[SetsBy, ...] = ("adaptive", "rank", "probability")
CALIBRATION_SHARE = 0.5


@dataclass(frozen=True, eq=False)
class Scored:
    """Scores (n, m) and classes (n,) of rows that trained nothing; the first `val` are for validation."""

    name: str
    scores: np.ndarray[Any, Any]
    y: np.ndarray[Any, Any]
    val: int
    one_vs_all: bool = False

    def fitted(self) -> ProbabilityMap:
        """Return probabilities of the validation rows."""
        return fit_probabilities(self.scores[: self.val], self.y[: self.val], one_vs_all=self.one_vs_all)


@dataclass(frozen=True)
class Coverage:
    """What sets of one coverage do over the splits; of classes, those of the one that is farthest off.

    `off` says by how many standard errors the mean is below the coverage, or above it and the slack of
    1/(n + 1); `fixed_k` is the mean number of guesses with the same promise.
    """

    coverage: float
    per_class: bool
    sets_by: str
    mean: float
    error: float
    slack: float
    size: float
    fixed_k: float
    off: float
    bar: float
    chosen: bool

    @property
    def holds(self) -> bool:
        """Whether the bar is met: by the mean, or by that of every class, and of chosen sets by the size."""
        return self.off <= self.bar and (self.size < self.fixed_k or not self.chosen)


class _Scores(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A classifier whose rows are its scores."""

    def __init__(self, m: int) -> None:
        self.m = m
        self.classes_ = np.arange(m)

    def fit(self, X: Any, y: Any) -> _Scores:
        return self

    def decision_function(self, X: Any) -> Any:
        return np.asarray(X)

    def predict(self, X: Any) -> Any:
        return np.argmax(X, axis=1)


def tables(folder: Path) -> Iterator[Scored]:
    """Yield the published tables, in a fixed random order; scores are logarithms, as of scikit-learn."""
    for name in TABLES:
        place = folder / f"scores_{name}_test_set"
        p = np.load(place / f"{name}_test_set_pyx.npy").astype(np.float64)
        y = np.load(place / f"{name}_test_set_original_labels.npy").astype(np.int64)
        order = np.random.default_rng(0).permutation(len(y))
        yield Scored(name, np.log(p + 1e-12)[order], y[order], len(y) // 5)


def models(folder: Path, *, quick: bool) -> Iterator[Scored]:
    """Yield the scores of models trained on 40 % of a set's rows, for the others."""
    for name, loss, k in MODELS:
        if quick and name != "digits":
            continue
        data = load(name, folder)
        order = np.random.default_rng(0).permutation(len(data.y))
        X, y = data.X[order], data.y[order].astype(np.int64)
        cut = int(0.4 * len(y))
        model = TopKClassifier(loss, k=k, tol=1e-2).fit(X[:cut], y[:cut])
        scores = model.decision_function(X[cut:])
        yield Scored(f"{name}, {loss}", scores, y[cut:], len(scores) // 5, loss.startswith("one_vs_all"))


@dataclass(frozen=True)
class Quality:
    """Log loss and expected calibration error of our probabilities and of scikit-learn's, each as a pair.

    `errors` are two standard errors of ours less theirs, by resampling the rows, zero where both are the same
    map to seven digits; of the calibration error at least what a row does that is at the edge of a bin.
    """

    log_loss: tuple[float, float]
    calibration_error: tuple[float, float]
    errors: tuple[float, float]

    @property
    def holds(self) -> bool:
        """Whether ours are no worse; 1e-7 is what two searches for the same temperature may differ by."""
        pairs = zip((self.log_loss, self.calibration_error), self.errors, strict=True)
        return all(ours <= theirs + max(error, 1e-7) for (ours, theirs), error in pairs)


def probabilities(data: Scored) -> Quality:
    """Return the quality on the rows that are not for validation."""
    theirs = CalibratedClassifierCV(FrozenEstimator(_Scores(data.scores.shape[1])), method="temperature")
    theirs.fit(data.scores[: data.val], data.y[: data.val])
    rest = data.scores[data.val :]
    both = (data.fitted().probabilities(rest), theirs.predict_proba(rest))
    y = data.y[data.val :]
    losses = [-np.log(np.maximum(p[np.arange(len(y)), y], 1e-300)) for p in both]
    tops = [(p.max(axis=1), p.argmax(axis=1) == y) for p in both]

    def measured(rows: Any) -> np.ndarray[Any, Any]:
        errors = [calibration_error(reliability(top[rows], right[rows])) for top, right in tops]
        return np.array([[loss[rows].mean() for loss in losses], errors])

    (loss, ece), spread = measured(slice(None)), np.zeros(2)
    if not np.allclose(*both, atol=1e-7):
        rng = np.random.default_rng(2)
        drawn = [measured(rng.integers(len(y), size=len(y))) for _ in range(200)]
        spread = 2.0 * np.std([sample[:, 0] - sample[:, 1] for sample in drawn], axis=0)
    spread = np.maximum(spread, (0.0, 2.0 / len(rest)))
    return Quality(tuple(loss.tolist()), tuple(ece.tolist()), tuple(spread.tolist()))


def coverages(data: Scored, splits: int) -> Iterator[Coverage]:
    """Yield what sets do over the splits of the rows that are not for validation."""
    rng = np.random.default_rng(1)
    m, val, fitted = data.scores.shape[1], data.val, data.fitted()
    weighings = tuned_weighings(fitted, data.scores[:val], data.y[:val], rng.random(val))
    scores, y = data.scores[val:], data.y[val:]
    p, draws = fitted.probabilities(scores), rng.random(len(y))
    known = Calibration(
        tuple(map(str, range(m))), fitted, val, weighings, CalibrationRows.of(scores, p, y, draws)
    )
    ranks = 1 + (scores > scores[np.arange(len(y)), y][:, None]).sum(axis=1)
    orders = [rng.permutation(len(y)) for _ in range(splits)]
    for per_class in (False, True):
        for coverage in COVERAGES:
            best = known.rule(coverage, per_class=per_class).sets_by
            for sets_by in SETS_BY:
                rule = known.rule(coverage, per_class=per_class, sets_by=sets_by)
                E = conformity(scores, p, draws, rule.weighing)
                found = _measured(E, y, ranks, orders, coverage, sets_by, per_class=per_class)
                yield replace(found, chosen=sets_by == best)


def _measured(E, y, ranks, orders, coverage, sets_by, *, per_class) -> Coverage:
    m, n = E.shape[1], int(CALIBRATION_SHARE * len(y))
    own = E[np.arange(len(y)), y]
    groups = [np.flatnonzero(y == c) for c in range(m)] if per_class else [np.arange(len(y))]
    # Classes of too few rows are refused, and not measured.
    groups = [rows for rows in groups if len(rows) // 2 >= least_rows(coverage)]
    held, sizes = np.empty((len(orders), len(groups))), np.empty(len(orders))
    guesses = np.zeros(len(orders))
    for i, order in enumerate(orders):
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        kept = place < n if not per_class else np.zeros(len(y), dtype=bool)
        bounds = np.full(m, np.inf)
        for g, rows in enumerate(groups):
            if per_class:
                # As many calibration rows of a class in every split: half of its rows, drawn at random.
                kept[rows[np.argsort(place[rows])[: len(rows) // 2]]] = True
            calibration = np.sort(own[rows[kept[rows]]])
            promised = np.sort(ranks[rows[kept[rows]]])
            rank = int(np.ceil(round((len(calibration) + 1) * coverage, 9)))
            bound = calibration[rank - 1]
            guesses[i] = max(guesses[i], promised[rank - 1])
            bounds[y[rows[0]] if per_class else slice(None)] = bound
            held[i, g] = (own[rows[~kept[rows]]] <= bound).mean()
        sizes[i] = np.count_nonzero(E[~kept] <= bounds) / np.count_nonzero(~kept)
    means, errors = held.mean(axis=0), held.std(axis=0, ddof=1) / np.sqrt(len(orders))
    slack = np.array([1.0 / ((len(rows) // 2 if per_class else n) + 1) for rows in groups])
    off = np.maximum(coverage - means, means - coverage - slack) / np.maximum(errors, 1e-12)
    worst, bar = int(off.argmax()), float(norm.isf(norm.sf(3.0) / len(groups)))
    return Coverage(
        coverage, per_class, sets_by, float(means[worst] if per_class else means[0]), float(errors[worst]),
        float(slack[worst]), float(sizes.mean()), float(guesses.mean()), float(off[worst]),
        bar, chosen=False,
    )  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    """Print the tables; the exit code is 1 where the bar is missed."""
    options = read_options(__doc__, arguments, data=DATA_DIR, splits=1000, quick=False)
    missed = 0
    sources = [*([] if options.quick else tables(options.data)), *models(options.data, quick=options.quick)]
    print(f"{'probabilities':30}  {'log loss':>9} {'theirs':>9}  {'ECE':>7} {'theirs':>7} {'2 s.e.':>7}")
    for data in sources:
        found = probabilities(data)
        missed += not found.holds
        (loss, their_loss), (ece, their_ece) = found.log_loss, found.calibration_error
        print(
            f"{data.name:30}  {loss:9.5f} {their_loss:9.5f}  {ece:7.4f} {their_ece:7.4f}"
            f" {found.errors[1]:7.4f}{'' if found.holds else '  MISSED'}"
        )
    head = "coverage  per class  by              mean  +- error  1/(n+1)  off (s.e.)  mean size  fixed k"
    for data in sources:
        print(f"\n{data.name}: {len(data.y) - data.val:,} rows, {options.splits:,} splits\n{head}")
        for one in coverages(data, options.splits):
            missed += not one.holds
            name = f"{one.sets_by:11} {'*' if one.chosen else ' '}"
            print(
                f"{one.coverage:8g}  {'yes' if one.per_class else 'no':9}  {name} {one.mean:7.4f}"
                f"  {one.error:8.5f}  {one.slack:7.4f}  {one.off:10.2f}  {one.size:9.3f}  {one.fixed_k:7g}"
                f"{'' if one.holds else '  MISSED'}"
            )
    print(f"\n{missed} missed" if missed else "\nall within the bar")
    return int(missed > 0)


if __name__ == "__main__":
    raise SystemExit(main())
