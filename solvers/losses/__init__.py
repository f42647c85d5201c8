"""One small frozen class per loss."""

from __future__ import annotations

from solvers.losses.base import Aggregate, Loss, LossForm
from solvers.losses.hinge import MaxHinge, StructuredHinge
from solvers.losses.registry import LOSSES, loss_from_dict, make_loss
from solvers.losses.topk import TopKHinge, UsunierHinge
from solvers.losses.weighted import WeightedTopKHinge, WeightedUsunierHinge

__all__ = [
    "LOSSES",
    "Aggregate",
    "Loss",
    "LossForm",
    "MaxHinge",
    "StructuredHinge",
    "TopKHinge",
    "UsunierHinge",
    "WeightedTopKHinge",
    "WeightedUsunierHinge",
    "loss_from_dict",
    "make_loss",
]
