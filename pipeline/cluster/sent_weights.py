"""Weights on their way to the workers: once while they stay the same, and no wider than blocks multiply with.

A round asks more than one thing at the same W, and products of float32 rows begin with W in float32.  So an
operation goes without W where the one before had the same, and all weights go in float32 where that changes
no bit of any answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from topline.solvers.errors import StateLostError
from topline.solvers.operations import Operation
from topline.solvers.typing import Float64Array, FloatArray

#: Weights of fewer numbers go in float64: sweeps move small ones in that.
_NARROWED = 1 << 13
_NONE = np.empty((0, 0))


#: Names of weights in operations.
_W, _V = "W", "V"


@dataclass(frozen=True, eq=False)
class SentOperation:
    """An operation without its weights, which lie beside it by name; `follows` where W is as before."""

    operation: Any
    weights: Mapping[str, FloatArray] = field(default_factory=dict)
    follows: bool = False


class WeightsSender:
    """Says in which form operations go to workers whose rows have products of the type `dtype`."""

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self._dtype = dtype
        self._there: tuple[int, Float64Array, np.dtype[Any]] | None = None

    def message(self, operation: Any, epoch: int) -> SentOperation:
        """Return what goes to every worker of an epoch."""
        weights = _weights_of(operation)
        if _W not in weights:
            return SentOperation(operation)
        dtype, there = self._type_of(operation), self._there
        same = there is not None and (there[0], there[2]) == (epoch, dtype) and there[1] is operation.W
        # Until all have answered some workers may hold the one and some the other.
        self._there = there if same else None
        sent = {
            name: array.astype(dtype, copy=False) for name, array in weights.items() if name != _W or not same
        }
        return SentOperation(replace(operation, **dict.fromkeys(weights, _NONE)), sent, follows=same)

    def answered(self, operation: Any, epoch: int) -> None:
        """Note that all workers of an epoch have answered an operation, and so have its W."""
        if _W in _weights_of(operation):
            self._there = epoch, operation.W, self._type_of(operation)

    def _type_of(self, operation: Any) -> np.dtype[Any]:
        exact = operation.exact or operation.W.size < _NARROWED
        return np.dtype(np.float64) if exact else self._dtype


class WeightsReceiver:
    """Holds the last W that a worker was sent."""

    _W: Float64Array | None = None

    def received(self, message: SentOperation) -> Any:
        """Return the operation as it was meant; StateLostError where W is not here."""
        weights = {name: array.astype(np.float64, copy=False) for name, array in message.weights.items()}
        if message.follows:
            if self._W is None:
                raise StateLostError("the weights of the operation before are not here")
            weights[_W] = self._W
        self._W = weights.get(_W, self._W)
        return replace(message.operation, **weights) if weights else message.operation


def _weights_of(operation: Any) -> dict[str, Float64Array]:
    """Return the weights that blocks take in the type of their products, by their names."""
    if not isinstance(operation, Operation) or not hasattr(operation, "exact"):
        return {}
    return {name: getattr(operation, name) for name in (_W, _V) if hasattr(operation, name)}
