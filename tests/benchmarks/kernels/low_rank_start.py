"""Exact kernels from zero, and from the answer of a low-rank approximation: passes and CPU seconds of both.

    python -m tests.benchmarks.kernels.low_rank_start [--data FOLDER] [--rows 4000] [--C 4 100]
        [--landmarks 300 1000]

solves the max hinge with an RBF kernel (gamma = "scale") on letter to 1e-3 and on a synthetic set (d = 64,
m = 10) to 1e-2, in this process on one block, and the same from the dual variables of the problem on so many
Nystroem features, which is solved to 0.1.  CPU time of the second includes that of the features and of their
problem.  Everything is compiled before.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from sklearn.kernel_approximation import Nystroem

from tests.benchmarks.datasets import DATA_DIR, DataSet
from tests.benchmarks.kernels.rbf_machines import letters, synthetic
from topline import MaxHinge, RBFKernel, SerialExecutor, SolveResult, solve
from topline.solvers.typing import FloatArray

T = TypeVar("T")


def taken(work: Callable[[], T]) -> tuple[T, float]:
    """Do some work; also give its CPU seconds."""
    began = time.process_time()
    return work(), time.process_time() - began


def exact(data: DataSet, gamma: float, C: float, tol: float, duals: Any = None) -> SolveResult:
    """Solve with the kernel itself."""
    lam = 1.0 / (len(data.y) * C)
    return solve(
        data.X, data.y, MaxHinge(), lam, kernel=RBFKernel(gamma), tol=tol, m=data.m, duals=duals,
        executor=SerialExecutor(),
    )  # fmt: skip


def low_rank(data: DataSet, gamma: float, C: float, landmarks: int) -> FloatArray:
    """Give A of the problem on so many Nystroem features."""
    features = Nystroem(gamma=gamma, n_components=landmarks, random_state=0)
    F = features.fit_transform(data.X.astype(np.float64)).astype(np.float32)
    found = solve(
        F, data.y, MaxHinge(), 1.0 / (len(data.y) * C), method="dual_ascent", tol=0.1, m=data.m,
        executor=SerialExecutor(),
    )  # fmt: skip
    return np.asarray(found.A)


def main(arguments: Sequence[str] | None = None) -> list[tuple[float, float]]:
    """Measure and print; give CPU seconds from zero and from each start."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=DATA_DIR)
    parser.add_argument("--sets", nargs="+", default=["letter", "synthetic"])
    parser.add_argument("--rows", type=int, default=4000)
    parser.add_argument("--C", type=float, nargs="+", default=[4.0, 100.0])
    parser.add_argument("--landmarks", type=int, nargs="+", default=[300, 1000])
    options = parser.parse_args(arguments)
    found = []
    for name in options.sets:
        whole, tol = (letters(options.data), 1e-3) if name == "letter" else (synthetic(options.rows), 1e-2)
        data = DataSet(name, whole.X[: options.rows], whole.y[: options.rows])
        gamma = float(RBFKernel("scale").resolved(data.X).gamma)
        few = DataSet(name, data.X[:1100], data.y[:1100])
        exact(few, gamma, 1.0, 0.1, [(0, 1100, low_rank(few, gamma, 1.0, 50))])
        for C in options.C:
            cold, cpu = taken(partial(exact, data, gamma, C, tol))
            print(f"{name}, n {len(data.y):,}, C {C:g}: from zero {cold.passes} passes, {cpu:.1f} CPU s")
            for landmarks in options.landmarks:
                A, before = taken(partial(low_rank, data, gamma, C, landmarks))
                warm, after = taken(partial(exact, data, gamma, C, tol, [(0, len(data.y), A)]))
                print(
                    f"  from {landmarks:,} landmarks, first gap {warm.history[0].relative_gap:.2f}:"
                    f" {warm.passes} passes, {before:.1f} + {after:.1f} CPU s",
                    flush=True,
                )
                found.append((cpu, before + after))
    return found


if __name__ == "__main__":
    main()
