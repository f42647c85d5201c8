"""CPU seconds of the first fit of each loss on a machine: python -m tests.benchmarks.solvers.first_fit.

Each fit is that of an estimator on scikit-learn's digits, in a process of its own with an empty
NUMBA_CACHE_DIR; imports are not counted.  What a second fit in the same process takes is printed beside it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence

from topline.solvers.names import LOSS_RULES

PROGRAM = """
import json, os, sys
import numpy as np
from sklearn.datasets import load_digits
from topline import MultilabelClassifier, TopKClassifier

loss, parameters = sys.argv[1], json.loads(sys.argv[2])
X, y = load_digits(return_X_y=True)
if loss == "structured_hinge":
    parameters["margins"] = 1.0 - np.eye(10)
if loss.startswith("multilabel"):
    model, y = MultilabelClassifier(loss, **parameters), np.eye(10)[y] + np.eye(10)[(y + 1) % 10]
else:
    model = TopKClassifier(loss, **parameters)
spent = []
for _ in range(2):
    began = sum(os.times()[:2])
    model.fit(X, y)
    spent.append(sum(os.times()[:2]) - began)
print(json.dumps(spent))
"""


def measure(loss: str, method: str) -> tuple[float, float]:
    """Return the CPU seconds of the first fit and of the second."""
    parameters = {"method": method}
    if LOSS_RULES[loss].parameter == "rho":
        parameters["weights"] = "linear"
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, loss, json.dumps(parameters)],
            env={**os.environ, "NUMBA_CACHE_DIR": folder},
            stdout=subprocess.PIPE,
            check=True,
            text=True,
        )
    first, second = json.loads(done.stdout)
    return first, second


def main(arguments: Sequence[str]) -> int:
    """Run the command; exits 1 where a first fit takes more than --limit."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("losses", nargs="*", default=list(LOSS_RULES), metavar="LOSS")
    parser.add_argument("--method", default="auto")
    parser.add_argument("--limit", type=float, default=12.0)
    given = parser.parse_args(arguments)
    most = 0.0
    for loss in given.losses:
        first, second = measure(loss, given.method)
        print(f"{loss:24} first fit {first:6.2f} s, second {second:6.2f} s")
        most = max(most, first)
    return 0 if most <= given.limit else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
