"""Whole jobs, made of the steps that the other rooms do: from images to a report, and retraining.

`run` makes a certified and evaluated model and its report of a folder of images.  `retrain` brings a store up
to date with its images, and its champion with the promotion rule.  `Steps` are what they call, one after the
other.  Everything that a step makes is stored before the next one begins, and found there again: a job that
was killed is finished by the next, and a retraining that finds nothing new does nothing.
"""

from __future__ import annotations

import logging
import os
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from topline.pipeline.certification import Certificate, certify
from topline.pipeline.cluster import memory_limit
from topline.pipeline.errors import ConfigError
from topline.pipeline.evaluation import Evaluation, MultilabelEvaluation, known_intervals, measured, placed
from topline.pipeline.evaluation.measurement import evaluate
from topline.pipeline.images import ImageListing, check_images_exist, write_digits
from topline.pipeline.images.demo import NAMES
from topline.pipeline.ingest import (
    Changes,
    ExtractResult,
    changes_between,
    extract,
    newest_edited,
    with_edits_of,
)
from topline.pipeline.log import kept_lines
from topline.pipeline.options import (
    ClusterConfig,
    ExtractConfig,
    RetrainConfig,
    RunConfig,
    SearchConfig,
    TrainConfig,
    as_words,
    build,
    refuse_label_sets,
)
from topline.pipeline.options.problem import resolved_k
from topline.pipeline.progress import Progress
from topline.pipeline.readers import split_labels
from topline.pipeline.registry import Weighing, promote, promote_by_rule
from topline.pipeline.report import write_report
from topline.pipeline.sweep import choose
from topline.pipeline.sweep.choice import chosen_text
from topline.pipeline.training import (
    Fitted,
    TrainResult,
    check_options,
    continued,
    fit,
    handed_on,
    runs_of,
    train,
    unfinished_run,
)
from topline.solvers.calibration import Interval
from topline.solvers.counts import how_many
from topline.storage.datasets import Dataset, DatasetInfo, list_datasets
from topline.storage.errors import NotFoundError, StorageError
from topline.storage.models import ModelRecord, list_models, load_model, read_standing
from topline.storage.retention import RetentionPolicy, prune
from topline.storage.runs import RunRecord
from topline.storage.schema import SPLITS
from topline.storage.stores import Lease, Store, held_lease, open_store
from topline.storage.stores.urls import join

if TYPE_CHECKING:
    from distributed import Client

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
    """The outcome of a whole job: the model, its metrics on held-out rows and the place of the report.

    `features` describes them; `reused` says that the same data and options had been trained before.
    """

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


#: What a dataset says of its making, by the names of the options.
_OF_IMAGES = ("test_share", "val_share", "calibration_share", "split_seed", "duplicates", "sample_weight")
#: Named even where they are the defaults, for they say most.
_NAMED = ("loss", "C")


def with_earlier_settings(config: RetrainConfig, store: Store) -> RetrainConfig:
    """Return `config` with open settings taken from the champion, or else the newest model of images."""
    model, which = _earlier(store)
    if model is None:
        return config
    images, training = _of_images(config.extract, model, store), _of_training(config.train, model)
    given = [one.model_dump(include=one.model_fields_set) for one in (config.extract, config.train)]
    extract = build(ExtractConfig, {**images, **given[0]})
    train = continued({**training, **given[1]}, model)
    logger.info(
        "settings that are not given are those of %s, %s: %s; the rest are defaults",
        model.id,
        which,
        _as_flags({**images, **training}, extract, train, _backbone(config.extract, model, store)),
    )
    return config.model_copy(update={"extract": extract, "train": train})


def _earlier(store: Store) -> tuple[ModelRecord | None, str]:
    standing = read_standing(store)
    models = [
        record
        for record in list_models(store)
        if record.features.get("kind") == "images" and standing.stage(record.id) != "deleted"
    ]
    champion = next((record for record in models if record.id == standing.champion), None)
    return (champion, "the champion") if champion else (models[-1] if models else None, "the newest model")


def _of_images(config: ExtractConfig, model: ModelRecord, store: Store) -> dict[str, Any]:
    """Return how the images of a model were split and limited, as far as `config` leaves it open."""
    made = model.features
    groups = {"groups", "groups_from"}
    names = _OF_IMAGES if groups & config.model_fields_set else (*_OF_IMAGES, *sorted(groups))
    found = {name: made[name] for name in names if name in made} | dict(made.get("limits") or {})
    for info in list_datasets(store):
        if info.id == model.dataset:
            found["dtype"] = info.dtype
    return {name: value for name, value in found.items() if name not in config.model_fields_set}


def _of_training(config: TrainConfig, model: ModelRecord) -> dict[str, Any]:
    """Return how a model was trained, as far as `config` leaves it open; a default k stays open."""
    found = handed_on(config, model)
    loss, weights = str(model.config.get("loss")), model.config.get("weights")
    if found.get("k") == resolved_k(loss, None, weights, model.m):
        found.pop("k", None)
    return found


def _backbone(config: ExtractConfig, model: ModelRecord, store: Store) -> str:
    """Return the name of the model's backbone where it is the one that the images get."""
    specs = [info.features.get("backbone") for info in list_datasets(store)]
    newest = next((spec for spec in reversed(specs) if isinstance(spec, Mapping)), None)
    same = config.backbone is None and newest is not None and newest == model.features.get("backbone")
    return str(newest["name"]) if newest is not None and same else ""


def _as_flags(taken: Mapping[str, Any], extract: ExtractConfig, train: TrainConfig, backbone: str) -> str:
    """Return as flags what was taken from a model and is not the default."""
    said = {"backbone": backbone} if backbone else {}
    for config in (train, extract):
        # What a class declares itself comes first, as in --help.
        own, options = type(config).__annotations__, type(config).model_fields
        for name in sorted(options, key=lambda name: name not in own):
            value = getattr(config, name)
            if name in taken and (name in _NAMED or value != options[name].default):
                said[name] = value
    return " ".join(shlex.join(as_words(name, value)) for name, value in said.items()) or "none"


LEASE = "retrain"


@dataclass(frozen=True)
class RetrainResult:
    """The outcome of a retraining.

    `outcome` is "promoted", "kept" (the champion stays) or "unchanged" (nothing was new), and `reasons` say
    why.  `resumed` says that it finished an earlier one.  `repeated` counts how often in a row the champion
    was kept for the same reason.  `pruned_bytes` is None without pruning; `intervals` are those of metrics
    that are shares.
    """

    outcome: str
    reasons: tuple[str, ...]
    store: str
    dataset: str
    version: int
    changes: Changes
    model: str
    champion: str | None
    champion_before: str | None
    passes: int
    relative_gap: float | None
    certified: bool
    start: dict[str, Any]
    accuracy: dict[str, float]
    metrics: dict[str, float]
    evidence: dict[str, Any]
    resumed: bool
    seconds: float
    pruned_bytes: int | None = None
    repeated: int = 0
    intervals: dict[str, Interval] = field(default_factory=dict)

    @property
    def evaluation(self) -> dict[str, Any]:
        """The metrics of the model on held-out rows with their intervals, as records have them."""
        return {**placed(self.metrics), "intervals": self.intervals}

    def to_dict(self) -> dict[str, Any]:
        """Return the object that `topline retrain --json` prints."""
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {**values, "reasons": list(self.reasons), "changes": self.changes.to_dict()}


@kept_lines()
def retrain(
    config: RetrainConfig,
    cluster: ClusterConfig | None = None,
    progress: Progress | None = None,
    client: Client | None = None,
    *,
    by: str = "topline retrain",
    steps: Steps = STEPS,
) -> RetrainResult:
    """Bring a store up to date with its images, and its champion with the rule.

    What `config` leaves open is taken from the champion, or else from the newest model.  One retraining at a
    time works on a store: raises `LeaseHeldError`, which says who does, at once or after waiting.  Raises
    what `steps` raise; the champion stays until the decision, which is one record that appears whole.
    """
    begun = time.monotonic()
    refuse_label_sets(config.extract)
    check_places(config.store, config.train, cluster, None)
    check_images_exist(str(config.extract.images))
    store = open_store(config.store, create=True)
    wait = config.wait_seconds if config.overlap == "wait" else 0.0
    with held_lease(store, LEASE, by, wait=wait) as lease:
        config = with_earlier_settings(config, store)
        result = _Retraining(store, config, cluster, progress, client, by, lease, steps).run(begun)
    if not config.prune:
        return result
    policy = RetentionPolicy(config.retention.keep, config.retention.days)
    return replace(result, pruned_bytes=prune(store, policy, datetime.now(UTC), by).bytes)


@dataclass(frozen=True, eq=False)
class _Retraining:
    """A retraining that holds the store."""

    store: Store
    config: RetrainConfig
    cluster: ClusterConfig | None
    progress: Progress | None
    client: Client | None
    by: str
    lease: Lease
    steps: Steps

    def run(self, begun: float) -> RetrainResult:
        edited = newest_edited(self.store) if self.config.keep_edits else None
        newest = next(reversed(list_datasets(self.store)), None)
        wanted = self.config.extract.model_copy(update={"store": self.config.store})
        check = check_of_images(self.config.train, wanted.label_separator)
        info = self.steps.extract(
            wanted, self.cluster, self.progress, self.client, follow=True, check=check
        ).info
        dataset = Dataset(self.store, info)
        if edited is not None:
            info = with_edits_of(dataset, edited)
            # Labels that are corrected again have not changed.
            newest = newest if info == dataset.info else edited
            dataset = Dataset(self.store, info)
        changes = changes_between(_manifest_of(self.store, newest), dataset.manifest())
        options = self.config.train.model_copy(update={"store": self.config.store, "dataset": info.id})
        made = _made(self.store, options, dataset)
        resumed = made is not None and not _is_decided(self.store, made.id)
        if made is not None and not resumed:
            standing = read_standing(self.store)
            said = f"there is nothing new since {info.id}, on which {standing.of(made.id)[-1]}"
            return self._result(
                made, dataset, changes, begun, outcome="unchanged", reasons=(said,), evidence={},
                champion=standing.champion, champion_before=standing.champion, resumed=False,
            )  # fmt: skip
        self.lease.check()
        run = None if made is not None else unfinished_run(self.store, options, dataset)
        url = join(self.store.url, "models", made.id) if made is not None else self._trained(options, run)
        if load_model(url).record.certificate is None:
            self.steps.certify(url, self.progress)
        if load_model(url).record.evaluation is None and info.counts.get(self.config.split, 0):
            self.steps.evaluate(url, self.config.split, self.progress)
        self.lease.check()
        weighed = self.steps.decide(
            url, self.config.promote, by=self.by, split=self.config.split, progress=self.progress,
            images=changes.to_dict(),
        )  # fmt: skip
        record, champion = load_model(url).record, weighed.standing.champion
        return self._result(
            record, dataset, changes, begun,
            outcome="promoted" if champion == record.id else "kept",
            reasons=weighed.decision.reasons,
            champion=champion,
            champion_before=weighed.champion and weighed.champion.rpartition("/")[2],
            evidence=weighed.evidence.to_dict(),
            repeated=weighed.decision.repeated,
            resumed=resumed or run is not None,
        )  # fmt: skip

    def _trained(self, options: TrainConfig, run: RunRecord | None) -> str:
        """Train a model, from where a killed run stopped or from an earlier model, and return its URL."""
        if run is not None:
            chosen = TrainConfig(store=options.store, resume=run.id, tol=options.tol)
        else:
            chosen = options.model_copy(update={"start_from": _start(self.store, self.config.start)})
        fit, certify = self.steps.fit, self.steps.certify
        return train(chosen, self.cluster, self.progress, self.client, fit=fit, certify=certify).model

    def _result(
        self, made: ModelRecord, dataset: Dataset, changes: Changes, begun: float, **decision: Any
    ) -> RetrainResult:
        """Return the outcome, of which `decision` has what the registry says of the model `made`."""
        certificate = made.certificate or {}
        return RetrainResult(
            store=self.store.url,
            dataset=dataset.info.id,
            version=dataset.info.seq,
            changes=changes,
            model=join(self.store.url, "models", made.id),
            passes=int(made.result["passes"]),
            relative_gap=certificate.get("relative_gap"),
            certified=bool(certificate.get("certified") and certificate.get("valid")),
            start=dict(made.result.get("start") or {"model": None, "from": "zero", "rows": 0}),
            accuracy=dict((made.evaluation or {}).get("topk") or {}),
            metrics={metric.name: value for metric, value in measured(made.evaluation)},
            intervals=known_intervals(made.evaluation),
            seconds=time.monotonic() - begun,
            **decision,
        )


def trained_without(
    store_url: str,
    learned: Sequence[str],
    cluster: ClusterConfig | None = None,
    progress: Progress | None = None,
) -> str:
    """Train what takes the place of models that learned forgotten rows, and return its URL.

    It has the settings of the champion, if that is among them, and takes its place; else those of the newest.
    It starts from zero, as their weights and dual variables know the rows.
    """
    store = open_store(store_url)
    champion = read_standing(store).champion
    name = champion if champion in learned else learned[-1]
    record = load_model(join(store.url, "models", str(name))).record
    settings = handed_on(TrainConfig(store=store.url), record)
    made = train(continued({**settings, "store": store.url}, record), cluster, progress).model
    if list_datasets(store)[-1].counts.get("test", 0):
        evaluate(made, "test", progress)
    if name == champion:
        promote(made, reason=f"in the place of {name}, which learned rows that were to be forgotten")
    return made


def _manifest_of(store: Store, info: DatasetInfo | None) -> Any:
    try:
        return Dataset(store, info).manifest() if info is not None else None
    except StorageError as error:
        logger.warning("every image counts as new: %s", error)
        return None


def _made(store: Store, options: TrainConfig, dataset: Dataset) -> ModelRecord | None:
    """Return the model that these options made of this dataset, one that was decided on before others."""
    runs = {run.id for run in runs_of(store, options, dataset)}
    found = [record for record in reversed(list_models(store)) if record.run in runs]
    decided = (record for record in found if _is_decided(store, record.id))
    return next(decided, found[0] if found else None)


def _is_decided(store: Store, model: str) -> bool:
    return any(entry.action in ("promote", "keep") for entry in read_standing(store).of(model))


def _start(store: Store, which: str) -> str | None:
    """Return the id of the model to start from, None for zero."""
    standing = read_standing(store)
    if which == "champion":
        return standing.champion
    usable = [record.id for record in list_models(store) if standing.stage(record.id) != "deleted"]
    return usable[-1] if usable and which == "last" else None
