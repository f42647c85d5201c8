"""What every loss consists of: a family, rank weights and margins.

Throughout, a = delta_y + s - s_y 1 (so a_y = 0) and a_[1] >= a_[2] >= ... (ties: lower class first).  The
docstring of each class gives its loss Phi(s; y), and its module the dual problem of one example.

Sources: K. Tajima, Y. Hirohashi, E. R. R. Zara, T. Kato, "Frank-Wolfe algorithm for learning SVM-type
multi-category classifiers", arXiv:2008.08894; Y. Hirohashi, T. Kato, "Learning Weighted Top-k Support Vector
Machine", 2020; M. Lapin, "Image Classification with Limited Training Data and Class Ambiguity", 2017.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from topline.solvers.errors import InvalidProblemError, UnsupportedCombinationError
from topline.solvers.jit_cache import JitFunction
from topline.solvers.losses.label_sets import LabelSets
from topline.solvers.typing import Float64Array, FloatArray, IntArray


def flat(k: int) -> Float64Array:
    """Return rho_j = 1/k, shape (k,), for the unweighted top-k losses; InvalidProblemError unless k >= 1.

    Examples
    --------
    >>> from topline import flat
    >>> flat(4)
    array([0.25, 0.25, 0.25, 0.25])
    """
    k = checked_k(k)
    return np.full(k, 1.0 / k)


def linear(k: int) -> Float64Array:
    """Return rho_j = 2(k+1-j)/(k(k+1)), j = 1..k, shape (k,); InvalidProblemError unless k >= 1.

    Examples
    --------
    >>> from topline import linear
    >>> linear(2).round(4)
    array([0.6667, 0.3333])
    """
    k = checked_k(k)
    return np.arange(k, 0, -1, dtype=np.float64) * (2.0 / (k * (k + 1.0)))


def exponential(k: int) -> Float64Array:
    """Return rho_j proportional to exp(-j/k), j = 1..k, shape (k,); InvalidProblemError unless k >= 1.

    Examples
    --------
    >>> from topline import exponential
    >>> exponential(2).round(4)
    array([0.6225, 0.3775])
    """
    k = checked_k(k)
    weights = np.exp(-np.arange(1, k + 1) / k)
    return np.asarray(weights / weights.sum())


class Labels(Enum):
    """What the labels y of a loss stand for."""

    ONE = "one label"
    ANY = "one label, or a set of labels"
    SETS = "a set of labels"


class Ranks(NamedTuple):
    """How a hinge over ranks sums its violations.

    Attributes
    ----------
    hinge_first : whether each a_[j], rather than their sum, is cut at 0.
    own_in_sort : whether the own class takes a rank.
    """

    hinge_first: bool = False
    own_in_sort: bool = True


class Curvature(NamedTuple):
    """J_i = -du_i/ds_i of a smooth loss in closed form, as compiled loops over rows.

    Attributes
    ----------
    times : (U, y, weights, table, T, product) writes w_i J_i t_i to `product` (r, m).
    pairs : (U, y, weights, table, entries) writes w_i J_i,jk for k <= j, row by row of J, to `entries`.
    """

    times: Callable[..., None]
    pairs: Callable[..., None]


@dataclass(frozen=True, eq=False)
class Family:
    """Properties and compiled functions shared by losses of one kind.

    Attributes
    ----------
    name : for messages.
    column : the column update, which yields value, gradient, envelope and vertices; None without a dual
        problem (`gradient` is then required).
    conjugate : -Phi*(-alpha); None with `column`.
    column_alike : a simpler column update for equal curvatures of all classes, if any.
    linear : whether the conjugate is linear on the domain, as for every hinge.
    smooth : whether the unsmoothed loss is differentiable.
    gradient : the loss itself where a closed form is faster than the column update with c = 0.
    gradient_rows : the same as a loop over `rows.LossRows`; replaces `gradient`.
    by_class : whether the loss is a sum over classes of functions of one score each.
    curvature : the second derivative, if it has a closed form.
    open_sizes : (form, U) -> diagonal o_ij of the second derivative for the rows of U (b, m), unless about
        |u_ij| - u_ij^2.
    ranks : how to find vertices by ranking classes, for hinges over ranks; None for dense vertices.
    labels : what y may be.
    balanced : whether the rows of the domain sum to zero.
    bounded : whether the domain is bounded, so that the loss grows no faster than scores.
    own_margin : delta_y of the own class.
    binary_hinges : whether the loss is sum_j max(0, 1 - z_j s_j), z_y = 1 and z_j = -1 elsewhere.
    empty_sets : whether an example may have no label at all.
    nearest : (form, A, y) -> points of the domain nearest to the rows A (b, m); None: by column update.
    of_one_rank : a simpler family for a single rank, if any.
    row_roundings : unit roundoffs, at a temperature of 1, of the scores to which `gradient_rows` belong where
        scores are in float32; None if unknown.
    """

    name: str
    column: JitFunction | None
    conjugate: JitFunction | None
    column_alike: JitFunction | None = None
    linear: bool = False
    smooth: bool = False
    gradient: JitFunction | None = None
    gradient_rows: Callable[..., None] | None = None
    by_class: bool = False
    curvature: Curvature | None = None
    open_sizes: Callable[[LossForm, FloatArray], FloatArray] | None = None
    ranks: Ranks | None = None
    labels: Labels = Labels.ONE
    balanced: bool = True
    bounded: bool = True
    own_margin: float = 0.0
    binary_hinges: bool = False
    empty_sets: bool = True
    nearest: Callable[[LossForm, Float64Array, IntArray], Float64Array] | None = None
    of_one_rank: Family | None = None
    row_roundings: float | None = None


@dataclass(frozen=True, eq=False)
class LossForm:
    """One loss for a known number of classes, in the terms that compiled functions work with.

    Attributes
    ----------
    m : number of classes.
    family : functions and properties of the loss.
    rho : (L,) float64, positive and non-increasing, L <= m: only the L largest a_j matter. For the entropies
        only its length k counts.
    margins : (m, m) float64, row = true class, zero diagonal; None stands for 1 - e_y.
    label_sets : the sets that y numbers in a multilabel problem; None where y is a class.
    constants : numbers of the loss for its compiled functions, which find them in place of margins.
    smooth : whether the unsmoothed loss is differentiable.
    convex : whether the loss has a dual problem, and so a certificate.
    linear_conjugate : whether -Phi*(-alpha) = -<delta, alpha> on the domain, as for every hinge.
    sparse_vertices : whether a subgradient has at most L + 1 non-zeros a row.
    needs_label_sets, takes_label_sets : whether the loss accepts label sets only, or label sets too.
    """

    m: int
    family: Family
    rho: Float64Array
    margins: Float64Array | None = None
    label_sets: LabelSets | None = None
    constants: tuple[float, ...] = ()
    smooth: bool = field(init=False)
    convex: bool = field(init=False)
    linear_conjugate: bool = field(init=False)
    sparse_vertices: bool = field(init=False)
    needs_label_sets: bool = field(init=False)
    takes_label_sets: bool = field(init=False)

    def __post_init__(self) -> None:
        family = (self.family.of_one_rank if len(self.rho) == 1 else None) or self.family
        vars(self).update(
            family=family, smooth=family.smooth, convex=family.column is not None,
            linear_conjugate=family.linear, sparse_vertices=family.ranks is not None,
            needs_label_sets=family.labels is Labels.SETS, takes_label_sets=family.labels is not Labels.ONE,
        )  # fmt: skip

    @property
    def curved(self) -> float | None:
        """An L with Phi(s + e) <= Phi(s) + <grad Phi(s), e> + L/2 max_j e_j^2; None if unknown.

        A sum of logistic losses has a curvature of 1/4 per class, an entropy of 1/T (Pinsker's inequality).
        """
        if self.smooth and self.family.by_class:
            return 0.25 * self.m
        known = self.smooth and self.family.labels is Labels.ONE and self.family.bounded
        return 1.0 / self.temperature if known else None

    @property
    def temperature(self) -> float:
        """The temperature T of an entropy, 1 unless the loss has one."""
        return self.constants[0] if self.constants else 1.0

    @property
    def score_roundings(self) -> float | None:
        """Unit roundoffs of the scores to which float32 gradients belong; None if unknown."""
        known = self.family.row_roundings
        return None if known is None else known * max(self.temperature, 1.0)

    @property
    def column(self) -> JitFunction:
        """The compiled column update."""
        return self._of_a_dual(self.family.column)

    def column_where(self, *, alike: bool) -> JitFunction:
        """Return the column update, in its simpler form if all curvatures are `alike`."""
        return (self.family.column_alike if alike else None) or self.column

    @property
    def conjugate(self) -> JitFunction:
        """The compiled conjugate -Phi*(-alpha) of a row."""
        return self._of_a_dual(self.family.conjugate)

    def _of_a_dual(self, function: JitFunction | None) -> JitFunction:
        if function is None:
            raise UnsupportedCombinationError(
                f"the loss {self.family.name} has no dual problem; use the method lbfgs, or another loss"
            )
        return function

    @property
    def table(self) -> Float64Array:
        """The margins of each y, or the table of label sets, C-ordered and read-only, for compiled functions.

        A (0, 0) array stands for single labels with the margins 1 - e_y, a row for the constants of a loss.
        """
        if self.label_sets is not None:
            return _fixed(self.label_sets.table)
        if self.needs_label_sets:
            raise InvalidProblemError(
                f"the loss {self.family.name} works on label sets, which are not given; give them"
            )
        if self.constants:
            return _fixed(np.array([self.constants]))
        return NO_MARGINS if self.margins is None else _fixed(self.margins)

    @property
    def ranks(self) -> Ranks:
        """How the vertices of a hinge over ranks are found."""
        if self.family.ranks is None:
            raise UnsupportedCombinationError(
                f"the loss {self.family.name} has no vertices by rank; use another loss or method"
            )
        return self.family.ranks

    @property
    def codes(self) -> int:
        """Number of values of y: classes, or label sets."""
        return self.m if self.label_sets is None else len(self.label_sets)

    def with_label_sets(self, label_sets: LabelSets | None, name: str) -> LossForm:
        """Return the loss `name` for these label sets, or for single labels; refuse others."""
        if label_sets is None:
            if self.needs_label_sets:
                raise InvalidProblemError(
                    f"the loss {name} is for examples with several labels; give their label sets (the "
                    "estimator is MultilabelClassifier), or use a loss of single labels"
                )
            return self
        if not self.takes_label_sets:
            raise UnsupportedCombinationError(
                f"the loss {name} is for examples with one label each, and label sets are given; use "
                "multilabel_hinge, multilabel_softmax, one_vs_all_hinge or one_vs_all_logistic"
            )
        if label_sets.m != self.m:
            raise InvalidProblemError(
                f"the label sets are of {label_sets.m} labels but there are {self.m} classes; give as many"
            )
        return replace(self, label_sets=label_sets)

    def own_rows(self, y: IntArray) -> NDArray[np.bool_]:
        """Return a mask (len(y), m) of the own classes of each example."""
        if self.label_sets is not None:
            return self.label_sets.indicator(y)
        return np.asarray(np.asarray(y)[:, None] == np.arange(self.m))

    def margin_rows(self, y: IntArray) -> Float64Array:
        """Return delta_y of each example, shape (len(y), m)."""
        if self.margins is not None:
            return np.asarray(self.margins[y])
        return np.where(self.own_rows(y), self.family.own_margin, 1.0)


def _fixed(array: Float64Array) -> Float64Array:
    """Return a read-only view: one compiled signature then serves writable and read-only margins."""
    view = np.ascontiguousarray(array, dtype=np.float64).view()
    view.setflags(write=False)
    return view


#: Stands for single labels with the margins 1 - e_y.
NO_MARGINS = _fixed(np.empty((0, 0)))


@runtime_checkable
class Loss(Protocol):
    """A loss as a value: frozen, comparable, and serialised by `to_dict`.

    Examples
    --------
    >>> from topline import Loss, TopKHinge
    >>> isinstance(TopKHinge(k=5), Loss)
    True
    """

    @property
    def name(self) -> str:
        """Name in configurations and model records."""
        ...

    def form(self, m: int) -> LossForm:
        """Return the loss for m classes; InvalidProblemError if it is undefined for that m."""
        ...

    def to_dict(self) -> dict[str, Any]:
        """Return plain values from which `loss_from_dict` rebuilds the loss."""
        ...


@dataclass(frozen=True)
class LossWithoutParameters:
    """A loss defined by its name and family alone; `of_others`: only the other classes have ranks."""

    name: ClassVar[str]
    family: ClassVar[Family]
    of_others: ClassVar[bool] = False

    def form(self, m: int) -> LossForm:
        """Return the loss for m classes."""
        k, rho = getattr(self, "k", 1), getattr(self, "rho", None)
        weights = flat(k) if rho is None else np.array(rho)
        return rank_form(m, self.family, weights, self.name, of_others=self.of_others)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        plain = {key: list(v) if isinstance(v, tuple) else v for key, v in asdict(self).items()}
        return {"name": self.name, **plain}


@dataclass(frozen=True)
class LossOfK(LossWithoutParameters):
    """A loss that counts k guesses; InvalidProblemError unless k is a whole number of at least 1."""

    k: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "k", checked_k(self.k, self.name))


@dataclass(frozen=True)
class LossOfWeights(LossWithoutParameters):
    """A loss with rank weights rho, a tuple; InvalidProblemError unless non-negative and non-increasing."""

    rho: Sequence[float] | Float64Array

    def __post_init__(self) -> None:
        object.__setattr__(self, "rho", checked_weights(self.rho))


def rank_form(m: int, family: Family, rho: Float64Array, name: str, *, of_others: bool = False) -> LossForm:
    """Return the form with margins 1 - e_y; refuse m < 2 and fewer classes (or others) than ranks."""
    if m < 2:
        raise InvalidProblemError(f"there are {m} classes; {name} needs at least 2")
    if of_others and len(rho) >= m:
        raise InvalidProblemError(
            f"k of {name} is {len(rho)} but each of {m} classes has {m - 1} others; use k <= {m - 1}"
        )
    if len(rho) > m:
        raise InvalidProblemError(
            f"{name} weighs {len(rho)} ranks but there are only {m} classes; use k <= {m}"
        )
    return LossForm(m=m, family=family, rho=np.trim_zeros(rho, "b"))


def checked_weights(rho: Any) -> tuple[float, ...]:
    """Return rank weights as floats; refuse any that are not finite, non-negative and non-increasing."""
    try:
        weights = np.asarray(rho, dtype=np.float64)
    except (TypeError, ValueError):
        raise InvalidProblemError(f"rho is {rho!r}; give a sequence of numbers") from None
    if weights.ndim != 1 or weights.size == 0:
        raise InvalidProblemError(
            f"rho has the shape {weights.shape}; give a sequence of at least one number"
        )
    if not np.isfinite(weights).all():
        raise InvalidProblemError("rho holds NaN or infinity; give finite weights")
    if weights.min() < 0:
        raise InvalidProblemError(f"rho holds {weights.min():g}; weights must not be negative")
    rises = np.flatnonzero(np.diff(weights) > 0)
    if rises.size:
        j = int(rises[0])
        raise InvalidProblemError(
            f"rho rises from {weights[j]:g} to {weights[j + 1]:g} at rank {j + 2}; weights must not increase"
        )
    if weights[0] == 0:
        raise InvalidProblemError("rho is all zero; at least the first weight must be positive")
    return tuple(float(w) for w in weights)


def checked_k(k: Any, name: str = "") -> int:
    """Return k, of a loss or another option, as an int of at least 1."""
    if isinstance(k, bool | np.bool_) or not isinstance(k, int | np.integer) or k < 1:
        of = f" of {name}" if name else ""
        raise InvalidProblemError(f"k{of} is {k!r}; give a whole number of at least 1")
    return int(k)
