"""Exact kernels from zero, and from the answer of a low-rank approximation: passes and CPU seconds of both.

    python -m tests.benchmarks.kernels.low_rank_start [--data FOLDER] [--rows 4000] [--C 4 100]
        [--landmarks 300 1000]

solves the max hinge with an RBF kernel (gamma = "scale") on letter to 1e-3 and on a synthetic set (d = 64,
m = 10) to 1e-2, in this process on one block, and the same from the dual variables of the problem on so many
Nystroem features, which is solved to 0.1.  CPU time of the second includes that of the features and of their
problem.  Everything is compiled before.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from sklearn.kernel_approximation import Nystroem

from tests.benchmarks.datasets import DATA_DIR, DataSet
from tests.benchmarks.harness import read_options, with_cpu
from tests.benchmarks.kernels.rbf_machines import letters, synthetic
from topline import MaxHinge, RBFKernel, SerialExecutor, SolveResult, solve
from topline.solvers.typing import FloatArray


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
    options = read_options(
        __doc__, arguments, data=DATA_DIR, sets=["letter", "synthetic"], rows=4000, C=[4.0, 100.0],
        landmarks=[300, 1000],
    )  # fmt: skip
    found = []
    for name in options.sets:
        whole, tol = (letters(options.data), 1e-3) if name == "letter" else (synthetic(options.rows), 1e-2)
        data = whole.first(options.rows)
        gamma = float(RBFKernel("scale").resolved(data.X).gamma)
        few = data.first(1100)
        exact(few, gamma, 1.0, 0.1, [(0, 1100, low_rank(few, gamma, 1.0, 50))])
        for C in options.C:
            cold, cpu = with_cpu(partial(exact, data, gamma, C, tol))
            print(f"{name}, n {len(data.y):,}, C {C:g}: from zero {cold.passes} passes, {cpu:.1f} CPU s")
            for landmarks in options.landmarks:
                A, before = with_cpu(partial(low_rank, data, gamma, C, landmarks))
                warm, after = with_cpu(partial(exact, data, gamma, C, tol, [(0, len(data.y), A)]))
                print(
                    f"  from {landmarks:,} landmarks, first gap {warm.history[0].relative_gap:.2f}:"
                    f" {warm.passes} passes, {before:.1f} + {after:.1f} CPU s",
                    flush=True,
                )
                found.append((cpu, before + after))
    return found


if __name__ == "__main__":
    main()
