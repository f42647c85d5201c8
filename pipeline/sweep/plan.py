"""Everything about a sweep that is fixed before its first round."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from topline.pipeline.errors import ConfigError, InputError
from topline.pipeline.evaluation import RowMetric, row_metric
from topline.pipeline.options import Cell, KernelChoice, SweepConfig, TrainConfig, Variant
from topline.pipeline.readers import require_single_labels
from topline.pipeline.rows import TrainingRows
from topline.pipeline.sweep.folds import FoldSource, stratified_folds, stratified_sample
from topline.pipeline.training import checked_spec, dataset_loss, resolve_options, resume_options, spec_of
from topline.solvers.run import ProblemSpec
from topline.storage.datasets import Dataset
from topline.storage.runs import create_sweep, read_sweep
from topline.storage.stores import Store, open_store

logger = logging.getLogger(__name__)

# What may differ between a sweep and its resumption.
MAY_CHANGE = frozenset({"store", "resume", "max_passes", "train_best"})


@dataclass(frozen=True, eq=False)
class SweepPlan:
    """A sweep that can start: `config` has the dataset's id, `paths` the options of `train` for each path.

    Cells are compared by `metric`, top-k accuracy at `topk` of rows that count `class_weights` (m,) times.
    """

    config: SweepConfig
    store: Store
    dataset: Dataset
    n: int
    paths: tuple[TrainConfig, ...]
    metric: RowMetric
    id: str

    @cached_property
    def cells(self) -> list[Cell]:
        """All cells, path by path, C ascending."""
        return [Cell(variant_of(path), C) for path in self.paths for C in self.config.grid()]

    def spec(self, path: TrainConfig) -> ProblemSpec:
        """Return what a path solves on a fold; with a kernel the features are those of its factor."""
        return self._specs[variant_of(path)]

    @cached_property
    def _specs(self) -> dict[Variant, ProblemSpec]:
        return {
            variant_of(path): replace(
                spec_of(path, dataset_loss(path, self.dataset), self.n), kernel=None, stored=False
            )
            for path in self.paths
        }

    @property
    def topk(self) -> int:
        """The k of the metric."""
        return self.metric.topk or 1

    @cached_property
    def class_weights(self) -> tuple[float, ...] | None:
        """How often a row of each class counts (m,), once on average; None where all count once."""
        if self.metric.class_weights is None:
            return None
        labels = self.labels.astype(np.int64)
        weights = np.zeros(self.dataset.info.m)
        trained = np.bincount(labels, minlength=len(weights))
        weights[labels] = len(labels) * self.metric.row_weights(labels, trained)
        return tuple(weights.tolist())

    @cached_property
    def effective_rows(self) -> float | None:
        """So many rows that count alike would tell as much as all of them; None where they do."""
        if self.class_weights is None:
            return None
        weights = np.asarray(self.class_weights)[self.labels]
        return float(weights.sum() ** 2 / (weights @ weights))

    @cached_property
    def labels(self) -> NDArray[np.int32]:
        """Classes of the rows that are used (n,)."""
        labels = TrainingRows(self.dataset, "train").labels()
        return labels if self.sample is None else labels[self.sample]

    @property
    def groups(self) -> NDArray[np.int32] | None:
        """Groups of the rows that are used (n,), None where none were given."""
        groups = TrainingRows(self.dataset, "train").groups
        return groups if groups is None or self.sample is None else groups[self.sample]

    def source(self, path: TrainConfig) -> FoldSource:
        """Return where workers find the folds of a path."""
        config = self.config
        return FoldSource(
            self.store.url, config.dataset, config.folds, config.seed, config.rows, config.transforms,
            variant_of(path).kernel,
        )  # fmt: skip

    @property
    def sample(self) -> NDArray[np.int64] | None:
        """Which of the training rows are used, None for all."""
        if self.config.rows is None:
            return None
        labels = TrainingRows(self.dataset, "train").labels()
        return stratified_sample(labels, self.config.rows, self.config.seed)

    @property
    def nbytes(self) -> int:
        """Bytes of the rows that are used, as float32."""
        return 4 * self.n * self.dataset.info.d

    @property
    def how_to_resume(self) -> str:
        """The sentence that ends every message about a sweep that stopped early."""
        return f"continue with: topline sweep --store {self.store.url} --resume {self.id}"


def variant_of(path: TrainConfig) -> Variant:
    """Return the loss with its parameters, k filled in, and the kernel."""
    kernel = None
    if path.kernel is not None:
        kernel = KernelChoice(path.kernel, path.kernel_gamma, path.kernel_degree, path.kernel_coef0)
    return Variant(path.loss, path.k, path.smoothing, kernel)


def plan_sweep(config: SweepConfig) -> SweepPlan:
    """Open the data, refuse what cannot be tried, and record the sweep, or find the one to resume."""
    store = open_store(config.store)
    if config.resume is not None:
        record = read_sweep(store, config.resume)
        config = resume_options(config, record.config, f"sweep {record.id}", MAY_CHANGE)
    dataset = Dataset.open(store, config.dataset)
    config = config.model_copy(update={"dataset": dataset.info.id})
    require_single_labels(dataset.info, "a sweep compares cells")
    rows = TrainingRows(dataset, "train")
    n = len(rows) if config.rows is None else min(len(rows), config.rows)
    _check_rows(config, rows, n)
    paths = {variant_of(path): path for path in _paths(config, rows)}
    metric = row_metric(config.metric or f"top-{config.topk or _only_k(list(paths)) or 1}")
    plan = SweepPlan(config, store, dataset, n, tuple(paths.values()), metric, config.resume or "")
    _check_metric(plan)
    if config.resume is not None:
        return plan
    options = config.model_dump(mode="json")
    return replace(plan, id=create_sweep(store, options, dataset.info.id, dataset.info.digest))


def _check_metric(plan: SweepPlan) -> None:
    """Refuse a metric that no cell can be compared by."""
    metric, m = plan.metric, plan.dataset.info.m
    if metric.topk is None:
        raise ConfigError(
            f"cells are compared by counts of right rows, which {metric.name} has none of: use top-K,"
            " macro-top-K or tail-top-K"
        )
    if metric.topk >= m:
        raise ConfigError(
            f"{metric.column} of {m} classes is always right: compare cells by a smaller --topk or --metric"
        )
    if plan.class_weights is None:
        return
    counts = np.asarray(plan.class_weights)[plan.labels] > 0.0
    fold = stratified_folds(plan.labels, plan.config.folds, plan.config.seed, plan.groups)
    if len(np.unique(fold[counts])) < plan.config.folds:
        raise ConfigError(
            f"{int(counts.sum())} rows count in {metric.column}, and one of {plan.config.folds} folds has"
            " none of them: use fewer folds, more rows or another --metric"
        )


def _paths(config: SweepConfig, rows: TrainingRows) -> list[TrainConfig]:
    """Return the options of each path, k filled in; refuse what does not go together."""
    found, dataset = [], rows.dataset
    for variant in config.variants():
        path = resolve_options(config.train_config(Cell(variant, config.C[0])), dataset)
        checked_spec(path, dataset_loss(path, dataset), rows)
        found.append(path)
    return found


def _only_k(variants: list[Variant]) -> int | None:
    ks = {variant.k for variant in variants}
    return ks.pop() if len(ks) == 1 else None


def _check_rows(config: SweepConfig, rows: TrainingRows, n: int) -> None:
    info = rows.dataset.info
    counts = np.bincount(rows.labels(), minlength=info.m)
    if np.count_nonzero(counts) < 2 or n < 2 * config.folds:
        raise InputError(
            f"dataset {info.id} has {len(rows)} training rows of {np.count_nonzero(counts)} classes, too few"
            f" for {config.folds} folds: use fewer folds or more rows"
        )
    if rows.groups is not None and len(np.unique(rows.groups)) < config.folds:
        raise InputError(
            f"dataset {info.id} has {len(np.unique(rows.groups))} groups of training rows, too few for"
            f" {config.folds} folds: use fewer folds or more groups"
        )
    few = int(((counts > 0) & (counts < config.folds)).sum())
    if few:
        logger.warning("%d classes have fewer rows than there are folds and miss in some of them", few)
