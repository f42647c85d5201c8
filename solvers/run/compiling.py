"""Compiling what a run needs before its clock starts."""

from __future__ import annotations

import numpy as np
from scipy import sparse as scipy_sparse

from topline.solvers.blocks.ascent.weight_sizes import weights_alike
from topline.solvers.blocks.stretch import can_vanish, least_stretch
from topline.solvers.core.half_floats import widened
from topline.solvers.core.problem import Problem, SmoothingKind
from topline.solvers.core.risks import MEAN_RISK, AverageTopK, Risk
from topline.solvers.core.row_packing import pack, unpack
from topline.solvers.core.stopping import FINEST_TOL, StoppingCriteria
from topline.solvers.executors import SerialExecutor
from topline.solvers.kernels import Kernel, is_precomputed
from topline.solvers.losses import LabelSets, Loss, LossForm
from topline.solvers.losses.batches import nearest_rows
from topline.solvers.methods import Choice, method_named
from topline.solvers.run.api import solve
from topline.solvers.run.kernel_blocks import solve_on_blocks
from topline.solvers.typing import FloatArray, IntArray

#: Enough passes to meet every compiled function: the second round applies the step of the first, and
#: dual_ascent extrapolates when sweeps alone have gone on for some rounds.
_PASSES = 60
#: Rows of noise, which no method fits in so few passes.
_ROWS = 40
#: So small that sweeps alone take long, and dual_ascent extrapolates.
_LAM = 1e-3


def compile_jit_functions(
    loss: Loss,
    d: int,
    m: int,
    smoothing: float,
    method: str,
    *,
    smoothing_kind: SmoothingKind = "moreau",
    keep_duals: bool = False,
    sparse: bool = False,
    several: bool = False,
    risk: Risk = MEAN_RISK,
    kernel: Kernel | None = None,
) -> None:
    """Compile (or load) what features (n, d) with this loss and method need, on a tiny problem.

    Of "auto" that is what it begins with: most runs never change their method.

    Numba keeps compiled functions beside the package, so that only the first call on a machine takes long:
    tens of seconds on a slow one.  Without this call the first pass takes them.  `several` says that examples
    have label sets.  With a `kernel` it is what blocks do that compute it.
    """
    _compile_packing()
    X = np.zeros((_ROWS, max(weights_alike(d * m) // m, 3)), dtype=np.float32)
    X[:, :3] = np.random.default_rng(0).standard_normal((_ROWS, 3))
    sets, codes = LabelSets.from_lists([{i % m, i // 2 % m} for i in range(_ROWS)], m)
    label_sets = sets if several else None
    y = np.asarray(codes if several else np.arange(_ROWS) % m, dtype=np.int32)
    if kernel is not None:
        problem = Problem(
            loss, n=_ROWS, d=X.shape[1], m=m, lam=_LAM, smoothing=smoothing, smoothing_kind=smoothing_kind,
            label_sets=label_sets,
        )  # fmt: skip
        _compile_on_blocks(problem, kernel, np.abs(X), y, Choice(method, ""))
        return
    solve(
        scipy_sparse.csr_matrix(X) if sparse else X,
        y,
        loss,
        lam=_LAM,
        smoothing=smoothing,
        method=Choice(method, "").begins_with,
        tol=FINEST_TOL,
        max_passes=_PASSES,
        executor=SerialExecutor(),
        smoothing_kind=smoothing_kind,
        keep_duals=keep_duals,
        risk=AverageTopK(_ROWS / 2) if isinstance(risk, AverageTopK) else risk,
        label_sets=label_sets,
        m=m,
    )
    form = loss.form(m).with_label_sets(label_sets, loss.name)
    _compile_what_few_rounds_meet(
        form, y[:1], duals=keep_duals or method_named(method).needs_duals(form, smoothing)
    )


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


def _compile_on_blocks(problem: Problem, kernel: Kernel, X: FloatArray, y: IntArray, choice: Choice) -> None:
    if is_precomputed(kernel):
        X = X @ X.T
    criteria = StoppingCriteria(tol=FINEST_TOL, max_passes=_PASSES)
    with SerialExecutor() as executor:
        solve_on_blocks(kernel, problem, X, y, None, executor, criteria, choice)
