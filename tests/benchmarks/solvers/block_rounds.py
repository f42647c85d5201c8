"""Rounds to a relative gap of 1e-3 for more and more blocks that ascend at the same time, in one process.

    python -m tests.benchmarks.solvers.block_rounds [--rows 20000] [--features 512] [--classes 100] [--C 0.05]

A round is one message to every block and one back, whoever holds the blocks, so this is about rounds and not
about time.  Printed are dual ascent, dual ascent without the shared direction kept apart, and Frank-Wolfe,
whose rounds do not depend on blocks.  The features are rectified and of unit length, as a network gives them.
"""

from __future__ import annotations

import argparse
from unittest.mock import patch

import numpy as np

from topline import SerialExecutor, TopKHinge, solve
from topline.solvers.methods.dual_ascent import DualAscent

BLOCKS = (1, 2, 4, 8, 16, 32)
TOL = 1e-3


def rectified(n, d, m, seed=0):
    """Give X (n, d) float32 and y (n,): clouds around m centres, rectified, of unit length."""
    random = np.random.default_rng(seed)
    y = random.integers(0, m, n)
    centres = 0.35 * random.standard_normal((m, d))
    X = np.maximum(centres[y] + random.standard_normal((n, d)), 0.0).astype(np.float32)
    return X / np.linalg.norm(X, axis=1, keepdims=True), y


def rounds_to_gap(X, y, C, blocks, most, *, apart=True, method="dual_ascent"):
    """Give (rounds, passes, relative gap) of a solve; it has not got there where the gap exceeds TOL."""
    with patch.object(DualAscent, "deflates", apart), SerialExecutor(blocks=blocks) as executor:
        result = solve(
            X, y, TopKHinge(5), 1.0 / (C * len(y)), method=method, tol=TOL, max_passes=most, executor=executor
        )
    return len(result.history), result.passes, result.relative_gap


def report(X, y, C, most, blocks=BLOCKS):
    """Print a line for each number of blocks; give the rounds of dual ascent by number of blocks."""
    found = {}
    for count in blocks:
        rounds, passes, gap = rounds_to_gap(X, y, C, count, most)
        plain, _, plain_gap = rounds_to_gap(X, y, C, count, most, apart=False)
        found[count] = rounds
        print(
            f"{count:3d} blocks: {shown(rounds, gap)} rounds, {passes} passes, "
            f"{rounds / found[blocks[0]]:.1f} times those of {blocks[0]}; without: {shown(plain, plain_gap)}",
            flush=True,
        )
    rounds, _, gap = rounds_to_gap(X, y, C, 1, most, method="fw")
    print(f"fw: {shown(rounds, gap)} rounds", flush=True)
    return found


def shown(rounds, gap):
    """Give the rounds as text, with the gap where it is not TOL yet."""
    return f"{rounds}" if gap <= TOL else f"> {rounds} (gap {gap:.1e})"


def main(arguments=None):
    """Run the benchmark."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--features", type=int, default=512)
    parser.add_argument("--classes", type=int, default=100)
    parser.add_argument("--C", type=float, default=0.05, help="1 / (lam n)")
    parser.add_argument("--max-passes", type=int, default=1000)
    parser.add_argument("--quick", action="store_true", help="a small problem, for a test")
    chosen = parser.parse_args(arguments)
    sizes = (800, 32, 10) if chosen.quick else (chosen.rows, chosen.features, chosen.classes)
    X, y = rectified(*sizes)
    print(f"n = {sizes[0]}, d = {sizes[1]}, m = {sizes[2]}, top-5, C = {chosen.C}, relative gap {TOL}")
    return report(X, y, chosen.C, chosen.max_passes)


if __name__ == "__main__":
    main()
