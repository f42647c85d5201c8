"""What a report shows, gathered from a store: a model's record, its history, dataset and confusions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow.compute as pc

from topline.pipeline.evaluation.confusions import ReadImage, WorstClass, worst_classes
from topline.pipeline.rows import StoredModel
from topline.pipeline.telemetry.run_view import RunView, view_run
from topline.storage.errors import NotFoundError
from topline.storage.models import ModelRecord

REJECTED_SHOWN = 200


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


def gather(stored: StoredModel, read_image: ReadImage, created: str) -> ReportData:
    """Collect what the report of a stored model shows.

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
        counts={split: dataset.info.counts.get(split, 0) for split in ("train", "val", "test")},
        worst=worst_classes(stored, dataset, read_image),
        rejected=[
            Rejected(row["path"] or row["sample_id"], row["error"] or "no reason given") for row in shown
        ],
        rejected_total=bad.num_rows,
        duplicates=pc.sum(pc.equal(manifest["status"], "duplicate")).as_py() or 0,
        created=created,
    )


def _run(stored: StoredModel) -> RunView:
    """Give the run that made the model; nothing where it was deleted since."""
    record = stored.model.record
    try:
        return view_run(stored.model.store, record.run) if record.run else RunView()
    except NotFoundError:
        return RunView()
