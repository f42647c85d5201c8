"""Weights sent to the workers: only when they change, and in float32 if no bit of an answer depends on it.

A round often asks several things at the same W, and products of float32 rows begin by converting W to
float32.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from topline.pipeline.cluster.shared_arrays import ArrayFile, SharedArray, taken
from topline.solvers.errors import StateLostError
from topline.solvers.operations import Operation
from topline.solvers.typing import Float64Array, FloatArray

#: Weights with fewer numbers are sent in float64, in which sweeps move small ones.
_NARROWED = 1 << 13
_NONE = np.empty((0, 0))
#: Names of the weights in operations.
_W, _V = "W", "V"


@dataclass(frozen=True, eq=False)
class SentOperation:
    """An operation without its weights, which are stored by name; `follows` if W is unchanged.

    `shares` says whether large products may come back in shared memory.
    """

    operation: Any
    weights: Mapping[str, FloatArray | SharedArray] = field(default_factory=dict)
    follows: bool = False
    shares: bool = False


class WeightsSender:
    """Chooses the form of operations sent to workers whose products have the type `dtype`.

    Workers on this machine read large weights from `memory`.
    """

    def __init__(self, dtype: np.dtype[Any], memory: ArrayFile | None = None) -> None:
        self._dtype, self._memory = dtype, memory
        self._there: tuple[int, Float64Array, np.dtype[Any]] | None = None

    def message(self, operation: Any, epoch: int) -> SentOperation:
        """Return the message for every worker of an epoch."""
        weights = _weights_of(operation)
        if _W not in weights:
            return SentOperation(operation, shares=self._memory is not None)
        dtype, there = self._type_of(operation), self._there
        same = there is not None and (there[0], there[2]) == (epoch, dtype) and there[1] is operation.W
        # Until all have answered, workers may hold either W.
        self._there = there if same else None
        sent = {
            name: array.astype(dtype, copy=False) for name, array in weights.items() if name != _W or not same
        }
        bare = replace(operation, **dict.fromkeys(weights, _NONE))
        if self._memory is None:
            return SentOperation(bare, sent, follows=same)
        return SentOperation(bare, self._memory.shared(sent), follows=same, shares=True)

    def answered(self, operation: Any, epoch: int) -> None:
        """Record that all workers of an epoch have answered an operation, and so hold its W."""
        if _W in _weights_of(operation):
            self._there = epoch, operation.W, self._type_of(operation)

    def _type_of(self, operation: Any) -> np.dtype[Any]:
        exact = operation.exact or operation.W.size < _NARROWED
        return np.dtype(np.float64) if exact else self._dtype


class WeightsReceiver:
    """Holds the last W that a worker received."""

    _W: FloatArray | None = None

    def received(self, message: SentOperation) -> Any:
        """Return the complete operation; raise StateLostError if its weights are not here."""
        weights = {name: taken(array) for name, array in message.weights.items()}
        if message.follows:
            if self._W is None:
                raise StateLostError("the weights of the operation before are not here")
            weights[_W] = self._W
        self._W = weights.get(_W, self._W)
        return replace(message.operation, **weights) if weights else message.operation


def _weights_of(operation: Any) -> dict[str, Float64Array]:
    """Return the weights that blocks convert to the type of their products, by name."""
    if not isinstance(operation, Operation) or not hasattr(operation, "exact"):
        return {}
    return {name: getattr(operation, name) for name in (_W, _V) if hasattr(operation, name)}
