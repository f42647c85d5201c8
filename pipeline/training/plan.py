"""The plan of a training run: data, problem, blocks and start, checked before anything is written.

A run starts from zero, or continues an earlier model from its dual variables or its weights.

What cannot be trained is refused: unusable data, and options that do not fit together.  `check_options` needs
no features, so that it comes before images are described.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ValidationError

from topline.pipeline.certification import DUAL_W
from topline.pipeline.errors import ConfigError, InputError
from topline.pipeline.options import BLOCKS_AT_MOST, TrainConfig
from topline.pipeline.options.problem import ClassFacts, chosen_loss, chosen_risk, resolved_k
from topline.pipeline.rows import StoredModel, TrainingRows, Transforms, example_weights, parse_transforms
from topline.solvers.core.codec import decoded
from topline.solvers.core.problem import LabelledRows, Problem, SmoothingKind
from topline.solvers.core.problem import scale_note as sizes_of_columns
from topline.solvers.core.state import Point, SolveResult, SolverState
from topline.solvers.counts import how_many
from topline.solvers.errors import InvalidProblemError
from topline.solvers.executors import block_bounds
from topline.solvers.kernels import (
    ChiSquaredKernel,
    IntersectionKernel,
    LaplacianKernel,
    factor,
    is_precomputed,
    make_kernel,
)
from topline.solvers.kernels.problem import ARRAYS
from topline.solvers.losses import LabelSets, Loss, StructuredHinge, loss_from_dict
from topline.solvers.methods import Choice, MethodSpec, begun_by
from topline.solvers.methods.quasi_newton import LbfgsMemory
from topline.solvers.methods.shared_work import SharedWork
from topline.solvers.names import DEFAULT_METHOD
from topline.solvers.run import ProblemSpec
from topline.storage.arrays import StoredDuals
from topline.storage.datasets import Dataset
from topline.storage.errors import IntegrityError, MismatchError
from topline.storage.models import ModelRecord, load_model
from topline.storage.runs import Checkpoint, latest_checkpoint, read_run
from topline.storage.stores import Store, open_store
from topline.storage.stores.urls import join

logger = logging.getLogger(__name__)

#: Rows, and places they come from, in the check of feature scales.
_LOOKED_AT, _PLACES = 1000, 10
#: Random sign vectors for the symmetry test of K, and rows whose own matrix is fully factored.
PROBES, SAMPLED_ROWS = 4, 1000
#: Tolerance of symmetry: float32 roundings, also times the root of n.
ROUNDINGS = 10.0

SEVERAL = "multilabel_hinge, multilabel_softmax, one_vs_all_hinge or one_vs_all_logistic"


def check_labels(rows: TrainingRows) -> None:
    """Raise for training labels that make no problem; warn of classes without rows."""
    info, y = rows.dataset.info, rows.labels()
    if len(y) == 0:
        raise InputError(f"dataset {info.id} has no training rows: import or extract it with a train split")
    if int(y.max()) >= (info.label_sets or info.m) or int(y.min()) < 0:
        raise InputError(f"dataset {info.id} has the label {int(y.max())}, but only {info.m} classes")
    counts = rows.class_counts()
    empty = [name for name, count in zip(info.class_names, counts.tolist(), strict=True) if count == 0]
    if info.label_sets is None and info.m - len(empty) < 2:
        raise InputError(
            f"dataset {info.id} has training rows of {info.m - len(empty)} class, and at least 2 are needed:"
            " give the images a folder for each class, or the features labels of several classes"
        )
    if info.label_sets is not None and (info.m < 2 or len(empty) == info.m):
        raise InputError(
            f"dataset {info.id} has {info.m} classes, {info.m - len(empty)} of them with training rows, and 2"
            " and 1 are the least: import labels of several classes"
        )
    if empty:
        shown = ", ".join(empty[:5]) + (" ..." if len(empty) > 5 else "")
        logger.warning("%d of %d classes have no training rows: %s", len(empty), info.m, shown)


def scale_note(rows: TrainingRows, transforms: Sequence[str]) -> str | None:
    """Return a note if features that are transformed so differ in scale, or None."""
    info = rows.dataset.info
    scaled = {"standardize", "pca"} & {name.partition(":")[0] for name in transforms}
    if scaled or info.layout == "csr":
        return None
    stored, together = TrainingRows(rows.dataset, "train"), _LOOKED_AT // _PLACES
    # Sample everywhere: the first rows may all be of one class.
    starts = np.unique(np.linspace(0, max(len(stored) - together, 0), _PLACES, dtype=np.int64)).tolist()
    parts = [np.asarray(stored[start : min(start + together, len(stored))]) for start in starts]
    means, names = info.features.get("kind") == "imported", info.features.get("columns")
    note = sizes_of_columns(np.concatenate(parts), means=means, names=names)
    return None if note is None else f"{note}: --transforms standardize,bias puts all on one scale"


def check_options(config: TrainConfig, n: int, m: int, *, several: bool = False) -> None:
    """Raise, as `checked_spec` does, for what cannot be trained on any n rows of m classes."""
    if not several and m < 2:
        raise InputError(
            f"the images are of {m} class, and at least 2 are needed: give them a folder for each class"
        )
    chosen = config.model_copy(update={"k": resolved_k(config.loss, config.k, config.weights, m)})
    loss = chosen_loss(chosen, m)
    _check_label_kind(chosen.class_weight, loss, m, "the images have", several=several)
    spec = spec_of(chosen, loss, n)
    spec.chosen(spec.problem(n, 1, m, LabelSets.from_lists([[0]], m)[0] if several else None))
    parse_transforms(config.transforms)


def checked_spec(config: TrainConfig, rows: TrainingRows) -> ProblemSpec:
    """Return the problem of resolved options for training rows; raise if they do not fit together."""
    info, loss = rows.dataset.info, dataset_loss(config, rows.dataset)
    _check_label_kind(
        config.class_weight, loss, info.m, f"dataset {info.id} has", several=info.label_sets is not None
    )
    spec = spec_of(config, loss, len(rows))
    if rows.own_weights is not None:
        spec = replace(spec, weights=spec.weights or "sample_weight")
    spec.chosen(spec.problem(*rows.shape, info.m, rows.solver_label_sets))
    dense = ChiSquaredKernel, IntersectionKernel, LaplacianKernel
    if isinstance(spec.kernel, dense) and info.layout == "csr":
        raise ConfigError(
            f"the kernel {spec.kernel.name} takes no sparse features: use linear, rbf or polynomial"
        )
    return spec


def spec_of(config: TrainConfig, loss: Loss, n: int) -> ProblemSpec:
    """Return the problem of resolved options for n training rows, with the kernel's parameters as given."""
    kernel = None
    if config.kernel is not None:
        kernel = make_kernel(config.kernel, config.kernel_gamma, config.kernel_degree, config.kernel_coef0)
    weights = None if config.class_weight == "none" else f"class_weight {config.class_weight}"
    return ProblemSpec(
        loss, None, config.C, config.smoothing, config.smoothing_kind, chosen_risk(config.average_top, n),
        config.method, kernel, weights, config.keep_duals, stored=True,
    )  # fmt: skip


def spec_of_model(record: ModelRecord) -> ProblemSpec:
    """Return the problem that a stored model solves, in the space of its weights."""
    kind: SmoothingKind = "others" if record.smoothing_kind == "others" else "moreau"
    return ProblemSpec(
        loss_from_dict(record.loss), record.lam, smoothing=record.smoothing, smoothing_kind=kind
    )


def _check_label_kind(class_weight: Any, loss: Loss, m: int, data: str, *, several: bool) -> None:
    """Raise if the loss and the rows, named by `data`, disagree on one or several labels per row."""
    form = loss.form(m)
    if not several:
        if form.needs_label_sets:
            raise ConfigError(
                f"the loss {loss.name} is for rows with several labels, and {data} one per row:"
                " use another loss, such as softmax, or import the labels as sets (of a table of images"
                " with --label-separator)"
            )
        return
    if not form.takes_label_sets:
        raise ConfigError(
            f"{data} rows with several labels, and the loss {loss.name} is for one per row: use {SEVERAL}"
        )
    if class_weight != "none":
        raise ConfigError(
            f"{data} rows with several labels, which have no class to be weighted by: leave"
            f" class_weight {class_weight} out"
        )


def check_kernel_values(rows: TrainingRows) -> None:
    """Raise if the rows are not the matrix of a kernel, in one pass, without holding n^2 numbers.

    For random signs v, K v = K^T v up to rounding if K is symmetric; otherwise row i of the two differs by at
    least the largest k_ij - k_ji with probability 1/2.  The diagonal and the matrix of up to 1,000 rows
    reveal negative eigenvalues.
    """
    n, d = rows.shape
    name = f"dataset {rows.dataset.info.id}"
    if d != n:
        raise ConfigError(
            f"{name} has {d:,} kernel values per row and {n:,} training rows: give k of every row with each"
            " training row, in their order, and say with --split which rows these are"
        )
    if rows.dataset.info.dtype == "float16":
        raise ConfigError(
            f"{name} holds kernel values in float16, whose rounding makes eigenvalues below zero: import it"
            " with --dtype float32"
        )
    random = np.random.default_rng(0)
    signs = random.choice([-1.0, 1.0], size=(n, PROBES))
    chosen = np.sort(random.choice(n, size=min(n, SAMPLED_ROWS), replace=False))
    along, across = np.zeros((n, PROBES)), np.zeros((n, PROBES))
    diagonal, sample, largest = np.zeros(n), np.zeros((len(chosen), len(chosen))), 0.0
    for start, stop, tile in rows.tiles():
        X: NDArray[Any] = (tile.toarray() if hasattr(tile, "toarray") else tile).astype(np.float64)
        along[start:stop] = X @ signs
        across += X.T @ signs[start:stop]
        diagonal[start:stop] = X[np.arange(stop - start), np.arange(start, stop)]
        low, high = np.searchsorted(chosen, [start, stop])
        sample[low:high] = X[np.ix_(chosen[low:high] - start, chosen)]
        largest = max(largest, float(np.abs(X).max(initial=0.0)))
    rounding = ROUNDINGS * float(np.finfo(np.float32).eps) * largest
    apart = np.abs(along - across).max(axis=1)
    if not np.all(apart <= rounding * n**0.5):
        worst = int(np.argmax(apart))
        raise ConfigError(
            f"the kernel values of {name} are not symmetric: those of training row {worst} differ by about"
            f" {apart[worst]:.3g} from those of the others with it; import K(rows, training rows), or"
            " (K + K.T) / 2 where that is rounding"
        )
    if diagonal.min(initial=0.0) < -rounding:
        worst = int(np.argmin(diagonal))
        raise ConfigError(
            f"the kernel of {name} is not positive semi-definite: k of training row {worst} with itself is"
            f" {diagonal[worst]:.3g}"
        )
    try:
        factor(0.5 * (sample + sample.T), "precomputed", rounded=True)
    except InvalidProblemError as error:
        raise ConfigError(f"{len(chosen):,} rows of {name}: {error}") from error


def refuse_size(n: int, budget: int) -> None:
    """Raise if a matrix would not fit the budget beside its factor, before any work."""
    needed = ARRAYS * 8 * n * n
    if needed > budget:
        raise ConfigError(
            f"the kernel matrix of {n:,} rows and its factor take {needed:,} bytes, more than the {budget:,}"
            " of --kernel-bytes: use the method dual_ascent, which holds no matrix, or raise it"
        )


# Dual variables up to this size are stored with the model by default.
STORED_DUALS_BYTES = 256 << 20
# Dual ascent keeps data up to this size in one block, on which several threads work, unless workers share it.
ASCENT_BLOCK_BYTES = 16 << 30
# Fewest rows of a block that computes a kernel, cut anywhere, and most such blocks: the work is columns of K.
KERNEL_BLOCK_ROWS, KERNEL_BLOCKS = 1024, 64

# What a resumed run may change: when to stop, and how often to save.
MAY_CHANGE = frozenset(
    {"store", "resume", "tol", "max_passes", "time_limit", "checkpoint_seconds", "certify", "kernel_bytes"}
    | {"start_from", "chosen"}
)

# Arrays of a checkpoint of version 0.1; the first present belongs to its dual variables or is the best W.
_EARLIER_WEIGHTS = ("memory.newton.W_dual", "memory.mixture.W", "memory.best", "W")
RUN_BYTES = 16 << 20
#: Share of common rows from which two trainings count as near.
_NEAR = 0.9
#: Settings that near trainings share.
_SAME = {"loss", "k", "C", "smoothing", "smoothing_kind"}
#: Settings that a model does not pass on: where and how long its training ran, and its start.
_OWN = {"store", "dataset", "resume", "start_from", "checkpoint_seconds", "certify", "chosen"}
#: Settings that concern one loss and are not passed on to another.
_OF_LOSS = {"k", "weights", "margins", "temperature", "smoothing", "smoothing_kind", "method"}

Options = TypeVar("Options", bound=BaseModel)


@dataclass(frozen=True, eq=False)
class MovedDuals:
    """An earlier model's dual variables for other rows; pickles, so that each worker reads its own.

    Row i was row `places[i]` of the earlier model, and class j its class `columns[j]`; -1 for new ones, whose
    dual variables are 0, which is feasible for every loss.
    """

    stored: StoredDuals
    places: NDArray[np.int64]
    columns: NDArray[np.int64]

    def __iter__(self) -> Iterator[tuple[int, int, NDArray[Any]]]:
        return self.between(0, len(self.places))

    def between(self, start: int, stop: int) -> Iterator[tuple[int, int, NDArray[Any]]]:
        """Yield the rows [start, stop), a few megabytes at a time."""
        step = max(1, RUN_BYTES // (4 * len(self.columns)))
        for low in range(start, stop, step):
            high = min(low + step, stop)
            yield low, high, self._rows(self.places[low:high])

    def _rows(self, places: NDArray[np.int64]) -> NDArray[Any]:
        out = np.zeros((len(places), len(self.columns)), dtype=np.float32)
        here = np.flatnonzero(places >= 0)
        here = here[np.argsort(places[here], kind="stable")]
        if not len(here):
            return out
        wanted, known = places[here], self.columns >= 0
        for first, last, rows in self.stored.between(int(wanted[0]), int(wanted[-1]) + 1):
            part = slice(*np.searchsorted(wanted, [first, last]))
            out[np.ix_(here[part], known)] = rows[wanted[part] - first][:, self.columns[known]]
        return out


@dataclass(frozen=True, eq=False)
class StartingPoint:
    """The start of a run; `how` is "duals", "weights" or "zero", `why` the reason for zero.

    `rows` of the run's rows are in the earlier model with the same content and label; `near` says that they
    are nearly all, but not all, of them, trained with the same settings.
    """

    model: str
    how: str
    rows: int = 0
    why: str = ""
    duals: MovedDuals | None = None
    near: bool = False
    state: SolverState | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the record of it in a model's lineage."""
        return {"model": self.model, "from": self.how, "rows": self.rows, "why": self.why}


@dataclass(frozen=True, eq=False)
class TrainingPlan:
    """What is trained: rows, problem, blocks and start; a value without anything on disk.

    `config` is resolved (dataset id, k) and `spec` is its meaning, with the method of `choice`, which
    requires what `method` says, and the kernel's parameters fitted to the rows.  With a kernel, blocks
    compute it on demand (`on_blocks`), or the rows of a factor of its matrix replace the features
    (`factors_kernel`).  The blocks hold dual variables with `keep_duals`, and the model with `stores_duals`.
    `shared` says how workers share a hinge, None if nothing is to decide.
    """

    config: TrainConfig
    store: Store
    rows: TrainingRows
    examples: LabelledRows
    spec: ProblemSpec
    problem: Problem
    method: MethodSpec
    choice: Choice
    transforms: Transforms
    on_blocks: bool
    factors_kernel: bool
    stores_duals: bool
    keep_duals: bool
    start: StartingPoint | None = None
    shared: SharedWork | None = None

    def why(self, result: SolveResult) -> str:
        """Return why this method solved the result, on so many blocks."""
        why = result.why if self.choice.method == DEFAULT_METHOD else self.choice.why
        return why if self.shared is None else f"{why}; {self.blocks_why}"

    @property
    def may_share(self) -> bool:
        """Whether workers may share the rows of a hinge, in as many blocks as take least time."""
        form = self.problem.form
        hinge = form.convex and not form.smooth and self.spec.kernel is None
        several = self.config.blocks is None and self.rows.batches > 1
        return hinge and several and self.method.one_block

    @property
    def blocks_why(self) -> str:
        """What the model of costs says of the blocks, "" where it was not asked."""
        if self.shared is None:
            return ""
        blocks, alone = how_many(self.shared.blocks, "blocks"), self.shared.alone
        if self.shared.blocks == 1:
            return f"one block, which takes {alone:.2g} s a pass, as several would not take less"
        shared = f"forecast to take {self.shared.seconds:.2g} s a pass, and one {alone:.2g} s"
        return f"{blocks} at the same time, {shared}"

    def bounds_of(self, rows: TrainingRows) -> list[int]:
        """Return the rows at which blocks are cut, by data and options, or as workers share a hinge."""
        if self.on_blocks:
            blocks = self.config.blocks or max(1, min(len(rows) // KERNEL_BLOCK_ROWS, KERNEL_BLOCKS))
            return list(block_bounds(len(rows), min(blocks, len(rows))))
        if self.method.one_block:
            shared = 1 if self.shared is None else self.shared.blocks
            return rows.block_bounds(most=max(_ascent_blocks(self.config.blocks, rows), shared))
        return rows.block_bounds(most=self.config.blocks or BLOCKS_AT_MOST)


def _ascent_blocks(blocks: int | None, rows: TrainingRows) -> int:
    """Return the number of blocks for dual ascent, whoever works."""
    most = blocks or max(-(-rows.nbytes // ASCENT_BLOCK_BYTES), 1)
    return min(most, max(rows.batches, 1))


def _stores_duals(config: TrainConfig, method: MethodSpec, problem: Problem, rows: TrainingRows) -> bool:
    """Return whether the dual variables are stored with the model; with a kernel they are the model."""
    if config.kernel is not None:
        return True
    if method.dual_free or not problem.form.convex or config.average_top is not None:
        return False
    if config.keep_duals is not None:
        return config.keep_duals
    # If the blocks hold A anyway, store it up to the features' size: it makes the strongest certificate.
    held = method.needs_duals(problem.form, config.smoothing)
    return len(rows) * problem.m * 4 <= max(STORED_DUALS_BYTES, rows.nbytes if held else 0)


def plan_training(config: TrainConfig) -> TrainingPlan:
    """Open the data, check the problem and fit the transforms; raise for what cannot be trained."""
    store = open_store(config.store)
    if config.resume is not None:
        run = read_run(store, config.resume)
        config = resume_options(config, run.config, f"run {run.id}", MAY_CHANGE)
    dataset = Dataset.open(store, config.dataset)
    raw = TrainingRows(dataset, "train")
    check_labels(raw)
    config = resolve_options(config, dataset)
    spec = checked_spec(config, raw)
    # A resumed run keeps its transforms and method.
    found = None if config.resume is None else latest_checkpoint(store, config.resume, check_duals=False)
    if found is not None:
        transforms = Transforms.from_arrays(config.transforms, found.arrays)
    else:
        sparse, tiles = raw.dataset.info.layout == "csr", lambda: (rows for _, _, rows in raw.tiles())
        transforms = Transforms.fit(config.transforms, tiles, is_sparse=sparse, seed=config.seed)
    # A smooth loss continues from the weights of an earlier model.
    begun = None if config.start_from is None else "lbfgs"
    if found is not None:
        begun = begun_by(load_state(found), duals=found.has_duals)
    rows = TrainingRows(dataset, "train", transforms)
    if spec.kernel is not None:
        if is_precomputed(spec.kernel):
            check_kernel_values(rows)
        spec = replace(spec, kernel=spec.kernel.resolved(rows))
    names = dataset.class_names
    examples = LabelledRows.of(
        spec.loss, rows, rows.labels(), m=dataset.info.m, label_sets=rows.solver_label_sets,
        sample_weight=example_weights(config.class_weight, rows.labels(), names, rows.own_weights),
    )  # fmt: skip
    n, d = examples.rows.shape
    problem = spec.problem(n, d, examples.m, examples.label_sets)
    # Chosen by the data and the options, not the workers: every cluster takes the same passes.
    method, choice = spec.chosen(
        problem, rows=rows if _ascent_blocks(config.blocks, rows) == 1 else None, begun=begun
    )
    stored = _stores_duals(config, method, problem, rows)
    on_blocks = spec.on_blocks(problem, method.name)
    plan = TrainingPlan(
        config, store, rows, examples, replace(spec, method=method.name, keep_duals=stored), problem, method,
        choice, transforms, on_blocks, spec.kernel is not None and not on_blocks,
        stores_duals=stored,
        keep_duals=stored or method.needs_duals(problem.form, config.smoothing),
    )  # fmt: skip
    if plan.factors_kernel:
        refuse_size(len(rows), config.kernel_bytes)
    if config.start_from is None:
        return plan
    return replace(plan, start=_starting_point(plan, config.start_from))


def resolve_options(config: TrainConfig, dataset: Dataset) -> TrainConfig:
    """Return the options with the dataset's id and k filled in."""
    k = resolved_k(config.loss, config.k, config.weights, dataset.info.m)
    return config.model_copy(update={"dataset": dataset.info.id, "k": k})


def dataset_loss(config: TrainConfig, dataset: Dataset) -> Loss:
    """Return the loss of resolved options for the classes of a dataset."""
    facts = None
    if config.margins is not None:
        facts = ClassFacts(dataset.class_names, TrainingRows(dataset, "train").class_counts().tolist())
    return chosen_loss(config, dataset.info.m, facts)


def run_identity(config: TrainConfig, dataset: Dataset) -> dict[str, Any]:
    """Return what must not change if a run is to continue to the same answer; `config` is resolved."""
    chosen = config.model_dump(mode="json", exclude=set(MAY_CHANGE))
    if config.margins is not None:
        # The file may have changed: its content defines the problem, not its name.
        loss = dataset_loss(config, dataset)
        content = loss.margins.tobytes() if isinstance(loss, StructuredHinge) else b""
        chosen["margins_sha256"] = hashlib.sha256(content).hexdigest()
    return {**chosen, "dataset": dataset.info.id, "dataset_digest": dataset.info.digest}


def resume_options(
    config: Options, recorded: Mapping[str, Any], what: str, may_change: frozenset[str]
) -> Options:
    """Return `config` completed by `recorded` options; raise `MismatchError` for others than `may_change`."""
    given = config.model_dump(mode="json", include=config.model_fields_set)
    if given.get("dataset") == "latest":
        del given["dataset"]
    changed = [
        f"{key} was {recorded.get(key)!r}, now {value!r}"
        for key, value in sorted(given.items())
        if key not in may_change and recorded.get(key) != value
    ]
    if changed:
        raise MismatchError(
            f"{what} cannot continue with other settings ({', '.join(changed)}): leave these options out"
        )
    try:
        return type(config).model_validate({**recorded, **given})
    except ValidationError as error:
        raise ConfigError(f"the settings of {what} cannot be read: {error}") from error


def settings_of_model(config: TrainConfig, model_url: str) -> TrainConfig:
    """Return `config`, which starts from a model, with open settings taken from that model's training.

    Store and dataset are the model's; k, weights, margins, smoothing and method only for the same loss.
    Raises `ConfigError` if the settings do not fit together.
    """
    model, given = load_model(model_url), config.model_dump(include=config.model_fields_set)
    own = {"store": model.store.url, "dataset": model.record.dataset, **given, "start_from": model.record.id}
    return continued({**handed_on(config, model.record), **own}, model.record)


def handed_on(config: TrainConfig, record: ModelRecord) -> dict[str, Any]:
    """Return, by name, the settings that `config` leaves open; a loss's own only for the same loss."""
    recorded, given = record.config, config.model_fields_set
    other_loss = "loss" in given and config.loss != recorded.get("loss")
    left_out = _OWN | given | (_OF_LOSS if other_loss else set())
    return {
        name: value
        for name, value in recorded.items()
        if name in TrainConfig.model_fields and name not in left_out
    }


def continued(values: dict[str, Any], record: ModelRecord) -> TrainConfig:
    """Return the options of training continued from a model; raise `ConfigError` if they do not fit."""
    try:
        return TrainConfig.model_validate(values)
    except ValidationError as error:
        raise ConfigError(f"the settings of {record.id} cannot be continued: {error}") from error


def _starting_point(plan: TrainingPlan, model: str) -> StartingPoint:
    """Return the start that the model of id `model` gives; raise `NotFoundError` if there is none.

    A is feasible for any n, lam and features, so stored dual variables are taken if the method keeps them.
    W alone starts L-BFGS and Newton's method on a smooth loss, which step from any W, even one that learned
    from removed rows; Frank-Wolfe only with the sums of its A, while every row of that A is still there.
    """
    try:
        earlier = StoredModel.open(join(plan.rows.dataset.store.url, "models", model))
        places, n_before = _places(plan.rows, earlier)
    except (InputError, IntegrityError) as error:
        return StartingPoint(model, "zero", why=str(error))
    columns = _columns(plan.rows.dataset.class_names, earlier.model.record.class_names)
    carried = int((places >= 0).sum())
    calibration = TrainingRows(plan.rows.dataset, "calibration")
    if len(calibration) and not set(_keys(calibration)).isdisjoint(_keys(earlier.rows("train"))):
        why = f"{model} was trained on rows that are for calibration now"
        return StartingPoint(model, "zero", carried, why)
    problem = _weights_misfit(plan, earlier)
    primal = _moves_weights(plan) and not problem
    if plan.keep_duals and earlier.model.has_duals and not primal:
        duals = MovedDuals(earlier.model.dual_blocks(), places, columns)
        # If every row stayed, the start may be the answer, so measure it first.
        most = max(n_before, len(plan.rows))
        settings, before = plan.config.model_dump(mode="json", include=_SAME), earlier.model.record.config
        same = all(before.get(name) == value for name, value in settings.items())
        near = same and _NEAR * most <= carried < most
        return StartingPoint(model, "duals", carried, duals=duals, near=near)
    if problem:
        return StartingPoint(model, "zero", carried, problem)
    record = earlier.model.record
    # The best W need not be W(A), to which b belongs.
    stored = earlier.W
    if not primal and DUAL_W in earlier.model.arrays:
        stored = np.asarray(earlier.model.array(DUAL_W))
    W = np.zeros((plan.rows.shape[1], plan.problem.m))
    W[:, columns >= 0] = stored[:, columns[columns >= 0]]
    if primal:
        state = replace(SolverState.at(W), left_behind=carried < n_before)
        return StartingPoint(model, "weights", carried, state=state)
    if carried < n_before or (columns < 0).any() or "dual_sums" not in earlier.model.arrays:
        why = f"rows or classes of {model} changed, and its dual variables are not stored"
        return StartingPoint(model, "zero", carried, why)
    # The same A with rows of zeros: means are over more rows, and W(A) = C X^T A has no n in it.
    conjugate_mean, mean_sq_dual = earlier.model.array("dual_sums") * (record.n / len(plan.rows))
    state = SolverState.at(W * (plan.config.C / record.C), float(conjugate_mean), float(mean_sq_dual))
    return StartingPoint(model, "weights", carried, state=state)


def _moves_weights(plan: TrainingPlan) -> bool:
    """Return whether the method starts from any W, from which it makes the dual variables."""
    newton = plan.choice.method == "newton" and plan.problem.form.smooth
    return newton or plan.choice.method == "lbfgs"


def _weights_misfit(plan: TrainingPlan, earlier: StoredModel) -> str:
    record = earlier.model.record
    if plan.config.kernel is not None or record.kernel is not None:
        return "a kernel has no weights to start from"
    if record.d != plan.rows.shape[1] or tuple(record.transforms) != tuple(plan.transforms.record()):
        return f"{record.id} has other transforms"
    earlier_top = record.config.get("average_top") is not None
    if plan.config.average_top is not None or (earlier_top and plan.choice.method == "fw"):
        return "the dual point of an average top-k risk is not carried over to other rows or risks"
    if not _moves_weights(plan) and plan.choice.method != "fw":
        return f"the method {plan.choice.method} starts from dual variables, and {record.id} has none"
    if plan.choice.method == "fw" and record.loss != plan.spec.loss.to_dict():
        return f"{record.id} has another loss"
    return ""


def _places(rows: TrainingRows, earlier: StoredModel) -> tuple[NDArray[np.int64], int]:
    """Return the earlier model's row of each row's content and label (-1 for none), and its row count."""
    before = earlier.rows("train")
    if before.dataset.info.d != rows.dataset.info.d:
        raise InputError(f"{earlier.model.record.id} has rows of other features")
    known = {key: place for place, key in enumerate(_keys(before))}
    found = [known.get(key, -1) for key in _keys(rows)]
    return np.array(found, dtype=np.int64), len(before)


def _keys(rows: TrainingRows) -> list[tuple[str, str]]:
    """Return the content (for imported features, the name) and class of each row."""
    table = rows.dataset.manifest().select(["sample_id", "sha256"]).take(rows.indices)
    names = rows.label_names()
    pairs = zip(table["sample_id"].to_pylist(), table["sha256"].to_pylist(), names.tolist(), strict=True)
    return [(digest or f"id {name}", label) for name, digest, label in pairs]


def _columns(names: Sequence[str], before: Sequence[str]) -> NDArray[np.int64]:
    known = {name: code for code, name in enumerate(before)}
    return np.array([known.get(name, -1) for name in names], dtype=np.int64)


def load_state(checkpoint: Checkpoint) -> SolverState:
    """Return the saved state with every step applied; raise InvalidProblemError for an unknown one."""
    stored = checkpoint.meta["state"]
    if not is_of_earlier_format(checkpoint):
        state: SolverState = decoded(stored, checkpoint.arrays)
        return state
    W = next(checkpoint.arrays[name] for name in _EARLIER_WEIGHTS if name in checkpoint.arrays)
    point = Point(stored["round"], np.asarray(W, dtype=np.float64), stored["b"], stored["aa"])
    memory = LbfgsMemory() if "memory.best" in checkpoint.arrays else None
    return SolverState(point, memory=memory, passes=stored["passes"], seconds=stored["seconds"])


def is_of_earlier_format(checkpoint: Checkpoint) -> bool:
    """Return whether this version can no longer read the method's memory."""
    return "is" not in checkpoint.meta["state"]
