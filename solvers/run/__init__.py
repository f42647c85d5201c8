"""One run: `solve`, the loop of all methods, warm starts and paths over C.

`solve` checks what it is given, binds an executor, takes rounds until a criterion or a callback ends them and
certifies the last state in float64.  Every other entrance, the estimators' and the pipeline's, goes through
it.
"""

from __future__ import annotations

from topline.solvers.crew import available_cores
from topline.solvers.run.api import (
    MappedResult,
    PrintProgress,
    regularisation_path,
    solve,
    solve_with_features,
)
from topline.solvers.run.compression import CompressedKernel, compress
from topline.solvers.run.loop import Callback, Run, iterate
from topline.solvers.run.task import ProblemSpec, Task, compile_jit_functions, run_task
