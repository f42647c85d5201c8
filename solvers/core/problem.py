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
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Literal, TypeAlias, get_args

import numpy as np

from topline.solvers.core.inputs import number_from_zero, positive_number
from topline.solvers.core.risks import MEAN_RISK, AverageTopK, MeanRisk, Risk
from topline.solvers.errors import InvalidProblemError, UnsupportedCombinationError
from topline.solvers.losses import LabelSets, Loss, LossForm
from topline.solvers.typing import Float64Array, IntArray

SmoothingKind: TypeAlias = Literal["moreau", "others"]
SMOOTHING_KINDS: tuple[str, ...] = get_args(SmoothingKind)


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

    def __post_init__(self) -> None:
        if self.n < 1:
            raise InvalidProblemError("there are no examples; give at least one row of features")
        if self.d < 1:
            raise InvalidProblemError("the features have no columns; give at least one feature")
        object.__setattr__(self, "lam", positive_number("lam", self.lam))
        object.__setattr__(self, "smoothing", number_from_zero("smoothing", self.smoothing))
        if self.smoothing_kind not in SMOOTHING_KINDS:
            raise InvalidProblemError(
                f"the smoothing kind is {self.smoothing_kind!r}; use one of {', '.join(SMOOTHING_KINDS)}"
            )
        self._refuse_smoothing()
        if isinstance(self.risk, AverageTopK):
            self.risk.refuse(self.n)

    def _refuse_smoothing(self) -> None:
        """Refuse a smoothing that the loss does not support."""
        if self.smoothing > 0 and self.form.smooth:
            raise UnsupportedCombinationError(
                f"the loss {self.loss.name} is smooth as it is; leave smoothing = {self.smoothing} out"
            )
        if self.smoothing_kind == "others" and not (self.smoothing > 0 and self.form.sparse_vertices):
            raise UnsupportedCombinationError(
                "the smoothing kind others is for the hinges over ranks with smoothing > 0, not for "
                f"{self.loss.name} with smoothing {self.smoothing}; use moreau"
            )

    def __getstate__(self) -> dict[str, Any]:
        """Return the fields only: compiled functions belong to one process."""
        return {each.name: getattr(self, each.name) for each in fields(self)}

    @cached_property
    def form(self) -> LossForm:
        """The loss for m classes."""
        return self.loss.form(self.m).with_label_sets(self.label_sets, self.loss.name)

    @property
    def own_share(self) -> float:
        """The share of the smoothing on the own class: 1, or 0 if only the others are smoothed."""
        return 0.0 if self.smoothing_kind == "others" else 1.0

    @property
    def smoothing_own(self) -> float:
        """The gamma of the own class."""
        return self.smoothing * self.own_share

    @property
    def by_class(self) -> bool:
        """Whether P is a sum over classes of functions of one column of W each."""
        return self.form.family.by_class and not self.joint

    @property
    def mean_risk(self) -> bool:
        """Whether the risk is the mean of the losses."""
        return isinstance(self.risk, MeanRisk)

    @property
    def scale(self) -> float:
        """The factor 1/(lam n) of eq. 2."""
        return 1.0 / (self.lam * self.n)

    def dual(self, W: Float64Array, conjugate_mean: float, mean_sq_dual: float) -> float:
        """Return D of eq. 3; W (d, m)."""
        return conjugate_mean - 0.5 * self.lam * squared_norm(W) - 0.5 * self.smoothing * mean_sq_dual

    def primal(self, W: Float64Array, mean_loss: float) -> float:
        """Return P of eq. 1, given the mean of Phi_gamma at the scores of W (d, m)."""
        return 0.5 * self.lam * squared_norm(W) + mean_loss

    def primal_bound(self, W: Float64Array, mean_sq_dual: float, mean_loss: float) -> float:
        """Return P~ of eq. 4, given the mean of Phi at the shifted scores."""
        return self.primal(W, mean_loss) + 0.5 * self.smoothing * mean_sq_dual

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
            "risk": self.risk.to_dict(),
        }


def problem_key(problem: Problem, labels: IntArray, weights: Float64Array | None) -> str:
    """Return a digest of everything that W and b of a state depend on, except the features."""
    digest = hashlib.sha256(json.dumps(problem.to_dict(), sort_keys=True).encode())
    digest.update(np.ascontiguousarray(labels, dtype=np.int64).tobytes())
    if weights is not None:
        digest.update(np.ascontiguousarray(weights, dtype=np.float64).tobytes())
    return digest.hexdigest()


def squared_norm(W: Float64Array) -> float:
    """Return |W|_F^2 in float64."""
    return inner(W, W)


def inner(V: Float64Array, W: Float64Array) -> float:
    """Return <V, W> in float64, independent of the memory layout of V and W."""
    return float(np.vdot(np.ascontiguousarray(V), np.ascontiguousarray(W)))
