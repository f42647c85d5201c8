"""Everything about a sweep that is fixed before its first round: its folds, and where its cells are solved.

Cells are solved *apart*, each process with the rows of all folds, if these fit; else *together*, in shared
passes, each with its dual variables and their change as arrays while solved, packed while waiting.  Rows in
memory and arrays are worth more than cells solved together: as many go together as fit beside the rows, if
the rows and one cell's arrays fit.
"""

from __future__ import annotations

import logging
import math
import sys
import threading
from collections import OrderedDict
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import psutil
from dask.system import CPU_COUNT
from numpy.typing import NDArray

from topline.pipeline.cluster import (
    MemoryPlan,
    ProblemSize,
    memory_limit,
    plan_alone,
    plan_memory,
    room_for_rows,
    takes_processes,
    worker_count,
)
from topline.pipeline.cluster.memory_plan import WHOLE_DUALS, most_cached
from topline.pipeline.errors import ConfigError, InputError
from topline.pipeline.evaluation import RowMetric, row_metric
from topline.pipeline.options import Cell, ClusterConfig, KernelChoice, SweepConfig, TrainConfig, Variant
from topline.pipeline.rows import (
    ClassWeight,
    TrainingRows,
    Transforms,
    class_of_groups,
    example_weights,
    require_single_labels,
)
from topline.pipeline.training import checked_spec, dataset_loss, resolve_options, resume_options, spec_of
from topline.pipeline.training.plan import ASCENT_BLOCK_BYTES
from topline.solvers.blocks import swept_bytes
from topline.solvers.kernels import KernelFeatures, make_kernel
from topline.solvers.kernels.problem import ARRAYS, MEMORY_BYTES
from topline.solvers.operations import most_open
from topline.solvers.run import ProblemSpec
from topline.solvers.run.search import unseen_classes
from topline.storage.datasets import Dataset
from topline.storage.runs import create_sweep, read_sweep
from topline.storage.stores import Store, open_store

logger = logging.getLogger(__name__)

Labels = NDArray[np.int32]

#: The last few folds stay in memory; more do while all of them take at most this many bytes.
KEPT_FOLDS, KEPT_BYTES = 4, 1 << 30


@dataclass(frozen=True)
class FoldSource:
    """Where the folds come from; the same values give the same folds in every process."""

    store: str
    dataset: str
    folds: int
    seed: int
    rows: int | None
    transforms: tuple[str, ...]
    kernel: KernelChoice | None = None


@dataclass(frozen=True, eq=False)
class FoldData:
    """One fold's training rows X (n, d) and held-out rows, with kernel features or the fold's transforms."""

    X: Any
    y: Labels
    held_out: Any
    held_out_y: Labels
    held_out_rows: NDArray[np.int64]
    names: tuple[str, ...]
    own_weights: NDArray[np.float64] | None = None

    @property
    def m(self) -> int:
        """Number of classes."""
        return len(self.names)

    @property
    def nbytes(self) -> int:
        """Bytes of the features."""
        parts = (self.X, self.held_out)
        return sum(
            part.nbytes if isinstance(part, np.ndarray) else part.data.nbytes + part.indices.nbytes
            for part in parts
        )

    def weights(self, class_weight: ClassWeight) -> NDArray[np.float64] | None:
        """Return the weight of each training row (n,), None for equal weights."""
        return example_weights(class_weight, self.y, self.names, self.own_weights)


def stratified_folds(
    y: Labels, folds: int, seed: int, groups: NDArray[np.int32] | None = None
) -> NDArray[np.int64]:
    """Return the fold of each row (n,); folds differ by at most one row in size and in rows of a class.

    Each of `groups` lies in one fold: the largest of a class go first, each to the fold with the fewest rows
    of the class.
    """
    if groups is None:
        fold = np.empty(len(y), dtype=np.int64)
        fold[_by_class(y, seed)] = np.arange(len(y)) % folds
        return fold
    _, of_row, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    classes = class_of_groups(of_row, y)
    drawn = np.random.default_rng(seed).permutation(len(sizes))
    chosen, held = np.empty(len(sizes), dtype=np.int64), np.zeros((int(y.max()) + 1, folds), dtype=np.int64)
    total = [0] * folds
    for group in drawn[np.lexsort((-sizes[drawn], classes[drawn]))].tolist():
        of_class = held[classes[group]].tolist()
        to = chosen[group] = min(range(folds), key=lambda place: (of_class[place], total[place]))
        held[classes[group], to] += sizes[group]
        total[to] += int(sizes[group])
    return np.asarray(chosen[of_row])


def stratified_sample(y: Labels, rows: int | None, seed: int) -> NDArray[np.int64]:
    """Return ascending numbers of `rows` rows, stratified by class to within one; all if there are fewer."""
    if rows is None or rows >= len(y):
        return np.arange(len(y))
    return np.sort(_by_class(y, seed)[np.arange(rows) * len(y) // rows])


def warn_of_unseen_classes(dataset: Dataset, folds: int, seed: int, rows: int | None) -> None:
    """Warn of rows that are held out of folds without their class; `rows` as for `stratified_sample`."""
    sample = stratified_sample(TrainingRows(dataset, "train").labels(), rows, seed)
    used = TrainingRows(dataset, "train", only=sample)
    y = used.labels()
    fold = stratified_folds(y, folds, seed, used.groups)
    unseen = unseen_classes(y, ((fold != out, fold == out) for out in range(folds)), dataset.class_names)
    if unseen:
        logger.warning("%s", unseen)


def held_folds(folds: int, nbytes: int) -> int:
    """Return how many folds a process keeps of rows of this many bytes."""
    return min(folds, max(KEPT_FOLDS, KEPT_BYTES // max(nbytes, 1)))


def fold_data(source: FoldSource, fold: int) -> FoldData:
    """Return one fold's rows, from memory if kept there."""
    key = source, fold
    with _kept_lock:
        if key in _kept:
            _kept.move_to_end(key)
            return _kept[key]
    found = _fold_data(source, fold)
    with _kept_lock:
        _kept[key] = found
        # A kernel's factors are large, and one of them is in use.
        most = 1 if source.kernel is not None else KEPT_FOLDS
        while len(_kept) > most and sum(one.nbytes for one in _kept.values()) > KEPT_BYTES:
            _kept.popitem(last=False)
    return found


def _fold_data(source: FoldSource, fold: int) -> FoldData:
    X, stored = _all_rows(replace(source, kernel=None, transforms=()))
    y, own = stored.labels(), stored.own_weights
    out = stratified_folds(y, source.folds, source.seed, stored.groups) == fold
    rows, rest = X[~out], X[out]
    fitted = Transforms.fit(
        source.transforms, lambda: iter((rows,)), is_sparse=not isinstance(X, np.ndarray), seed=source.seed
    )
    rows, rest = fitted.apply(rows), fitted.apply(rest)
    if (choice := source.kernel) is not None:
        kernel = make_kernel(choice.name, choice.gamma, choice.degree, choice.coef0)
        features = KernelFeatures.of(kernel, rows)
        rows, rest = features.rows.astype(np.float32), features.features_of(rest).astype(np.float32)
    names, own = stored.dataset.class_names, None if own is None else own[~out]
    return FoldData(rows, y[~out], rest, y[out], np.flatnonzero(out), names, own)


_kept: OrderedDict[tuple[FoldSource, int], FoldData] = OrderedDict()
_kept_lock = threading.Lock()


@lru_cache(maxsize=1)
def _all_rows(source: FoldSource) -> tuple[Any, TrainingRows]:
    dataset = Dataset.open(open_store(source.store), source.dataset)
    wanted = stratified_sample(TrainingRows(dataset, "train").labels(), source.rows, source.seed)
    rows = TrainingRows(dataset, "train", only=wanted)
    return rows.whole(), rows


def forget_folds() -> None:
    """Drop all rows in memory."""
    with _kept_lock:
        _kept.clear()
    _all_rows.cache_clear()


def _by_class(y: Labels, seed: int) -> NDArray[np.int64]:
    """Return all row numbers by class, in random order within a class."""
    shuffled = np.random.default_rng(seed).permutation(len(y))
    return np.asarray(shuffled[np.argsort(y[shuffled], kind="stable")], dtype=np.int64)


# Options that a resumed sweep may change.
MAY_CHANGE = frozenset({"store", "resume", "max_passes", "train_best"})


@dataclass(frozen=True, eq=False)
class SweepPlan:
    """A sweep that can start: `config` has the dataset's id, `paths` the options of `train` for each path.

    Cells are compared by `metric`, top-`topk` accuracy with rows weighted by `class_weights` (m,).
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
        """Return all cells, path by path, by ascending C."""
        return [Cell(variant_of(path), C) for path in self.paths for C in self.config.grid()]

    def spec(self, path: TrainConfig) -> ProblemSpec:
        """Return a path's problem on a fold; with a kernel the features are those of its factor."""
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
        """Weight of the rows of each class (m,), 1 on average; None for equal weights."""
        if self.metric.class_weights is None:
            return None
        labels = self.labels.astype(np.int64)
        weights = np.zeros(self.dataset.info.m)
        trained = np.bincount(labels, minlength=len(weights))
        weights[labels] = len(labels) * self.metric.row_weights(labels, trained)
        return tuple(weights.tolist())

    @cached_property
    def effective_rows(self) -> float | None:
        """Number of equally weighted rows that would tell as much; None for equal weights."""
        if self.class_weights is None:
            return None
        weights = np.asarray(self.class_weights)[self.labels]
        return float(weights.sum() ** 2 / (weights @ weights))

    @cached_property
    def labels(self) -> NDArray[np.int32]:
        """Classes of the rows used (n,)."""
        labels = TrainingRows(self.dataset, "train").labels()
        return labels if self.sample is None else labels[self.sample]

    @property
    def groups(self) -> NDArray[np.int32] | None:
        """Groups of the rows used (n,), or None."""
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
        """Numbers of the training rows used, None for all."""
        if self.config.rows is None:
            return None
        labels = TrainingRows(self.dataset, "train").labels()
        return stratified_sample(labels, self.config.rows, self.config.seed)

    @property
    def nbytes(self) -> int:
        """Bytes of the rows used, as float32."""
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
    """Open the data, check the grid, and record the sweep, or find the one to resume."""
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
    paths = {}
    for variant in config.variants():
        path = resolve_options(config.train_config(Cell(variant, config.C[0])), dataset)
        checked_spec(path, rows)
        paths[variant_of(path)] = path
    ks = {variant.k for variant in paths}
    metric = row_metric(config.metric or f"top-{config.topk or (ks.pop() if len(ks) == 1 else 0) or 1}")
    plan = SweepPlan(config, store, dataset, n, tuple(paths.values()), metric, config.resume or "")
    _check_metric(plan)
    if config.resume is not None:
        return plan
    options = config.model_dump(mode="json")
    return replace(plan, id=create_sweep(store, options, dataset.info.id, dataset.info.digest))


def _check_metric(plan: SweepPlan) -> None:
    """Raise for a metric by which cells cannot be compared."""
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
    warn_of_unseen_classes(rows.dataset, config.folds, config.seed, config.rows)


# Transforms that are fitted to rows, so that rows differ between folds.
FITTED = frozenset({"standardize", "pca", "nystroem", "fourier"})
#: Bytes per row of a solved cell besides dual variables: weight, label, norm, counts and order.
_CELL_ROW_BYTES = 40


def place_cells(
    plan: SweepPlan, cluster: ClusterConfig, *, there: bool
) -> tuple[ClusterConfig, SharedMemory | None]:
    """Return a sweep's workers and what cells share, None if apart; raise InputError if neither fits."""
    ours = not there and cluster.scheduler is None and cluster.workers != 0
    if not fits_every_process(plan, cluster):
        return cluster, shared_memory(plan, cluster, ours=ours)
    fewer = min(worker_count(cluster), len(plan.paths) * plan.config.folds)
    return cluster.model_copy(update={"workers": fewer} if ours else {}), None


def shared_memory(plan: SweepPlan, cluster: ClusterConfig, *, ours: bool) -> SharedMemory:
    """Return what the cells of a sweep share; `ours` workers get no more memory than needed."""
    transforms = Transforms.fit(plan.config.transforms, lambda: iter(()), seed=plan.config.seed)
    rows = TrainingRows(plan.dataset, "train", transforms, only=plan.sample)
    blocks = 1 if cluster.workers == 0 else max(1, math.ceil(rows.nbytes / ASCENT_BLOCK_BYTES))
    if ours:
        asked, workers = worker_count(cluster), min(worker_count(cluster), blocks)
        threads = max(cluster.threads_per_worker, asked * cluster.threads_per_worker // workers)
        cluster = cluster.model_copy(update={"workers": workers, "threads_per_worker": threads})
    return SharedMemory(rows, cluster, blocks, len(plan.paths) * plan.config.folds)


def fits_every_process(plan: SweepPlan, cluster: ClusterConfig) -> bool:
    """Return whether each process can hold all folds; raise InputError if they cannot be shared either."""
    info, free = plan.dataset.info, psutil.virtual_memory().available
    workers = 1 if cluster.workers == 0 else worker_count(cluster)
    limit = memory_limit(cluster.memory_limit)
    if plan.config.kernel is not None:
        _refuse_matrix(plan, free // workers if limit is None else min(free, limit) // workers)
        return True
    # Threads share the rows, but each has its own dual variables.
    apart = cluster.workers != 0 and takes_processes(plan.nbytes)
    processes = workers if apart else 1
    allowed = free // processes
    if limit is not None:
        allowed = min(allowed, room_for_rows(limit, cluster.workers, processes if apart else 0))
    # All rows, a slice being read, and the folds that a process keeps.
    needed = (2 + held_folds(plan.config.folds, plan.nbytes)) * plan.nbytes
    needed += WHOLE_DUALS * plan.n * info.m * workers // processes
    if info.layout != "dense" or needed <= allowed:
        return True
    fitted = [name for name in plan.config.transforms if name.partition(":")[0] in FITTED]
    if fitted:
        raise InputError(
            f"{plan.n:,} rows of dataset {info.id} need {needed / 2**30:.1f} GiB in each process and"
            f" {max(allowed, 0) / 2**30:.1f} are free, and {fitted[0]} makes other rows of every fold: try"
            f" the cells on a sample of at most --rows {max(plan.n * allowed // needed, 1)}, or leave that"
            " transform out"
        )
    return False


def _refuse_matrix(plan: SweepPlan, allowed: int) -> None:
    """Raise if the kernel matrix of one fold's rows does not fit into each process."""
    folds = plan.config.folds
    trained = plan.n - plan.n // folds
    allowed = min(allowed, MEMORY_BYTES)
    if (needed := ARRAYS * 8 * trained**2) > allowed:
        rows = int((allowed / (ARRAYS * 8)) ** 0.5) * folds // (folds - 1)
        raise InputError(
            f"the kernel matrix of the {trained:,} rows of a fold and its factor take {needed / 2**30:.1f}"
            f" GiB in each process, and {allowed / 2**30:.1f} are allowed: try the cells on a sample of at"
            f" most --rows {rows}"
        )


@dataclass(frozen=True, eq=False)
class SharedMemory:
    """Memory of at most `most` cells in shared passes, whose weights lie side by side like more classes."""

    rows: TrainingRows
    cluster: ClusterConfig
    blocks: int
    most: int

    def budgets(self) -> tuple[MemoryPlan, int]:
        """Return budgets and how many cells are solved at once; raise ConfigError if not even one fits."""
        for at_once in range(self.most, 0, -1):
            found = self._beside_rows(at_once)
            if found is not None:
                return found, at_once
        at_once = self.most
        while True:
            try:
                return self._over_read_rows(at_once)
            except ConfigError:
                if at_once == 1:
                    raise
                at_once = (at_once + 1) // 2

    def _beside_rows(self, at_once: int) -> MemoryPlan | None:
        """Return budgets for that many cells as arrays beside the rows, or None if they do not fit."""
        (n, d), m = self.rows.shape, self.rows.dataset.info.m
        if most_cached(self.cluster.cache_bytes, memory_limit(self.cluster.memory_limit)) < self.rows.nbytes:
            return None
        try:
            room = self._budgets(at_once, duals=False).cache_bytes
        except ConfigError:
            return None
        duals = room - self.rows.nbytes
        threads = CPU_COUNT if self.cluster.workers == 0 else self.cluster.threads_per_worker
        if duals <= 0 or most_open(duals // self.blocks, -(-n // self.blocks), d, m, threads) < at_once:
            return None
        budgets = self._budgets(at_once)
        return replace(budgets, cache_bytes=self.rows.nbytes, dual_bytes=duals)

    def _over_read_rows(self, at_once: int) -> tuple[MemoryPlan, int]:
        """Return budgets for cells over rows that are read, and how many go together; raise ConfigError."""
        (n, d), m = self.rows.shape, self.rows.dataset.info.m
        whole = WHOLE_DUALS * n * m * at_once
        duals = self._budgets(at_once).dual_bytes or whole
        # If arrays fit at all, cells solved together have them; all of them sweep together.
        arrays = most_open(duals, n, d, m, at_once)
        together = min(at_once, arrays) if arrays else at_once
        swept = together * swept_bytes(n, d, m, packed=not arrays)
        try:
            budgets = self._budgets(at_once, swept)
            duals = budgets.dual_bytes or whole
        except ConfigError:
            # A single cell needs what a training run needs.
            if at_once > 1:
                raise
            budgets = self._budgets(at_once)
        return replace(budgets, dual_bytes=duals), together

    def _budgets(self, at_once: int, swept: int = 0, *, duals: bool = True) -> MemoryPlan:
        """Return budgets for that many cells and their sweeps; without `duals` all room is for rows."""
        (n, d), m = self.rows.shape, self.rows.dataset.info.m * at_once
        limit, held = memory_limit(self.cluster.memory_limit), _CELL_ROW_BYTES * n * at_once + swept
        size = ProblemSize(n, d, m, self.blocks, self.rows.nbytes, keeps_duals=duals, held=held)
        cache_bytes = self.cluster.cache_bytes if duals else sys.maxsize
        if self.cluster.workers == 0:
            return plan_alone(limit, size, 1, cache_bytes)[0]
        processes = takes_processes(self.rows.nbytes)
        return plan_memory(limit, size, max(self.cluster.workers or 1, 1), cache_bytes, processes=processes)
