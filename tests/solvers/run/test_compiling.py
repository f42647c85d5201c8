"""Compiling beforehand meets every kernel of the run that follows."""

from __future__ import annotations

import subprocess
import sys

import pytest

# A dispatcher tells which signatures it has compiled or loaded for Python: no new one may appear in the run.
PROGRAM = """
import numba, numpy as np
import gc, sys
from scipy import sparse
from topline import SerialExecutor, TopKHinge, solve
from topline.solvers.jit_cache import Compiled
from topline.solvers.run import ProblemSpec, compile_jit_functions

def signatures():
    found = [o for o in gc.get_objects() if isinstance(o, Compiled)]
    named = [(f"{f.py_func.__module__}.{f.py_func.__qualname__}", list(f.signatures)) for f in found]
    return {name: signatures for name, signatures in named if "solvers" in name}

method, smoothing, is_sparse = sys.argv[1], float(sys.argv[2]), sys.argv[3] == "sparse"
packed, d = sys.argv[4] == "packed", int(sys.argv[5])
spec = ProblemSpec(TopKHinge(2), smoothing=smoothing, method=method)
compile_jit_functions(spec, d, 4, sparse=is_sparse)
before = signatures()
random = np.random.default_rng(0)
X = random.standard_normal((300, d)).astype(np.float32)
y = random.integers(0, 4, 300)
executor = SerialExecutor(dual_bytes=2_000 if packed else None)
X = sparse.csr_matrix(X) if is_sparse else X
solve(X, y, TopKHinge(2), 1e-2, smoothing, method, max_passes=5, executor=executor)
after = signatures()
print(sum(map(len, before.values())))
print({name: s for name, s in after.items() if s != before.get(name)})
"""


@pytest.mark.parametrize(
    ("method", "smoothing", "layout", "duals", "d"),
    [
        ("dual_ascent", 0.0, "dense", "arrays", 6),
        pytest.param("dual_ascent", 0.1, "sparse", "arrays", 6, marks=pytest.mark.slow),
        pytest.param("dual_ascent", 0.1, "dense", "packed", 2_000, marks=pytest.mark.slow),
        pytest.param("dual_ascent", 0.0, "dense", "arrays", 2_000, marks=pytest.mark.slow),
        pytest.param("dual_ascent", 0.0, "dense", "arrays", 80_000, marks=pytest.mark.slow),
        pytest.param("fw", 0.0, "dense", "arrays", 6, marks=pytest.mark.slow),
        pytest.param("fw", 0.1, "sparse", "packed", 6, marks=pytest.mark.slow),
    ],
)
def test_nothing_is_left_to_compile(method, smoothing, layout, duals, d) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, method, str(smoothing), layout, duals, str(d)],
        capture_output=True,
        text=True,
        check=True,
    )
    count, late = done.stdout.split("\n")[:2]
    assert int(count) >= 3
    assert late == "{}"
