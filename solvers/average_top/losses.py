"""Losses of one example and one score: hinge and logistic of a sign, square and absolute of a number.

Every one is the largest of zero and a few smooth convex pieces of the score z,

    l(z; y) = max(0, max_j c_j(z; y)),

and that is all that the solvers ask of a loss.  A new one is a frozen class with `pieces` and a line in
`INDIVIDUAL_LOSSES`.
Source: Y. Fan, S. Lyu, Y. Ying, B.-G. Hu, "Learning with Average Top-k Loss", NIPS 2017, section 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
from scipy.special import expit

from topline.solvers.errors import InvalidProblemError
from topline.solvers.typing import Float64Array


@dataclass(frozen=True, eq=False)
class Pieces:
    """The pieces c_j of all examples at their scores, with first and second derivatives: (J, n) each."""

    values: Float64Array
    slopes: Float64Array
    curvatures: Float64Array

    def losses(self) -> Float64Array:
        """Return the loss of each example, (n,)."""
        return np.asarray(np.maximum(self.values.max(axis=0), 0.0))

    def subgradients(self) -> Float64Array:
        """Return a derivative of each loss, (n,): that of its first largest piece, 0 where the loss is 0."""
        largest = self.values.argmax(axis=0)[None]
        slopes = np.take_along_axis(self.slopes, largest, axis=0)[0]
        return np.where(np.take_along_axis(self.values, largest, axis=0)[0] > 0.0, slopes, 0.0)


@runtime_checkable
class IndividualLoss(Protocol):
    """A loss of one score as a value: frozen and comparable."""

    #: Name in parameters of estimators.
    name: ClassVar[str]
    #: Whether targets are the signs -1 and 1; else they are any numbers.
    binary: ClassVar[bool]

    def pieces(self, z: Float64Array, y: Float64Array) -> Pieces:
        """Return the pieces at scores z (n,) and targets y (n,)."""
        ...


@dataclass(frozen=True)
class Hinge:
    """max(0, 1 - y z)."""

    name: ClassVar[str] = "hinge"
    binary: ClassVar[bool] = True

    def pieces(self, z: Float64Array, y: Float64Array) -> Pieces:
        """Return the one piece 1 - y z."""
        return Pieces((1.0 - y * z)[None], -y[None], np.zeros((1, len(y))))


@dataclass(frozen=True)
class Logistic:
    """log2(1 + exp(-y z)): in bits, so that it is 1 at z = 0, as the hinge is."""

    name: ClassVar[str] = "logistic"
    binary: ClassVar[bool] = True

    def pieces(self, z: Float64Array, y: Float64Array) -> Pieces:
        """Return the loss itself, which is smooth."""
        margin = y * z
        wrong = expit(-margin)
        scale = 1.0 / np.log(2.0)
        values = scale * np.logaddexp(0.0, -margin)
        return Pieces(values[None], (-scale * y * wrong)[None], (scale * wrong * expit(margin))[None])


@dataclass(frozen=True)
class Square:
    """(z - y)^2."""

    name: ClassVar[str] = "square"
    binary: ClassVar[bool] = False

    def pieces(self, z: Float64Array, y: Float64Array) -> Pieces:
        """Return the loss itself, which is smooth."""
        residual = z - y
        return Pieces((residual**2)[None], (2.0 * residual)[None], np.full((1, len(y)), 2.0))


@dataclass(frozen=True)
class Absolute:
    """|z - y|."""

    name: ClassVar[str] = "absolute"
    binary: ClassVar[bool] = False

    def pieces(self, z: Float64Array, y: Float64Array) -> Pieces:
        """Return z - y and y - z."""
        residual = z - y
        ones = np.ones_like(residual)
        return Pieces(np.stack([residual, -residual]), np.stack([ones, -ones]), np.zeros((2, len(y))))


#: Every loss by its name.
INDIVIDUAL_LOSSES: Mapping[str, IndividualLoss] = MappingProxyType(
    {loss.name: loss for loss in (Hinge(), Logistic(), Square(), Absolute())}
)


def individual_loss(loss: Any) -> IndividualLoss:
    """Return the loss that a name stands for, or the value itself; InvalidProblemError names the losses."""
    if isinstance(loss, str) and loss in INDIVIDUAL_LOSSES:
        return INDIVIDUAL_LOSSES[loss]
    if isinstance(loss, type) or not isinstance(loss, IndividualLoss):
        raise InvalidProblemError(
            f"there is no individual loss {loss!r}; use one of {', '.join(INDIVIDUAL_LOSSES)}"
        )
    return loss
