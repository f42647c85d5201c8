"""An executor that answers at weights of a feature map what others answer at those of the classes."""

from __future__ import annotations

from dataclasses import replace

from topline.solvers.core.block_stats import BlockStats
from topline.solvers.core.feature_maps import FeatureMap
from topline.solvers.core.requests import DualsFromPrimalRequest, EvaluateRequest, OracleRequest, Request
from topline.solvers.executors.base import Executor
from topline.solvers.executors.wrapped import WrappedExecutor


class MappedExecutor(WrappedExecutor):
    """The blocks of another executor, for requests at weights V of a map: W goes there, sums come back."""

    def __init__(self, executor: Executor, feature_map: FeatureMap) -> None:
        super().__init__(executor)
        self._map = feature_map

    def run(self, request: Request) -> BlockStats:
        """Answer a request at V with the blocks' answer at the classes' weights."""
        if isinstance(request, OracleRequest | EvaluateRequest | DualsFromPrimalRequest):
            request = replace(request, W=self._map.class_weights(request.W))
        stats = self._executor.run(request)
        return stats if stats.product is None else replace(stats, product=self._map.summed(stats.product))
