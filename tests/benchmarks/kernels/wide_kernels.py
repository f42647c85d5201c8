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

import argparse
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TypeVar
from unittest.mock import patch

import numpy as np

from tests.benchmarks.datasets import DATA_DIR, DataSet, load
from tests.benchmarks.kernels.factor_steps import pivoted_columns, solve_with_factor
from topline import MaxHinge, RBFKernel, SerialExecutor, SolveResult, solve
from topline.solvers.blocks.kernel import TileRows
from topline.solvers.typing import FloatArray

T = TypeVar("T")
SETS = {"letter": "letter_all/z", "satimage": "satimage/z", "digits": "digits/z"}
TOL = 1e-3
#: Rows to compile with: more than those whose matrix is factored whole.
FEW = 1100


def taken(work: Callable[[], T]) -> tuple[T, float]:
    """Do some work; also give its CPU seconds."""
    began = time.process_time()
    return work(), time.process_time() - began


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
    L, factored = taken(partial(pivoted_columns, K, rank))
    A, before = taken(partial(of_factor, data, L.astype(np.float32), C))
    rows = []
    for name, alone, start, spent in (
        ("sweeps alone", True, None, 0.0),
        ("extrapolated", False, None, 0.0),
        (f"from {rank} columns", False, A, factored + before),
    ):
        found, cpu = taken(partial(exact, data, kernel, C, passes, start, alone=alone))
        rows.append((name, found.relative_gap, float(found.passes), spent + cpu))
    (gap, count), cpu = taken(partial(solve_with_factor, K, L, data.y, data.m, C, TOL, passes))
    return [*rows, (f"metric of {rank} columns", gap, count, factored + cpu)]


def main(arguments: Sequence[str] | None = None) -> list[tuple[str, float, float, float]]:
    """Measure and print; give all of it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=DATA_DIR)
    parser.add_argument("--sets", nargs="+", default=["letter", "satimage"], choices=list(SETS))
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--C", type=float, nargs="+", default=[100.0, 1000.0])
    parser.add_argument("--rank", type=int, default=200)
    parser.add_argument("--passes", type=int, default=200)
    options = parser.parse_args(arguments)
    found = []
    for name in options.sets:
        whole = load(SETS[name], options.data)
        order = np.random.default_rng(0).permutation(len(whole.y))
        few, some = (
            DataSet(name, whole.X[part], whole.y[part]) for part in (order[:1100], order[: options.rows])
        )
        compare(few, 1.0, 20, 1)
        for C in options.C:
            print(f"{name}, n {len(some.y):,}, C {C:g}", flush=True)
            for row in compare(some, C, options.rank, options.passes):
                print("  {:<24}gap {:.1e}, {:.1f} passes, {:.1f} CPU s".format(*row), flush=True)
                found.append(row)
    return found


if __name__ == "__main__":
    main()
