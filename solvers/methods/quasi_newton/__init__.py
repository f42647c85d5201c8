"""L-BFGS, and its approximations of the Hessian before steps have revealed it.

`lbfgs` is the method with its line search, `memory` its memory, and `metrics` approximates the Hessian by
second moments of the rows.  Newton's method, which shares the gradients, is in the parent package.
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
