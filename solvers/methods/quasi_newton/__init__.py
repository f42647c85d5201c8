"""L-BFGS, and what it takes for the Hessian before its steps have shown one.

`lbfgs` is the method.  `pairs` holds the steps that it remembers, and `row_metric` the second moments of the
rows as a metric.  Newton's method, which shares the gradients, is beside this room.
"""

from __future__ import annotations

from topline.solvers.methods.quasi_newton.lbfgs import (
    Lbfgs,
    arrays_of_lbfgs,
    at_gradient,
    gradient_of,
    unfit_for_lbfgs,
)
from topline.solvers.methods.quasi_newton.row_metric import of_rows

__all__ = ["Lbfgs", "arrays_of_lbfgs", "at_gradient", "gradient_of", "of_rows", "unfit_for_lbfgs"]
