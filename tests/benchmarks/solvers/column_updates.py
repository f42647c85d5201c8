"""Exact column updates a second, beside two peers: python -m tests.benchmarks.solvers.column_updates.

Scores are standard normal, c = 1.  The peers are a general QP solver (Clarabel through its direct interface,
one column a call, on the sparse form of the top-5 problem; building its matrices is not timed) and, k = 1,
projection on the simplex by sorting, compiled by Numba like the kernels.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import clarabel
import numba as nb
import numpy as np
from scipy import sparse

from tests.reference.envelopes import entropy_updates
from topline.solvers.losses import (
    LossForm,
    MaxHinge,
    TopKHinge,
    UsunierHinge,
    WeightedTopKHinge,
    WeightedUsunierHinge,
)
from topline.solvers.losses.rows import column_updates

CURVATURE = 1.0


@dataclass(frozen=True)
class Row:
    """Microseconds for one column with m classes."""

    m: int
    kernels: dict[str, float]
    sorting: float
    general: float


def forms(m: int) -> dict[str, LossForm]:
    """Give the losses of the table: few ranks of many, and all ranks."""
    decay = np.exp(-5.0 * np.arange(m) / m)
    return {
        "max hinge": MaxHinge().form(m),
        "top-5": TopKHinge(5).form(m),
        "Usunier 5": UsunierHinge(5).form(m),
        "top-k, m weights": WeightedTopKHinge(tuple(decay / decay.sum())).form(m),
        "Usunier, m weights": WeightedUsunierHinge(tuple(decay / decay.sum())).form(m),
    }


def measure(sizes: Sequence[int] = (10, 100, 1000, 10000), seconds: float = 0.5) -> Iterator[Row]:
    """Time every kernel and both peers for each number of classes, about `seconds` each."""
    rng = np.random.default_rng(0)
    for m in sizes:
        rows = max(50, min(20000, 1000000 // m))
        q, y = rng.standard_normal((rows, m)), rng.integers(m, size=rows)
        kernels = {
            name: per_row(partial(column_updates, form, q, y, CURVATURE), rows, seconds)
            for name, form in forms(m).items()
        }
        kernels["softmax"] = per_row(partial(entropy_updates, q, y, CURVATURE), rows, seconds)
        sorting = per_row(partial(simplex_by_sorting, q), rows, seconds)
        yield Row(m, kernels, sorting, general_solver(q, y, seconds))


def per_row(act: Callable[[], object], rows: int, seconds: float) -> float:
    """Microseconds a row: the shortest of several timings, the others were disturbed."""
    act()
    best = np.inf
    end = time.perf_counter() + seconds
    while True:
        started = time.perf_counter()
        act()
        best = min(best, time.perf_counter() - started)
        if time.perf_counter() > end:
            return best / rows * 1e6


@nb.njit(nogil=True)
def simplex_by_sorting(q: np.ndarray) -> np.ndarray:
    """Project each row on {x >= 0, sum x = 1} with one full sort."""
    out = np.empty_like(q)
    for i in range(q.shape[0]):
        ordered = np.sort(q[i])[::-1]
        total = 0.0
        threshold = 0.0
        for j in range(len(ordered)):
            total += ordered[j]
            if ordered[j] <= (total - 1.0) / (j + 1):
                break
            threshold = (total - 1.0) / (j + 1)
        out[i] = np.maximum(q[i] - threshold, 0.0)
    return out


def general_solver(q: np.ndarray, y: np.ndarray, seconds: float) -> float:
    """Microseconds a column for Clarabel, the mean over at least 3 columns."""
    spent = 0.0
    solved = 0
    while solved < len(q) and (solved < 3 or spent < seconds):
        spent += top5_by_qp(q[solved], int(y[solved]))[1]
        solved += 1
    return spent / solved * 1e6


def top5_by_qp(q: np.ndarray, own: int) -> tuple[np.ndarray, float]:
    """Solve the top-5 column problem with Clarabel; gives beta (m,) and the seconds inside the solver.

    Variables: beta (m), t, S.  Rows: sum beta = t, S = t - beta_y, then 0 <= beta <= t / k and t <= 1.
    """
    m = len(q)
    k = min(5, m)
    others = np.ones(m)
    others[own] = 0.0
    linear = np.concatenate([-(1.0 + q - q[own]) * others, [0.0, 0.0]])
    P = sparse.diags(np.concatenate([CURVATURE * others, [0.0, CURVATURE]])).tocsc()
    ones, none = sparse.csr_matrix(np.ones((m, 1))), sparse.csr_matrix((m, 1))
    A = sparse.bmat(
        [
            [ones.T, [[-1.0]], None],
            [sparse.csr_matrix(1.0 - others), [[-1.0]], [[1.0]]],
            [-sparse.identity(m), none, none],
            [sparse.identity(m), -ones / k, none],
            [None, [[1.0]], None],
        ]
    ).tocsc()
    right = np.concatenate([np.zeros(2 + 2 * m), [1.0]])
    cones = [clarabel.ZeroConeT(2), clarabel.NonnegativeConeT(2 * m + 1)]
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    started = time.perf_counter()
    solution = clarabel.DefaultSolver(P, linear, A, right, cones, settings).solve()
    return np.array(solution.x)[:m], time.perf_counter() - started


def growth(rows: Sequence[Row], name: str) -> float:
    """Give p in time ~ (m log m)^p between the two largest m."""
    low, high = rows[-2], rows[-1]
    work = (high.m * np.log(high.m)) / (low.m * np.log(low.m))
    return float(np.log(high.kernels[name] / low.kernels[name]) / np.log(work))


def table(rows: Sequence[Row]) -> str:
    """Lay the rows out: updates a second, how many times as fast as the peers, and the growth."""
    lines = ["column updates a second (times as fast as: QP solver for top-5, sorting for max hinge)", ""]
    lines.append(f"{'m':>20}" + "".join(f"{row.m:>14,}" for row in rows) + "   (m log m)^p")
    for name in rows[0].kernels:
        speeds = "".join(f"{1e6 / row.kernels[name]:>14,.0f}" for row in rows)
        lines.append(f"{name:>20}{speeds}   p = {growth(rows, name):.2f}")
    lines.append(f"{'QP solver, top-5':>20}" + "".join(f"{1e6 / row.general:>14,.1f}" for row in rows))
    lines.append(f"{'simplex by sorting':>20}" + "".join(f"{1e6 / row.sorting:>14,.0f}" for row in rows))
    ratios = "".join(f"{row.general / row.kernels['top-5']:>13,.0f}x" for row in rows)
    lines.append(f"{'top-5 / QP solver':>20}{ratios}")
    ratios = "".join(f"{row.sorting / row.kernels['max hinge']:>13.1f}x" for row in rows)
    lines.append(f"{'max hinge / sorting':>20}{ratios}")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table(list(measure())))
