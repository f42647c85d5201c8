"""`topline extract` and `import`: how data comes into a store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from topline.pipeline.cli.command import Call, Outcome
from topline.pipeline.cli.table import counted, facts, following
from topline.pipeline.options import ClusterConfig, ExtractConfig, ImportConfig

if TYPE_CHECKING:
    from topline.pipeline.ingest import ExtractResult, ImportResult

REJECTED_SHOWN = 10


def extract(call: Call) -> Outcome:
    """Turn images into a dataset of features; run it again to continue after an interruption."""
    from topline.pipeline.ingest import extract as run_extraction
    from topline.pipeline.ingest import names_line

    result: ExtractResult = call.run(
        "extract", run_extraction, config=call.config(ExtractConfig), cluster=call.config(ClusterConfig)
    )
    speed = "stored already" if result.reused else f"{result.images_per_second:,.0f} images/s"
    lines = facts(
        {
            "dataset": f"{result.dataset} in {result.store} ({speed})",
            "data": f"n {result.n:,}, d {result.d:,}, m {result.m:,}",
            "classes": names_line(result.info.class_names),
            "features": str(result.info.features.get("about", "made by an earlier version")),
            "rows": counted(result.counts),
            "images": counted(result.statuses),
        }
    )
    lines += [f"    rejected {path}: {reason}" for path, reason in result.rejected[:REJECTED_SHOWN]]
    more = result.statuses.get("rejected", 0) - REJECTED_SHOWN
    lines += [f"    and {more:,} more, each in the manifest"] if more > 0 else []
    return Outcome(result.to_dict(), [*lines, *_train_next(result.store, result.info.label_sets)])


def import_(call: Call) -> Outcome:
    """Store existing features and labels: arrays (npy, HDF5, Zarr, ...), Parquet, CSV, ARFF, LIBSVM text."""
    from topline.pipeline.ingest import import_features, names_line

    result: ImportResult = import_features(call.config(ImportConfig), call.progress)
    again, several = " (stored already)" if result.reused else "", result.label_sets
    lines = facts(
        {
            "dataset": f"{result.dataset} in {result.store}{again}",
            "data": f"n {result.n:,}, d {result.d:,}, m {result.m:,}, {result.layout}",
            "classes": names_line(result.info.class_names),
            "rows": counted(result.counts),
            **({} if several is None else {"labels": f"several a row, {several:,} distinct label sets"}),
        }
    )
    return Outcome(result.to_dict(), [*lines, *_train_next(result.store, several)])


def _train_next(store: str, label_sets: object | None) -> list[str]:
    loss = () if label_sets is None else ("--loss", "multilabel_hinge")
    return following(("topline", "train", "--store", store, *loss))
