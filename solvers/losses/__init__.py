"""One small frozen class per loss."""

from __future__ import annotations

from solvers.losses.base import Family, Loss, LossForm
from solvers.losses.entropy import Softmax, TopKEntropy, TruncatedTopKEntropy
from solvers.losses.hinge import MaxHinge, StructuredHinge
from solvers.losses.multilabel import MultilabelHinge, MultilabelSoftmax
from solvers.losses.one_vs_all import OneVsAll
from solvers.losses.registry import LOSSES, loss_from_dict, make_loss
from solvers.losses.topk import TopKHinge, TopKOthersHinge, UsunierHinge
from solvers.losses.weighted import WeightedTopKHinge, WeightedUsunierHinge

__all__ = [
    "LOSSES",
    "Family",
    "Loss",
    "LossForm",
    "MaxHinge",
    "MultilabelHinge",
    "MultilabelSoftmax",
    "OneVsAll",
    "Softmax",
    "StructuredHinge",
    "TopKEntropy",
    "TopKHinge",
    "TopKOthersHinge",
    "TruncatedTopKEntropy",
    "UsunierHinge",
    "WeightedTopKHinge",
    "WeightedUsunierHinge",
    "loss_from_dict",
    "make_loss",
]
