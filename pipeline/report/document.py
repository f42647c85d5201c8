"""The report of a model: one HTML file that needs no network, no script and no server."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

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
    Series,
    Tile,
    bar_chart,
    count,
    flat,
    gap,
    line_chart,
    macros,
    make_page,
    percent,
)
from topline.pipeline.pages.charts import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH
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

logger = logging.getLogger(__name__)


def accuracy_chart(evaluation: Evaluation) -> Markup:
    """Draw the top-k accuracies against always predicting the largest class."""
    rows = [(f"top-{k}", share) for k, share in evaluation.topk.items()]
    return bar_chart(rows, mark=("always the largest class", evaluation.majority_baseline))


def reliability_chart(bins: Sequence[ReliabilityBin]) -> Markup:
    """Draw accuracy against probability of the first class, a disc per bin whose area is its rows."""
    x, y = Scale(0.0, 1.03, LEFT, WIDTH - RIGHT), Scale(0.0, 1.06, HEIGHT - BOTTOM, TOP)
    drawn: Markup = macros("charts").reliability(bins, x, y)
    return drawn


def sizes_chart(points: Sequence[SizePoint]) -> Markup:
    """Draw accuracy against training rows, with two standard errors of the differences to all rows."""
    if len(points) < 2:
        return Markup("")
    rows = [point.rows for point in points]
    off = 2.0 * np.array([point.error for point in points])
    first = np.array([point.topk[1] for point in points])
    lines = [
        Series.of("top-1", rows, first, 1, dots=True),
        Series.of("within two standard errors", rows, np.minimum(first + off, 1.0), 5),
        Series.of("", rows, np.maximum(first - off, 0.0), 5),
    ]
    if 5 in points[-1].topk:
        lines.append(Series.of("top-5", rows, [point.topk[5] for point in points], 2, dots=True))
    return line_chart(lines, x_label="training rows", y_label="accuracy", log_x=True, most=1.0)


REJECTED_SHOWN = 200
#: Facts of the features that are shown elsewhere, or are too long.
UNSHOWN = ("about", "columns")
USED_SPLITS = ("train", "val", "test", "calibration")


@dataclass(frozen=True)
class ReportData:
    """Everything on the page; made from a store by `gather`, or by hand in tests.

    `counts` are the rows per split, `training_counts` those of each class; `rejected` are unusable files,
    then duplicates, with reasons, possibly fewer than `rejected_total` and `duplicates`.
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
    """Write the report of a model, by default to reports/<model>.html in its store; return its location.

    With `training_sizes`, accuracies of models of fewer rows are measured first (for None, only if cheap).
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
    return store.place(name)


def gather(stored: StoredModel, read_image: ReadImage, created: str) -> ReportData:
    """Return the content of a stored model's report; images that are gone are shown by name alone."""
    record = stored.model.record
    dataset = stored.dataset()
    manifest = dataset.manifest().select(["path", "sample_id", "status", "error", "split"])
    bad = manifest.filter(pc.equal(manifest["status"], "rejected"))
    # With --duplicates keep, duplicates belong to the split of their first image.
    out = pc.equal(manifest["split"], "rejected")
    copies = manifest.filter(pc.and_(pc.equal(manifest["status"], "duplicate"), out))
    shown = [row for part in (bad, copies) for row in part.slice(0, REJECTED_SHOWN).to_pylist()]
    gallery, worst = images_to_show(stored, manifest, read_image)
    run = RunView()
    with suppress(NotFoundError):
        # It may have been deleted since.
        run = view_run(stored.model.store, record.run) if record.run else run
    return ReportData(
        record=record,
        run=run,
        counts={split: dataset.info.counts.get(split, 0) for split in USED_SPLITS},
        gallery=gallery,
        worst=worst,
        training_counts=stored.rows("train").class_counts().tolist(),
        rejected=[(row["path"] or row["sample_id"], row["error"] or "no reason given") for row in shown],
        rejected_total=bad.num_rows,
        duplicates=copies.num_rows,
        created=created,
    )


def render_report(data: ReportData) -> str:
    """Return the page as HTML; all user input (paths, class names) is escaped."""
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
        tiles=report_tiles(record, evaluation, data.gallery.settled),
        unit=unit_of(record),
        answer=answer_words(evaluation, unit_of(record)),
        matrix=confusion_matrix(evaluation, record.class_names),
        charts=run_charts(data.run.columns, (record.certificate or record.config).get("tol")),
        work_charts=work_charts(data.run),
        work_facts=work_facts(data.run),
        events=event_table(data.run),
        accuracy_chart=accuracy_chart,
        reliability_chart=reliability_chart,
        sizes_chart=sizes_chart,
        size_words=size_words,
        settled=settled_words(data.gallery, unit_of(record)),
        next_steps=next_steps(record, evaluation),
        configuration=flat(record.config),
        features=flat({name: value for name, value in record.features.items() if name not in UNSHOWN}),
    ).html


def report_tiles(
    record: ModelRecord, evaluation: Evaluation | None, settled: float | None = None
) -> list[Tile]:
    """Return the headline figures: metrics, the worst class, the certificate."""
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
        note = f"{_between(worst.intervals[1])}{worst.name}, {how_many(worst.rows, unit)}"
        tiles.append(Tile("worst class", percent(worst.topk[1]), note))
        if evaluation.probabilities is not None:
            error = percent(evaluation.probabilities.calibration_error)
            tiles.append(Tile("calibration error", error, "how far probabilities are off"))
    tone, words = verdict(record.certificate, record.result)
    convex = record.result.get("gap_kind") != "none"
    figure, note = DASH, "run topline certify" if convex else "the loss is not convex"
    if record.certificate is not None:
        figure, note = gap(record.certificate["relative_gap"]), "relative gap"
    if settled is not None:
        note = f"of answers are the optimum's, relative gap {figure}"
        figure = f"\u2265 {percent(settled)}"
    return [*tiles, Tile(words, figure, note, tone)]


def _between(interval: Interval | None) -> str:
    """Return the text of an interval that precedes its number of rows."""
    if interval is None:
        return ""
    low, high = (f"{100.0 * end:.1f}" for end in interval)
    return f"between {low} and {high}, of "


def settled_words(gallery: Gallery, unit: str) -> str:
    """Return what the gap says about the held-out answers, as text."""
    if gallery.settled is None:
        return ""
    return (
        f"the optimum of this loss and C is so near that it gives at least {gallery.settled:.1%} of the"
        f" {gallery.rows:,} held-out {unit} the same first class as this model does."
    )


def next_steps(record: ModelRecord, evaluation: Evaluation | None) -> list[tuple[str, str]]:
    """Return the next steps with a model, each with its command."""
    model = f"STORE/models/{record.id}"
    images = record.features.get("kind") == "images"
    kind, new = ("--images", "NEW") if images else ("--features", "NEW.npy")
    found = [
        ("Classify new data", f"topline predict {model} {kind} {new} --output predictions.csv"),
        ("Correct labels that look wrong", f"topline inspect {model} --page suspects.html"),
        ("Choose what to label next", f"topline suggest {model} {kind} {new} --page label.html"),
        ("Use it without a store", f"topline export {model} --format onnx"),
    ]
    if record.multilabel:
        return [found[0], found[-1]]
    if evaluation is not None and evaluation.probabilities is None:
        source = "extract" if images else "import"
        found.append(("Get probabilities", f"topline {source} ... --val-share 0.1, then topline train"))
    return found


def unit_of(record: ModelRecord) -> str:
    """Return the unit of a model's data: images, or rows of imported features."""
    imported = record.features.get("kind") == "imported"
    return "rows" if imported or record.multilabel else "images"


def answer_words(evaluation: Evaluation | None, unit: str = "images") -> str:
    """Return one sentence: how many held-out rows are right, and within how many guesses."""
    if evaluation is None or 1 not in evaluation.topk:
        return ""
    right = round(evaluation.topk[1] * evaluation.rows)
    share = METRICS["top-1"].text_in(evaluation.to_dict())
    said = f"{right:,} of {evaluation.rows:,} {evaluation.split} {unit} are classified correctly ({share})"
    enough = next((k for k, share in evaluation.topk.items() if share >= 0.99), None)
    if enough is not None and enough > 1:
        share = "all" if evaluation.topk[enough] == 1.0 else "99% or more"
        said += f", and {share} have their class among the first {enough}"
    guess = f"always predicting {evaluation.majority_class} would be correct for"
    return f"{said}; {guess} {evaluation.majority_baseline:.1%}."


def confusion_matrix(evaluation: Evaluation | None, names: Sequence[str]) -> ConfusionMatrix | None:
    """Return the confusion matrix to show, None if none was recorded."""
    if evaluation is None or not evaluation.confusion:
        return None
    return ConfusionMatrix(tuple(names), np.array(evaluation.confusion, dtype=np.int64))


def verdict(
    certificate: Mapping[str, Any] | None, result: Mapping[str, Any] = MappingProxyType({})
) -> tuple[str, str]:
    """Return the style ("good", "fair" or "bad") and text of the certificate's verdict."""
    if result.get("gap_kind") == "none":
        return "fair", "No certificate"
    if certificate is None:
        return "fair", "Not certified yet"
    if certificate["certified"]:
        return "good", "Certified"
    if certificate.get("valid", True):
        return "fair", "Gap above the tolerance"
    return "bad", "Certificate refused"
