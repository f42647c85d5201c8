"""The report of a model: one HTML file that needs no network, no script and no server."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pyarrow.compute as pc
from markupsafe import Markup

from topline.pipeline.evaluation import (
    Evaluation,
    MultilabelEvaluation,
    ReadImage,
    WorstClass,
    measured,
    worst_classes,
)
from topline.pipeline.images import SourceImages
from topline.pipeline.pages import (
    DASH,
    Series,
    Tile,
    bar_chart,
    count,
    duration,
    flat,
    gap,
    line_chart,
    make_page,
)
from topline.pipeline.report.run_section import event_rows, run_charts, work_charts, work_facts
from topline.pipeline.rows import StoredModel
from topline.pipeline.telemetry import RunView, view_run
from topline.storage.errors import NotFoundError
from topline.storage.models import ModelRecord
from topline.storage.stores import open_store
from topline.storage.stores.urls import join

REJECTED_SHOWN = 200
USED_SPLITS = ("train", "val", "test", "calibration")


@dataclass(frozen=True)
class Rejected:
    """An image that was not used, and why."""

    path: str
    reason: str


@dataclass(frozen=True)
class ReportData:
    """Everything on the page; made from a store by `gather`, or by hand in tests.

    `record` holds the certificate, the evaluation and the configuration, `run` how it was trained, `counts`
    the rows per split; `rejected` may be fewer than `rejected_total`.
    """

    record: ModelRecord
    run: RunView = field(default_factory=RunView)
    counts: Mapping[str, int] = field(default_factory=dict)
    worst: Sequence[WorstClass] = ()
    rejected: Sequence[Rejected] = ()
    rejected_total: int = 0
    duplicates: int = 0
    created: str = ""


def write_report(model_url: str, path: Path | None = None) -> str:
    """Write the report of the model at `model_url` and return where it lies.

    Without a `path` it goes into the model's store, as reports/<model>.html.  A report that is there already
    is replaced in one step.
    """
    stored = StoredModel.open(model_url)
    created = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
    page = render_report(gather(stored, SourceImages(stored.model.record.features), created)).encode()
    if path is not None:
        path = path.absolute()
        open_store(str(path.parent), create=True).write_bytes(path.name, page)
        return str(path)
    store, name = stored.model.store, f"reports/{stored.model.record.id}.html"
    store.write_bytes(name, page)
    return str(store.local_path / name) if store.local_path is not None else join(store.url, name)


def gather(stored: StoredModel, read_image: ReadImage, created: str) -> ReportData:
    """Return what the report of a stored model shows.

    Images are read where they lie; those that are gone or unreadable are shown by name alone.
    """
    record = stored.model.record
    dataset = stored.dataset()
    manifest = dataset.manifest()
    bad = manifest.filter(pc.equal(manifest["status"], "rejected"))
    shown = bad.slice(0, REJECTED_SHOWN).select(["path", "sample_id", "error"]).to_pylist()
    return ReportData(
        record=record,
        run=_run(stored),
        counts={split: dataset.info.counts.get(split, 0) for split in USED_SPLITS},
        worst=worst_classes(stored, dataset, read_image),
        rejected=[
            Rejected(row["path"] or row["sample_id"], row["error"] or "no reason given") for row in shown
        ],
        rejected_total=bad.num_rows,
        duplicates=pc.sum(pc.equal(manifest["status"], "duplicate")).as_py() or 0,
        created=created,
    )


def _run(stored: StoredModel) -> RunView:
    """Return the run that made the model; nothing where it was deleted since."""
    record = stored.model.record
    try:
        return view_run(stored.model.store, record.run) if record.run else RunView()
    except NotFoundError:
        return RunView()


def render_report(data: ReportData) -> str:
    """Return the page as HTML; everything that came from a user (paths, class names) is escaped."""
    record = data.record
    stored = record.evaluation
    labels = MultilabelEvaluation.from_dict(stored) if stored and record.multilabel else None
    evaluation = Evaluation.from_dict(stored) if stored and not record.multilabel else None
    return make_page(
        "report.html.j2",
        data=data,
        record=record,
        result=record.result,
        certificate=record.certificate,
        measured=measured(stored),
        evaluation=evaluation,
        labels=labels,
        tiles=report_tiles(record),
        charts=run_charts(data.run.columns, _tolerance(record.config, record.certificate)),
        work_charts=work_charts(data.run),
        work_facts=work_facts(data.run),
        events=event_rows(data.run),
        accuracy_chart=accuracy_chart(evaluation),
        reliability_chart=reliability_chart(evaluation),
        configuration=flat(record.config),
        features=flat({name: value for name, value in record.features.items() if name != "about"}),
    ).html


def report_tiles(record: ModelRecord) -> list[Tile]:
    """Return the figures that are read first: the verdict, the headline metrics, what training took."""
    certificate, result, evaluation = record.certificate, record.result, record.evaluation or {}
    tone, words = verdict(certificate, result=result)
    if certificate is not None:
        note = f"relative gap, tolerance {certificate['tol']:g}"
    else:
        note = "the loss is not convex" if result.get("gap_kind") == "none" else "run topline certify"
    figure = DASH if certificate is None else gap(certificate["relative_gap"])
    unit = "rows" if record.multilabel else "images"
    rows = f"{count(evaluation.get('rows'))} {evaluation.get('split')} {unit}"
    return [
        Tile(words, figure, note, tone),
        *(Tile(one.label, one.text(value), rows) for one, value in measured(evaluation) if one.headline),
        Tile("passes", count(result.get("passes")), f"status: {result.get('status', 'unknown')}"),
        Tile(
            "training time",
            duration(result.get("seconds")),
            f"n {record.n:,}, d {record.d:,}, m {record.m:,}",
        ),
    ]


def verdict(
    certificate: Mapping[str, Any] | None, result: Mapping[str, Any] = MappingProxyType({})
) -> tuple[str, str]:
    """Return the style ("good", "fair" or "bad") and the words of the certificate's verdict."""
    if result.get("gap_kind") == "none":
        return "fair", "No certificate"
    if certificate is None:
        return "fair", "Not certified yet"
    if certificate["certified"]:
        return "good", "Certified"
    if certificate.get("valid", True):
        return "fair", "Gap above the tolerance"
    return "bad", "Certificate refused"


def accuracy_chart(evaluation: Evaluation | None) -> Markup:
    """Draw the top-k accuracies against always answering the largest class."""
    if evaluation is None:
        return Markup("")
    rows = [(f"top-{k}", share) for k, share in evaluation.topk.items()]
    return bar_chart(rows, mark=("always the largest class", evaluation.majority_baseline))


def reliability_chart(evaluation: Evaluation | None) -> Markup:
    """Draw how often the first class is right against how probable it is."""
    if evaluation is None or evaluation.probabilities is None:
        return Markup("")
    bins = evaluation.probabilities.bins
    lines = [
        Series.of("share right", [part.confidence for part in bins], [part.accuracy for part in bins], 1),
        Series.of("exact", [0.0, 1.0], [0.0, 1.0], 5),
    ]
    return line_chart(lines, x_label="probability of the first class", y_label="share right")


def _tolerance(config: Mapping[str, Any], certificate: Mapping[str, Any] | None) -> float | None:
    tol = certificate["tol"] if certificate else config.get("tol")
    return None if tol is None else float(tol)
