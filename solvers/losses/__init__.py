"""Losses as values: small frozen classes, each in one file with its compiled functions.

`form(m)` gives a loss for m classes in the terms that loops over rows work with; `make_loss` and
`loss_from_dict` build one from options and from a record.  Functions are compiled on first use.  Import these
modules directly: `rows` declares the functions of a loss and loops over many rows, and `ranking` finds the
largest margin violations.
"""

from __future__ import annotations

from topline.solvers.losses.base import Loss, LossForm, checked_k, exponential, flat, linear
from topline.solvers.losses.entropy import LDRKL, Softmax, SumExponential, TopKEntropy, TruncatedTopKEntropy
from topline.solvers.losses.hinges import (
    MaxHinge,
    PolyhedralTopK,
    StructuredHinge,
    TopKHinge,
    TopKOthersHinge,
    UsunierHinge,
    WeightedTopKHinge,
    WeightedUsunierHinge,
)
from topline.solvers.losses.label_sets import LabelSets
from topline.solvers.losses.margins import ldam_margins, logit_adjusted_margins, tree_margins
from topline.solvers.losses.multilabel import MultilabelHinge, MultilabelSoftmax
from topline.solvers.losses.one_vs_all import OneVsAll
from topline.solvers.losses.registry import LOSSES, loss_from_dict, make_loss
