"""L-BFGS, and what it takes for the Hessian before its steps have shown one.

`lbfgs` is the method, with its line search, `memory` what it remembers, and `metrics` makes the Hessian of
second moments of the rows.  Newton's method, which shares the gradients, is beside this room.
"""

from __future__ import annotations

from topline.solvers.methods.quasi_newton.lbfgs import (
    Lbfgs,
    arrays_of_lbfgs,
    at_gradient,
    gradient_of,
    unfit_for_lbfgs,
)
from topline.solvers.methods.quasi_newton.memory import LbfgsMemory
from topline.solvers.methods.quasi_newton.metrics import numbers_in_classes
