"""One small frozen class per loss."""

from __future__ import annotations

from topline.solvers.losses.base import Family, Loss, LossForm
from topline.solvers.losses.entropy import Softmax, TopKEntropy, TruncatedTopKEntropy
from topline.solvers.losses.hinge import MaxHinge, StructuredHinge
from topline.solvers.losses.multilabel import MultilabelHinge, MultilabelSoftmax
from topline.solvers.losses.one_vs_all import OneVsAll
from topline.solvers.losses.registry import LOSSES, loss_from_dict, make_loss
from topline.solvers.losses.topk import TopKHinge, TopKOthersHinge, UsunierHinge
from topline.solvers.losses.weighted import WeightedTopKHinge, WeightedUsunierHinge

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
