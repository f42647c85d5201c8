"""The result of a sweep: a row per cell, the best and the simplest equally good one; and its page.

The page is one HTML file with a table and plots, without network, script or server.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import cycle
from typing import Any, Self

from topline.pipeline.evaluation import row_metric
from topline.pipeline.options import Cell, KernelChoice, Variant
from topline.pipeline.pages import (
    Series,
    TableCell,
    Tile,
    cell_table,
    count,
    duration,
    line_chart,
    make_page,
    percent,
)
from topline.pipeline.sweep.plan import SweepPlan
from topline.pipeline.sweep.race import Standing, best_cell, simplest_cell
from topline.pipeline.training import TrainResult
from topline.solvers.counts import how_many
from topline.storage.records import now
from topline.storage.runs import sweep_folder
from topline.storage.stores import Store
from topline.storage.stores.urls import join


@dataclass(frozen=True, kw_only=True)
class SkippedCell:
    """A cell that was not measured: its neighbours show that it can hardly exceed them."""

    loss: str
    k: int | None
    smoothing: float
    C: float
    kernel: KernelChoice | None = None

    @classmethod
    def of(cls, cell: Cell, **found: Any) -> Self:
        """Return the row of a cell, with its findings."""
        return cls(**dict(vars(cell.variant)), C=cell.C, **found)

    @property
    def variant(self) -> Variant:
        """The loss with its parameters and kernel."""
        return Variant(self.loss, self.k, self.smoothing, self.kernel)


@dataclass(frozen=True, kw_only=True)
class SweepCell(SkippedCell):
    """A cell after its last round.

    `mean` is the accuracy on the `folds` seen and `error` its standard error; exact solutions have a mean
    between `low` and `high`.  `relative_gap` is the largest (0 in older sweeps), `passes` and `seconds` are
    sums; `rounds` counts the gaps reached on the first fold.  `state` is finished or pruned, `why` the
    reason.
    """

    mean: float
    error: float
    low: float
    high: float
    relative_gap: float
    passes: int
    seconds: float
    rounds: int
    state: str
    why: str
    folds: int = 0


@dataclass(frozen=True)
class SweepResult:
    """A finished sweep; its cells are compared by `metric`.

    `best` has the highest mean; `simplest` is the smallest C on its path within one standard error.
    `at_edge` says that the best C is the largest or smallest of several.  `passes` and `seconds` are sums
    over cells and folds, `elapsed` is wall time of what was not resumed.  `skipped` are the cells not in
    `cells`.
    """

    sweep: str
    store: str
    dataset: str
    n: int
    d: int
    m: int
    folds: int
    topk: int
    metric: str
    rule: str
    tol: float
    cells: tuple[SweepCell, ...]
    best: SweepCell
    simplest: SweepCell
    at_edge: bool
    passes: int
    seconds: float
    elapsed: float
    page: str = ""
    trained: TrainResult | None = None
    skipped: tuple[SkippedCell, ...] = ()

    def facts(self) -> dict[str, str]:
        """Return what is told of it, by name: the best cell, and what finding it took."""
        best, simplest = self.best, self.simplest
        shown = {
            "best": f"{best.variant.name}, C = {best.C:g}: {self.accuracy} {best.mean:.2%}",
            "as good": f"C = {simplest.C:g}: {simplest.mean:.2%}, the smallest within one standard error",
            "data": f"{self.dataset}: n {self.n:,}, d {self.d:,}, m {self.m:,}, {self.folds} folds",
            "cost": f"{how_many(self.passes, 'passes')} over a fold's rows, {self.elapsed:.1f} s",
            "skipped": f"{how_many(len(self.skipped), 'cells')} between others that they hardly exceed",
            "page": self.page,
        }
        if not self.skipped:
            del shown["skipped"]
        if simplest.C >= best.C:
            del shown["as good"]
        return shown

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {**asdict(self), "trained": None if self.trained is None else self.trained.to_dict()}

    @property
    def accuracy(self) -> str:
        """The metric, for people."""
        return row_metric(self.metric).column


def concluded(plan: SweepPlan, standings: Sequence[Standing], elapsed: float) -> SweepResult:
    """Return the result of a sweep without running cells."""
    best = best_cell(standings)
    if best is None:
        raise ValueError("no cell is finished")
    config, info, grid = plan.config, plan.dataset.info, plan.config.grid()
    cells = tuple(_cell(one) for one in standings if one.rounds)
    return SweepResult(
        plan.id, plan.store.url, info.id, plan.n, info.d, info.m, config.folds, plan.topk, plan.metric.name,
        config.rule, config.tol, cells,
        best=_cell(best),
        simplest=_cell(simplest_cell(standings, best)),
        at_edge=len(grid) > 1 and best.cell.C in (grid[0], grid[-1]),
        passes=sum(cell.passes for cell in cells),
        seconds=sum(cell.seconds for cell in cells),
        elapsed=elapsed,
        skipped=tuple(SkippedCell.of(one.cell) for one in standings if not one.rounds),
    )  # fmt: skip


def _cell(one: Standing) -> SweepCell:
    count, alike = one.count, ("mean", "error", "relative_gap", "passes", "seconds", "state", "why")
    return SweepCell.of(
        one.cell, low=count.low / count.rows, high=count.high / count.rows, folds=len(one.parts),
        rounds=max(len(one.looks), len(one.rounds)), **{name: getattr(one, name) for name in alike},
    )  # fmt: skip


Paths = Mapping[Variant, list[SweepCell]]


def write_page(store: Store, result: SweepResult) -> str:
    """Write the page into the sweep's folder, replacing any earlier one, and return its location."""
    name = join(sweep_folder(result.sweep), "sweep.html")
    store.write_bytes(name, render(result).encode())
    return store.place(name)


def render(result: SweepResult) -> str:
    """Return the page."""
    paths: dict[Variant, list[SweepCell]] = {}
    for cell in result.cells:
        paths.setdefault(cell.variant, []).append(cell)
    # Discs of accuracies with missing folds are hollow.
    lines = [
        replace(line, dots=tuple(cell.folds in (0, result.folds) for cell in cells))
        for line, cells in zip(_lines(paths, "mean"), paths.values(), strict=True)
    ]
    return make_page(
        "sweep.html.j2",
        result=result,
        tiles=tiles(result),
        cells=cell_table(_rows(result)),
        accuracy=line_chart(lines, x_label="C", y_label=f"{result.accuracy} accuracy", log_x=True, most=1.0),
        cost=line_chart(
            _lines(paths, "passes"), x_label="C", y_label="passes, all folds", log=True, log_x=True
        ),
        partial=any(0 < cell.folds < result.folds for cell in result.cells),
        created=now(),
    ).html


def tiles(result: SweepResult) -> list[Tile]:
    """Return the headline figures."""
    best, simplest = result.best, result.simplest
    as_good = f"{percent(simplest.mean)}, within one standard error"
    solving = f"over the rows of a fold, {duration(result.seconds)} of solving"
    return [
        Tile("best C", f"{best.C:g}", best.variant.name, "good"),
        Tile(f"{result.accuracy} accuracy", percent(best.mean), f"standard error {percent(best.error)}"),
        Tile("smallest C as good", f"{simplest.C:g}", as_good),
        Tile("passes", count(result.passes), solving),
        Tile("time", duration(result.elapsed), f"rule: {result.rule}"),
    ]


def _rows(result: SweepResult) -> list[dict[str, Any]]:
    """Return the row of each cell, with the best one marked."""
    return [
        {"loss": cell.variant.name, "C": cell.C, "accuracy": cell.mean, "error": cell.error,
         "at least": cell.low, "at most": cell.high, "folds": cell.folds or None,
         "relative gap": cell.relative_gap, "passes": cell.passes,
         "ended": TableCell("best", "good") if cell == result.best else cell.state, "why": cell.why}
        for cell in result.cells
    ]  # fmt: skip


def _lines(paths: Paths, figure: str) -> list[Series]:
    """Return a figure of each path's cells over C, in colours first, then in the same dashed."""
    return [
        Series.of(variant.name, [cell.C for cell in cells], [getattr(cell, figure) for cell in cells], style)
        for (variant, cells), style in zip(paths.items(), cycle((1, 2, 3, 4, 6, 7, 8, 9)), strict=False)
    ]
