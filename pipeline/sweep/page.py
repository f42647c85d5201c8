"""The page of a sweep: one HTML file with its table and plots, without network, script or server."""

from __future__ import annotations

import math

from markupsafe import Markup

from topline.pipeline.options import Variant
from topline.pipeline.pages import (
    Badge,
    Column,
    Series,
    Table,
    Tile,
    count,
    duration,
    line_chart,
    make_page,
    percent,
)
from topline.pipeline.sweep.result import SweepCell, SweepResult
from topline.storage.records import now
from topline.storage.runs import sweep_folder
from topline.storage.stores import Store
from topline.storage.stores.urls import join

TEMPLATE = "sweep.html.j2"


def write_page(store: Store, result: SweepResult) -> str:
    """Write the page into the sweep's folder and give where it lies; one that is there is replaced."""
    name = join(sweep_folder(result.sweep), "sweep.html")
    store.write_bytes(name, render(result).encode())
    return str(store.local_path / name) if store.local_path is not None else join(store.url, name)


def render(result: SweepResult) -> str:
    """Make the page."""
    paths: dict[Variant, list[SweepCell]] = {}
    for cell in result.cells:
        paths.setdefault(cell.variant, []).append(cell)
    return make_page(
        TEMPLATE,
        result=result,
        tiles=tiles(result),
        cells=cell_table(result),
        plots=[
            (variant.name, accuracy_plot(cells, result.accuracy), cost_plot(cells))
            for variant, cells in paths.items()
        ],
        created=now(),
    ).html


def tiles(result: SweepResult) -> list[Tile]:
    """Return the figures that are read first."""
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


def cell_table(result: SweepResult) -> Table:
    """Return the cells in their order, the best one marked."""
    shares = "{:.2%}".format
    columns = (
        Column("loss"), Column("C", "n", "{:g}".format), Column("accuracy", "n", shares),
        Column("error", "n", shares), Column("at least", "n", percent), Column("at most", "n", percent),
        Column("relative gap", "n", "{:.1e}".format), Column("passes", "n", count), Column("ended"),
        Column("why", "why"),
    )  # fmt: skip
    rows = [
        (cell.variant.name, cell.C, cell.mean, cell.error, cell.low, cell.high, cell.relative_gap,
         cell.passes, Badge("good", "best") if cell == result.best else cell.state, cell.why)
        for cell in result.cells
    ]  # fmt: skip
    return Table.of("cells", columns, rows)


def accuracy_plot(cells: list[SweepCell], accuracy: str) -> Markup:
    """Draw the cross-validated accuracy of a path over C, with a standard error on both sides."""
    at = [math.log10(cell.C) for cell in cells]
    lines = [
        Series.of("accuracy", at, [cell.mean for cell in cells], 1),
        Series.of("and a standard error", at, [min(1.0, cell.mean + cell.error) for cell in cells], 5),
        Series.of("less a standard error", at, [cell.mean - cell.error for cell in cells], 5),
    ]
    return line_chart(lines, x_label="log10 C", y_label=f"{accuracy} accuracy", most=1.0)


def cost_plot(cells: list[SweepCell]) -> Markup:
    """Draw the passes that a path's cells took."""
    at = [math.log10(cell.C) for cell in cells]
    passes = Series.of("passes", at, [cell.passes for cell in cells], 2, positive=True)
    return line_chart([passes], x_label="log10 C", y_label="passes, all folds", log=True)
