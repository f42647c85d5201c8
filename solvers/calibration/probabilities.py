"""Maps from scores to probabilities with one or two parameters, fitted on held-out rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq, minimize
from scipy.special import expit, log_expit, log_softmax, logsumexp

from topline.solvers.errors import InvalidProblemError
from topline.solvers.typing import Float64Array, IntArray

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
        return _root(lambda b: float(_first(b, centred).mean()) - target, spread)

    def derivative(b: float) -> float:
        p = np.exp(log_softmax(b * centred, axis=1))
        return float(((p * centred).sum(axis=1) - margin).mean())

    return _root(derivative, spread)


def _first(slope: float, scores: Float64Array) -> Float64Array:
    return np.asarray(np.exp(log_softmax(slope * scores, axis=1).max(axis=1)))


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
