"""A sweep on the dashboard, from its record and the answers so far."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from markupsafe import Markup

from topline.pipeline.dashboard.overview import newest_of, page_link
from topline.pipeline.options import SweepConfig
from topline.pipeline.pages import (
    DASH,
    Badge,
    Column,
    Series,
    Table,
    Tile,
    count,
    gap,
    line_chart,
    macros,
    percent,
    when,
)
from topline.solvers.counts import how_many
from topline.storage.runs import SweepRecord

#: Styles of lines: four colours, then the same dashed.
_STYLES = (1, 2, 3, 4, 6, 7, 8, 9)


@dataclass
class CellSeen:
    """A cell from its answers: `folds` has the last one of each fold, `curve` (passes, largest gap)."""

    C: float
    passes: int = 0
    folds: dict[int, Mapping[str, Any]] = field(default_factory=dict)
    curve: list[tuple[int, float]] = field(default_factory=list)

    @property
    def accuracy(self) -> float:
        """Share of hits among the held-out rows of these folds."""
        return float(
            sum(one["hits"] for one in self.folds.values()) / sum(one["rows"] for one in self.folds.values())
        )

    @property
    def gap(self) -> float | None:
        """The largest gap over the folds, None if the numbers overflowed."""
        gaps = [one["relative_gap"] for one in self.folds.values()]
        return None if None in gaps else max(gaps)

    def take(self, fold: int, answer: Mapping[str, Any]) -> None:
        """Add a round's answer on one fold."""
        self.folds[fold] = answer
        self.passes += answer["passes"]
        if self.gap is not None:
            self.curve.append((self.passes, self.gap))


def cells_seen(record: SweepRecord, answers: Iterable[Mapping[str, Any]]) -> dict[str, list[CellSeen]]:
    """Return the cells with an answer, by the name of their path, by ascending C."""
    known = {name: value for name, value in record.config.items() if name in SweepConfig.model_fields}
    names = [variant.name for variant in SweepConfig(**known).variants()]
    paths: dict[str, dict[float, CellSeen]] = {}
    for answer in answers:
        # If the data decides k, paths may coincide and share a number: this version records names.
        path = paths.setdefault(answer.get("name") or names[answer["path"]], {})
        for one in answer["cells"]:
            path.setdefault(one["C"], CellSeen(one["C"])).take(answer["fold"], one)
    return {name: [path[C] for C in sorted(path)] for name, path in paths.items()}


def sweep_verdict(record: SweepRecord) -> tuple[str, str]:
    """Return the tone and text of a sweep's state."""
    return ("good", "Finished") if record.outcome is not None else ("", "Not finished")


def sweep_parts(record: SweepRecord, answers: Sequence[Mapping[str, Any]]) -> dict[str, Markup]:
    """Return the parts of a sweep's page that change, by name."""
    make, paths = macros(), cells_seen(record, answers)
    figures = [
        figure
        for name, cells in paths.items()
        for figure in (
            (f"{name}: largest gap of the folds", "passes", _gaps(cells)),
            (f"{name}: accuracy so far", "log10 C", _accuracies(cells)),
        )
    ]
    return {
        "verdict": make.badge(*sweep_verdict(record)),
        "tiles": make.tiles(_tiles(record, answers, paths)),
        "charts": make.figures(figures),
        "cells": make.table(_cell_table(record, paths)),
    }


def sweep_table(records: Sequence[SweepRecord], root: str | None, in_all: int | None = None) -> Table:
    """Return the table of sweeps, newest first."""
    columns = (
        Column("sweep"), Column("state"), Column("losses"), Column("values of C", "n", count),
        Column("best C"), Column("dataset"), Column("begun (UTC)", "t", when),
    )  # fmt: skip
    rows = [
        (
            page_link("sweeps", record.id, root),
            Badge(*sweep_verdict(record)), ", ".join(record.config["loss"]), len(record.config["C"]),
            DASH if record.outcome is None else f"{record.outcome['best']['C']:g}", record.dataset,
            record.created,
        )
        for record in records
    ]  # fmt: skip
    return Table.of(
        "sweeps",
        columns,
        rows,
        empty="The store holds no sweep yet: topline sweep begins one.",
        note=newest_of(len(rows), in_all, "sweeps/s0001 is the page of the first"),
    )


def _tiles(
    record: SweepRecord, answers: Sequence[Mapping[str, Any]], paths: Mapping[str, Sequence[CellSeen]]
) -> list[Tile]:
    folds = record.config["folds"]
    cells = [(cell, name) for name, path in paths.items() for cell in path]
    whole = [(cell, name) for cell, name in cells if len(cell.folds) == folds]
    rounds = max((answer["round"] + 1 for answer in answers), default=0)
    passes = sum(cell.passes for cell, _ in cells)
    tiles = [
        Tile("cells looked at", count(len(cells)), f"{len(whole):,} of them on all {folds} folds"),
        Tile("rounds", count(rounds), f"{how_many(len(answers), 'answers')} in the store"),
        Tile("passes", count(passes), "over the rows of a fold"),
    ]
    if whole:
        best, name = max(whole, key=lambda one: (one[0].accuracy, -one[0].C))
        tiles.insert(0, Tile("best C so far", f"{best.C:g}", f"{percent(best.accuracy)}, {name}"))
    return tiles


def _cell_table(record: SweepRecord, paths: Mapping[str, Sequence[CellSeen]]) -> Table:
    columns = (
        Column("loss"), Column("C", "n", "{:g}".format), Column("accuracy", "n", "{:.2%}".format),
        Column("folds"), Column("relative gap", "n", gap), Column("passes", "n", count),
    )  # fmt: skip
    rows = [
        (name, cell.C, cell.accuracy, f"{len(cell.folds)} of {record.config['folds']}", cell.gap, cell.passes)
        for name, path in paths.items()
        for cell in path
    ]
    return Table.of("cells", columns, rows, empty="No cell has an answer yet.")


def _gaps(cells: Sequence[CellSeen]) -> Markup:
    lines = [
        Series.of(
            f"C = {cell.C:g}", [passes for passes, _ in cell.curve], [gap for _, gap in cell.curve],
            _STYLES[number % len(_STYLES)], positive=True,
        )
        for number, cell in enumerate(cells)
    ]  # fmt: skip
    return line_chart(lines, x_label="passes", y_label="relative gap", log=True)


def _accuracies(cells: Sequence[CellSeen]) -> Markup:
    at = [math.log10(cell.C) for cell in cells]
    line = Series.of("accuracy", at, [cell.accuracy for cell in cells])
    return line_chart([line], x_label="log10 C", y_label="accuracy", most=1.0)
