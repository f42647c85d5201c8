"""The average top-k risk over Dask with 1, 2 and 7 blocks: the same objective, certified.

    python -m tests.benchmarks.solvers.average_top_blocks [--rows 100000] [--features 64] [--classes 20]
        [--share 0.1]

Two worker processes; K = share * rows of the losses count.  Each line is a run of its own from W = 0 to the
relative gap TOL, with P and D in float64; the last says how far apart the objectives are.
"""

from __future__ import annotations

import time

import numpy as np

from tests.benchmarks.harness import read_options
from topline import AverageTopK, TopKHinge, solve
from topline.pipeline.cluster import DaskExecutor, open_cluster
from topline.pipeline.options import ClusterConfig

BLOCKS = (1, 2, 7)
#: Noise in each feature, of centres whose features are of size 1.
SPREAD = 1.6


def clouds(n, d, m, seed=0):
    """Give X (n, d) float32 of unit length and y (n,): clouds around m centres that overlap a little."""
    random = np.random.default_rng(seed)
    y = random.integers(0, m, n)
    centres = random.standard_normal((m, d))
    X = (centres[y] + SPREAD * random.standard_normal((n, d))).astype(np.float32)
    return X / np.linalg.norm(X, axis=1, keepdims=True), y


def report(X, y, client, C, k, tol, most):
    """Print a line for each number of blocks; give the results."""
    results = []
    for blocks in BLOCKS:
        with DaskExecutor(client, blocks=blocks) as executor:
            began = time.perf_counter()
            result = solve(
                X, y, TopKHinge(5), 1.0 / (C * len(y)), risk=AverageTopK(k), tol=tol, max_passes=most,
                executor=executor,
            )  # fmt: skip
        results.append(result)
        print(
            f"{blocks:3d} blocks: {result.status.value}, P {result.primal:.12g}, D {result.dual:.12g}, "
            f"relative gap {result.relative_gap:.2e}, {len(result.history)} rounds, "
            f"{time.perf_counter() - began:.1f} s",
            flush=True,
        )
    objectives = [result.primal for result in results]
    print(f"objectives differ by {np.ptp(objectives) / objectives[0]:.1e} of the first")
    return results


def main(arguments=None):
    """Run the benchmark."""
    chosen = read_options(
        __doc__, arguments, rows=100_000, features=64, classes=20, share=0.1, C=0.001, tol=1e-4,
        max_passes=400, quick=False,
    )  # fmt: skip
    sizes = (700, 8, 5) if chosen.quick else (chosen.rows, chosen.features, chosen.classes)
    X, y = clouds(*sizes)
    k = chosen.share * sizes[0]
    print(f"n = {sizes[0]}, d = {sizes[1]}, m = {sizes[2]}, top-5, C = {chosen.C}, k = {k:g} of the losses")
    with open_cluster(ClusterConfig(workers=2), data_bytes=0 if chosen.quick else None) as client:
        return report(X, y, client, chosen.C, k, chosen.tol, chosen.max_passes)


if __name__ == "__main__":
    main()
