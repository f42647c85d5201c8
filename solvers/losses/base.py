"""What every loss is made of: its family, rank weights and margins.

With a = delta_y + s - s_y 1 (so a_y = 0) and a_[1] >= a_[2] >= ... (ties: lower class first), the hinges are

    SUM_THEN_HINGE         Phi(s; y) = max(0, sum_j rho_j a_[j])   top-k hinges (Tajima et al., eq. 2.5, 2.7)
    HINGE_THEN_SUM         Phi(s; y) = sum_j rho_j max(0, a_[j])   Usunier's (Tajima et al., eq. 2.6, 2.8)
    OTHERS_SUM_THEN_HINGE  the first with the own class left out of the sort (Lapin's thesis, eq. 5.3)
    ONE_VS_ALL_HINGE       Phi(s; y) = sum_j max(0, 1 - z_j s_j),  z_y = 1 and z_j = -1 elsewhere

Their conjugate is Phi*(-alpha; y) = <delta_y, alpha> on its domain (Hirohashi and Kato, lemma 1), which holds
for any margins with a zero at the own class; one-vs-all has delta = 1 - 2 e_y.  The smooth ones are

    ONE_VS_ALL_LOGISTIC    Phi(s; y) = sum_j log(1 + exp(-z_j s_j))
    ENTROPY                softmax loss and the top-k entropy loss (Lapin's thesis, section 6.2.3)
    TRUNCATED_ENTROPY      log(1 + sum of exp(s_j - s_y) over the m - k lowest others): not convex

Sources: K. Tajima, Y. Hirohashi, E. R. R. Zara, T. Kato, "Frank-Wolfe algorithm for learning SVM-type
multi-category classifiers", arXiv:2008.08894; Y. Hirohashi, T. Kato, "Learning Weighted Top-k Support Vector
Machine", 2020; M. Lapin, "Image Classification with Limited Training Data and Class Ambiguity", 2017.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from topline.solvers.errors import InvalidProblemError, UnsupportedCombinationError
from topline.solvers.losses.label_sets import LabelSets
from topline.solvers.typing import Float64Array, IntArray


class Family(Enum):
    """What a loss does with the margin violations of the classes."""

    SUM_THEN_HINGE = "sum_then_hinge"
    HINGE_THEN_SUM = "hinge_then_sum"
    OTHERS_SUM_THEN_HINGE = "others_sum_then_hinge"
    ONE_VS_ALL_HINGE = "one_vs_all_hinge"
    ONE_VS_ALL_LOGISTIC = "one_vs_all_logistic"
    ENTROPY = "entropy"
    TRUNCATED_ENTROPY = "truncated_entropy"
    MULTILABEL_HINGE = "multilabel_hinge"
    MULTILABEL_ENTROPY = "multilabel_entropy"


_RANKED = frozenset({Family.SUM_THEN_HINGE, Family.HINGE_THEN_SUM, Family.OTHERS_SUM_THEN_HINGE})
_ONE_VS_ALL = frozenset({Family.ONE_VS_ALL_HINGE, Family.ONE_VS_ALL_LOGISTIC})
_MULTILABEL = frozenset({Family.MULTILABEL_HINGE, Family.MULTILABEL_ENTROPY})


@dataclass(frozen=True, eq=False)
class LossForm:
    """One loss for a known number of classes, in the terms that compiled functions work with.

    Attributes
    ----------
    m : number of classes.
    family : what happens to the violations.
    rho : (L,) float64, positive and non-increasing, L <= m: only the L largest a_j matter.  Of the entropies
        only its length counts, which is k.
    margins : (m, m) float64, row = true class, zero diagonal; None stands for 1 - e_y.
    label_sets : what the numbers y stand for where examples have several labels; None where y is a class.
    """

    m: int
    family: Family
    rho: Float64Array
    margins: Float64Array | None = None
    label_sets: LabelSets | None = None

    @property
    def sparse_vertices(self) -> bool:
        """Whether a subgradient has at most L + 1 non-zeros a row."""
        return self.family in _RANKED

    @property
    def linear_conjugate(self) -> bool:
        """Whether -Phi*(-alpha) = -<delta, alpha> on the domain, as for every hinge."""
        return self.family in _RANKED or self.family in (Family.ONE_VS_ALL_HINGE, Family.MULTILABEL_HINGE)

    @property
    def convex(self) -> bool:
        """Whether there is a dual problem, and with it a certificate."""
        return self.family is not Family.TRUNCATED_ENTROPY

    @property
    def smooth(self) -> bool:
        """Whether the loss has a gradient everywhere as it is."""
        return not self.linear_conjugate

    @property
    def own_margin(self) -> float:
        """delta_y of the own class."""
        return -1.0 if self.family is Family.ONE_VS_ALL_HINGE else 0.0

    @property
    def needs_label_sets(self) -> bool:
        """Whether the loss is one of label sets and of nothing else."""
        return self.family in _MULTILABEL

    @property
    def takes_label_sets(self) -> bool:
        """Whether an example may have several labels."""
        return self.family in _MULTILABEL or self.family in _ONE_VS_ALL

    @property
    def codes(self) -> int:
        """How many numbers y can be: classes, or label sets."""
        return self.m if self.label_sets is None else len(self.label_sets)

    def with_label_sets(self, label_sets: LabelSets | None, name: str) -> LossForm:
        """Return the loss `name` for these label sets, or for single labels, where it is one of those."""
        if label_sets is None:
            if self.needs_label_sets:
                raise InvalidProblemError(
                    f"the loss {name} is for examples with several labels; give their label sets (the "
                    "estimator is MultilabelClassifier), or take a loss of single labels"
                )
            return self
        if not self.takes_label_sets:
            raise UnsupportedCombinationError(
                f"the loss {name} is for examples with one label each, and label sets are given; take "
                "multilabel_hinge, multilabel_softmax, one_vs_all_hinge or one_vs_all_logistic"
            )
        if label_sets.m != self.m:
            raise InvalidProblemError(
                f"the label sets are of {label_sets.m} labels but there are {self.m} classes; give as many"
            )
        return replace(self, label_sets=label_sets)

    def own_rows(self, y: IntArray) -> NDArray[np.bool_]:
        """Return which classes are the own ones of each example, shape (len(y), m)."""
        if self.label_sets is not None:
            return self.label_sets.indicator(y)
        return np.asarray(np.asarray(y)[:, None] == np.arange(self.m))

    def margin_rows(self, y: IntArray) -> Float64Array:
        """Return delta_y of each example, shape (len(y), m)."""
        if self.margins is not None:
            return np.asarray(self.margins[y])
        return np.where(self.own_rows(y), self.own_margin, 1.0)


@runtime_checkable
class Loss(Protocol):
    """A loss as a value: frozen, comparable, and written to JSON by `to_dict`.

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
        """Return the loss for m classes; InvalidProblemError where it does not exist for that m."""
        ...

    def to_dict(self) -> dict[str, Any]:
        """Return plain values from which `loss_from_dict` makes the same loss again."""
        ...


@dataclass(frozen=True)
class LossWithoutParameters:
    """A loss that its name describes."""

    name: ClassVar[str]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {"name": self.name}


@dataclass(frozen=True)
class LossOfK:
    """A loss that counts k guesses; InvalidProblemError where k is not a whole number of at least 1."""

    k: int
    name: ClassVar[str]

    def __post_init__(self) -> None:
        object.__setattr__(self, "k", checked_k(self.k, self.name))

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {"name": self.name, "k": self.k}


@dataclass(frozen=True)
class LossOfWeights:
    """A loss with rank weights rho, a tuple: non-negative, non-increasing, or else InvalidProblemError."""

    rho: Sequence[float] | Float64Array
    name: ClassVar[str]

    def __post_init__(self) -> None:
        object.__setattr__(self, "rho", checked_weights(self.rho))

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {"name": self.name, "rho": list(self.rho)}


def rank_form(m: int, family: Family, rho: Float64Array, name: str, *, of_others: bool = False) -> LossForm:
    """Build a LossForm with margins 1 - e_y, refusing m < 2 and fewer classes, or others, than ranks."""
    if m < 2:
        raise InvalidProblemError(f"there are {m} classes; {name} needs at least 2")
    if of_others and len(rho) >= m:
        raise InvalidProblemError(
            f"k of {name} is {len(rho)} but each of {m} classes has {m - 1} others; take k <= {m - 1}"
        )
    if len(rho) > m:
        raise InvalidProblemError(
            f"{name} weighs {len(rho)} ranks but there are only {m} classes; take k <= {m}"
        )
    return LossForm(m=m, family=family, rho=np.trim_zeros(rho, "b"))


def checked_weights(rho: Any) -> tuple[float, ...]:
    """Return rank weights as floats, refusing what is not finite, non-negative and non-increasing."""
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


def checked_k(k: Any, name: str) -> int:
    """Return k as an int of at least 1."""
    if isinstance(k, bool | np.bool_) or not isinstance(k, int | np.integer) or k < 1:
        raise InvalidProblemError(f"k of {name} is {k!r}; give a whole number of at least 1")
    return int(k)
