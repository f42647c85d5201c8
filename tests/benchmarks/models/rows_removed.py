"""What leaving rows out of a trained model costs: python -m tests.benchmarks.models.rows_removed.

A model is trained, a share of its rows is drawn and left out, and training goes on without them from the
dual variables of the others, which is what `topline train --from MODEL --without ROWS` does; of a smooth loss
it goes on from the weights, by one step at least.  Beside it stands a fit anew on the rows that are left.
Passes are counted here, as rows whose scores or products were taken over all rows: a visit of few rows is a
fraction, and so is a visit of few classes of a row and what makes weights of the dual variables that are not
0.  The certificate in the end, which both pay, is in neither.  "carry" is the share of rows whose dual
variables are not 0: making weights of these and sweeping over them once is twice as many passes.  "apart" is
the difference of the two objective values, as a share of them: each certificate allows `tol`.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np

from tests.benchmarks.datasets import DATA_DIR, load
from tests.benchmarks.models.label_suspects import rows_of
from topline import MaxHinge, SerialExecutor, Softmax, TopKHinge, solve
from topline.solvers.core.block_stats import BlockStats
from topline.solvers.core.requests import (
    EvaluateRequest,
    OracleRequest,
    RebuildRequest,
    Request,
    SelectedRowsRequest,
)
from topline.solvers.core.state import SolveResult, SolverState
from topline.solvers.run import left_behind

SETS = ("googlenet", "usps", "letter", "satimage")
LOSSES = {"max_hinge": MaxHinge(), "topk_hinge": TopKHinge(5), "softmax": Softmax()}


class CountedRows(SerialExecutor):
    """Counts the rows that requests touch; `passes` is what they were before the last certificate."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = self.passes = 0.0

    def run(self, request: Request) -> BlockStats:
        """Run a request, and count its rows."""
        if _certifies(request):
            self.passes = self.rows / self._blocks[0].stop
        stats = super().run(request)
        match request:
            case EvaluateRequest() | OracleRequest() | SelectedRowsRequest():
                self.rows += stats.rows
            case RebuildRequest():
                self.rows += sum(float(A.any(axis=1).sum()) for _, _, A in self.duals(request.pending_step))
            case _:
                self.rows += stats.visited
        return stats


def _certifies(request: Request) -> bool:
    """Return whether a certificate begins with a request: that of kept dual variables, or of gradients."""
    if isinstance(request, RebuildRequest):
        return request.feasible
    return isinstance(request, OracleRequest) and request.exact and request.round == 0


def counted(X: Any, y: Any, loss: Any, lam: float, tol: float, **start: Any) -> tuple[SolveResult, float]:
    """Return a result of `solve` and its passes."""
    executor = CountedRows()
    result = solve(X, y, loss, lam, tol=tol, executor=executor, **start)
    return result, executor.passes


def start_from(before: SolveResult, kept: Any) -> dict[str, Any]:
    """Return what `solve` starts from that goes on without some rows."""
    if before.A is None:
        return {"state": left_behind(SolverState(round=0, W=before.W))}
    return {"duals": [(0, len(kept), before.A[kept])], "duals_near": True}


def line(name: str, X: Any, y: Any, loss: str, C: float, tol: float, share: float) -> str:
    """Return a row of the table."""
    n = len(y)
    kept = np.sort(np.random.default_rng(0).permutation(n)[round(share * n) :])
    hinge = loss != "softmax"
    before = solve(X, y, LOSSES[loss], 1.0 / (n * C), tol=tol, keep_duals=hinge)
    lam = 1.0 / (len(kept) * C)
    problem = X[kept], y[kept], LOSSES[loss], lam, tol
    anew, passes_anew = counted(*problem, m=before.problem.m)
    without, passes_without = counted(*problem, m=before.problem.m, **start_from(before, kept))
    apart = abs(without.primal - anew.primal) / anew.primal
    passes = f"{passes_anew:.1f} | {passes_without:.1f} | {passes_without / passes_anew:.0%}"
    carry = "" if before.A is None else f"{before.A[kept].any(axis=1).mean():.0%}"
    return f"| {name} | {loss} | {C:g} | {tol:g} | {passes} | {apart:.1e} | {carry} |"


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
    head = ("set", "loss", "C", "tol", "passes anew", "passes from the model", "share", "apart", "carry")
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
