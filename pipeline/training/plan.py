"""The plan of a training run: data, problem, blocks and start, checked before anything is written."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ValidationError

from topline.pipeline.errors import ConfigError
from topline.pipeline.options import BLOCKS_AT_MOST, TrainConfig
from topline.pipeline.options.problem import ClassFacts, chosen_loss, resolved_k
from topline.pipeline.rows import TrainingRows, Transforms, class_weights, example_weights
from topline.pipeline.training.kernel_matrix import refuse_size
from topline.pipeline.training.problem_checks import check_kernel_values, check_labels, checked_spec
from topline.pipeline.training.saved_state import load_state
from topline.pipeline.training.starting_point import StartingPoint, Successor, starting_point
from topline.solvers.core.problem import LabelledRows, Problem
from topline.solvers.core.state import SolveResult
from topline.solvers.counts import how_many
from topline.solvers.executors import block_bounds
from topline.solvers.kernels import is_precomputed
from topline.solvers.losses import Loss, StructuredHinge
from topline.solvers.methods import METHODS, Choice, MethodSpec, begun_by
from topline.solvers.methods.shared_work import SharedWork
from topline.solvers.names import DEFAULT_METHOD
from topline.solvers.run import ProblemSpec
from topline.storage.datasets import Dataset
from topline.storage.errors import MismatchError
from topline.storage.runs import latest_checkpoint, read_run
from topline.storage.stores import Store, open_store

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

Options = TypeVar("Options", bound=BaseModel)


@dataclass(frozen=True, eq=False)
class TrainingPlan:
    """What is trained: rows, problem, blocks and start; a value without anything on disk.

    `config` is resolved (dataset id, k) and `spec` is its meaning, with the kernel's parameters fitted to the
    rows.  With a kernel, blocks keep the scores of their rows, or the rows of a factor of its matrix replace
    the features (`topline.pipeline.training.kernel_training`).  `start` is the start from an earlier model,
    or None; `begun` is the method of the checkpoint that a run resumes, None for a new run.  `shared` says
    how workers share a hinge, None before that is decided, or if nothing is to decide.
    """

    config: TrainConfig
    store: Store
    rows: TrainingRows
    examples: LabelledRows
    spec: ProblemSpec
    transforms: Transforms
    start: StartingPoint | None = None
    begun: str | None = None
    shared: SharedWork | None = None

    @property
    def m(self) -> int:
        """Number of classes."""
        return self.examples.m

    @property
    def identity(self) -> dict[str, Any]:
        """What must not change if a run is to continue to the same answer, by name."""
        return run_identity(self.config, self.rows.dataset)

    @property
    def convex(self) -> bool:
        """Whether the loss has a dual problem, and its models a certificate."""
        return self.problem.form.convex

    @property
    def class_weights(self) -> NDArray[np.float64] | None:
        """Weight of each class's examples (m,), None for equal weights."""
        rows = self.rows
        return class_weights(
            self.config.class_weight, rows.labels(), rows.dataset.class_names, rows.own_weights
        )

    @property
    def method(self) -> MethodSpec:
        """Requirements of the named method, or of the one that "auto" takes."""
        return METHODS[self.choice.method]

    @cached_property
    def choice(self) -> Choice:
        """The method that is named, or that "auto" takes, and why."""
        _, choice = self.spec.chosen(
            self.problem,
            # Chosen by the data and the options, not the workers: every cluster takes the same passes.
            rows=self.rows if self._data_blocks(self.rows) == 1 else None,
            begun=self.begun,
        )
        return choice

    def why(self, result: SolveResult) -> str:
        """Return why this method solved the result, on so many blocks."""
        why = result.why if self.choice.method == DEFAULT_METHOD else self.choice.why
        return why if self.shared is None else f"{why}; {self.blocks_why}"

    @property
    def may_share(self) -> bool:
        """Whether workers may share the rows of a hinge, in as many blocks as take least time."""
        hinge = self.convex and not self.problem.form.smooth and self.spec.kernel is None
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

    @cached_property
    def problem(self) -> Problem:
        """The problem, in terms of the rows themselves."""
        return self.spec.problem_of(self.examples)

    @property
    def spec_of_method(self) -> ProblemSpec:
        """The chosen method's problem, keeping A if it is to be stored."""
        return replace(self.spec, method=self.choice.method, keep_duals=self.stores_duals)

    @property
    def on_blocks(self) -> bool:
        """Whether blocks compute the kernel on demand; otherwise training uses a factor."""
        return self.spec.on_blocks(self.problem, self.choice.method)

    @property
    def stores_duals(self) -> bool:
        """Whether the dual variables are stored with the model; with a kernel they are the model."""
        if self.spec.kernel is not None:
            return True
        if self.method.dual_free or not self.convex or self.config.average_top is not None:
            return False
        if self.config.keep_duals is not None:
            return self.config.keep_duals
        # If the blocks hold A anyway, store it up to the features' size: it makes the strongest certificate.
        held = self.method.needs_duals(self.problem.form, self.config.smoothing)
        return len(self.rows) * self.m * 4 <= max(STORED_DUALS_BYTES, self.rows.nbytes if held else 0)

    @property
    def keep_duals(self) -> bool:
        """Whether the blocks hold dual variables, as smoothing and the dual methods require."""
        return self.stores_duals or self.method.needs_duals(self.problem.form, self.config.smoothing)

    @property
    def bounds(self) -> list[int]:
        """Training rows at which blocks are cut, for training on the rows themselves."""
        return self.bounds_of(self.rows)

    def bounds_of(self, rows: TrainingRows) -> list[int]:
        """Return the rows at which blocks are cut.

        Data and options decide, but for a hinge that workers share (`topline.solvers.methods.shared_work`).
        """
        if self.on_blocks:
            blocks = self.config.blocks or max(1, min(len(rows) // KERNEL_BLOCK_ROWS, KERNEL_BLOCKS))
            return list(block_bounds(len(rows), min(blocks, len(rows))))
        if self.method.one_block:
            shared = 1 if self.shared is None else self.shared.blocks
            return rows.block_bounds(most=max(self._data_blocks(rows), shared))
        return rows.block_bounds(most=self.config.blocks or BLOCKS_AT_MOST)

    def _data_blocks(self, rows: TrainingRows) -> int:
        """Return the number of blocks for dual ascent, whoever works."""
        most = self.config.blocks or max(-(-rows.nbytes // ASCENT_BLOCK_BYTES), 1)
        return min(most, max(rows.batches, 1))


def plan_training(config: TrainConfig) -> TrainingPlan:
    """Open the data, check that it makes a problem and fit the transforms, without writing.

    Raises `InputError`, `ConfigError`, `InvalidProblemError` or `MismatchError` if it cannot be trained.
    """
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
    transforms = (
        _fitted(config, raw) if found is None else Transforms.from_arrays(config.transforms, found.arrays)
    )
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
    plan = TrainingPlan(config, store, rows, examples, spec, transforms, begun=begun)
    if spec.kernel is not None and not plan.on_blocks:
        refuse_size(len(rows), config.kernel_bytes)
    if config.start_from is None:
        return plan
    successor = Successor(config, rows, transforms, spec.loss, plan.choice.method, plan.keep_duals)
    return replace(plan, start=starting_point(successor, config.start_from))


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
    """Return `config` with open options taken from the `recorded` ones of `what`, which is resumed.

    Raises `MismatchError` naming options that differ and are not in `may_change`.
    """
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


def _fitted(config: TrainConfig, raw: TrainingRows) -> Transforms:
    """Fit the transforms on the training rows."""
    return Transforms.fit(
        config.transforms,
        lambda: (rows for _, _, rows in raw.tiles()),
        is_sparse=raw.dataset.info.layout == "csr",
        seed=config.seed,
    )
