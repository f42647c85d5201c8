"""The tables of a report, and its (name, value) pairs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from topline.pipeline.certification.recompute import source_of
from topline.pipeline.evaluation import Evaluation, MultilabelEvaluation
from topline.pipeline.evaluation.confusions import Gallery
from topline.pipeline.evaluation.records import ranked_worst
from topline.pipeline.pages import Column, Table, count, duration, number, percent, when
from topline.solvers.counts import how_many
from topline.storage.models import ModelRecord

Pairs = list[tuple[str, str]]


def accuracy_facts(evaluation: Evaluation) -> Pairs:
    """Return all metrics, shares with their intervals, without means over rare classes that are over all."""
    record, values = evaluation.to_dict(), evaluation.summary()
    return [
        (metric.label, metric.text_in(record))
        for metric, value in evaluation.measured()
        if not metric.name.startswith("tail-") or value != values[metric.name.replace("tail", "macro")]
    ]


def row_facts(
    m: int, counts: Mapping[str, int], training_counts: Sequence[int], rejected: int, duplicates: int
) -> Pairs:
    """Return the rows of each split, the number of classes, and what was left out."""
    classes = count(m)
    if training_counts:
        classes += f", with {min(training_counts):,} to {max(training_counts):,} training rows"
    return [
        *((split, how_many(rows, "rows")) for split, rows in counts.items()),
        ("classes", classes),
        ("left out as unreadable", count(rejected)),
        ("left out as duplicates", count(duplicates)),
    ]


def certificate_facts(certificate: Mapping[str, Any]) -> Pairs:
    """Return the basis of a certificate, and its figures."""
    kind = certificate["gap_kind"]
    bound = "" if kind == "true" else f" ({kind}: an upper bound)"
    facts = [
        ("Primal P(W)", f"{certificate['primal']:.10g}"),
        ("Dual D(A)", f"{certificate['dual']:.10g}"),
        (f"Gap P \u2212 D{bound}", f"{certificate['gap']:.3e}"),
        ("Relative gap", f"{certificate['relative_gap']:.3e}"),
        ("Training recorded the same", "yes, to 1e-6" if certificate["agrees"] else "no"),
        ("Computed from", f"{source_of(certificate['rests_on'])} ({certificate['rests_on']})"),
        ("Computed", f"{when(certificate['created'])} UTC, {duration(certificate['seconds'])}"),
    ]
    optional = {
        "Smoothed upper bound of the gap": ("lifted_gap", ".3e"),
        "Largest infeasibility of a dual row": ("infeasibility", ".1e"),
        "|W \u2212 W(A)| / |W|": ("w_difference", ".1e"),
    }
    known = ((name, certificate[key], form) for name, (key, form) in optional.items())
    return [*facts, *((name, f"{value:{form}}") for name, value, form in known if value is not None)]


def chosen_table(chosen: Mapping[str, Any]) -> Table:
    """Return the comparison of the search before training, the best first."""
    ks = list(chosen["cells"][0]["topk"])
    columns = (
        Column("loss"), Column("C", "n", "{:g}".format), Column("transforms"),
        *_shares(chosen["for"], *(f"top-{k}" for k in ks if f"top-{k}" != chosen["for"])),
        Column("folds", "n", count), Column("passes", "n", count),
        Column("relative gap", "n", "{:.1e}".format),
        Column(""),
    )  # fmt: skip
    rows = []
    for cell in sorted(chosen["cells"], key=lambda cell: (-cell["best"], -cell["accuracy"])):
        k = "" if cell["k"] is None else f" k={cell['k']}"
        loss = f"{cell['loss']}{k}" + (f" smoothing={cell['smoothing']:g}" if cell["smoothing"] else "")
        tops = [cell["topk"][k] for k in ks if f"top-{k}" != chosen["for"]]
        rows.append((
            loss, cell["C"], ",".join(cell["transforms"]), cell["accuracy"], *tops, cell["folds"],
            cell["passes"], cell["relative_gap"],
            "chosen" if cell["best"] else "default" if cell["default"] else "",
        ))  # fmt: skip
    return Table.of("compared", columns, rows)


def lineage_facts(record: ModelRecord) -> Pairs:
    """Return the model's origin."""
    return [
        ("Model", f"{record.id}, created {when(record.created)} UTC"),
        ("Started from", ", ".join(record.parents) or "zero"),
        ("Dataset", record.dataset),
        ("Dataset digest", record.dataset_digest),
        ("Run", record.run or "none"),
        ("Method", record.method),
        ("\u03bb = 1 / (n C)", number(record.lam)),
        ("Code", record.code_version),
    ]


NAME, ROWS = Column("class"), Column("rows", "n", count)


def _shares(*titles: str) -> tuple[Column, ...]:
    return tuple(Column(title, "n", percent) for title in titles)


def class_table(evaluation: Evaluation) -> Table:
    """Return the accuracies of the classes, the worst first, allowing for few rows."""
    ks = list(evaluation.topk)
    columns = (NAME, ROWS, *_shares(*(f"top-{k}" for k in ks), "top-1 at least", "top-1 at most"))
    parts = ranked_worst(evaluation.per_class)
    rows = [(part.name, part.rows, *(part.topk.get(k) for k in ks), *part.intervals[1]) for part in parts]
    return Table.of("classes", columns, rows)


def pair_table(evaluation: Evaluation) -> Table:
    """Return the most frequent confusions, both ways together; a way that is not among them is not known."""
    columns = (
        NAME, Column("and"), ROWS, Column("taken for it", "n", count), Column("the other way", "n", count),
    )  # fmt: skip
    counts = {(pair.true, pair.predicted): pair.count for pair in evaluation.confused}
    known = sum(counts.values()) >= round(evaluation.rows * (1.0 - evaluation.topk[1]))
    rows = []
    for (true, predicted), there in counts.items():
        back = counts.get((predicted, true), 0 if known else None)
        if back is None or there > back or true < predicted:
            rows.append((true, predicted, there + (back or 0), there, back))
    rows.sort(key=lambda row: -row[2])
    return Table.of("confused-pairs", columns, rows, empty="No image was taken for another class.")


def set_table(evaluation: Evaluation) -> Table:
    """Return the nominal and measured coverage of the sets."""
    columns = (
        *_shares("promised"), Column("guarantee"), Column("sets by"),
        *_shares("measured", "at least", "at most", "least of a class"),
        Column("mean size", "n", "{:.2f}".format), *_shares("none of these"),
        Column("fixed k as accurate", "n", count),
    )  # fmt: skip
    rows = [
        (part.coverage, "in every class" if part.per_class else "on average", part.sets_by, part.measured,
         *part.interval, part.least_class, part.mean_size, part.empty, part.fixed_k)
        for part in evaluation.sets
    ]  # fmt: skip
    return Table.of("sets", columns, rows)


def bin_table(evaluation: Evaluation) -> Table:
    """Return the bins of the reliability diagram."""
    columns = (*_shares("from", "to"), ROWS, *_shares("mean probability", "share right"))
    bins = () if evaluation.probabilities is None else evaluation.probabilities.bins
    rows = [(part.low, part.high, part.rows, part.confidence, part.accuracy) for part in bins]
    return Table.of("reliability", columns, rows)


def size_table(evaluation: Evaluation) -> Table:
    """Return accuracies against training rows."""
    ks = list(evaluation.topk)
    tops = (f"top-{k}" for k in ks)
    columns = (
        Column("training rows", "n", count),
        *_shares(*tops, "standard error of the difference to all"),
    )
    rows = [(point.rows, *(point.topk.get(k) for k in ks), point.error) for point in evaluation.sizes]
    return Table.of("training-sizes", columns, rows)


def gallery_table(gallery: Gallery, figure: str) -> Table:
    """Return the gallery's rows, for data without pictures; `figure` names the confidence."""
    columns = (Column("row", "path"), Column("answer"), NAME, Column("given"), Column(figure, "n"))
    groups = {
        "most confidently wrong": gallery.confident, "wrong": gallery.wrong, "right": gallery.right,
    }  # fmt: skip
    rows = [
        (one.name, said, one.label, one.predicted, one.figure)
        for said, part in groups.items()
        for one in part
    ]
    return Table.of("gallery", columns, rows, empty="No row was looked at.")


def rejected_table(files: Sequence[tuple[str, str]]) -> Table:
    """Return unused files, with reasons."""
    return Table.of("rejected-files", (Column("file", "path"), Column("reason")), files)


def label_table(labels: MultilabelEvaluation) -> Table:
    """Return the quality of each label, the worst first."""
    columns = (Column("label"), ROWS, *_shares("precision", "recall", "F1", "average precision"))
    parts = sorted(labels.per_label, key=lambda part: (part.f1, -part.rows, part.name))
    rows = [(p.name, p.rows, p.precision, p.recall, p.f1, p.average_precision) for p in parts]
    return Table.of("labels", columns, rows)


def tuned_table(labels: MultilabelEvaluation) -> Table:
    """Return the metrics of several labels per row, with the best threshold for each."""
    columns = (
        Column("metric"), Column("value", "n"), Column("with its own threshold", "n"),
        Column("which is", "n"),
    )  # fmt: skip
    return Table.of("metrics", columns, labels.table())


def count_table(names: Sequence[str], counts: Sequence[int]) -> Table:
    """Return the training rows of each class."""
    rows = zip(names, counts, strict=False) if counts else ()
    return Table.of("class-counts", (NAME, Column("training rows", "n", count)), rows, empty="Not known.")
