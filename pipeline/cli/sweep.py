"""`topline sweep`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from topline.pipeline.cli.command import Call, Outcome
from topline.pipeline.cli.table import facts, following, table
from topline.pipeline.cli.train import training_facts
from topline.pipeline.options import ClusterConfig, SweepConfig
from topline.solvers.counts import how_many

if TYPE_CHECKING:
    from topline.pipeline.sweep import SweepCell, SweepResult

HEAD = ("loss", "C", "accuracy", "error", "bounds", "gap", "passes", "ended", "why")


def sweep(call: Call) -> Outcome:
    """Compare C, k, losses and smoothings by cross-validation.

    --resume continues an interrupted sweep.
    """
    from topline.pipeline.sweep import sweep as run_sweep

    result: SweepResult = call.run(
        "sweep", run_sweep, config=call.config(SweepConfig), cluster=call.config(ClusterConfig)
    )
    warnings = []
    if result.at_edge:
        warnings.append(f"the best C, {result.best.C:g}, lies at the edge of the grid: try a wider --C")
    lines = [*table(HEAD, [_row(cell) for cell in result.cells]), "", *facts(_facts(result))]
    if result.trained is None:
        lines += following(
            ("topline", "sweep", "--store", result.store, "--resume", result.sweep, "--train-best")
        )
    else:
        lines += ["", *facts(training_facts(result.trained))]
        lines += following(("topline", "evaluate", result.trained.model))
    return Outcome(result.to_dict(), lines, warnings)


def _row(cell: SweepCell) -> tuple[str, ...]:
    return (
        cell.variant.name, f"{cell.C:g}", f"{cell.mean:.2%}", f"{cell.error:.2%}",
        f"{cell.low:.1%} to {cell.high:.1%}", f"{cell.relative_gap:.1e}", f"{cell.passes:,}",
        cell.state, cell.why,
    )  # fmt: skip


def _facts(result: SweepResult) -> dict[str, str]:
    best, simplest = result.best, result.simplest
    shown = {
        "best": f"{best.variant.name}, C = {best.C:g}: {result.accuracy} {best.mean:.2%}",
        "as good": f"C = {simplest.C:g}: {simplest.mean:.2%}, the smallest within one standard error",
        "data": f"{result.dataset}: n {result.n:,}, d {result.d:,}, m {result.m:,}, {result.folds} folds",
        "cost": f"{how_many(result.passes, 'passes')} over a fold's rows, {result.elapsed:.1f} s",
        "skipped": f"{how_many(len(result.skipped), 'cells')} between others that they hardly exceed",
        "page": result.page,
    }
    if not result.skipped:
        del shown["skipped"]
    return shown if simplest.C < best.C else {name: text for name, text in shown.items() if name != "as good"}
