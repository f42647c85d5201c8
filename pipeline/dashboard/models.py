"""What the page of a model says: its figures, exports and lineage, and the other models of its store."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from topline.pipeline.dashboard.overview import model_line
from topline.pipeline.dashboard.run_status import problem_words
from topline.pipeline.dashboard.tables import CERTIFIED, decision_table, metric_columns, newest_of, page_link
from topline.pipeline.evaluation import Evaluation, Metric, measured
from topline.pipeline.export import FORMATS
from topline.pipeline.pages import Badge, Column, Link, Table, Tile, duration, flat, gap, when
from topline.pipeline.report.document import report_tiles
from topline.solvers.counts import how_many
from topline.storage.errors import NotFoundError
from topline.storage.models import ModelRecord, Standing
from topline.storage.stores import Store
from topline.storage.stores.urls import join

OTHERS_SHOWN = 200


@dataclass(frozen=True, eq=False)
class ModelSeen:
    """A model with the standing of its registry, all models of the store, and whether it has a report."""

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
    """Return what a registry says of the model of this id; `NotFoundError` where there is none."""
    record = next((one for one in records if one.id == model), None)
    if record is None:
        raise NotFoundError(f"{store.url} holds no model {model}")
    return ModelSeen(store, record, standing, records, store.exists(report_path(model)))


def report_path(model: str) -> str:
    """Return where the report of a model lies in its store."""
    return f"reports/{model}.html"


def model_tiles(seen: ModelSeen) -> list[Tile]:
    """Return the figures that are read first."""
    record, result = seen.record, seen.record.result
    stored = None if record.multilabel else record.evaluation
    evaluation = Evaluation.from_dict(stored) if stored else None
    stage = seen.standing.stage(seen.record.id)
    note = f"of {len(seen.records):,} models" if len(seen.records) > 1 else "the only model"
    passes = result.get("passes")
    work = "" if passes is None else how_many(passes, "passes")
    took = Tile("training time", duration(result.get("seconds")), work)
    tone = "good" if stage == "champion" else ""
    return [Tile("stage", stage, note, tone), *report_tiles(seen.record, evaluation), took]


def problem(record: ModelRecord) -> str:
    """Return what the model solves, in a line."""
    loss = {"loss": record.loss.get("name", "?"), "k": record.loss.get("k")}
    return problem_words({**loss, "C": record.C, "smoothing": record.smoothing, "method": record.method})


def export_table(seen: ModelSeen) -> Table:
    """Return the formats that the model is exported in, with the command or why there is none."""
    rows = []
    for name, form in FORMATS.items():
        obstacle = form.obstacle(seen.record)
        output = f"{seen.record.id}{'' if form.folder_record else form.suffix}"
        command = f"topline export {shlex.quote(seen.url)} --format {name} --output {output}"
        state = Badge("good", "can hold it") if obstacle is None else Badge("soft", "cannot")
        rows.append((name, state, command if obstacle is None else f"the model {obstacle}"))
    return Table.of("exports", (Column("format"), Column("state"), Column("command", "path")), rows)


def lineage_rows(seen: ModelSeen, root: str | None) -> list[tuple[str, list[Link] | str]]:
    """Return where the model comes from and what came of it: text, or links to runs and models."""
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


def _links(names: Sequence[str], root: str | None) -> list[Link]:
    return [link for name in names if (link := page_link("models", name, root)) is not None]


def others_table(seen: ModelSeen, root: str | None) -> Table:
    """Return the other models, the newest first, each with how much better it is by each metric."""
    own = dict(_headlines(seen.record))
    columns = [
        Column("model"), Column("stage"), *metric_columns([*own]),
        *(Column(f"{metric.column} against {seen.record.id}", "n", _signed(metric)) for metric in own),
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
                page_link("models", other.id, root), Badge(line["tone"], line["stage"]),
                *(theirs.get(metric.name) for metric in own), *gains, line["relative_gap"],
                CERTIFIED[line["certified"]], line["problem"],
                Link(f"with {other.id}", None if root is None else f"{root}{pages}/{other.id}"),
            )
        )  # fmt: skip
    return Table.of(
        "other-models",
        columns,
        rows,
        empty="The store holds no other model.",
        note=newest_of(len(rows), len(seen.records) - 1, "topline models compare compares any two"),
    )


def _signed(metric: Metric) -> Any:
    return lambda value: metric.text(value, sign="+")


def _headlines(record: ModelRecord) -> list[tuple[Metric, float]]:
    return [(metric, value) for metric, value in measured(record.evaluation) if metric.headline]


def own_decisions(seen: ModelSeen, root: str | None) -> Table:
    """Return the decisions on the model, the newest first."""
    tones = {"promote": "good", "rollback": "fair", "delete": "bad"}
    entries = [(entry, tones.get(entry.action, "")) for entry in reversed(seen.standing.of(seen.record.id))]
    return decision_table(entries, root)


def differences(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Return the settings that differ, as (name, first, second); a dash where one has none."""
    ours, theirs = dict(flat(first)), dict(flat(second))
    names = sorted(ours.keys() | theirs.keys())
    pairs = ((name, ours.get(name, "\u2013"), theirs.get(name, "\u2013")) for name in names)
    return [pair for pair in pairs if pair[1] != pair[2]]
