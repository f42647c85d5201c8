"""One binary problem a class."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from topline.solvers.errors import InvalidProblemError
from topline.solvers.losses.base import rank_form
from topline.solvers.losses.form import Family, Labels, LossForm
from topline.solvers.losses.functions import column_function, conjugate_function
from topline.solvers.losses.logistic_rows import logistic_rows
from topline.solvers.projections.binary import binary_entropy, binary_hinge_column, binary_logistic_column
from topline.solvers.projections.own_classes import minus_others
from topline.solvers.typing import Float64Array, IntArray


@column_function
def _hinge_column(
    q: Any, y: Any, c: Any, c_own: Any, _r: Any, sets: Any, out: Any, _w: Any, _i: Any, _g: Any
) -> Any:
    return binary_hinge_column(q, y, c, c_own, sets, out)


@column_function
def _logistic_column(
    q: Any, y: Any, c: Any, c_own: Any, _r: Any, sets: Any, out: Any, _w: Any, _i: Any, _g: Any
) -> Any:
    return binary_logistic_column(q, y, c, c_own, sets, out)


@conjugate_function
def _hinge_conjugate(alpha: Any, y: Any, sets: Any) -> Any:
    """Return sum_j z_j alpha_j."""
    return minus_others(alpha, sets, y, 1.0)


@conjugate_function
def _logistic_conjugate(alpha: Any, _y: Any, _: Any) -> Any:
    """Return the sum of the binary entropies."""
    value = 0.0
    for j in range(len(alpha)):
        value += binary_entropy(abs(alpha[j]))
    return value


def _nearest(form: LossForm, A: Float64Array, y: IntArray) -> Float64Array:
    signs = np.where(form.own_rows(y), 1.0, -1.0)
    return np.asarray(signs * np.clip(signs * A, 0.0, 1.0))


_HINGE = Family(
    "one_vs_all_hinge", _hinge_column, _hinge_conjugate, linear=True, labels=Labels.ANY, balanced=False,
    own_margin=-1.0, binary_hinges=True, nearest=_nearest,
)  # fmt: skip
_LOGISTIC = Family(
    "one_vs_all_logistic", _logistic_column, _logistic_conjugate, smooth=True, labels=Labels.ANY,
    balanced=False, gradient_rows=logistic_rows, by_class=True, nearest=_nearest,
)  # fmt: skip
_FAMILIES = MappingProxyType({"hinge": _HINGE, "logistic": _LOGISTIC})


@dataclass(frozen=True)
class OneVsAll:
    """sum_j phi(z_j s_j) with z_y = 1 and z_j = -1 elsewhere: m binary problems side by side.

    `base` is "hinge", phi(z) = max(0, 1 - z), or "logistic", phi(z) = log(1 + exp(-z)).  The smooth hinge of
    Lapin's thesis (section 6.2.1) is the hinge with smoothing > 0.

    Examples
    --------
    >>> from topline import OneVsAll
    >>> OneVsAll("logistic").name
    'one_vs_all_logistic'
    """

    base: str = "hinge"

    def __post_init__(self) -> None:
        if self.base not in _FAMILIES:
            raise InvalidProblemError(f"the base of one-vs-all is {self.base!r}; use hinge or logistic")

    @property
    def name(self) -> str:
        """Name in configurations and model records."""
        return f"one_vs_all_{self.base}"

    def form(self, m: int) -> LossForm:
        """Return the loss for m classes."""
        return rank_form(m, _FAMILIES[self.base], np.ones(1), self.name)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {"name": self.name}
