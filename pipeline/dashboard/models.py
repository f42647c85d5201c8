"""Content of a model's page, with the other models of its store, and of a sweep's page."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from markupsafe import Markup

from topline.pipeline.dashboard.overview import (
    CERTIFIED,
    bound,
    metric_columns,
    model_line,
    newest_of,
    page_link,
    problem_words,
    verdict,
)
from topline.pipeline.evaluation import measured, read_evaluation
from topline.pipeline.export import FORMATS
from topline.pipeline.options import SweepConfig
from topline.pipeline.pages import (
    DASH,
    Column,
    Series,
    Table,
    TableCell,
    Tile,
    cell_table,
    count,
    duration,
    flat,
    gap,
    line_chart,
    macros,
    number,
    percent,
    when,
)
from topline.pipeline.registry import Evidence, measure
from topline.pipeline.report.document import report_tiles
from topline.pipeline.report.run_section import Titled
from topline.pipeline.telemetry import RunView
from topline.solvers.counts import how_many
from topline.storage.errors import NotFoundError
from topline.storage.models import ModelRecord, Standing
from topline.storage.runs import RunRecord, SweepRecord
from topline.storage.stores import Store
from topline.storage.stores.urls import join

OTHERS_SHOWN = 200


@dataclass(frozen=True, eq=False)
class ModelSeen:
    """A model with its registry's standing, all models of the store, and whether it has a report."""

    store: Store
    record: ModelRecord
    standing: Standing
    records: Sequence[ModelRecord]
    has_report: bool

    @property
    def url(self) -> str:
        """The URL by which commands name the model."""
        return join(self.store.url, "models", self.record.id)

    @property
    def children(self) -> list[str]:
        """Models that training continued from this one."""
        return [other.id for other in self.records if self.record.id in other.parents]


def model_seen(store: Store, standing: Standing, records: Sequence[ModelRecord], model: str) -> ModelSeen:
    """Return a registry's view of the model of this id; raise `NotFoundError` if there is none."""
    record = next((one for one in records if one.id == model), None)
    if record is None:
        raise NotFoundError(f"{store.url} holds no model {model}")
    return ModelSeen(store, record, standing, records, store.exists(report_path(model)))


def report_path(model: str) -> str:
    """Return the location of a model's report in its store."""
    return f"reports/{model}.html"


def model_tiles(seen: ModelSeen) -> list[Tile]:
    """Return the headline figures."""
    record, result = seen.record, seen.record.result
    evaluation, _ = read_evaluation(record)
    stage = seen.standing.stage(seen.record.id)
    note = f"of {len(seen.records):,} models" if len(seen.records) > 1 else "the only model"
    passes = result.get("passes")
    work = "" if passes is None else how_many(passes, "passes")
    took = Tile("training time", duration(result.get("seconds")), work)
    tone = "good" if stage == "champion" else ""
    return [Tile("stage", stage, note, tone), *report_tiles(seen.record, evaluation), took]


def problem(record: ModelRecord) -> str:
    """Return the problem that the model solves, in one line."""
    loss = {"loss": record.loss.get("name", "?"), "k": record.loss.get("k")}
    return problem_words({**loss, "C": record.C, "smoothing": record.smoothing, "method": record.method})


def export_table(seen: ModelSeen) -> Table:
    """Return the table of export formats, with the command or why there is none."""
    rows = []
    for name, form in FORMATS.items():
        obstacle = form.obstacle(seen.record)
        output = f"{seen.record.id}{'' if form.folder_record else form.suffix}"
        command = f"topline export {shlex.quote(seen.url)} --format {name} --output {output}"
        state = TableCell("can hold it", "good") if obstacle is None else TableCell("cannot", "soft")
        rows.append((name, state, command if obstacle is None else f"the model {obstacle}"))
    return Table.of("exports", (Column("format"), Column("state"), Column("command", "path")), rows)


def lineage_rows(seen: ModelSeen, root: str | None) -> list[tuple[str, list[TableCell] | str]]:
    """Return the model's origin and successors: text, or links to runs and models."""
    record = seen.record
    run = page_link("runs", record.run, root)
    return [
        ("run", "none" if run is None else [run]),
        ("started from", _links(record.parents, root) or "zero"),
        ("models that started from it", _links(seen.children, root) or "none"),
        ("dataset", record.dataset),
        ("digest of the dataset", record.dataset_digest),
        ("features", str(record.features.get("about") or record.features.get("kind") or "imported")),
        ("rows, features, classes", f"{record.n:,}, {record.d:,}, {record.m:,}"),
        ("code", record.code_version),
        ("created (UTC)", when(record.created)),
    ]


def _links(names: Sequence[str], root: str | None) -> list[TableCell]:
    return [link for name in names if (link := page_link("models", name, root)) is not None]


def others_table(seen: ModelSeen, root: str | None) -> Table:
    """Return the table of other models, newest first, with this model's gain in each metric."""
    own = {metric: value for metric, value in measured(seen.record.evaluation) if metric.headline}
    columns = [
        Column("model"), Column("stage"), *metric_columns([*own]),
        *(Column(f"{one.column} against {seen.record.id}", "n", partial(one.text, sign="+")) for one in own),
        Column("relative gap", "n", gap), Column("certified"), Column("problem"), Column("compare"),
    ]  # fmt: skip
    rows, pages = [], f"models/{seen.record.id}/compare"
    reigned: set[str] = set()
    others = [other for other in reversed(seen.records) if other.id != seen.record.id]
    for other in others[:OTHERS_SHOWN]:
        line = model_line(other, seen.standing, reigned)
        theirs = line["metrics"]
        gains = (None if m.name not in theirs else theirs[m.name] - value for m, value in own.items())
        rows.append(
            (
                page_link("models", other.id, root), TableCell(line["stage"], line["tone"]),
                *(theirs.get(metric.name) for metric in own), *gains, line["relative_gap"],
                CERTIFIED[line["certified"]], line["problem"],
                TableCell(f"with {other.id}", href=None if root is None else f"{root}{pages}/{other.id}"),
            )
        )  # fmt: skip
    return Table.of(
        "other-models",
        columns,
        rows,
        empty="The store holds no other model.",
        note=newest_of(len(rows), len(seen.records) - 1, "topline models compare compares any two"),
    )


#: Most numbers in the rows that a page may read while a viewer waits.
MOST_NUMBERS = 50_000_000


@dataclass(frozen=True, eq=False)
class Paired:
    """Two models, the settings in which they differ, and metrics measured on the same rows."""

    first: ModelSeen
    second: ModelSeen
    evidence: Evidence

    @property
    def ids(self) -> tuple[str, str]:
        """The ids of both."""
        return self.first.record.id, self.second.record.id


def paired(first: ModelSeen, second: ModelSeen) -> Paired:
    """Compare two models of one store, on common held-out rows unless these are too many."""
    evaluation = first.record.evaluation or {}
    numbers = int(evaluation.get("rows", 0)) * first.record.d
    if first.record.multilabel or second.record.multilabel:
        evidence = Evidence(unmeasured="models of several labels per row have no paired test yet")
    elif numbers > MOST_NUMBERS:
        command = f"topline models compare {first.url} {second.url}"
        evidence = Evidence(unmeasured=f"there are too many rows to wait for: {command}")
    else:
        split = str(evaluation.get("split") or "test")
        evidence = measure(first.url, second.url, split=split, drift=False)
    return Paired(first, second, evidence)


def evidence_table(found: Paired) -> Table:
    """Return both models' metrics on the same rows, with the first one's gain, interval and test."""
    first, second = found.ids
    texts = ("n", str)
    columns = (
        Column("metric"), Column(first, *texts), Column(second, *texts), Column(f"gain of {first}", *texts),
        Column("from", *texts), Column("to", *texts), Column("p", "n", "{:.2g}".format),
        Column(f"only {first} right", "n", count), Column(f"only {second} right", "n", count),
    )  # fmt: skip
    rows = []
    for pair in found.evidence.compared:
        text = pair.metric.text
        values = text(pair.challenger, 2), text(pair.champion, 2)
        gains = (text(value, 2, "+") for value in (pair.gain, pair.low, pair.high))
        only = pair.only_challenger, pair.only_champion
        rows.append((pair.metric.column, *values, *gains, pair.p_value, *only))
    return Table.of("same-rows", columns, rows, empty=f"Not measured: {found.evidence.unmeasured}.")


def recorded_table(found: Paired) -> Table:
    """Return both models' recorded metrics, each on its own rows."""
    sides = [_recorded(seen.record) for seen in (found.first, found.second)]
    return _side_by_side("recorded", found.ids, sides, "words")


def _side_by_side(name: str, ids: Sequence[str], sides: Sequence[Mapping[str, str]], kind: str = "") -> Table:
    """Return the figures of two models or runs, those of either."""
    figures = dict.fromkeys(figure for side in sides for figure in side)
    rows = [(figure, *(side.get(figure) for side in sides)) for figure in figures]
    return Table.of(name, tuple(Column(title, kind) for title in ("figure", *ids)), rows)


def _recorded(record: ModelRecord) -> dict[str, str]:
    evaluation, certificate = record.evaluation or {}, record.certificate or {}
    shown = {metric.label: metric.text(value, 2) for metric, value in measured(evaluation)}
    rows = f"{count(evaluation.get('rows'))} {evaluation.get('split')} rows of {record.dataset}"
    return {
        **shown,
        "measured on": rows if evaluation else "not evaluated yet",
        "relative gap": gap(certificate.get("relative_gap")),
        "certified": "yes" if certificate.get("certified") else "no",
        "training rows": count(record.n),
        "passes": number(record.result.get("passes")),
        "training time": duration(record.result.get("seconds")),
    }


def class_gains(found: Paired) -> Table:
    """Return both models' top-1 accuracy by class, the first one's largest losses first."""
    first, second = found.ids
    shares = [_by_class(seen.record) for seen in (found.first, found.second)]
    waiting = [seen.record.id for seen in (found.first, found.second) if seen.record.evaluation is None]
    empty = f"Not evaluated yet: {' and '.join(waiting)}." if waiting else "No class is in both."
    common = [name for name in shares[0] if name in shares[1]]
    rows = [(name, shares[0][name], shares[1][name], shares[0][name] - shares[1][name]) for name in common]
    columns = (
        Column("class"), Column(first, "n", percent), Column(second, "n", percent),
        Column(f"gain of {first}", "n", "{:+.1%}".format),
    )  # fmt: skip
    return Table.of("classes", columns, sorted(rows, key=lambda row: row[3]), empty=empty)


def _by_class(record: ModelRecord) -> dict[str, float]:
    evaluation, _ = read_evaluation(record)
    return {} if evaluation is None else {part.name: part.topk[1] for part in evaluation.per_class}


def setting_table(ids: Sequence[str], first: Mapping[str, Any], second: Mapping[str, Any]) -> Table:
    """Return the settings in which two models or runs differ."""
    columns = (Column("setting"), *map(Column, ids))
    ours, theirs = dict(flat(first)), dict(flat(second))
    names = sorted(ours.keys() | theirs.keys())
    pairs = [(name, ours.get(name, DASH), theirs.get(name, DASH)) for name in names]
    pairs = [pair for pair in pairs if pair[1] != pair[2]]
    return Table.of("settings", columns, pairs, empty="Every setting is the same.")


def run_facts(runs: Sequence[tuple[RunRecord, RunView]], now: float) -> Table:
    """Return the results and costs of two runs."""
    return _side_by_side("runs", [record.id for record, _ in runs], [_facts(run, now) for _, run in runs])


def _facts(run: RunView, now: float) -> dict[str, str]:
    known = run.last
    return {
        "state": verdict(run, now)[1],
        "smallest relative gap": gap(bound(run)[1]),
        "primal objective": number(known.get("primal")),
        "dual objective": number(known.get("dual")),
        "passes": number(known.get("passes")),
        "rounds": count(run.rounds),
        "solving time": duration(known.get("seconds")),
        "workers seen": count(len(run.workers)),
    }


def run_comparison_charts(runs: Sequence[tuple[RunRecord, RunView]]) -> list[Titled]:
    """Draw the smallest gaps of two runs over passes and over seconds, and their objectives."""
    gaps = ("Relative gap, best so far", "best_gap", "relative gap", {"log": True})
    drawn: list[Titled] = [_together(runs, axis, *gaps) for axis in ("passes", "seconds")]
    return [*drawn, _together(runs, "passes", "Primal objective", "primal", "objective", {"log": True})]


def _together(
    runs: Sequence[tuple[RunRecord, RunView]], axis: str, title: str, name: str, label: str, options: Any
) -> Titled:
    lines = [
        Series.of(record.id, run.columns[axis], run.columns[name], style, positive=True)
        for style, (record, run) in enumerate(runs, start=1)
    ]
    return title, axis, line_chart(lines, x_label=axis, y_label=label, **options)


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
        "cells": make.table(cell_table(_cell_rows(record, paths), empty="No cell has an answer yet.")),
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
            TableCell(verdict, tone), ", ".join(record.config["loss"]), len(record.config["C"]),
            DASH if record.outcome is None else f"{record.outcome['best']['C']:g}", record.dataset,
            record.created,
        )
        for record in records
        for tone, verdict in [sweep_verdict(record)]
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


def _cell_rows(record: SweepRecord, paths: Mapping[str, Sequence[CellSeen]]) -> list[dict[str, Any]]:
    return [
        {"loss": name, "C": cell.C, "accuracy": cell.accuracy, "relative gap": cell.gap,
         "folds": f"{len(cell.folds)} of {record.config['folds']}", "passes": cell.passes}
        for name, path in paths.items()
        for cell in path
    ]  # fmt: skip


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
