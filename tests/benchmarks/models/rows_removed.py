"""What leaving rows out of a trained model costs: python -m tests.benchmarks.models.rows_removed.

A model is trained, a share of its rows is drawn and left out, and training goes on without them from the
dual variables of the others, which is what `topline train --from MODEL --without ROWS` does; of a smooth loss
it goes on from the weights, by one step at least.  Beside it stands a fit anew on the rows that are left.
Passes are those of `solve`: all rounds, the visits of some rows as fractions of a pass that are rounded up in
the end, and what makes weights of the dual variables; the certificate in the end, which both pay, is in
neither.  "apart" is the difference of the two objective values, as a share of them: each certificate allows
`tol`.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np

from tests.benchmarks.datasets import DATA_DIR, load
from tests.benchmarks.models.label_suspects import rows_of
from topline import MaxHinge, Softmax, TopKHinge, solve
from topline.solvers.core.state import SolveResult, SolverState
from topline.solvers.run import left_behind

SETS = ("googlenet", "usps", "letter")
LOSSES = {"max_hinge": MaxHinge(), "topk_hinge": TopKHinge(5), "softmax": Softmax()}


def continued(before: SolveResult, X: Any, y: Any, kept: Any, lam: float, tol: float) -> SolveResult:
    """Train on some rows from what an earlier result says of them."""
    start: dict[str, Any] = {"state": left_behind(SolverState(round=0, W=before.W))}
    if before.A is not None:
        start = {"duals": [(0, len(kept), before.A[kept])], "duals_near": True}
    return solve(X[kept], y[kept], before.problem.loss, lam, tol=tol, m=before.problem.m, **start)


def line(name: str, X: Any, y: Any, loss: str, C: float, tol: float, share: float) -> str:
    """Return a row of the table."""
    n = len(y)
    kept = np.sort(np.random.default_rng(0).permutation(n)[round(share * n) :])
    hinge = loss != "softmax"
    before = solve(X, y, LOSSES[loss], 1.0 / (n * C), tol=tol, keep_duals=hinge)
    lam = 1.0 / (len(kept) * C)
    anew = solve(X[kept], y[kept], LOSSES[loss], lam, tol=tol, m=before.problem.m)
    without = continued(before, X, y, kept, lam, tol)
    apart = abs(without.primal - anew.primal) / anew.primal
    passes = f"{anew.passes} | {without.passes} | {without.passes / anew.passes:.0%}"
    return f"| {name} | {loss} | {C:g} | {tol:g} | {passes} | {apart:.1e} |"


def main(arguments: list[str] | None = None) -> None:
    """Print the table as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=DATA_DIR)
    parser.add_argument("--sets", nargs="+", default=list(SETS))
    parser.add_argument("--losses", nargs="+", choices=list(LOSSES), default=list(LOSSES))
    parser.add_argument("--C", type=float, nargs="+", default=[1.0, 10.0])
    parser.add_argument("--tol", type=float, nargs="+", default=[1e-3, 1e-4])
    parser.add_argument("--share", type=float, default=0.01)
    parser.add_argument("--quick", action="store_true", help="a few hundred rows of each set")
    options = parser.parse_args(arguments)
    head = ("set", "loss", "C", "tol", "passes anew", "passes from the model", "share", "apart")
    print("| " + " | ".join(head) + " |\n|" + "---|" * len(head))
    for name in options.sets:
        try:
            data = load(name, options.data, quick=options.quick)
        except FileNotFoundError as missing:
            print(f"{name}: skipped, {missing.filename} is not there", file=sys.stderr)
            continue
        X = rows_of(data.X)
        for loss in options.losses:
            for C in options.C:
                for tol in options.tol:
                    print(line(name, X, data.y, loss, C, tol, options.share), flush=True)


if __name__ == "__main__":
    main()
