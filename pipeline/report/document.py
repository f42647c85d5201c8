"""The report of a model: one HTML file that needs no network, no script and no server."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import pyarrow.compute as pc
from markupsafe import Markup

from topline.pipeline.evaluation import METRICS, Evaluation, SizePoint, measured, read_evaluation
from topline.pipeline.evaluation.confusions import Gallery, ReadImage, WorstClass, images_to_show
from topline.pipeline.evaluation.records import ranked_worst
from topline.pipeline.images import SourceImages
from topline.pipeline.pages import (
    DASH,
    ConfusionMatrix,
    Scale,
    Tile,
    axes,
    bar_chart,
    count,
    curve,
    flat,
    gap,
    make_page,
    percent,
    svg,
)
from topline.pipeline.progress import Progress, begin
from topline.pipeline.report import tables
from topline.pipeline.report.run_section import event_table, run_charts, work_charts, work_facts
from topline.pipeline.report.training_sizes import measure_training_sizes, size_words
from topline.pipeline.rows import StoredModel
from topline.pipeline.telemetry import RunView, view_run
from topline.solvers.calibration import Interval, ReliabilityBin
from topline.solvers.counts import how_many
from topline.storage.errors import AccessError, NotFoundError
from topline.storage.models import ModelRecord
from topline.storage.records import now
from topline.storage.stores import open_store
from topline.storage.stores.urls import join

logger = logging.getLogger(__name__)

WIDE, TALL = 560, 300
LEFT, RIGHT, TOP, BOTTOM = 62, 20, 14, 44
# How axes of shares are written.
_SHARES: Final[dict[str, Any]] = {"text": "{:.0%}".format, "below": 17}
# Of accuracies the least span of an axis: a difference of one point is not to look like a cliff.
LEAST_SPAN = 0.2


def accuracy_chart(evaluation: Evaluation | None) -> Markup:
    """Draw the top-k accuracies against always answering the largest class."""
    if evaluation is None:
        return Markup("")
    rows = [(f"top-{k}", share) for k, share in evaluation.topk.items()]
    return bar_chart(rows, mark=("always the largest class", evaluation.majority_baseline))


def reliability_chart(bins: Sequence[ReliabilityBin]) -> Markup:
    """Draw how often the first class is right against how probable it is, a disc a bin.

    The area of a disc is its share of the rows, so that a bin of three rows does not look like a finding.
    """
    x_axis, y_axis = Scale(0.0, 1.03, LEFT, WIDE - RIGHT), Scale(0.0, 1.06, TALL - BOTTOM, TOP)
    total = max(sum(part.rows for part in bins), 1)
    disc = Markup('<circle class="bin" cx="{0:.1f}" cy="{1:.1f}" r="{2:.1f}"><title>{3}</title></circle>')
    discs = [
        disc.format(
            x_axis(part.confidence),
            y_axis(part.accuracy),
            3.0 + 20.0 * math.sqrt(part.rows / total),
            f"{how_many(part.rows, 'rows')} of probability {part.confidence:.1%} on average:"
            f" {part.accuracy:.1%} right",
        )
        for part in sorted(bins, key=lambda part: -part.rows)
    ]
    exact = Markup('<line class="target" x1="{0}" y1="{1}" x2="{2}" y2="{3}"/>').format(
        x_axis(0.0), y_axis(0.0), x_axis(1.0), y_axis(1.0)
    )
    frame = axes(x_axis, y_axis, "probability of the first class", "share right", **_SHARES)
    return svg(WIDE, TALL, "Share right against the probability of the first class", [frame, exact, *discs])


def sizes_chart(points: Sequence[SizePoint]) -> Markup:
    """Draw accuracy against training rows, with two standard errors of the differences to all rows."""
    if len(points) < 2:
        return Markup("")
    ks = [k for k in (1, 5) if k in points[-1].topk]
    shares = [point.topk[k] for point in points for k in ks]
    low, high = min(shares), max(shares)
    low = max(0.0, min(low - 0.03, high - LEAST_SPAN))
    x_axis = Scale(points[0].rows / 1.15, points[-1].rows * 1.15, LEFT, WIDE - RIGHT, log=True)
    y_axis = Scale(low, min(1.01, high + 0.02), TALL - BOTTOM, TOP)
    ticks = [float(point.rows) for point in points]
    drawn = [axes(x_axis, y_axis, "training rows", "accuracy", ticks=ticks, **_SHARES)]
    drawn += [_accuracy_curve(points, k, style, x_axis, y_axis) for style, k in enumerate(ks, start=1)]
    key = Markup('<span class="key s{0}"><i></i>top-{1}</span>')
    keys = Markup("").join(key.format(style, k) for style, k in enumerate(ks, start=1))
    picture = svg(WIDE, TALL, "Accuracy against training rows", drawn)
    return picture + Markup('<div class="legend">{}</div>').format(keys)


def _accuracy_curve(points: Sequence[SizePoint], k: int, style: int, x_axis: Scale, y_axis: Scale) -> Markup:
    places = [(x_axis(point.rows), point.topk[k], point) for point in points]
    bar = Markup('<line class="error" x1="{0:.1f}" x2="{0:.1f}" y1="{1:.1f}" y2="{2:.1f}"/>')
    dot = Markup('<circle class="dot" cx="{0:.1f}" cy="{1:.1f}" r="4"><title>{2}</title></circle>')
    parts = [
        bar.format(
            x,
            y_axis(max(y_axis.low, share - 2.0 * point.error)),
            y_axis(min(y_axis.high, share + 2.0 * point.error)),
        )
        for x, share, point in places
        if k == 1 and point.error
    ]
    parts += [
        dot.format(x, y_axis(share), f"top-{k} {share:.1%} with {point.rows:,} training rows")
        for x, share, point in places
    ]
    return curve([(x, y_axis(share)) for x, share, _ in places], style, parts)


REJECTED_SHOWN = 200
#: What is said elsewhere of the features, or is too long.
UNSHOWN = ("about", "columns")
USED_SPLITS = ("train", "val", "test", "calibration")


@dataclass(frozen=True)
class ReportData:
    """Everything on the page; made from a store by `gather`, or by hand in tests.

    `record` holds the certificate, the evaluation and the configuration, `run` how it was trained, `counts`
    the rows per split and `training_counts` the training rows of each class; `rejected` are files with the
    reasons, those that cannot be used and then duplicates, which may be fewer than `rejected_total` and
    `duplicates`.
    """

    record: ModelRecord
    run: RunView = field(default_factory=RunView)
    counts: Mapping[str, int] = field(default_factory=dict)
    gallery: Gallery = field(default_factory=Gallery)
    worst: Sequence[WorstClass] = ()
    training_counts: Sequence[int] = ()
    rejected: Sequence[tuple[str, str]] = ()
    rejected_total: int = 0
    duplicates: int = 0
    created: str = ""


def write_report(
    model_url: str,
    path: Path | None = None,
    progress: Progress | None = None,
    *,
    training_sizes: bool | None = False,
) -> str:
    """Write the report of the model at `model_url` and return where it lies.

    Without a `path` it goes into the model's store, as reports/<model>.html.  A report that is there already
    is replaced in one step.  With `training_sizes` accuracies of models of fewer training rows are measured
    and recorded first, where it is None only if that is cheap.
    """
    stored = StoredModel.open(model_url)
    if training_sizes is not False:
        why = measure_training_sizes(stored, progress, whatever_it_costs=bool(training_sizes))
        if training_sizes and why:
            logger.warning("accuracy against training rows was not measured: %s", why)
        stored = StoredModel.open(model_url)
    begin(progress, "report")
    page = render_report(gather(stored, SourceImages(stored.model.record.features), now())).encode()
    if path is not None:
        path = path.absolute()
        open_store(str(path.parent), create=True).write_bytes(path.name, page)
        return str(path)
    store, name = stored.model.store, f"reports/{stored.model.record.id}.html"
    try:
        store.write_bytes(name, page)
    except AccessError as error:
        raise AccessError(f"{error}: name a file elsewhere with --output") from error
    return str(store.local_path / name) if store.local_path is not None else join(store.url, name)


def gather(stored: StoredModel, read_image: ReadImage, created: str) -> ReportData:
    """Return what the report of a stored model shows.

    Images are read where they lie; those that are gone or unreadable are shown by name alone.
    """
    record = stored.model.record
    dataset = stored.dataset()
    manifest = dataset.manifest().select(["path", "sample_id", "status", "error", "split"])
    bad = manifest.filter(pc.equal(manifest["status"], "rejected"))
    # With --duplicates keep those beside their first image are rows of its split.
    out = pc.equal(manifest["split"], "rejected")
    copies = manifest.filter(pc.and_(pc.equal(manifest["status"], "duplicate"), out))
    shown = [row for part in (bad, copies) for row in part.slice(0, REJECTED_SHOWN).to_pylist()]
    gallery, worst = images_to_show(stored, manifest, read_image)
    return ReportData(
        record=record,
        run=_run(stored),
        counts={split: dataset.info.counts.get(split, 0) for split in USED_SPLITS},
        gallery=gallery,
        worst=worst,
        training_counts=stored.rows("train").class_counts().tolist(),
        rejected=[(row["path"] or row["sample_id"], row["error"] or "no reason given") for row in shown],
        rejected_total=bad.num_rows,
        duplicates=copies.num_rows,
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
    evaluation, labels = read_evaluation(record)
    return make_page(
        "report.html.j2",
        data=data,
        record=record,
        result=record.result,
        certificate=record.certificate,
        verdict=verdict(record.certificate, record.result),
        row_facts=tables.row_facts(
            record.m, data.counts, data.training_counts, data.rejected_total, data.duplicates
        ),
        evaluation=evaluation,
        labels=labels,
        tables=tables,
        tiles=report_tiles(record, evaluation),
        unit=unit_of(record),
        answer=answer_words(evaluation, unit_of(record)),
        matrix=confusion_matrix(evaluation, record.class_names),
        charts=run_charts(data.run.columns, _tolerance(record.config, record.certificate)),
        work_charts=work_charts(data.run),
        work_facts=work_facts(data.run),
        events=event_table(data.run),
        accuracy_chart=accuracy_chart(evaluation),
        reliability_chart=reliability_chart,
        sizes_chart=sizes_chart,
        size_words=size_words,
        configuration=flat(record.config),
        features=flat({name: value for name, value in record.features.items() if name not in UNSHOWN}),
    ).html


def report_tiles(record: ModelRecord, evaluation: Evaluation | None) -> list[Tile]:
    """Return the figures that are read first: the headline metrics, the worst class, the certificate."""
    unit = unit_of(record)
    stored = record.evaluation or {}
    rows = f"{count(stored.get('rows'))} {stored.get('split')} {unit}"
    tiles = [
        Tile(one.label, one.text(value), f"{_between(one.interval_in(stored))}{rows}")
        for one, value in measured(stored)
        if one.headline
    ]
    if evaluation is not None and evaluation.per_class:
        worst = ranked_worst(evaluation.per_class)[0]
        macro = METRICS["macro-top-1"].read(stored)
        if macro is not None:
            tiles.append(Tile("mean over classes", percent(macro), "top-1, every class alike"))
        note = f"{_between(worst.intervals[1])}{worst.name}, {worst.rows:,} {unit}"
        tiles.append(Tile("worst class", percent(worst.topk[1]), note))
        if evaluation.probabilities is not None:
            error = percent(evaluation.probabilities.calibration_error)
            tiles.append(Tile("calibration error", error, "how far probabilities are off"))
    tone, words = verdict(record.certificate, record.result)
    return [*tiles, Tile(words, *_gap(record), tone)]


def _between(interval: Interval | None) -> str:
    """Return the words of an interval that come before those of its rows."""
    if interval is None:
        return ""
    low, high = (f"{100.0 * end:.1f}" for end in interval)
    return f"between {low} and {high}, of "


def _gap(record: ModelRecord) -> tuple[str, str]:
    """Return the figure and the note of the certificate's tile."""
    if record.certificate is not None:
        return gap(
            record.certificate["relative_gap"]
        ), f"relative gap, tolerance {record.certificate['tol']:g}"
    none = record.result.get("gap_kind") == "none"
    return DASH, "the loss is not convex" if none else "run topline certify"


def unit_of(record: ModelRecord) -> str:
    """Return what the rows of a model's data are called: images, or rows where features were imported."""
    imported = record.features.get("kind") == "imported"
    return "rows" if imported or record.multilabel else "images"


def answer_words(evaluation: Evaluation | None, unit: str = "images") -> str:
    """Return the answer in a sentence: how many held-out rows are right, and within how many guesses."""
    if evaluation is None or 1 not in evaluation.topk:
        return ""
    right = round(evaluation.topk[1] * evaluation.rows)
    share = METRICS["top-1"].said(evaluation.to_dict())
    said = f"{right:,} of {evaluation.rows:,} {evaluation.split} {unit} are classified correctly ({share})"
    enough = next((k for k, share in evaluation.topk.items() if share >= 0.99), None)
    if enough is not None and enough > 1:
        share = "all" if evaluation.topk[enough] == 1.0 else "99% or more"
        said += f", and {share} have their class among the first {enough}"
    guess = f"always predicting {evaluation.majority_class} would be correct for"
    return f"{said}; {guess} {evaluation.majority_baseline:.1%}."


def confusion_matrix(evaluation: Evaluation | None, names: Sequence[str]) -> ConfusionMatrix | None:
    """Return the matrix to show, None where none was recorded."""
    if evaluation is None or not evaluation.confusion:
        return None
    return ConfusionMatrix(tuple(names), np.array(evaluation.confusion, dtype=np.int64))


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


def _tolerance(config: Mapping[str, Any], certificate: Mapping[str, Any] | None) -> float | None:
    tol = certificate["tol"] if certificate else config.get("tol")
    return None if tol is None else float(tol)
