"""A whole job from images to a report, the steps of jobs, and what they refuse before the first image."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from topline.pipeline.certification import Certificate, certify
from topline.pipeline.cluster import memory_limit
from topline.pipeline.errors import ConfigError
from topline.pipeline.evaluation import Evaluation, MultilabelEvaluation, known_intervals
from topline.pipeline.evaluation.measurement import evaluate
from topline.pipeline.images import ImageListing, write_digits
from topline.pipeline.images.demo import NAMES
from topline.pipeline.ingest import ExtractResult, extract
from topline.pipeline.log import kept_lines
from topline.pipeline.options import ClusterConfig, RunConfig, SearchConfig, TrainConfig
from topline.pipeline.readers import split_labels
from topline.pipeline.registry import Weighing, promote_by_rule
from topline.pipeline.report import write_report
from topline.pipeline.sweep import choose
from topline.pipeline.sweep.choice import chosen_text
from topline.pipeline.training import Fitted, TrainResult, check_options, fit, runs_of, train
from topline.solvers.counts import how_many
from topline.storage.datasets import Dataset, list_datasets
from topline.storage.errors import NotFoundError
from topline.storage.models import list_models, load_model
from topline.storage.schema import SPLITS
from topline.storage.stores import Store, open_store
from topline.storage.stores.urls import join

if TYPE_CHECKING:
    from distributed import Client

    from topline.pipeline.progress import Progress

logger = logging.getLogger(__name__)

DEMO_IMAGES = Path("topline-digits")


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


@dataclass(frozen=True)
class JobResult:
    """Outcome of a whole job; `features` describes them, `reused` says that an earlier run had trained it."""

    train: TrainResult
    evaluation: Evaluation | MultilabelEvaluation | None
    report: str
    store: str
    images: str
    features: str | None
    class_names: tuple[str, ...]
    counts: dict[str, int]
    statuses: dict[str, int]
    reused: bool

    def to_dict(self) -> dict[str, Any]:
        """Return the object that `topline run --json` prints: that of `train`, the metrics, the report."""
        evaluation = self.evaluation
        topk = evaluation.topk if isinstance(evaluation, Evaluation) else None
        own = {name: value for name, value in vars(self).items() if name not in ("train", "evaluation")}
        return {
            **self.train.to_dict(),
            "accuracy": None if topk is None else {str(k): share for k, share in topk.items()},
            "metrics": None if evaluation is None else evaluation.summary(),
            "intervals": None if evaluation is None else known_intervals(evaluation.to_dict()),
            "split": None if evaluation is None else evaluation.split,
            **own,
            "class_names": list(self.class_names),
        }


@kept_lines()
def run(
    config: RunConfig,
    cluster: ClusterConfig | None = None,
    progress: Progress | None = None,
    client: Client | None = None,
    *,
    steps: Steps = STEPS,
) -> JobResult:
    """Extract, train, certify, evaluate and report; what is stored already is not made again.

    Without images it takes the digits that come with scikit-learn and writes them to topline-digits/, unless
    the store holds other data.  Options that cannot work are refused before an image is read.  Raises what
    `steps` raise; what they stored stays.
    """
    check_places(config.store, config.train, cluster, config.report)
    config.search.searches(config.train)
    images = config.extract.images or str(_demo_images(config.store))
    wanted = config.extract.model_copy(update={"images": images, "store": config.store})
    check = check_of_images(config.train, wanted.label_separator, config.search)
    extracted = steps.extract(wanted, cluster, progress, client, check=check)
    info = extracted.info
    store = open_store(config.store)
    choice = config.train.model_copy(update={"store": config.store, "dataset": info.id})
    if config.search.searches(config.train) and (info.label_sets is None or config.search.auto):
        choice = choose(choice, config.search, progress, cluster)
    found = find_trained(choice, store, Dataset.open(store, info.id))
    trained = found or train(choice, cluster, progress, client, fit=steps.fit, certify=steps.certify)
    evaluation, split = None, config.evaluate.split
    if not info.counts.get(split, 0) and "split" not in config.evaluate.model_fields_set:
        split = "val"
    if info.counts.get(split, 0):
        if split != config.evaluate.split:
            logger.warning(
                "dataset %s has no test rows: accuracies are of the validation rows, which probabilities are"
                " fitted on", info.id,
            )  # fmt: skip
        evaluation = steps.evaluate(trained.model, split, progress, confused=config.evaluate.confused)
    else:
        logger.warning("dataset %s has no %s rows: nothing was evaluated", info.id, config.evaluate.split)
    report = steps.report(trained.model, config.report, progress, training_sizes=config.training_sizes)
    return JobResult(
        train=trained,
        evaluation=evaluation,
        report=report,
        store=store.url,
        images=images,
        features=info.features.get("about"),
        class_names=info.class_names,
        counts={split: info.counts.get(split, 0) for split in SPLITS},
        statuses=dict(extracted.statuses),
        reused=found is not None,
    )


def _demo_images(place: str) -> Path:
    """Write the digits; `ConfigError` if the store holds other data, which would then not be the latest."""
    with suppress(NotFoundError):
        for info in list_datasets(open_store(place)):
            if not set(info.class_names) <= set(NAMES):
                raise ConfigError(
                    f"no images are given, and {place} holds {info.id}, which is not of the digits: name the"
                    f" images with --images, or train on it with topline train --store {place} --auto"
                )
    return write_digits(DEMO_IMAGES)


def train_as_asked(
    config: TrainConfig,
    cluster: ClusterConfig | None = None,
    progress: Progress | None = None,
    client: Client | None = None,
    *,
    search: SearchConfig | None = None,
    steps: Steps = STEPS,
) -> TrainResult:
    """Train on a stored dataset, with the best that `search` finds where there is one."""
    chosen = config if search is None else choose(config, search, progress, cluster)
    return train(chosen, cluster, progress, client, fit=steps.fit, certify=steps.certify)


def find_trained(config: TrainConfig, store: Store, dataset: Dataset) -> TrainResult | None:
    """Return the newest model that these options made of this dataset and that reached the tolerance."""
    outcomes = {run.id: run.outcome for run in runs_of(store, config, dataset) if run.outcome is not None}
    for record in reversed(list_models(store)):
        if record.run not in outcomes:
            continue
        gap = record.result.get("relative_gap")
        # Where there is no dual there is no gap, and the method's own criterion counts.
        if record.result.get("status") != "solved" if gap is None else not gap <= config.tol:
            continue
        return TrainResult.from_dict({**outcomes[record.run], "model": join(store.url, "models", record.id)})
    return None


def training_facts(result: TrainResult) -> dict[str, str]:
    """Return what is told of a training run, by name."""
    shown = {
        "model": result.model,
        "data": f"{result.dataset}: n {result.n:,}, d {result.d:,}, m {result.m:,}",
        "training": f"{result.status} after {how_many(result.passes, 'passes')}, {result.seconds:.1f} s",
        **({} if result.chosen is None else {"chosen": chosen_text(result.chosen)}),
        "method": f"{result.method}: {result.why}",
    }
    if result.average_top is not None:
        shown["risk"] = f"mean of the {result.average_top:g} largest losses"
    shown["primal"] = f"{result.primal:.8g}"
    if result.stationarity is not None:
        fell = f"the gradient fell to {result.stationarity:.2e} of its first size"
        shown["certificate"] = f"none: the loss is not convex; {fell}"
    else:
        shown |= {"dual": f"{result.dual:.8g}", "relative gap": result.relative_gap_text}
    if result.certificate is not None:
        shown["certificate"] = result.certificate.text
    return shown
