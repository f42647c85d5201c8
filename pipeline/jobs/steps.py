"""The steps of a whole job, and what it refuses before it reads the first image."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from topline.pipeline.certification import Certificate, certify
from topline.pipeline.cluster import memory_limit
from topline.pipeline.errors import ConfigError
from topline.pipeline.evaluation.measurement import evaluate
from topline.pipeline.images import ImageListing
from topline.pipeline.ingest import ExtractResult, extract
from topline.pipeline.options import ClusterConfig, SearchConfig, TrainConfig
from topline.pipeline.readers import split_labels
from topline.pipeline.registry import Weighing, promote_by_rule
from topline.pipeline.report import write_report
from topline.pipeline.training import Fitted, check_options, fit
from topline.storage.models import load_model
from topline.storage.stores.urls import join


@dataclass(frozen=True)
class Steps:
    """What a job calls for each step, with the signatures of the functions that are the defaults."""

    extract: Callable[..., ExtractResult] = extract
    fit: Callable[..., Fitted] = fit
    certify: Callable[..., Certificate] = certify
    evaluate: Callable[..., Any] = evaluate
    decide: Callable[..., Weighing] = promote_by_rule
    report: Callable[..., str] = write_report


STEPS = Steps()


def check_of_images(
    train: TrainConfig, label_separator: str | None, search: SearchConfig | None = None
) -> Callable[[ImageListing], None]:
    """Return the check of a listing: whether its images can be trained on, and searched."""

    def check(listing: ImageListing) -> None:
        good = [item for item in listing.items if item.label is not None and not item.error]
        labels = {item.label or "" for item in good}
        if label_separator is not None:
            labels = {label for several in labels for label in split_labels(several, label_separator)}
        rows = sum(item.split in (None, "train") for item in good)
        if rows and labels:
            check_options(train, rows, len(labels), several=label_separator is not None)
            if search is not None and label_separator is None and search.searches(train):
                search.guesses(len(labels))

    return check


def check_places(store: str, train: TrainConfig, cluster: ClusterConfig | None, report: Path | None) -> None:
    """Refuse an unreadable memory limit, a model to start from that is not there, and a report nowhere."""
    memory_limit(None if cluster is None else cluster.memory_limit)
    if train.start_from is not None:
        load_model(join(store, "models", train.start_from))
    if report is None:
        return
    folder = report.absolute().parent
    there = next(place for place in (folder, *folder.parents) if place.exists())
    if report.is_dir() or not there.is_dir() or not os.access(there, os.W_OK):
        raise ConfigError(
            f"--report {report} cannot be written: name a file in a folder that is yours to write"
        )
