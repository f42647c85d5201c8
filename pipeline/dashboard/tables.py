"""The tables of the dashboard's pages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from topline.pipeline.dashboard.overview import Overview, RunLine
from topline.pipeline.evaluation import Metric
from topline.pipeline.pages import DASH, Badge, Column, Link, Table, duration, gap, number, when
from topline.storage.models import DecisionRecord, Reign

CERTIFIED = {None: DASH, True: "yes", False: "no"}
GAP, PASSES, TIME = (
    Column("relative gap", "n", gap), Column("passes", "n", number), Column("time", "n", duration),
)  # fmt: skip


def page_link(kind: str, name: str | None, root: str | None) -> Link | None:
    """Return a cell that leads to the page of a model, run or sweep; text alone where there is no server."""
    return None if name is None else Link(name, None if root is None else f"{root}{kind}/{name}")


def metric_columns(metrics: Sequence[Metric]) -> list[Column]:
    """Return a column for each metric."""
    return [Column(metric.column, "n", metric.text) for metric in metrics]


def model_table(seen: Overview, root: str | None) -> Table:
    """Return the models, the newest first."""
    columns = [
        Column("model"), Column("stage"), *metric_columns(seen.metrics), GAP, Column("certified"),
        Column("problem"), Column("dataset"), PASSES, TIME, Column("run"), Column("created (UTC)", "t", when),
    ]  # fmt: skip
    rows = [
        (
            page_link("models", line["id"], root), Badge(line["tone"], line["stage"]),
            *(line["metrics"].get(metric.name) for metric in seen.metrics),
            line["relative_gap"], CERTIFIED[line["certified"]], line["problem"], line["dataset"],
            line["passes"], line["seconds"], page_link("runs", line["run"], root), line["created"],
        )
        for line in seen.models
    ]  # fmt: skip
    return Table.of(
        "models",
        columns,
        rows,
        empty="The store holds no model yet: topline train makes one.",
        note=newest_of(
            len(rows),
            seen.in_all.get("models"),
            "topline models list shows all",
            "the newest and the champion",
        ),
    )


def newest_of(shown: int, in_all: int | None, elsewhere: str, which: str = "the newest") -> str:
    """Return a note where a table shows the newest rows alone."""
    return f"{shown:,} of {in_all:,}, {which}; {elsewhere}." if in_all and in_all > shown else ""


def run_table(lines: Sequence[RunLine], root: str | None, in_all: int | None = None) -> Table:
    """Return the runs, the newest first."""
    columns = (
        Column("run"), Column("state"), GAP, PASSES, TIME, Column("model"), Column("problem"),
        Column("dataset"), Column("begun (UTC)", "t", when),
    )  # fmt: skip
    rows = [
        (page_link("runs", line.id, root), Badge(line.tone, line.words, line.reason), line.gap, line.passes,
         line.seconds, page_link("models", line.model, root), line.problem, line.dataset, line.created)
        for line in lines
    ]  # fmt: skip
    return Table.of(
        "runs",
        columns,
        rows,
        empty="The store holds no run yet: topline train begins one.",
        note=newest_of(len(rows), in_all, "the page of a model leads to its run"),
    )


def decision_table(
    rows: Sequence[tuple[DecisionRecord, str]], root: str | None, in_all: int | None = None
) -> Table:
    """Return the decisions, the newest first."""
    columns = (
        Column("time (UTC)", "t", when), Column("what"), Column("model"), Column("champion before"),
        Column("by"), Column("why", "why"),
    )  # fmt: skip
    cells = [
        (
            entry.when, Badge(tone, entry.action, "forced" if entry.forced else ""),
            page_link("models", entry.model, root), page_link("models", entry.champion_before, root),
            entry.by, entry.reason,
        )
        for entry, tone in rows
    ]  # fmt: skip
    return Table.of(
        "decisions",
        columns,
        cells,
        empty="No promotion decisions yet.",
        note=newest_of(len(cells), in_all, "the page of a model has its own"),
    )


def champion_table(reigns: Sequence[Reign], root: str | None) -> Table:
    """Return who was champion when, the last one first."""
    columns = (
        Column("champion"), Column("since (UTC)", "t", when), Column("until", "t", when), Column("by"),
        Column("why", "why"),
    )  # fmt: skip
    rows = [
        (page_link("models", one.model, root), one.since, one.until or "now", one.by, one.reason)
        for one in reversed(reigns)
    ]
    return Table.of("champions", columns, rows)


def round_table(rounds: Sequence[dict[str, Any]]) -> Table:
    """Return the last rounds that are known, the newest first."""
    shown = {"round": "{:,.0f}".format, "relative_gap": "{:.3e}".format}
    names = ("round", "seconds", "primal", "dual", "relative_gap", "step", "active")
    columns = [Column(name.replace("_", " "), "n", shown.get(name, number)) for name in names]
    rows = [[one[name] for name in names] for one in rounds]
    return Table.of("rounds", columns, rows, empty="No round has finished yet.")
