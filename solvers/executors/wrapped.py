"""Blocks that are asked at weights of a feature map, or for another risk than the mean of the losses."""

from __future__ import annotations

from topline.solvers.core.answers import A
from topline.solvers.core.feature_maps import FeatureMap
from topline.solvers.core.risks import AverageTopK
from topline.solvers.core.traffic import Traffic
from topline.solvers.operations import (
    MapView,
    Operation,
    OperationRunner,
)


class _Wrapped:
    """Everything but `run`, as the other blocks do it."""

    def __init__(self, blocks: OperationRunner) -> None:
        self._blocks = blocks

    @property
    def workers(self) -> int:
        """How many blocks run at the same time."""
        return self._blocks.workers

    def traffic(self) -> Traffic:
        """Return what was moved and who worked since the blocks were bound."""
        return self._blocks.traffic()


class MappedBlocks(_Wrapped):
    """Blocks that answer at weights V of a feature map for rows of d features."""

    def __init__(self, blocks: OperationRunner, feature_map: FeatureMap, d: int) -> None:
        super().__init__(blocks)
        self._view = MapView(feature_map, d)

    def run(self, operation: Operation[A]) -> A:
        """Answer at V what the blocks answer at the weights of the classes."""
        return operation.through(self._blocks.run, self._view)


class TopLossBlocks(_Wrapped):
    """Blocks of n rows that answer for the mean of the k largest losses."""

    def __init__(self, blocks: OperationRunner, n: int, risk: AverageTopK) -> None:
        super().__init__(blocks)
        self._n, self._risk = n, risk

    def run(self, operation: Operation[A]) -> A:
        """Answer for the risk what the blocks answer for the mean of all losses."""
        return operation.on_largest(self._blocks.run, self._risk, self._n)
