"""The page of a sweep: one HTML file with its table and plots, without network, script or server."""

from __future__ import annotations

import math

from markupsafe import Markup

from topline.pipeline.options import Variant
from topline.pipeline.pages import Series, line_chart, make_page
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
        plots=[
            (variant.name, accuracy_plot(cells, result.topk), cost_plot(cells))
            for variant, cells in paths.items()
        ],
        created=now(),
    ).html


def accuracy_plot(cells: list[SweepCell], topk: int) -> Markup:
    """Draw the cross-validated accuracy of a path over C, with a standard error on both sides."""
    at = [math.log10(cell.C) for cell in cells]
    lines = [
        Series.of("accuracy", at, [cell.mean for cell in cells], 1),
        Series.of("and a standard error", at, [cell.mean + cell.error for cell in cells], 5),
        Series.of("less a standard error", at, [cell.mean - cell.error for cell in cells], 5),
    ]
    return line_chart(lines, x_label="log10 C", y_label=f"top-{topk} accuracy")


def cost_plot(cells: list[SweepCell]) -> Markup:
    """Draw the passes that a path's cells took."""
    at = [math.log10(cell.C) for cell in cells]
    passes = Series.of("passes", at, [cell.passes for cell in cells], 2, positive=True)
    return line_chart([passes], x_label="log10 C", y_label="passes, all folds", log=True)
