"""One run: `solve`, the loop of all methods, warm starts and paths over C.

`solve` checks what it is given, binds an executor, takes rounds until a criterion or a callback ends them and
certifies the last state in float64.  Every other entrance, the estimators' and the pipeline's, goes through
it.
"""

from __future__ import annotations

from topline.solvers.run.api import (
    available_cores,
    solve,
)
from topline.solvers.run.compiling import (
    compile_jit_functions,
)
from topline.solvers.run.loop import (
    Callback,
    Run,
    iterate,
)
from topline.solvers.run.path import (
    regularisation_path,
)

__all__ = [
    "Callback",
    "Run",
    "available_cores",
    "compile_jit_functions",
    "iterate",
    "regularisation_path",
    "solve",
]
