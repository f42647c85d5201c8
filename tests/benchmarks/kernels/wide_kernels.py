"""Exact kernels where C is large and the kernel wide: passes and CPU seconds of sweeps alone, and with help.

    python -m tests.benchmarks.kernels.wide_kernels [--data FOLDER] [--sets letter satimage]
        [--rows 2000] [--C 100 1000] [--rank 200] [--passes 200]

solves the max hinge with an RBF kernel ten times as wide as the median distance says, on standardised rows,
to 1e-3 in this process on one block: by sweeps over the picked rows alone; with the extrapolation between
them; and so from the dual variables of the problem on a pivoted Cholesky factor of so many columns, which
Newton's method solves to 1e-2.  CPU time of the last includes that of factor and problem.  The last line of
a problem takes the factor L for a preconditioner: each round finds the change of A by sweeps with
L L^T + diag(K - L L^T) in the place of K, and takes the exact step on K.  Everything is compiled before.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from unittest.mock import patch

import numpy as np

from tests.benchmarks.datasets import DATA_DIR, DataSet, load
from tests.benchmarks.harness import read_options, with_cpu
from topline import MaxHinge, RBFKernel, SerialExecutor, SolveResult, solve
from topline.solvers.blocks.ascent.sweeps import DenseTile, SweptPart, carry, scores, scratch_for, update_row
from topline.solvers.blocks.kernel import PickedRows, TileRows, part_of
from topline.solvers.core.problem import Problem
from topline.solvers.jit_cache import JitFunction, borrowed, jit, keep
from topline.solvers.typing import Float64Array, FloatArray, Int64Array, IntArray

SETS = {"letter": "letter_all/z", "satimage": "satimage/z", "digits": "digits/z"}
TOL = 1e-3
#: Rows to compile with: more than those whose matrix is factored whole.
FEW = 1100


def exact(
    data: DataSet,
    kernel: RBFKernel,
    C: float,
    passes: int,
    start: FloatArray | None = None,
    *,
    alone: bool = False,
) -> SolveResult:
    """Solve with the kernel itself."""
    n = len(data.y)
    with patch.object(TileRows, "fits", lambda *_: False) if alone else nullcontext():
        return solve(
            data.X, data.y, MaxHinge(), 1.0 / (n * C), kernel=kernel, tol=TOL, m=data.m, max_passes=passes,
            duals=None if start is None else [(0, n, start)], executor=SerialExecutor(),
        )  # fmt: skip


def of_factor(data: DataSet, L: FloatArray, C: float) -> FloatArray:
    """Give A of the problem on the columns of a factor."""
    found = solve(
        L, data.y, MaxHinge(), 1.0 / (len(data.y) * C), method="newton", tol=1e-2, m=data.m, keep_duals=True,
        executor=SerialExecutor(),
    )  # fmt: skip
    return np.asarray(found.A)


def compare(data: DataSet, C: float, rank: int, passes: int) -> list[tuple[str, float, float, float]]:
    """Give what each way took: its name, its gap, passes over K and CPU seconds."""
    X = data.X.astype(np.float64)
    kernel = RBFKernel(0.1 * float(RBFKernel("median").resolved(data.X).gamma))
    K = kernel.matrix(X, X)
    L, factored = with_cpu(partial(pivoted_columns, K, rank))
    A, before = with_cpu(partial(of_factor, data, L.astype(np.float32), C))
    rows = []
    for name, alone, start, spent in (
        ("sweeps alone", True, None, 0.0),
        ("extrapolated", False, None, 0.0),
        (f"from {rank} columns", False, A, factored + before),
    ):
        found, cpu = with_cpu(partial(exact, data, kernel, C, passes, start, alone=alone))
        rows.append((name, found.relative_gap, float(found.passes), spent + cpu))
    (gap, count), cpu = with_cpu(partial(solve_with_factor, K, L, data.y, data.m, C, TOL, passes))
    return [*rows, (f"metric of {rank} columns", gap, count, factored + cpu)]


def main(arguments: Sequence[str] | None = None) -> list[tuple[str, float, float, float]]:
    """Measure and print; give all of it."""
    options = read_options(
        __doc__, arguments, data=DATA_DIR, sets=["letter", "satimage"], rows=2000, C=[100.0, 1000.0],
        rank=200, passes=200,
    )  # fmt: skip
    found = []
    for name in options.sets:
        whole = load(SETS[name], options.data).shuffled()
        few, some = whole.first(FEW), whole.first(options.rows)
        compare(few, 1.0, 20, 1)
        for C in options.C:
            print(f"{name}, n {len(some.y):,}, C {C:g}", flush=True)
            for row in compare(some, C, options.rank, options.passes):
                print("  {:<24}gap {:.1e}, {:.1f} passes, {:.1f} CPU s".format(*row), flush=True)
                found.append(row)
    return found


if __name__ == "__main__":
    main()


#: As in the tile updates of dual ascent.
PAYS, MOST_SWEEPS, VISIT_ALL = 0.02, 200, 5


def pivoted_columns(K: Float64Array, rank: int) -> Float64Array:
    """Give the first columns of a pivoted Cholesky factor of K."""
    left, L = np.diag(K).copy(), np.zeros((len(K), rank))
    for j in range(rank):
        pivot = int(left.argmax())
        L[:, j] = (K[:, pivot] - L[:, :j] @ L[pivot, :j]) / np.sqrt(left[pivot])
        left = np.maximum(left - L[:, j] ** 2, 0.0)
    return L


@jit
def sweep(
    owned: SweptPart, column: JitFunction, order: Int64Array, rest: Float64Array, S: Float64Array
) -> float:
    """Update rows in an order; their tile has the rows of L, and for W (m, rank) the change of L^T A.

    `rest` is what L leaves of diag(K), and S (n, m) the scores.
    """
    part = borrowed(owned)
    m = S.shape[1]
    room = scratch_for(m), np.empty(m, dtype=part.tile.W.dtype)
    scratch, spare = borrowed(room)
    total = 0.0
    for i in order:
        scores(part.tile, i, spare)
        for j in range(m):
            scratch.q[j] = S[i, j] + spare[j] + part.scale * rest[i] * part.delta[i, j]
        n_changed = update_row(part, column, i, 0, part.y[i], scratch.q, scratch)
        carry(part.tile, i, scratch.changed, scratch.steps, n_changed, spare)
        total += max(part.rises[i], 0.0)
    keep(room)
    return total


def relative_gap(A: Float64Array, S: Float64Array, y: IntArray) -> float:
    """Give (P - D) / P of the max hinge, of A and its scores."""
    own = np.arange(len(y)), y
    margins = 1.0 + S - S[own][:, None]
    margins[own] = 0.0
    norm = float(np.vdot(A, S)) / len(y)
    primal = 0.5 * norm + float(margins.max(axis=1).mean())
    return (primal - float(A[own].mean()) + 0.5 * norm) / primal


def solve_with_factor(
    K: Float64Array, L: Float64Array, y: IntArray, m: int, C: float, tol: float, passes: float
) -> tuple[float, float]:
    """Give the gap that is reached, and the passes over K that it took, `passes` at most or a little more."""
    n = len(y)
    problem = Problem(MaxHinge(), n, 1, m, 1.0 / (n * C))
    column, everyone, none = problem.form.column_where(alike=True), np.arange(n), np.zeros((n, 0))
    factor, rest = L.astype(np.float32), np.maximum(np.diag(K) - (L * L).sum(axis=1), 0.0)
    A, S, random, taken = np.zeros((n, m)), np.zeros((n, m)), np.random.default_rng(0), 0.0
    while (gap := relative_gap(A, S, y)) > tol and taken < passes:
        tile = DenseTile(factor, np.zeros((m, L.shape[1]), dtype=np.float32))
        part = part_of(problem, tile, PickedRows(everyone, none, y, np.ones(n), A, S))
        part.norms[:] = (L * L).sum(axis=1) + rest
        order, first = everyone, 0.0
        for sweeps in range(1, MOST_SWEEPS + 1):
            rise = sweep(part, column, random.permutation(order), rest, S)
            first = first or rise
            if rise <= PAYS * first and len(order) == n:
                break
            order = np.flatnonzero(part.rises >= 0.0)
            if rise <= PAYS * first or not len(order) or sweeps % VISIT_ALL == 0:
                order = everyone
        delta = part.delta
        changed = np.flatnonzero(delta.any(axis=1))
        scored = C * (K[:, changed] @ delta[changed])
        rises_by = float(delta[np.arange(n), y].sum()) - float(np.vdot(delta, S))
        step = min(1.0, rises_by / max(float(np.vdot(delta, scored)), 1e-300))
        A, S, taken = A + step * delta, S + step * scored, taken + len(changed) / n
    return gap, taken
