"""Calibration of scores: probabilities fitted on held-out rows, their quality, and conformal sets.

Nothing here depends on how the scores were computed.  A `ProbabilityMap` turns scores into probabilities with
one or two parameters fitted on held-out rows; reliability bins and intervals measure them; a `Calibration`
makes rules for sets of classes that hold the right one with a stated probability.

Split-conformal sets: each of n calibration rows, used for nothing else, has the conformity score E of its own
class; a new row's set holds the classes with E at most the ceil((n + 1) coverage)-th smallest of them.  If
calibration rows and the new row are exchangeable, the set holds the right class with probability at least
`coverage` and, since no two E are equal, at most coverage + 1 / (n + 1) (Vovk et al. 2005; Angelopoulos and
Bates 2023, section 1).  With calibration rows of one class only, this holds given that class.

    E(x, c) = sum_{j before c} p_j + u p_c + penalty (rank_c - 1 + u)

where classes are ordered by score, p are probabilities, and u is uniform, drawn once per row: Adaptive
Prediction Sets (Romano et al. 2020), regularised as by Angelopoulos et al. (2021), with the penalty applied
from the first class on so that E rises strictly along the order.

By rank, E = rank_c - p_c, with ties broken by u; without probabilities E = rank_c - 1 + u.  If top-1 accuracy
exceeds `coverage`, the empty sets are then those of the least certain rows.  By probability, E = 1 - p_c: no
sets are smaller on average if the p are right (Sadinle et al. 2019).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from statistics import NormalDist
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq, minimize
from scipy.special import expit, log_expit, log_softmax, logsumexp, stdtrit

from topline.solvers.errors import InvalidProblemError
from topline.solvers.typing import Float64Array, IntArray

BINS = 15
#: Default confidence level of intervals.
CONFIDENCE = 0.95

Interval = tuple[float, float]


def share_interval(share: float, rows: float, confidence: float = CONFIDENCE) -> Interval:
    """Return Wilson's interval of a share measured on `rows` rows; [0, 1] for none.

    E. B. Wilson, "Probable inference", 1927: the shares p with |share - p| <= z sqrt(p (1 - p) / rows).
    """
    if not rows > 0:
        return 0.0, 1.0
    z = NormalDist().inv_cdf(0.5 + confidence / 2.0)
    grown = 1.0 + z * z / rows
    middle = (share + z * z / (2.0 * rows)) / grown
    half = z / grown * math.sqrt(share * (1.0 - share) / rows + (z / (2.0 * rows)) ** 2)
    # Rounding can push an end past the share itself.
    return min(max(middle - half, 0.0), share), max(min(middle + half, 1.0), share)


def class_mean_interval(right: NDArray[np.bool_], classes: NDArray[Any], weights: NDArray[Any]) -> Interval:
    """Return the interval of the weighted share of rows that are right, with classes as strata; all (n,).

    Wilson's interval at the effective number of rows that has the variance sum_c v_c^2 p_c (1 - p_c) / n_c,
    v_c the weight of class c.  Each p_c gets one pseudo-hit and one pseudo-miss, since a few rows that agree
    make no class certain.  As that variance is itself estimated, the quantile is Student's with
    Satterthwaite's degrees of freedom.
    """
    used = weights > 0.0
    _, own, rows = np.unique(classes[used], return_inverse=True, return_counts=True)
    shares = np.bincount(own, weights=weights[used]) / weights[used].sum()
    rates = (np.bincount(own, weights=right[used]) + 1.0) / (rows + 2.0)
    parts = shares**2 * rates * (1.0 - rates) / rows
    mean, variance = float(shares @ rates), float(parts.sum())
    level = 0.5 + CONFIDENCE / 2.0
    wider = float(stdtrit(variance**2 / (parts**2 / rows).sum(), level)) / NormalDist().inv_cdf(level)
    measured = min(float(weights[used] @ right[used] / weights[used].sum()), 1.0)
    return share_interval(measured, mean * (1.0 - mean) / (variance * wider**2))


@dataclass(frozen=True)
class ReliabilityBin:
    """Rows whose first class has a probability in (low, high]: mean probability and accuracy."""

    low: float
    high: float
    rows: int
    confidence: float
    accuracy: float


def reliability(
    confidence: NDArray[Any], right: NDArray[np.bool_], bins: int = BINS
) -> tuple[ReliabilityBin, ...]:
    """Return the non-empty bins of equal width; `confidence` and `right` are (n,) (Guo et al. 2017)."""
    p = np.asarray(confidence, dtype=np.float64)
    place = np.clip(np.ceil(p * bins).astype(np.int64) - 1, 0, bins - 1)
    rows = np.bincount(place, minlength=bins)
    sums = np.bincount(place, weights=p, minlength=bins)
    hits = np.bincount(place, weights=np.asarray(right, dtype=np.float64), minlength=bins)
    return tuple(
        ReliabilityBin(
            i / bins, (i + 1) / bins, int(rows[i]), float(sums[i] / rows[i]), float(hits[i] / rows[i])
        )
        for i in np.flatnonzero(rows).tolist()
    )


def calibration_error(bins: Sequence[ReliabilityBin]) -> float:
    """Return the expected calibration error: the mean over rows of |confidence - accuracy| of their bin."""
    total = sum(part.rows for part in bins)
    return sum(part.rows * abs(part.confidence - part.accuracy) for part in bins) / max(total, 1)


Kind = Literal["temperature", "one_vs_all", "labels"]

# Range of slopes, in units of the spread of the scores.
_FLATTEST, _STEEPEST = 1e-9, 1e9
# Largest absolute offset and log slope of sigmoids.
LARGEST = 30.0


@dataclass(frozen=True)
class ProbabilityMap:
    """Probabilities p of scores s, with z = slope s + offset.

    `kind` is "temperature", p = softmax(z), where the temperature is 1 / slope (Guo et al. 2017);
    "one_vs_all", p_j = sigmoid(z_j) / sum_i sigmoid(z_i), which is the softmax as the offset goes to minus
    infinity; or "labels", p_j = sigmoid(z_j) of each of several labels (Platt 2000).
    """

    kind: Kind
    slope: float
    offset: float = 0.0

    @property
    def temperature(self) -> float | None:
        """1 / slope of a softmax; None for sigmoids and where all classes are equally probable."""
        return 1.0 / self.slope if self.kind == "temperature" and self.slope > 0.0 else None

    def log_probabilities(self, scores: NDArray[Any]) -> Float64Array:
        """Return the logarithms of the probabilities of scores (r, m), same shape."""
        z = self.slope * np.asarray(scores, dtype=np.float64) + self.offset
        if self.kind == "temperature":
            return np.asarray(log_softmax(z, axis=1))
        singles = log_expit(z)
        if self.kind == "labels":
            return np.asarray(singles)
        return np.asarray(singles - logsumexp(singles, axis=1, keepdims=True))

    def probabilities(self, scores: NDArray[Any]) -> Float64Array:
        """Return the probabilities of scores (r, m), same shape; rows sum to 1 except for "labels"."""
        return np.exp(self.log_probabilities(scores))

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return asdict(self)


#: Slopes of the losses whose risk has its least value at the scores log p / slope.
_OWN_SLOPES = {"softmax": 1.0, "sum_exponential": 2.0}


def own_probabilities(loss: str) -> ProbabilityMap | None:
    """Return the map to the probabilities that a loss, by name, defines itself; None for another."""
    return ProbabilityMap("temperature", _OWN_SLOPES[loss]) if loss in _OWN_SLOPES else None


def fit_probabilities(scores: NDArray[Any], labels: IntArray, *, one_vs_all: bool = False) -> ProbabilityMap:
    """Return the map of least log loss on scores (n, m) and their classes (n,).

    It fits the slope of a softmax, or with `one_vs_all` the shared slope and offset of sigmoids.  If every
    row is right, log loss has no minimiser: the slope then makes the mean probability of the first class (n +
    1) / (n + 2), Laplace's estimate after n successes.  Raises `InvalidProblemError` for no rows or fewer
    than two classes.
    """
    scores, y = np.asarray(scores, dtype=np.float64), np.asarray(labels, dtype=np.int64)
    if scores.ndim != 2 or not len(scores) or scores.shape[1] < 2 or y.shape != scores.shape[:1]:
        raise InvalidProblemError(
            f"probabilities are fitted on scores (n, m) of at least a row and two classes, with n labels; got"
            f" {scores.shape} and {y.shape}"
        )
    own = scores[np.arange(len(y)), y]
    slope = _temperature_slope(scores, own)
    softmax = ProbabilityMap("temperature", slope)
    # With two classes only the difference of the scores matters.
    if not one_vs_all or scores.shape[1] == 2 or slope == 0.0 or bool((own == scores.max(axis=1)).all()):
        return softmax
    return _best_sigmoids(scores, y, slope)


def _temperature_slope(scores: Float64Array, own: Float64Array) -> float:
    """Return the slope b that minimises the mean of log sum_j exp(b s_j) - b s_y, which is convex in b."""
    centred = scores - scores.mean(axis=1, keepdims=True)
    margin = own - scores.mean(axis=1)
    spread = float(np.abs(centred).max(axis=1).mean())
    # The derivative at zero: uninformative scores make all classes equally probable.
    if spread == 0.0 or margin.mean() <= 0.0:
        return 0.0
    if bool((own == scores.max(axis=1)).all()):
        target = (len(own) + 1.0) / (len(own) + 2.0)
        return _root(
            lambda b: float(np.exp(log_softmax(b * centred, axis=1).max(axis=1)).mean()) - target, spread
        )

    def derivative(b: float) -> float:
        p = np.exp(log_softmax(b * centred, axis=1))
        return float(((p * centred).sum(axis=1) - margin).mean())

    return _root(derivative, spread)


def _root(rising: Callable[[float], float], spread: float) -> float:
    """Return the root of a rising function of the slope, or the steepest slope if there is none."""

    def of_log(x: float) -> float:
        return rising(float(np.exp(x)))

    low, high = np.log(_FLATTEST / spread), np.log(_STEEPEST / spread)
    # The ends of the range stand for a slope of zero and for no finite slope.
    if of_log(low) >= 0.0:
        return 0.0
    if of_log(high) <= 0.0:
        return float(np.exp(high))
    return float(np.exp(brentq(of_log, low, high, xtol=1e-12, rtol=1e-12)))


def _best_sigmoids(scores: Float64Array, y: NDArray[np.int64], slope: float) -> ProbabilityMap:
    """Return the best sigmoids found from several starts, or the softmax if it has less log loss."""
    rows = np.arange(len(y))

    def made(at: NDArray[Any]) -> ProbabilityMap:
        return ProbabilityMap("one_vs_all", slope * float(np.exp(at[0])), float(at[1]))

    def loss(found: ProbabilityMap) -> float:
        return -float(found.log_probabilities(scores)[rows, y].mean())

    def objective(at: NDArray[Any]) -> tuple[float, Float64Array]:
        found = made(at)
        logs = found.log_probabilities(scores)
        wrong = np.exp(logs)
        wrong[rows, y] -= 1.0
        # d log sigmoid(z) = 1 - sigmoid(z)
        wrong *= expit(-(found.slope * scores + found.offset))
        by_slope = found.slope * (wrong * scores).sum(axis=1).mean()
        return -float(logs[rows, y].mean()), np.array([by_slope, wrong.sum(axis=1).mean()])

    starts = np.array([(0.0, -12.0), (0.0, -3.0), (0.0, 0.0), (1.0, 3.0)])
    bounds = [(-LARGEST, LARGEST), (-LARGEST, LARGEST)]
    ends = [minimize(objective, start, jac=True, method="L-BFGS-B", bounds=bounds).x for start in starts]
    return min([ProbabilityMap("temperature", slope), *map(made, ends)], key=loss)


def fit_labels(scores: NDArray[Any], relevant: NDArray[np.bool_]) -> ProbabilityMap:
    """Return the sigmoid of least log loss over all labels of all rows, scores and `relevant` both (n, m).

    The targets are Platt's, (p + 1) / (p + 2) and 1 / (q + 2) for p relevant and q other labels, which keeps
    the slope finite for separable scores.
    """
    s, r = np.asarray(scores, dtype=np.float64).ravel(), np.asarray(relevant, dtype=bool).ravel()
    if not s.size or s.shape != r.shape:
        raise InvalidProblemError(
            f"probabilities of labels are fitted on scores and labels of one shape; got {np.shape(scores)}"
            f" and {np.shape(relevant)}"
        )
    positive = int(r.sum())
    target = np.where(r, (positive + 1.0) / (positive + 2.0), 1.0 / (len(r) - positive + 2.0))
    centre, spread = float(s.mean()), float(s.std()) or 1.0
    x = (s - centre) / spread

    def loss(at: NDArray[Any]) -> tuple[float, Float64Array]:
        z = at[0] * x + at[1]
        wrong = expit(z) - target
        value = -(target * log_expit(z) + (1.0 - target) * log_expit(-z)).mean()
        return float(value), np.array([(wrong * x).mean(), wrong.mean()])

    best = minimize(loss, np.zeros(2), jac=True, method="L-BFGS-B", options={"gtol": 1e-10, "ftol": 1e-14}).x
    slope = float(best[0]) / spread
    return ProbabilityMap("labels", slope, float(best[1]) - slope * centre)


#: How E is computed: a number is the penalty of adaptive sets, None means by rank.
Weighing = float | Literal["probability"] | None

#: Penalties tried for adaptive sets; the largest leave little but the rank.
PENALTIES = (0.001, 0.01, 0.03, 0.1, 0.3, 1.0, 10.0, 100.0)
#: Weight of u by rank and by probability: it decides between probabilities closer than this.
SETTLES = 1e-6


def conformity(
    scores: NDArray[Any], probabilities: NDArray[Any] | None, draws: NDArray[Any], weighing: Weighing
) -> Float64Array:
    """Return E of every class, shape (r, m).

    `scores` (r, m) order the classes, ties by class number; `probabilities` (r, m) may be None by rank, where
    they order classes of equal rank; `draws` (r,) are the u, uniform in [0, 1).
    """
    order = np.argsort(-np.asarray(scores), axis=1, kind="stable")
    u = np.asarray(draws, dtype=np.float64)[:, None]
    p = before = None
    if probabilities is not None:
        p = np.take_along_axis(np.asarray(probabilities, dtype=np.float64), order, axis=1)
        before = np.cumsum(p, axis=1) - p
    found = np.empty(order.shape)
    along = _conformity(np.arange(order.shape[1])[None, :], before, p, u, weighing)
    np.put_along_axis(found, order, along, axis=1)
    return found


def _conformity(rank: Any, before: Any, p: Any, u: Float64Array, weighing: Weighing) -> Float64Array:
    """Return E of classes with `rank` others, of the total probability `before`, ahead of them."""
    if p is None:
        return np.asarray(rank + u)
    if weighing is None or weighing == "probability":
        # 1 - p, in [0, 1], with ties broken by u
        uncertainty = (1.0 - SETTLES) * (1.0 - p) + SETTLES * u
        return np.asarray(uncertainty + (rank if weighing is None else 0.0))
    return np.asarray(before + u * p + weighing * (rank + u))


@dataclass(frozen=True, eq=False)
class CalibrationRows:
    """Statistics of calibration rows that give the thresholds for any coverage and weighing; all (n,).

    The rows' classes, their ranks by score (from 1), the total probability of the classes ranked ahead and
    their own (both NaN without probabilities), and the u of the rows.
    """

    labels: NDArray[np.int32]
    ranks: NDArray[np.int32]
    before: Float64Array
    own: Float64Array
    draws: Float64Array

    def __repr__(self) -> str:
        return f"CalibrationRows({len(self.labels):,} rows)"

    @classmethod
    def of(
        cls, scores: NDArray[Any], probabilities: NDArray[Any] | None, labels: IntArray, draws: NDArray[Any]
    ) -> CalibrationRows:
        """Return the statistics of rows with scores and probabilities (n, m) and classes (n,)."""
        y = np.asarray(labels, dtype=np.int64)
        place, u = np.arange(len(y)), np.asarray(draws, dtype=np.float64)
        nothing = np.zeros_like(u)
        ranks = conformity(scores, None, nothing, None)[place, y].astype(np.int32) + np.int32(1)
        own = before = np.full(len(y), np.nan)
        if probabilities is not None:
            before = conformity(scores, probabilities, nothing, 0.0)[place, y]
            own = np.asarray(probabilities, dtype=np.float64)[place, y]
        return cls(y.astype(np.int32), ranks, before, own, u)

    def __len__(self) -> int:
        """Return n."""
        return len(self.labels)

    def conformity(self, weighing: Weighing) -> Float64Array:
        """Return E of the rows' own classes, shape (n,)."""
        p = self.own if self.weighed or weighing is not None else None
        return _conformity(self.ranks - 1, self.before, p, self.draws, weighing)

    @property
    def weighed(self) -> bool:
        """Whether the rows have probabilities."""
        return not np.isnan(self.own).any()

    def thresholds(
        self, coverage: float, weighing: Weighing, classes: Sequence[str], *, per_class: bool
    ) -> Float64Array:
        """Return the largest E at which each class (m,) joins a set.

        With `per_class` each threshold comes from the rows of its class, and is infinite (the class is in
        every set) where these are too few.  Raises `InvalidProblemError` for a coverage outside (0, 1), and
        for one that no class has enough rows to give.
        """
        if not 0.0 < coverage < 1.0:
            raise InvalidProblemError(f"the coverage is {coverage:g}; give a share between 0 and 1")
        E, n, m = self.conformity(weighing), len(self), len(classes)
        groups = [E[self.labels == code] for code in range(m)] if per_class else [E]
        found = np.array([_quantile(part, coverage) for part in groups])
        if np.isinf(found).all():
            needed = f"{coverage:g} needs {least_rows(coverage)}"
            best = f"{math.floor(1e4 * n / (n + 1)) / 1e4:g} at most" if n else "none"
            who = f"there are {n} calibration rows, which give a coverage of {best}, and {needed}"
            if per_class:
                who = f"no class has so many calibration rows as a coverage of {needed} of"
            raise InvalidProblemError(f"{who}: lower the coverage, or hold out more calibration rows")
        return np.broadcast_to(found, m).copy()


def exact_rank(n: int, coverage: float) -> int:
    """Return ceil((n + 1) coverage), exact for the coverage's decimal representation."""
    return math.ceil((n + 1) * Fraction(repr(float(coverage))))


def least_rows(coverage: float) -> int:
    """Return the least n with coverage <= n / (n + 1), the calibration rows that a coverage needs."""
    share = Fraction(repr(float(coverage)))
    return math.ceil(share / (1 - share))


def _quantile(E: Float64Array, coverage: float) -> float:
    """Return the ceil((n + 1) coverage)-th smallest of E (n,), infinity if there are too few."""
    place = exact_rank(len(E), coverage)
    return float(np.partition(E, place - 1)[place - 1]) if place <= len(E) else math.inf


def smallest_weighings(
    scores: NDArray[Any],
    probabilities: NDArray[Any],
    labels: IntArray,
    draws: NDArray[Any],
    coverages: Sequence[float],
    *,
    per_class: bool = False,
) -> list[Weighing]:
    """Return for each coverage the weighing with the smallest sets on tuning rows (n, m).

    With `per_class` each class has its own threshold.  Tuning rows must not be calibration rows: the
    guarantee then holds whichever weighing is chosen.
    """
    y = np.asarray(labels, dtype=np.int64)
    place = np.arange(len(y))
    weighings: tuple[Weighing, ...] = (None, "probability", *PENALTIES)
    sizes = np.empty((len(weighings), len(coverages)))
    for i, weighing in enumerate(weighings):
        E = conformity(scores, probabilities, draws, weighing)
        own = E[place, y]
        groups = [own[y == code] for code in range(E.shape[1])] if per_class else [own]
        for j, coverage in enumerate(coverages):
            # A class with too few tuning rows takes the largest threshold.
            bounds = [min(_quantile(part, coverage), (part if len(part) else own).max()) for part in groups]
            sizes[i, j] = np.count_nonzero(np.array(bounds) >= E)
    return [weighings[i] for i in sizes.argmin(axis=0).tolist()]


#: Conformity of a class: cumulative probability, rank, or its own probability.
SetsBy = Literal["adaptive", "rank", "probability"]
#: A coverage, and the weighings with the smallest sets for it: on average, and within every class.
Weighings = tuple[tuple[float, Weighing, Weighing], ...]

TUNED_COVERAGES = (0.5, 0.8, 0.9, 0.95, 0.99)
# Fewer rows say little about the size of sets; more scores do not change the choice.
TUNING_ROWS = 20
TUNING_SCORES = 1 << 20
#: Most class names listed in a sentence.
_NAMED = 8
# Penalty of requested adaptive sets when other sets are smaller.
PENALTY = 0.01


@dataclass(frozen=True, eq=False)
class SetRule:
    """Rule for sets: a row's set holds the classes whose conformity is at most their threshold (m,).

    With `never_empty` an otherwise empty set holds the class with the highest score.  `note` is a sentence on
    classes that are in every set because they have too few calibration rows.
    """

    coverage: float
    per_class: bool
    sets_by: SetsBy
    weighing: Weighing
    thresholds: Float64Array
    probabilities: ProbabilityMap | None
    never_empty: bool = False
    note: str | None = None

    def sets(self, scores: NDArray[Any], draws: NDArray[Any]) -> NDArray[np.bool_]:
        """Return a mask (r, m) of the classes in the sets of rows with scores (r, m) and draws (r,)."""
        p = None if self.probabilities is None else self.probabilities.probabilities(scores)
        found = conformity(scores, p, draws, self.weighing) <= self.thresholds
        if self.never_empty:
            empty = np.flatnonzero(~found.any(axis=1))
            found[empty, scores[empty].argmax(axis=1)] = True
        return found

    def facts(self) -> dict[str, Any]:
        """Return the rule as plain values for JSON."""
        return {
            "coverage": self.coverage,
            "per_class": self.per_class,
            "sets_by": self.sets_by,
            "penalty": self.weighing if self.sets_by == "adaptive" else None,
            "thresholds": [bound if math.isfinite(bound) else None for bound in self.thresholds.tolist()],
            **({} if self.note is None else {"note": self.note}),
            **({"never_empty": True} if self.never_empty else {}),
        }


@dataclass(frozen=True, eq=False)
class Calibration:
    """Probabilities of a classifier's scores, and its calibration rows.

    `probabilities` is None if there were no rows to fit them on, and `fitted_rows` is 0 if they are the
    loss's own; `fitted_on` names the rows they were fitted on.  `weighings` give the smallest sets on these
    rows, and are empty without them.
    """

    class_names: tuple[str, ...]
    probabilities: ProbabilityMap | None = None
    fitted_rows: int = 0
    weighings: Weighings = ()
    rows: CalibrationRows | None = None
    fitted_on: str = "validation rows"

    def rule(self, coverage: float, *, per_class: bool = False, sets_by: SetsBy | None = None) -> SetRule:
        """Return the rule whose sets hold the right class with probability `coverage`.

        With `per_class` they do so within every class; a class with too few calibration rows is in every set.
        `sets_by` defaults to the kind that gave the smallest sets on the rows probabilities were fitted on,
        "rank" without such rows.  Raises `InvalidProblemError` without calibration rows and if they are too
        few for the coverage.
        """
        if self.rows is None:
            raise InvalidProblemError(
                "there are no calibration rows, so sets would have no guarantee: hold out rows that serve"
                " nothing else (--calibration-share 0.2 of import, extract and run; conformalize in Python)"
            )
        if sets_by in ("adaptive", "probability") and not self.rows.weighed:
            raise InvalidProblemError(
                f"sets by {sets_by!r} need probabilities, and there are too few validation rows to fit them"
                " on: use sets by rank, or hold out more (--val-share; fit_probabilities in Python)"
            )
        weighing = self._weighing(coverage, sets_by, per_class=per_class)
        thresholds = self.rows.thresholds(coverage, weighing, self.class_names, per_class=per_class)
        kind: SetsBy = "adaptive"
        if weighing is None or weighing == "probability":
            kind = weighing or "rank"
        probabilities = self.probabilities if self.rows.weighed else None
        note, always = None, np.flatnonzero(np.isinf(thresholds)).tolist()
        if always:
            names = ", ".join(self.class_names[code] for code in always[:_NAMED])
            more = f" and {len(always) - _NAMED} more" if len(always) > _NAMED else ""
            note = (
                f"{len(always)} of {len(self.class_names)} classes are in every set ({names}{more}), as they"
                f" have fewer than the {least_rows(coverage)} calibration rows that a coverage of"
                f" {coverage:g} in each class needs: lower the coverage, or hold out more of them"
            )
        return SetRule(coverage, per_class, kind, weighing, thresholds, probabilities, note=note)

    def _weighing(self, coverage: float, sets_by: SetsBy | None, *, per_class: bool) -> Weighing:
        """Return the requested weighing, or the one tuned for the coverage with the nearest odds."""

        def distance(tuned: tuple[float, Weighing, Weighing]) -> float:
            return abs(math.log(tuned[0] / (1.0 - tuned[0])) - math.log(coverage / (1.0 - coverage)))

        if sets_by == "rank" or sets_by == "probability":
            return None if sets_by == "rank" else sets_by
        tuned: Weighing = None
        if self.weighings and 0.0 < coverage < 1.0:
            tuned = min(self.weighings, key=distance)[1 + per_class]
        if sets_by == "adaptive" and not isinstance(tuned, float):
            return PENALTY
        return tuned


def tuned_weighings(
    probabilities: ProbabilityMap, scores: NDArray[Any], labels: IntArray, draws: NDArray[Any]
) -> Weighings:
    """Return the weighings with the smallest sets on rows with scores (n, m); empty for too few rows.

    The rows are those that probabilities were fitted on, never calibration rows.
    """
    step = -(-scores.size // TUNING_SCORES)
    scores, y, u = scores[::step], np.asarray(labels)[::step], draws[::step]
    if len(scores) < TUNING_ROWS:
        return ()
    p = probabilities.probabilities(scores)
    on_average, in_every_class = (
        smallest_weighings(scores, p, y, u, TUNED_COVERAGES, per_class=per_class)
        for per_class in (False, True)
    )
    return tuple(zip(TUNED_COVERAGES, on_average, in_every_class, strict=True))


def members(classes: Sequence[Any], sets: NDArray[np.bool_], scores: NDArray[Any]) -> list[list[Any]]:
    """Return the classes in each row's set, those with the highest scores first."""
    order = np.argsort(-np.asarray(scores), axis=1, kind="stable")
    return [[classes[c] for c in best if row[c]] for best, row in zip(order.tolist(), sets, strict=True)]


#: Most guesses of a row, and logarithms of probabilities that decide.
MOST_GUESSES = 8
_LAM, _LEAST, _ROWS = 1e-2, 1e-12, 20


@dataclass(frozen=True, eq=False)
class GuessRule:
    """Rule for sets of a row's best classes, as many as `weights` (guesses + 1, guesses) say."""

    price: float
    probabilities: ProbabilityMap
    weights: Float64Array

    def sets(self, scores: NDArray[Any], draws: Any = None) -> NDArray[np.bool_]:  # noqa: ARG002
        """Return a mask (r, m) of the classes that rows with scores (r, m) are given; nothing is drawn."""
        features = _features(self.probabilities, scores, self.weights.shape[1])
        sizes = 1 + (features @ self.weights).argmax(axis=1)
        places = np.argsort(np.argsort(-np.asarray(scores), axis=1, kind="stable"), axis=1)
        return np.asarray(places < sizes[:, None])

    def facts(self) -> dict[str, Any]:
        """Return the rule as plain values for JSON."""
        return {"guess_price": self.price, "weights": self.weights.tolist()}


def fit_guesses(
    probabilities: ProbabilityMap, scores: NDArray[Any], labels: IntArray, price: float
) -> GuessRule:
    """Return the rule for rows like those with scores (n, m) and classes (n,), which trained nothing.

    A miss costs 1, and k guesses cost price log k.  A row's k has the largest r_k = <v_k, z> + b_k, z the
    logarithms of its largest probabilities; the selector has the least mean of -sum_k (most - cost_k) log
    softmax_k(r) (Cortes, Mao, Mohri, Mohri and Zhong, NeurIPS 2024).  InvalidProblemError for fewer than 20
    rows, or a price that is not positive.
    """
    scores, y = np.asarray(scores, dtype=np.float64), np.asarray(labels, dtype=np.int64)
    if len(y) < _ROWS or not 0.0 < price < np.inf:
        raise InvalidProblemError(
            f"the number of guesses is fitted on {_ROWS} rows or more that trained nothing, for a price above"
            f" 0; got {len(y)} rows and the price {price:g}"
        )
    most = min(MOST_GUESSES, scores.shape[1])
    ranks = (scores >= scores[np.arange(len(y)), y][:, None]).sum(axis=1)
    guesses = np.arange(1, most + 1)
    costs = (ranks[:, None] > guesses) + price * np.log(guesses)
    worth, z = costs.max() - costs, _features(probabilities, scores, most)

    def objective(flat: Float64Array) -> tuple[float, Float64Array]:
        R = flat.reshape(-1, most)
        logs = log_softmax(z @ R, axis=1)
        slopes = worth.sum(axis=1, keepdims=True) * np.exp(logs) - worth
        value = -float((worth * logs).sum()) / len(y) + 0.5 * _LAM * float(flat @ flat)
        return value, (z.T @ slopes / len(y) + _LAM * R).ravel()

    found: Any = minimize(
        objective, np.zeros(z.shape[1] * most), jac=True, method="L-BFGS-B",
        options={"ftol": 1e-12, "gtol": 1e-8, "maxiter": 1000},
    )  # fmt: skip
    return GuessRule(price, probabilities, found.x.reshape(-1, most))


def _features(probabilities: ProbabilityMap, scores: NDArray[Any], most: int) -> Float64Array:
    """Return the logarithms of the `most` largest probabilities of each row, largest first, and 1."""
    logs = -np.sort(-probabilities.log_probabilities(scores), axis=1)[:, :most]
    return np.column_stack([np.maximum(logs, np.log(_LEAST)), np.ones(len(logs))])
