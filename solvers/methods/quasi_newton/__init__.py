"""L-BFGS, and what it takes for the Hessian before its steps have shown one.

`lbfgs` is the method, `memory` what it remembers, and `pairs` the steps among that.  `parts` says what is
minimised by itself, all of W or each class, and `searches` where their line searches lead.  `row_metric`
makes a metric of the second moments of all rows, `class_metric` one of those of the rows that are open in
each class, and `class_turns` renews that class by class.  Newton's method, which shares the gradients, is
beside this room.
"""

from __future__ import annotations

from topline.solvers.methods.quasi_newton.class_metric import numbers_in_classes
from topline.solvers.methods.quasi_newton.lbfgs import (
    Lbfgs,
    arrays_of_lbfgs,
    at_gradient,
    gradient_of,
    unfit_for_lbfgs,
)
from topline.solvers.methods.quasi_newton.memory import LbfgsMemory

__all__ = [
    "Lbfgs",
    "LbfgsMemory",
    "arrays_of_lbfgs",
    "at_gradient",
    "gradient_of",
    "numbers_in_classes",
    "unfit_for_lbfgs",
]
