"""What privileged features save: errors of the SVM, of SVM+ and of SVM+ with its hints mixed up.

    python -m tests.benchmarks.solvers.privileged_gain [SEEDS]

Examples, grids and choice of hyperparameters are those of the test that asserts the margin.
"""

from __future__ import annotations

import sys

import numpy as np

from tests.solvers.privileged.test_svm_plus import errors_of_a_seed


def main() -> None:
    seeds = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    errors = 100.0 * np.array([errors_of_a_seed(seed) for seed in range(seeds)])
    for name, column in zip(("SVM", "SVM+", "SVM+, hints mixed up"), errors.T, strict=True):
        print(f"{name:22s} {column.mean():5.1f} % +- {column.std(ddof=1):.1f}")
    gain = errors[:, 0] - errors[:, 1]
    error = gain.std(ddof=1) / np.sqrt(seeds)
    print(f"paired gain of SVM+    {gain.mean():5.1f} +- {error:.1f} (standard error)")


if __name__ == "__main__":
    main()
