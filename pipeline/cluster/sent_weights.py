"""Weights on their way to the workers: once while they stay the same, and no wider than blocks multiply with.

A round asks more than one thing at the same W, and products of float32 rows begin with W in float32.  So a
request goes without W where the one before had the same, and all weights go in float32 where that changes no
bit of any answer.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from topline.solvers.core.requests import (
    AscentRequest,
    CurvatureRequest,
    ProximalRequest,
    Request,
    SlopeRequest,
)
from topline.solvers.errors import StateLostError
from topline.solvers.operations import Evaluate, FindVertices
from topline.solvers.typing import Float64Array, FloatArray

#: Requests whose weights blocks take in the type of their products.
_Weighted: TypeAlias = AscentRequest | Evaluate | FindVertices | ProximalRequest
#: Weights of fewer numbers go in float64: sweeps move small ones in that.
_NARROWED = 1 << 13
_NONE = np.empty((0, 0))


@dataclass(frozen=True, eq=False)
class SentRequest:
    """A request without its weights W and V, which lie beside it.

    None as W stands for that of the request before, unless `whole` says that nothing was taken out.
    """

    request: Request
    whole: bool = False
    W: FloatArray | None = None
    V: FloatArray | None = None


class WeightsSender:
    """Says in which form requests go to workers whose rows have products of the type `dtype`."""

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self._dtype = dtype
        self._there: tuple[int, Float64Array, np.dtype[Any]] | None = None

    def message(self, request: Request, epoch: int) -> SentRequest:
        """Return what goes to every worker of an epoch."""
        if not isinstance(request, _Weighted):
            return SentRequest(request, whole=True)
        dtype, there = self._type_of(request), self._there
        same = there is not None and (there[0], there[2]) == (epoch, dtype) and there[1] is request.W
        W = None if same else request.W.astype(dtype, copy=False)
        # Until all have answered some workers may hold the one and some the other.
        self._there = there if same else None
        if isinstance(request, CurvatureRequest | SlopeRequest):
            V = request.V.astype(dtype, copy=False)
            return SentRequest(replace(request, W=_NONE, V=_NONE), W=W, V=V)
        return SentRequest(replace(request, W=_NONE), W=W)

    def answered(self, request: Request, epoch: int) -> None:
        """Note that all workers of an epoch have answered a request, and so have its W."""
        if isinstance(request, _Weighted):
            self._there = epoch, request.W, self._type_of(request)

    def _type_of(self, request: _Weighted) -> np.dtype[Any]:
        return np.dtype(np.float64) if request.exact or request.W.size < _NARROWED else self._dtype


class WeightsReceiver:
    """Holds the last W that a worker was sent."""

    _W: Float64Array | None = None

    def received(self, message: SentRequest) -> Request:
        """Return the request as it was meant; StateLostError where W is not here."""
        request = message.request
        if message.whole or not isinstance(request, _Weighted):
            return request
        if message.W is not None:
            self._W = message.W.astype(np.float64, copy=False)
        if self._W is None:
            raise StateLostError("the weights of the request before are not here")
        if isinstance(request, CurvatureRequest | SlopeRequest) and message.V is not None:
            return replace(request, W=self._W, V=message.V.astype(np.float64, copy=False))
        return replace(request, W=self._W)
