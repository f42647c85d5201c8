"""What leaving rows out of a trained model costs: python -m tests.benchmarks.models.rows_removed.

A model is trained, a share of its rows is drawn and left out, and training goes on without them from the
dual variables of the others, which is what `topline train --from MODEL --without ROWS` does; of a smooth loss
it goes on from the weights, by one step at least.  Beside it stands a fit anew on the rows that are left.
Passes are counted here, as rows whose scores or products were taken over all rows: a visit of few rows is a
fraction, and so is a visit of few classes of a row and what makes weights of the dual variables that are not
0.  The certificate in the end, which both pay, is in neither.  The passes from the model went to "start", the
weights of the dual variables that were kept; "sweeps", or a softmax's Newton steps; and "checks", which are
gradients, gaps over all rows and certificates that did not hold.  "carry" is the share of rows whose dual
variables are not 0, and "moved" that of the rows whose dual variables are others in the end: "sweeps" over
"moved" says how many sweeps over these alone there would be.  "apart" is the difference of the two objective
values, as a share of them: each certificate allows `tol`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tests.benchmarks.datasets import DATA_DIR
from tests.benchmarks.harness import print_head, print_row, read_options, sets_there
from tests.benchmarks.models.label_suspects import rows_of
from topline import MaxHinge, SerialExecutor, Softmax, TopKHinge, solve
from topline.solvers.core.state import SolveResult, SolverState
from topline.solvers.operations import (
    Certify,
    Evaluate,
    FindSelectedVertices,
    FindVertices,
    Operation,
    Rebuild,
)

SETS = ("googlenet", "usps", "letter", "satimage")
LOSSES = {"max_hinge": MaxHinge(), "topk_hinge": TopKHinge(5), "softmax": Softmax()}
#: What passes are for.
PARTS = ("start", "sweeps", "checks")
#: A dual variable that differs by more has moved; float32 keeps seven digits of it.
MOVED = 1e-6


class CountedRows(SerialExecutor):
    """Counts the rows that requests touch, and those before the last certificate."""

    def __init__(self) -> None:
        super().__init__()
        self.rows, self.before = Counter[str](), Counter[str]()

    def passes(self) -> Counter[str]:
        """Return what passes were for; all of them where the last round is the certificate."""
        rows = self.before or self.rows
        return Counter({name: touched / self._held[0].stop for name, touched in rows.items()})

    def run(self, request: Any) -> Any:
        """Run a request, and count its rows."""
        if _certifies(request):
            self.before = self.rows.copy()
        stats = super().run(request)
        match request:
            case Evaluate() | FindVertices() | FindSelectedVertices():
                self.rows["checks"] += stats.rows
            case Rebuild():
                with_mass = sum(float(A.any(axis=1).sum()) for _, _, A in self.duals(request.pending_step))
                self.rows["checks" if request.feasible else "start"] += with_mass
            case _:
                self.rows["sweeps"] += getattr(stats, "visited", 0)
        return stats


def _certifies(request: Operation) -> bool:
    """Return whether a certificate begins with a request: that of kept dual variables, or of gradients."""
    if isinstance(request, Rebuild):
        return request.feasible
    exact = isinstance(request, FindVertices) and request.exact and request.round == 0
    return exact or isinstance(request, Certify)


def counted(
    X: Any, y: Any, loss: Any, lam: float, tol: float, **start: Any
) -> tuple[SolveResult, Counter[str]]:
    """Return a result of `solve` and what its passes were for."""
    executor = CountedRows()
    result = solve(X, y, loss, lam, tol=tol, executor=executor, **start)
    return result, executor.passes()


def start_from(before: SolveResult, kept: Any) -> dict[str, Any]:
    """Return what `solve` starts from that goes on without some rows."""
    if before.A is None:
        return {"state": replace(SolverState.at(before.W), left_behind=True)}
    return {"duals": [(0, len(kept), before.A[kept])], "duals_near": True}


@dataclass(frozen=True)
class Removal:
    """What leaving rows out of one model took, in passes, beside a fit anew."""

    anew: float
    passes: Counter[str]
    apart: float
    carry: float | None
    moved: float | None

    @property
    def share(self) -> float:
        """Passes from the model as a share of those anew."""
        return self.passes.total() / self.anew

    def cells(self) -> list[str]:
        """Return the columns of the table."""
        parts = (f"{self.passes[name]:.2f}" for name in PARTS)
        rows = ("" if value is None else f"{value:.0%}" for value in (self.carry, self.moved))
        passes = (f"{self.anew:.1f}", f"{self.passes.total():.1f}", f"{self.share:.0%}")
        return [*passes, *parts, *rows, f"{self.apart:.1e}"]


def removal(X: Any, y: Any, loss: str, C: float, tol: float, share: float) -> Removal:
    """Leave a share of the rows out of a model that is trained on all of them."""
    n = len(y)
    kept = np.sort(np.random.default_rng(0).permutation(n)[round(share * n) :])
    hinge = loss != "softmax"
    before = solve(X, y, LOSSES[loss], 1.0 / (n * C), tol=tol, keep_duals=hinge)
    problem = X[kept], y[kept], LOSSES[loss], 1.0 / (len(kept) * C), tol
    anew, passes_anew = counted(*problem, m=before.problem.m)
    without, passes = counted(*problem, m=before.problem.m, **start_from(before, kept))
    apart = abs(without.primal - anew.primal) / anew.primal
    if before.A is None or without.A is None:
        return Removal(passes_anew.total(), passes, apart, None, None)
    A = before.A[kept]
    moved = (np.abs(without.A - A) > MOVED).any(axis=1)
    return Removal(passes_anew.total(), passes, apart, float(A.any(axis=1).mean()), float(moved.mean()))


def in_all(losses: str, found: list[Removal]) -> str:
    """Return the range and the median of some rows of the table, in a sentence."""
    share = [one.share for one in found]
    alone = [one.passes["sweeps"] / one.anew for one in found]
    takes = [one.passes.total() for one in found]
    anew = [one.anew for one in found]
    parts = sum((one.passes for one in found), Counter[str]())
    went = ", ".join(f"{parts[name] / parts.total():.0%} {name}" for name in PARTS)
    return (
        f"{losses}: {min(share):.0%} to {max(share):.0%} of a fit anew, {np.median(share):.0%} in the median;"
        f" {min(takes):.1f} to {max(takes):.1f} passes in place of {min(anew):.0f} to {max(anew):.0f}; of all"
        f" of these {went}; sweeps alone are {min(alone):.0%} to {max(alone):.0%} of a fit anew,"
        f" {np.median(alone):.0%} in the median"
    )


def main(arguments: list[str] | None = None) -> None:
    """Print the table as Markdown."""
    options = read_options(
        __doc__, arguments, data=DATA_DIR, sets=list(SETS), losses=list(LOSSES), C=[1.0, 10.0],
        tol=[1e-3, 1e-4], share=0.01, quick=False,
    )  # fmt: skip
    found: dict[str, list[Removal]] = {"hinges": [], "softmax": []}
    figures = ("anew", "from the model", "share", *PARTS, "carry", "moved", "apart")
    print_head("set", "loss", "C", "tol", *figures)
    for data in sets_there(options.sets, options.data, quick=options.quick):
        X = rows_of(data.X)
        for loss in options.losses:
            for C in options.C:
                for tol in options.tol:
                    one = removal(X, data.y, loss, C, tol, options.share)
                    found["softmax" if loss == "softmax" else "hinges"].append(one)
                    print_row(data.name, loss, f"{C:g}", f"{tol:g}", *one.cells())
    for losses, some in found.items():
        if some:
            print(in_all(losses, some))


if __name__ == "__main__":
    main()
