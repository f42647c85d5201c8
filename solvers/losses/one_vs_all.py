"""One binary problem a class."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from topline.solvers.errors import InvalidProblemError
from topline.solvers.losses.base import Family, LossForm, rank_form

_FAMILIES = MappingProxyType({"hinge": Family.ONE_VS_ALL_HINGE, "logistic": Family.ONE_VS_ALL_LOGISTIC})


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
            raise InvalidProblemError(f"the base of one-vs-all is {self.base!r}; take hinge or logistic")

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
