"""An executor that answers at weights of a feature map what others answer at those of the classes."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

import numpy as np

from topline.solvers.core.block_stats import BlockStats
from topline.solvers.core.feature_maps import FeatureMap, is_ordinary
from topline.solvers.core.requests import (
    AscentRequest,
    ColumnRequest,
    CurvatureRequest,
    DualsFromPrimalRequest,
    EvaluateRequest,
    GramRequest,
    MomentsRequest,
    OracleRequest,
    ProximalRequest,
    Request,
    SlopeRequest,
)
from topline.solvers.executors.base import Executor
from topline.solvers.executors.wrapped import WrappedExecutor
from topline.solvers.typing import Float64Array

#: Numbers in V, or in W, up to which a Hessian is formed.
_MOST_SIDE = 2_896
#: The norm of a map is found to this share, in at most so many products.
_NORM_TO, _NORM_PRODUCTS = 0.01, 50


class MappedExecutor(WrappedExecutor):
    """The blocks of another executor, for requests at weights V of a map: W goes there, sums come back.

    With W = L V a change of one row moves the scores of all rows by L L^T of what the blocks expect.  Blocks
    that change rows by themselves take the curvature for |L L^T| times theirs, which is the curvature of an
    upper bound, and the coordinator steps along their sum by that of V.  For unit vectors the factor is 1.
    """

    def __init__(self, executor: Executor, feature_map: FeatureMap, d: int) -> None:
        super().__init__(executor)
        self._map, self._d = feature_map, d

    def run(self, request: Request) -> BlockStats:
        """Answer a request at V with the blocks' answer at the classes' weights."""
        match request:
            case AscentRequest():
                request = replace(request, safety_factor=request.safety_factor * self._norm)
            case ColumnRequest():
                request = replace(request, length=request.length / self._norm)
            case EvaluateRequest():
                # The direction that rows share is one of W, not of V.
                request = replace(request, total=False)
            case CurvatureRequest() | SlopeRequest():
                request = replace(request, V=self._map.class_weights(request.V))
            case GramRequest() if self._most > _MOST_SIDE:
                return BlockStats()
            case MomentsRequest() if not self._ordinary:
                # What they say of W is not said of V.
                return BlockStats()
        if isinstance(
            request,
            AscentRequest
            | ColumnRequest
            | DualsFromPrimalRequest
            | EvaluateRequest
            | OracleRequest
            | ProximalRequest,
        ):
            request = replace(request, W=self._map.class_weights(request.W))
        stats = self._executor.run(request)
        if stats.product is None or isinstance(request, SlopeRequest | MomentsRequest):
            return stats
        product = np.asarray(stats.product, dtype=np.float64)
        summed = self._hessian if isinstance(request, GramRequest) else self._map.summed
        return replace(stats, product=summed(product))

    @property
    def _most(self) -> int:
        return max(self._d * self._map.classes, int(np.prod(self._map.shape(self._d))))

    @cached_property
    def _ordinary(self) -> bool:
        return is_ordinary(self._map)

    @cached_property
    def _norm(self) -> float:
        """The largest eigenvalue of L L^T, by powers of it."""
        W = np.random.default_rng(0).standard_normal((self._d, self._map.classes))
        norm = 0.0
        for _ in range(_NORM_PRODUCTS):
            product = self._map.class_weights(self._map.summed(W))
            norm, before = float(np.vdot(W, product) / np.vdot(W, W)), norm
            if norm - before <= _NORM_TO * norm:
                break
            W = product / np.abs(product).max()
        return norm

    def _hessian(self, product: Float64Array) -> Float64Array:
        """Return L^T H L of the sums H of pairs of classes (m d, m d), or of single classes (m d, d)."""
        side, d = product.shape
        if side > d:
            whole = np.zeros((side, side))
            for start in range(0, side, d):
                whole[start : start + d, start : start + d] = product[start : start + d]
            product = whole
        return self._summed_columns(self._summed_columns(product).T).T

    def _summed_columns(self, product: Float64Array) -> Float64Array:
        """Return L^T of every column, class by class in each, with V in the same order."""
        shape = self._map.classes, self._d
        return np.stack([self._map.summed(column.reshape(shape).T).T.ravel() for column in product.T], axis=1)
