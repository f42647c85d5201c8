"""The coordinator's side of every method: a round's requests to the blocks, and the use of their sums.

A method measures an iterate and advances from it; `METHODS` holds each with its requirements on a problem.
The loop over rounds is in `topline.solvers.run`, the work on examples in `topline.solvers.blocks`.
"""

from __future__ import annotations

from topline.solvers.methods.auto import Auto, AutoMemory, Choice, begun_by, change_of_method, choose, priors
from topline.solvers.methods.base import Advance, Measurement, Method
from topline.solvers.methods.newton import Newton, NewtonMemory, ProximalNewton
from topline.solvers.methods.quasi_newton import Lbfgs, LbfgsMemory
from topline.solvers.methods.registry import (
    METHODS,
    PLAIN,
    MethodMemory,
    MethodSpec,
    method_memory,
    method_named,
)
from topline.solvers.methods.sampled_step import SampledStep
