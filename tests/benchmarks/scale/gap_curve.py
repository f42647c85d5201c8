"""How the gap falls on a scaled copy of ImageNet-like features, by loss and number of blocks.

    python -m tests.benchmarks.scale.gap_curve --rows 30000 --d 256 --m 50 --loss topk_hinge --blocks 1 8

makes unit rows like those of `tests.benchmarks.scale.imagenet_store` in memory, trains with `auto` in one
process, and prints a line a round: passes, seconds, CPU seconds, P, D and their relative gap.  With
--dual-bytes dual variables are packed, as they are where memory does not hold them.  At the end stands what
as many passes over 1,281,167 rows would take at the seconds a row of this run, compiling included.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence

import numpy as np

from tests.benchmarks.harness import read_options
from tests.benchmarks.scale.imagenet_store import DIRECTIONS, THRESHOLD, class_means, labels_of
from topline import SerialExecutor, Softmax, SolveResult, TopKHinge, solve
from topline.solvers.core.state import IterationRecord, SolverState
from topline.solvers.typing import FloatArray, IntArray

LOSSES = {"topk_hinge": TopKHinge(5), "softmax": Softmax()}
FULL_ROWS = 1_281_167
#: Columns at which classes are as far apart as in the store; with fewer, means are moved out in proportion.
STORE_COLUMNS = 4096


def features(n: int, d: int, m: int) -> tuple[FloatArray, IntArray]:
    """Return unit rows (n, d) and labels, always the same ones."""
    means, directions = class_means(m, d)
    y, random = labels_of(n, m), np.random.default_rng((n, m, d))
    X = random.standard_normal((n, d), dtype=np.float32)
    X += np.float32(np.sqrt(STORE_COLUMNS / d)) * means[y]
    X += random.standard_normal((n, DIRECTIONS), dtype=np.float32) @ directions
    np.maximum(X - np.float32(THRESHOLD), 0.0, out=X)
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    return X, y


def curve(options: argparse.Namespace, X: FloatArray, y: IntArray, blocks: int) -> SolveResult:
    """Train on so many blocks and print the rounds."""
    began = time.process_time()

    def show(record: IterationRecord, _: SolverState) -> None:
        spent = time.process_time() - began
        print(
            f"{record.passes:>7}{record.seconds:>9.1f}{spent:>8.1f}{record.primal:>11.6f}{record.dual:>11.6f}"
            f"{record.relative_gap:>10.1e}",
            flush=True,
        )

    print(f"{options.loss}, {blocks} blocks\n passes  seconds     CPU          P          D       gap")
    executor = SerialExecutor(blocks=blocks, dual_bytes=options.dual_bytes)
    lam = 1.0 / (len(y) * options.C)
    with executor:
        return solve(
            X, y, LOSSES[options.loss], lam, method=options.method, tol=options.tol,
            max_passes=options.passes, executor=executor, callbacks=(show,), m=options.m,
        )  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> list[SolveResult]:
    """Run the command."""
    options = read_options(
        __doc__, arguments, rows=30_000, d=256, m=50, loss="topk_hinge", method="auto", C=1.0, blocks=[1],
        dual_bytes=int, tol=1e-3, passes=100,
    )  # fmt: skip
    X, y = features(options.rows, options.d, options.m)
    found = []
    for blocks in options.blocks:
        began = time.process_time()
        result = curve(options, X, y, blocks)
        scale = FULL_ROWS / options.rows / 60
        wall, cpu = result.history[-1].seconds * scale, (time.process_time() - began) * scale
        print(
            f"{result.status.value} after {result.passes} passes at {result.relative_gap:.1e}:"
            f" {result.why};\n"
            f"as many passes over {FULL_ROWS:,} rows are {wall:.0f} minutes like these, {cpu:.0f} of them CPU"
        )
        found.append(result)
    return found


if __name__ == "__main__":
    main(sys.argv[1:])
