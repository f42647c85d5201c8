"""Compiling what a run needs before its clock starts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from scipy import sparse as scipy_sparse

from topline.solvers.blocks.ascent.passes import weights_alike
from topline.solvers.blocks.stretch import can_vanish, least_stretch
from topline.solvers.core.dual_rows import pack, unpack
from topline.solvers.core.inputs import LabelledRows
from topline.solvers.core.risks import AverageTopK
from topline.solvers.core.rows import widened
from topline.solvers.core.stopping import FINEST_TOL, StoppingCriteria
from topline.solvers.executors import SerialExecutor
from topline.solvers.kernels import as_kernel, is_precomputed
from topline.solvers.losses import LabelSets, LossForm
from topline.solvers.losses.batches import nearest_rows
from topline.solvers.run.problem_spec import ProblemSpec
from topline.solvers.run.task import RunOptions, Task, run_task
from topline.solvers.typing import IntArray

#: Enough passes to meet every compiled function: the second round applies the step of the first, and
#: dual_ascent extrapolates when sweeps alone have gone on for some rounds.
_PASSES = 60
#: Rows of noise, which no method fits in so few passes.
_ROWS = 40
#: So small that sweeps alone take long, and dual_ascent extrapolates.
_LAM = 1e-3


def compile_jit_functions(
    spec: ProblemSpec, d: int, m: int, *, sparse: bool = False, several: bool = False
) -> None:
    """Compile (or load) what features (n, d) of m classes need to be trained on so, on a tiny problem.

    Of "auto" that is what it begins with: most runs never change their method.  With a kernel it is what
    blocks do that compute it.

    Numba keeps compiled functions beside the package, so that only the first call on a machine takes long:
    tens of seconds on a slow one.  Without this call the first pass takes them.  `several` says that examples
    have label sets.
    """
    _compile_packing()
    X = np.zeros((_ROWS, max(weights_alike(d * m) // m, 3)), dtype=np.float32)
    X[:, :3] = np.random.default_rng(0).standard_normal((_ROWS, 3))
    sets, codes = LabelSets.from_lists([{i % m, i // 2 % m} for i in range(_ROWS)], m)
    label_sets = sets if several else None
    y = np.asarray(codes if several else np.arange(_ROWS) % m, dtype=np.int32)
    risk = AverageTopK(_ROWS / 2) if isinstance(spec.risk, AverageTopK) else spec.risk
    method = "dual_ascent" if spec.method == "auto" else spec.method
    tiny = replace(spec, lam=_LAM, C=None, risk=risk, weights=None, method=method)
    if tiny.kernel is not None:
        X = np.abs(X)
        X = X @ X.T if is_precomputed(tiny.kernel) else X
    rows = scipy_sparse.csr_matrix(X) if sparse else X
    with SerialExecutor() as executor:
        options = RunOptions(StoppingCriteria(tol=FINEST_TOL, max_passes=_PASSES), executor=executor)
        task = Task.of(tiny, LabelledRows(rows, y, None, m, label_sets), options)
        run_task(task if tiny.kernel is None else replace(task, kernel=as_kernel(tiny.kernel)))
    if tiny.kernel is None:
        _compile_what_few_rounds_meet(task.problem.form, y[:1], duals=task.duals_kept)


def _compile_packing() -> None:
    """Compile what reads and packs rows."""
    widened(np.zeros(1, dtype=np.float16))
    for rows in (np.eye(_ROWS, dtype=np.float32), np.eye(_ROWS)):
        unpack(pack(rows), 0, _ROWS, rows)


def _compile_what_few_rounds_meet(form: LossForm, y: IntArray, *, duals: bool) -> None:
    """Compile what the tiny problem does not come to, on a row of label y (1,)."""
    if can_vanish(form):
        for dtype in (np.float32, np.float64):
            slack = np.zeros(1), np.zeros(form.m)
            least_stretch(form, np.zeros((1, form.m), dtype=dtype), y, np.ones(1), slack, 0.0)
    if duals:
        # The tiny problem ends in float64, where rows need not be put inside their domains.
        nearest_rows(form, np.zeros((1, form.m)), y)
