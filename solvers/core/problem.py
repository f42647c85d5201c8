"""The regularised problem and its Fenchel dual.

With one example per row of X (n x d), A the dual variables (n x m, row alpha_i) and gamma the smoothing,

    P(W) = lam/2 |W|^2 + (1/n) sum_i Phi_gamma(W^T x_i; y_i)                                           (1)
    W(A) = (1/(lam n)) X^T A                                                                           (2)
    D(A) = b - lam/2 |W(A)|^2 - gamma/2 aa,   b = (1/n) sum_i -Phi*(-alpha_i),  aa = |A|_F^2 / n       (3)

where -Phi*(-alpha) = -<delta, alpha> for the hinges.  An example with the weight w_i counts w_i times: its
alpha_i is w_i times a point of the domain, at which -Phi* and the square are taken, and which the shifted
score below adds.  Blocks store that point, beta_i = alpha_i / w_i.

Smoothing keeps the polyhedral loss but lifts the primal variable to W~ = (W, sqrt(gamma n lam) A / (lam n)),
|W~|^2 = |W|^2 + (gamma/lam) aa, so that example i scores W^T x_i + gamma alpha_i:

    P~(A) = lam/2 |W|^2 + gamma/2 aa + (1/n) sum_i Phi(W^T x_i + gamma alpha_i; y_i)  >=  P(W(A))      (4)

(1) - (3) is the true gap, (4) - (3) the smoothed upper bound, which costs nothing extra in a round.
Source: Tajima et al., arXiv:2008.08894, section 2.4 and appendix C, with the sign of gamma alpha as in C.24.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from numbers import Integral, Real
from typing import Any, ClassVar, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from topline.solvers.core.rows import RowSource, compute_dtype, is_sparse, without_repeats
from topline.solvers.errors import InvalidProblemError, UnsupportedCombinationError
from topline.solvers.losses import LabelSets, Loss, LossForm, ranking
from topline.solvers.losses.rows import gradient_rows
from topline.solvers.typing import Float64Array, FloatArray, Int64Array, IntArray


@dataclass(frozen=True, eq=False)
class LabelledRows:
    """Examples, checked for a loss.

    Attributes
    ----------
    rows : source of their features, (n, d).
    labels : (n,) int32, numbers of classes, or of `label_sets` if there are any.
    weights : (n,) float64, how often each counts; None if each counts once.
    m : number of classes.
    label_sets : the sets that the labels number if an example has several classes, else None.
    """

    rows: RowSource
    labels: IntArray
    weights: Float64Array | None
    m: int
    label_sets: LabelSets | None = None

    @classmethod
    def of(
        cls,
        loss: Loss,
        X: Any,
        y: Any,
        *,
        m: int | None = None,
        label_sets: LabelSets | None = None,
        sample_weight: Any = None,
    ) -> LabelledRows:
        """Return the checked arguments of `solve`; raises InvalidProblemError naming the fault."""
        rows = checked_rows(X)
        n, shape = int(rows.shape[0]), np.shape(y)
        # A loss of single labels refuses the shape.
        if label_sets is None and len(shape) == 2 and shape[1] > 1 and loss.form(shape[1]).takes_label_sets:
            label_sets, y = LabelSets.from_indicator(y)
        if label_sets is None:
            labels, classes = checked_labels(y, n, m)
        elif isinstance(label_sets, LabelSets):
            labels, _ = checked_labels(y, n, len(label_sets))
            classes = label_sets.m if m is None else m
            _refuse_empty_sets(loss, classes, label_sets, labels)
        else:
            raise InvalidProblemError(
                f"label_sets is {label_sets!r}; give the LabelSets that `LabelSets.from_indicator` makes"
            )
        return cls(rows, labels, checked_weights(sample_weight, n), classes, label_sets)


def checked_rows(X: Any) -> RowSource:
    """Return X as a source of rows, sparse ones as CSR; the first pass over it checks the values."""
    X = X.tocsr() if is_sparse(X) else X
    if isinstance(X, np.ma.MaskedArray):
        raise InvalidProblemError(
            "the features are a masked array, and solvers know no missing values; give X.filled(0.0), or drop"
            " rows that miss any"
        )
    source: RowSource = X if isinstance(X, RowSource) else np.asarray(X)
    if len(source.shape) != 2:
        raise InvalidProblemError(
            f"the features have the shape {tuple(source.shape)}; give one row per example"
        )
    compute_dtype(source.dtype)
    return without_repeats(source) if is_sparse(source) else source


def checked_labels(y: Any, n: int, m: Any) -> tuple[IntArray, int]:
    """Return labels as (n,) int32 and the number of classes (by default the largest label + 1).

    Floats must be whole numbers.  Without m every class below the largest must have an example, because a gap
    suggests a labelling error.
    """
    labels = np.asarray(y)
    if labels.ndim != 1:
        raise InvalidProblemError(f"the labels have the shape {labels.shape}; give one label per example")
    if len(labels) != n:
        raise InvalidProblemError(
            f"there are {n} rows of features but {len(labels)} labels; give one label per row"
        )
    if n == 0:
        raise InvalidProblemError("there are no examples; give at least one row of features")
    if labels.dtype.kind == "f":
        labels = _whole(labels)
    if labels.dtype.kind not in "iu":
        raise InvalidProblemError(
            f"the labels have dtype {labels.dtype}; give whole numbers from 0 to m - 1, such as"
            " np.unique(y, return_inverse=True)[1], or use TopKClassifier, which takes any labels"
        )
    if m is not None and (isinstance(m, bool) or not isinstance(m, Integral)):
        raise InvalidProblemError(
            f"m is {m!r}; give the number of classes as a whole number, or leave it out"
        )
    if m is None:
        there = np.unique(labels[labels >= 0])
        classes = int(there[-1]) + 1 if len(there) else 1
        gaps = classes - len(there)
        if 0 < gaps < classes:
            first = int(np.flatnonzero(there != np.arange(len(there)))[0])
            raise InvalidProblemError(
                f"the largest label is {classes - 1}, but class {first} and {gaps - 1} more below it have no"
                f" example; give np.unique(y, return_inverse=True)[1] as y, or m={classes} to have them as"
                " classes all the same"
            )
    else:
        classes = int(m)
    wrong = np.flatnonzero((labels < 0) | (labels >= classes))
    if wrong.size:
        row = int(wrong[0])
        raise InvalidProblemError(
            f"the label of row {row} is {labels[row]}; labels must lie between 0 and {classes - 1}"
        )
    return labels.astype(np.int32), classes


def _whole(labels: Any) -> IntArray:
    """Return floats as integers; refuse fractions."""
    wrong = np.flatnonzero((labels != np.rint(labels)) | (np.abs(labels) > np.iinfo(np.int32).max))
    if wrong.size:
        row = int(wrong[0])
        raise InvalidProblemError(
            f"the label of row {row} is {labels[row]}; give whole numbers from 0 to m - 1, or"
            " TopKClassifier, which takes any text, y.astype(str)"
        )
    whole: IntArray = labels.astype(np.int64)
    return whole


def _refuse_empty_sets(loss: Loss, m: int, label_sets: LabelSets, labels: IntArray) -> None:
    """Refuse examples without labels for a loss that spreads a unit of probability over them."""
    if loss.form(m).family.empty_sets:
        return
    empty = np.flatnonzero(label_sets.sizes[labels] == 0)
    if empty.size:
        raise InvalidProblemError(
            f"row {empty[0]} has no label, and {loss.name} shares one unit of probability among the labels of"
            " a row; leave such rows out, or use multilabel_hinge, for which they cost nothing"
        )


def checked_weights(sample_weight: Any, n: int) -> Float64Array | None:
    """Return sample weights as (n,) float64; None if every example counts once."""
    if sample_weight is None:
        return None
    try:
        weights = np.array(sample_weight, dtype=np.float64)
    except (TypeError, ValueError):
        raise InvalidProblemError(
            "sample_weight is not a sequence of numbers; give one per example"
        ) from None
    if weights.shape != (n,):
        raise InvalidProblemError(
            f"sample_weight has the shape {weights.shape}; give one number for each of {n} rows"
        )
    bad = np.flatnonzero(~(np.isfinite(weights) & (weights >= 0.0)))
    if bad.size:
        row = int(bad[0])
        raise InvalidProblemError(
            f"sample_weight of row {row} is {weights[row]}; give finite weights that are not negative"
        )
    if not weights.any():
        raise InvalidProblemError("every sample_weight is 0; give at least one example a positive weight")
    return None if (weights == 1.0).all() else weights


def positive_number(name: str, value: Any, *, or_zero: bool = False) -> float:
    """Return a positive finite number, or 0, as a float."""
    number = math.nan if isinstance(value, bool) or not isinstance(value, Real) else float(value)
    if not (0.0 < number < math.inf or (or_zero and number == 0.0)):
        wanted = "number of at least 0" if or_zero else "positive number"
        raise InvalidProblemError(f"{name} is {value!r}; give a {wanted}")
    return number


def positive_integer(name: str, value: Any, *, or_zero: bool = False) -> int:
    """Return a whole number of at least 1, or 0."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < 1 - or_zero:
        raise InvalidProblemError(f"{name} is {value!r}; give a whole number of at least {1 - or_zero}")
    return int(value)


#: If one column has more than this share of the rows' squares, or this many times the median standard
#: deviation, the other columns hardly count.
NEARLY_ALL, FAR_APART = 0.9, 10.0
#: If column means have more than this share of the squares, only a small remainder tells rows apart.
MOSTLY_MEANS = 0.75


def scale_note(
    sample: NDArray[Any], *, means: bool = False, names: Sequence[str] | None = None
) -> str | None:
    """Return a warning about rows (r, d) whose columns differ in scale; None if there is nothing to say.

    With `means`, columns far from 0 also count: such rows are scaled to length 1, or have no bias.
    `names` are those of the columns, if they have any.
    """

    def named(column: int) -> str:
        numbered = f"feature {column} of {len(squares)}, counted from 0,"
        return numbered if names is None else f"column {names[column]!r}"

    X = np.asarray(sample, dtype=np.float64)
    if X.shape[1] < 3 or len(X) < 2:
        return None
    centres, spreads, squares = X.mean(axis=0), X.std(axis=0), np.einsum("ij,ij->j", X, X) / len(X)
    all_squares = max(float(squares.sum()), np.finfo(np.float64).tiny)
    largest, live = int(squares.argmax()), spreads > 0.0
    if squares[largest] > NEARLY_ALL * all_squares:
        share = squares[largest] / all_squares
        return (
            f"{named(largest)} makes {share:.1%} of the squares of the rows, so that the others hardly count"
        )
    typical = float(np.median(spreads[live])) if live.any() else 1.0
    widest = int(spreads.argmax())
    times = spreads[widest] / typical
    if times > FAR_APART:
        return f"{named(widest)} varies {times:,.0f} times as much as most, so that the others hardly count"
    share = float(centres @ centres) / all_squares
    if means and share > MOSTLY_MEANS:
        return (
            f"the means of the {len(squares)} features make {share:.1%} of the squares of the rows, so that"
            " what tells rows apart hardly counts"
        )
    return None


@dataclass(frozen=True)
class MeanRisk:
    """The mean of the losses.

    Examples
    --------
    >>> from topline.solvers.core.problem import MeanRisk
    >>> MeanRisk().name
    'mean'
    """

    name: ClassVar[str] = "mean"


MEAN_RISK = MeanRisk()


@dataclass(frozen=True)
class AverageTopK:
    """The mean of the k largest losses; k is a real number of at least 1 and at most n.

    Raises InvalidProblemError where k is not a number of at least 1.

    Examples
    --------
    >>> from topline import AverageTopK
    >>> AverageTopK(k=12.5).rows
    13
    """

    k: float
    name: ClassVar[str] = "average_top_k"

    def __post_init__(self) -> None:
        k: Any = self.k
        if isinstance(k, bool) or not isinstance(k, Real) or not 1.0 <= float(k) < math.inf:
            raise InvalidProblemError(f"k of {self.name} is {k!r}; give a number from 1 to the rows")
        object.__setattr__(self, "k", float(k))

    @property
    def rows(self) -> int:
        """Number of losses that take part, the last one perhaps fractionally."""
        return math.ceil(self.k)

    def selected(self, losses: LargestLosses, n: int) -> SelectedRows:
        """Return the rows that attain the maximum over p, each with the weight w_i = n p_i."""
        weights = np.full(len(losses.rows), n / self.k)
        part = self.k - math.floor(self.k)
        if part > 0.0:
            weights[losses.smallest] *= part
        return SelectedRows(losses.rows, weights)


#: Risks accepted by `solve`.
Risk: TypeAlias = MeanRisk | AverageTopK


@dataclass(frozen=True, eq=False)
class LargestLosses:
    """The largest losses of some rows; ties go to the lower rows.

    Attributes
    ----------
    most : how many are kept at most.
    rows : (c,) their row numbers in the problem, ascending.
    losses : (c,) float64.
    """

    most: int
    rows: Int64Array
    losses: Float64Array

    @classmethod
    def of(cls, most: int, rows: Int64Array, losses: Float64Array) -> LargestLosses:
        """Return the `most` largest of some losses, whose row numbers ascend; NaN counts as infinite."""
        losses = np.where(np.isnan(losses), np.inf, losses)
        if len(losses) > most:
            least = np.partition(losses, len(losses) - most)[len(losses) - most]
            kept = losses > least
            kept[np.flatnonzero(losses == least)[: most - int(kept.sum())]] = True
            rows, losses = rows[kept], losses[kept]
        return cls(most, rows, losses)

    def merge(self, other: LargestLosses) -> LargestLosses:
        """Return the largest of both; the rows of `other` come after these."""
        rows, losses = np.concatenate([self.rows, other.rows]), np.concatenate([self.losses, other.losses])
        return LargestLosses.of(self.most, rows, losses)

    @property
    def smallest(self) -> int:
        """Position of the smallest loss, the last one of a tie."""
        return len(self.losses) - 1 - int(np.argmin(self.losses[::-1]))


@dataclass(frozen=True, eq=False)
class SelectedRows:
    """Some rows of the problem, each with a weight: rows (c,) ascending, weights (c,) float64."""

    rows: Int64Array
    weights: Float64Array

    def __len__(self) -> int:
        return len(self.rows)

    def between(self, start: int, stop: int) -> SelectedRows:
        """Return the selection within the rows [start, stop), numbered from `start`."""
        low, high = np.searchsorted(self.rows, [start, stop])
        return SelectedRows(self.rows[low:high] - start, self.weights[low:high])


SmoothingKind: TypeAlias = Literal["moreau", "others"]
SMOOTHING_KINDS: tuple[str, ...] = get_args(SmoothingKind)
#: Classes, and entries of W, up to which the whole Hessian of a hinge is formed and factored.
FEW_CLASSES, _FEW_WEIGHTS = 32, 2_896


@dataclass(frozen=True)
class Problem:
    """One training problem: everything but the examples themselves.

    Attributes
    ----------
    loss : the loss, which also fixes the margins.
    n, d, m : examples, features, classes.
    lam : weight of the regulariser, > 0; C = 1/(lam n).
    smoothing : gamma >= 0 of the Moreau envelope; 0 trains on the loss itself.
    smoothing_kind : "moreau" smooths in all m scores (Tajima et al., eq. 2.21), "others" in those of the
        m - 1 other classes only (Lapin's thesis, prop. 6.2): two losses of one name (erratum h1).
    label_sets : the sets that the labels number if examples have several labels; None if y holds classes.
    risk : how the losses of the examples combine into one number, called "the mean loss" below.
    joint : whether scores come from joint features, so that W has no column per class.
    form : the loss for m classes.
    own_share : the share of the smoothing on the own class: 1, or 0 if only the others are smoothed.
    smoothing_own, gammas : the gamma of the own class, and those of the others and of the own one.
    few_weights : whether W is so small that a matrix of all pairs of its entries can be formed and factored.
    by_class : whether P is a sum over classes of functions of one column of W each.
    mean_risk : whether the risk is the mean of the losses.
    scale : the factor 1/(lam n) of eq. 2.

    Raises
    ------
    InvalidProblemError : a number is out of range.
    UnsupportedCombinationError : the loss does not support the smoothing.

    Examples
    --------
    >>> from topline import TopKHinge
    >>> from topline.solvers.core.problem import Problem
    >>> problem = Problem(TopKHinge(k=2), n=100, d=8, m=5, lam=0.01)
    >>> problem.scale
    1.0
    """

    loss: Loss
    n: int
    d: int
    m: int
    lam: float
    smoothing: float = 0.0
    smoothing_kind: SmoothingKind = "moreau"
    label_sets: LabelSets | None = None
    risk: Risk = MEAN_RISK
    joint: bool = False
    form: LossForm = field(init=False, repr=False, compare=False)
    own_share: float = field(init=False, repr=False, compare=False)
    smoothing_own: float = field(init=False, repr=False, compare=False)
    gammas: tuple[float, float] = field(init=False, repr=False, compare=False)
    few_weights: bool = field(init=False, repr=False, compare=False)
    by_class: bool = field(init=False, repr=False, compare=False)
    mean_risk: bool = field(init=False, repr=False, compare=False)
    scale: float = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.n < 1:
            raise InvalidProblemError("there are no examples; give at least one row of features")
        if self.d < 1:
            raise InvalidProblemError("the features have no columns; give at least one feature")
        lam = positive_number("lam", self.lam)
        smoothing = positive_number("smoothing", self.smoothing, or_zero=True)
        if self.smoothing_kind not in SMOOTHING_KINDS:
            raise InvalidProblemError(
                f"the smoothing kind is {self.smoothing_kind!r}; use one of {', '.join(SMOOTHING_KINDS)}"
            )
        form = self.loss.form(self.m).with_label_sets(self.label_sets, self.loss.name)
        if smoothing > 0 and form.smooth:
            raise UnsupportedCombinationError(
                f"the loss {self.loss.name} is smooth as it is; leave smoothing = {smoothing} out"
            )
        others = self.smoothing_kind == "others"
        if others and not (smoothing > 0 and form.sparse_vertices):
            raise UnsupportedCombinationError(
                "the smoothing kind others is for the hinges over ranks with smoothing > 0, not for "
                f"{self.loss.name} with smoothing {smoothing}; use moreau"
            )
        if isinstance(self.risk, AverageTopK) and self.risk.k > self.n:
            raise InvalidProblemError(
                f"k of {self.risk.name} is {self.risk.k:g} but there are {self.n} rows; use k <= {self.n}"
            )
        gammas = smoothing, 0.0 if others else smoothing
        vars(self).update(
            lam=lam, smoothing=smoothing, form=form,
            own_share=0.0 if others else 1.0, smoothing_own=gammas[1], gammas=gammas,
            few_weights=self.m <= FEW_CLASSES and self.m * self.d <= _FEW_WEIGHTS,
            by_class=form.family.by_class and not self.joint,
            mean_risk=isinstance(self.risk, MeanRisk), scale=1.0 / (lam * self.n),
        )  # fmt: skip

    def __reduce__(self) -> tuple[type[Problem], tuple[Any, ...]]:
        """Return how to make the problem again elsewhere: compiled functions belong to one process."""
        return type(self), tuple(getattr(self, each.name) for each in fields(self) if each.init)

    def dual(self, W: Float64Array, conjugate_mean: float, mean_sq_dual: float) -> float:
        """Return D of eq. 3; W (d, m)."""
        return conjugate_mean - 0.5 * self.lam * squared_norm(W) - 0.5 * self.smoothing * mean_sq_dual

    def primal(self, W: Float64Array, mean_loss: float) -> float:
        """Return P of eq. 1, given the mean of Phi_gamma at the scores of W (d, m)."""
        return 0.5 * self.lam * squared_norm(W) + mean_loss

    def primal_bound(self, W: Float64Array, mean_sq_dual: float, mean_loss: float) -> float:
        """Return P~ of eq. 4, given the mean of Phi at the shifted scores."""
        return self.primal(W, mean_loss) + 0.5 * self.smoothing * mean_sq_dual

    def losses(self, scores: FloatArray, y: IntArray, *, smoothed: bool = True) -> Float64Array:
        """Return Phi_gamma, or Phi itself, of each row (b,); the scores (b, m) are overwritten."""
        form, gammas = self.form, self.gammas if smoothed else (0.0, 0.0)
        losses, ones, sums = np.empty(len(y)), np.ones(len(y)), np.zeros(ranking.N_SUMS)
        if form.sparse_vertices and gammas[0] == 0.0:
            rule = ranking.RankRule(form.rho, *form.ranks, self.own_share, form.table)
            ranked, counts = np.empty((len(y), len(form.rho)), np.int32), np.empty(len(y), np.int32)
            ranking.rank_rows(scores, y, ones, rule, ranked, counts, sums, losses)
        else:
            gradient_rows(form, scores, y, ones, gammas, scores, sums, losses)
        return losses

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON, with a digest for the label sets."""
        sets = {} if self.label_sets is None else {"label_sets": self.label_sets.digest}
        return {
            **sets,
            **({"joint": True} if self.joint else {}),
            "loss": self.loss.to_dict(),
            "n": self.n,
            "d": self.d,
            "m": self.m,
            "lam": self.lam,
            "smoothing": self.smoothing,
            "smoothing_kind": self.smoothing_kind,
            "risk": {"name": self.risk.name, **asdict(self.risk)},
        }


def problem_key(problem: Problem, labels: IntArray, weights: Float64Array | None) -> str:
    """Return a digest of everything that W and b of a state depend on, except the features."""
    digest = hashlib.sha256(json.dumps(problem.to_dict(), sort_keys=True).encode())
    digest.update(np.ascontiguousarray(labels, dtype=np.int64).tobytes())
    if weights is not None:
        digest.update(np.ascontiguousarray(weights, dtype=np.float64).tobytes())
    return digest.hexdigest()


def squared_norm(W: FloatArray) -> float:
    """Return |W|_F^2, summed in the type of W."""
    flat = W.ravel(order="F" if W.flags.f_contiguous else "C")
    return float(np.vdot(flat, flat))


def inner(V: Float64Array, W: Float64Array) -> float:
    """Return <V, W> in float64."""
    if V.flags.f_contiguous and W.flags.f_contiguous:
        V, W = V.T, W.T
    return float(np.vdot(np.ascontiguousarray(V), np.ascontiguousarray(W)))
