"""The plan of a training run: data, problem, blocks and start, checked before anything is written.

A run starts from zero, or continues an earlier model from its dual variables or its weights.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ValidationError

from topline.pipeline.certification import DUAL_W
from topline.pipeline.errors import ConfigError, InputError
from topline.pipeline.options import BLOCKS_AT_MOST, TrainConfig
from topline.pipeline.options.problem import ClassFacts, chosen_loss, resolved_k
from topline.pipeline.rows import StoredModel, TrainingRows, Transforms, example_weights
from topline.pipeline.training.checkpointing import load_state
from topline.pipeline.training.problem_checks import (
    check_kernel_values,
    check_labels,
    checked_spec,
    refuse_size,
)
from topline.solvers.core.problem import LabelledRows, Problem
from topline.solvers.core.state import SolveResult, SolverState
from topline.solvers.counts import how_many
from topline.solvers.executors import block_bounds
from topline.solvers.kernels import is_precomputed
from topline.solvers.losses import Loss, StructuredHinge
from topline.solvers.methods import METHODS, Choice, MethodSpec, begun_by
from topline.solvers.methods.shared_work import SharedWork
from topline.solvers.names import DEFAULT_METHOD
from topline.solvers.run import ProblemSpec
from topline.storage.arrays import StoredDuals
from topline.storage.datasets import Dataset
from topline.storage.errors import IntegrityError, MismatchError
from topline.storage.models import ModelRecord, load_model
from topline.storage.runs import latest_checkpoint, read_run
from topline.storage.stores import Store, open_store
from topline.storage.stores.urls import join

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

    `config` is resolved (dataset id, k) and `spec` is its meaning, with the method of `choice` and the
    kernel's parameters fitted to the rows.  With a kernel, blocks compute it on demand (`on_blocks`), or the
    rows of a factor of its matrix replace the features.  The blocks hold dual variables with `keep_duals`,
    and the model with `stores_duals`.  `shared` says how workers share a hinge, None if nothing is to decide.
    """

    config: TrainConfig
    store: Store
    rows: TrainingRows
    examples: LabelledRows
    spec: ProblemSpec
    problem: Problem
    choice: Choice
    transforms: Transforms
    on_blocks: bool
    stores_duals: bool
    keep_duals: bool
    start: StartingPoint | None = None
    shared: SharedWork | None = None

    @property
    def method(self) -> MethodSpec:
        """Requirements of the named method, or of the one that "auto" takes."""
        return METHODS[self.choice.method]

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

    @property
    def bounds(self) -> list[int]:
        """Training rows at which blocks are cut, for training on the rows themselves."""
        return self.bounds_of(self.rows)

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


def _stores_duals(config: TrainConfig, spec: ProblemSpec, problem: Problem, rows: TrainingRows) -> bool:
    """Return whether the dual variables are stored with the model; with a kernel they are the model."""
    method = METHODS[spec.method]
    if spec.kernel is not None:
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
    spec = checked_spec(config, dataset_loss(config, dataset), raw)
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
    _, choice = spec.chosen(
        problem, rows=rows if _ascent_blocks(config.blocks, rows) == 1 else None, begun=begun
    )
    spec = replace(spec, method=choice.method)
    stored = _stores_duals(config, spec, problem, rows)
    plan = TrainingPlan(
        config, store, rows, examples, replace(spec, keep_duals=stored), problem, choice, transforms,
        on_blocks=spec.on_blocks(problem, choice.method),
        stores_duals=stored,
        keep_duals=stored or METHODS[choice.method].needs_duals(problem.form, config.smoothing),
    )  # fmt: skip
    if spec.kernel is not None and not plan.on_blocks:
        refuse_size(len(rows), config.kernel_bytes)
    if config.start_from is None:
        return plan
    return replace(plan, start=_starting_point(plan, config.start_from))


def resolve_options(config: TrainConfig, dataset: Dataset) -> TrainConfig:
    """Return the options with the dataset's id and k filled in."""
    k = resolved_k(config, dataset.info.m)
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
