"""The (name, value) pairs of a report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from topline.pipeline.evaluation import Evaluation
from topline.pipeline.pages import count, duration, number, when
from topline.solvers.counts import how_many
from topline.storage.models import ModelRecord

Pairs = list[tuple[str, str]]


def accuracy_facts(evaluation: Evaluation) -> Pairs:
    """Return all metrics."""
    return [(metric.label, metric.text(value)) for metric, value in evaluation.measured()]


def row_facts(
    m: int, counts: Mapping[str, int], training_counts: Sequence[int], rejected: int, duplicates: int
) -> Pairs:
    """Return the rows of each split, how many classes there are, and what was left out."""
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
    """Return what a certificate was computed from, and its figures."""
    kind = certificate["gap_kind"]
    bound = "" if kind == "true" else f" ({kind}: an upper bound)"
    facts = [
        ("Primal P(W)", f"{certificate['primal']:.10g}"),
        ("Dual D(A)", f"{certificate['dual']:.10g}"),
        (f"Gap P \u2212 D{bound}", f"{certificate['gap']:.3e}"),
        ("Relative gap", f"{certificate['relative_gap']:.3e}"),
        ("Training recorded the same", "yes, to 1e-6" if certificate["agrees"] else "no"),
        ("Computed from", str(certificate["rests_on"])),
        ("Computed", f"{when(certificate['created'])} UTC, {duration(certificate['seconds'])}"),
    ]
    optional = {
        "Smoothed upper bound of the gap": ("lifted_gap", ".3e"),
        "Largest infeasibility of a dual row": ("infeasibility", ".1e"),
        "|W \u2212 W(A)| / |W|": ("w_difference", ".1e"),
    }
    known = ((name, certificate[key], form) for name, (key, form) in optional.items())
    return [*facts, *((name, f"{value:{form}}") for name, value, form in known if value is not None)]


def lineage_facts(record: ModelRecord) -> Pairs:
    """Return where the model comes from."""
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
