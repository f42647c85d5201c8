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
from topline.pipeline.options.margins import ClassFacts
from topline.pipeline.options.problem import chosen_loss, resolved_k
from topline.pipeline.rows import TrainingRows, Transforms, class_weights, example_weights
from topline.pipeline.training.kernel_matrix import refuse_size
from topline.pipeline.training.problem_checks import check_kernel_values, check_labels, checked_spec
from topline.pipeline.training.saved_state import load_state
from topline.pipeline.training.starting_point import StartingPoint, Successor, starting_point
from topline.solvers.core.inputs import LabelledRows
from topline.solvers.core.problem import Problem
from topline.solvers.core.state import SolveResult
from topline.solvers.executors import block_bounds
from topline.solvers.kernels import is_precomputed
from topline.solvers.losses import Loss, StructuredHinge
from topline.solvers.methods import METHODS, Choice, MethodSpec, begun_by
from topline.solvers.names import DEFAULT_METHOD
from topline.solvers.run import ProblemSpec
from topline.storage.datasets import Dataset
from topline.storage.errors import MismatchError
from topline.storage.runs import latest_checkpoint, read_run
from topline.storage.stores import Store, open_store

# Dual variables are stored with the model by default while they take no more than this.
STORED_DUALS_BYTES = 256 << 20
# Dual ascent keeps data of up to this size in one block, on which several threads work together: eight blocks
# take some six times the passes of one (`tests.benchmarks.scale.gap_curve`), and more on harder problems.
ASCENT_BLOCK_BYTES = 16 << 30
# A block that computes a kernel has so many rows at least, cut wherever they lie, and there are so many at
# most: its work is columns of K.
KERNEL_BLOCK_ROWS, KERNEL_BLOCKS = 1024, 64

# What may differ between a run and its resumption: when to stop, and how often to save.
MAY_CHANGE = frozenset(
    {"store", "resume", "tol", "max_passes", "time_limit", "checkpoint_seconds", "certify", "kernel_bytes"}
    | {"start_from", "chosen"}
)

Options = TypeVar("Options", bound=BaseModel)


@dataclass(frozen=True, eq=False)
class TrainingPlan:
    """What is trained: rows, problem, blocks and start; a value, of which nothing is on disk.

    `config` is resolved: the dataset has its id, k its value; `spec` is what that means, the kernel's
    parameters fitted to the rows.  With a kernel blocks keep the scores of their rows, or the rows of a
    factor of its matrix take the place of features (`topline.pipeline.training.kernel_training`).  `start` is
    what an earlier model gives to start from, None where nobody asked; `begun` is the method of the
    checkpoint that a run goes on from, None of a new one.
    """

    config: TrainConfig
    store: Store
    rows: TrainingRows
    examples: LabelledRows
    spec: ProblemSpec
    transforms: Transforms
    start: StartingPoint | None = None
    begun: str | None = None

    @property
    def m(self) -> int:
        """Number of classes."""
        return self.examples.m

    @property
    def identity(self) -> dict[str, Any]:
        """What must be the same for a run to continue to the same answer, by name."""
        return run_identity(self.config, self.rows.dataset)

    @property
    def convex(self) -> bool:
        """Whether the loss has a dual problem, and its models a certificate."""
        return self.problem.form.convex

    @property
    def class_weights(self) -> NDArray[np.float64] | None:
        """How often an example of each class counts (m,), None once."""
        rows = self.rows
        return class_weights(
            self.config.class_weight, rows.labels(), rows.dataset.class_names, rows.own_weights
        )

    @property
    def method(self) -> MethodSpec:
        """What the method asks for that is named, or that "auto" takes."""
        return METHODS[self.choice.method]

    @cached_property
    def choice(self) -> Choice:
        """The method that is named, or that "auto" takes, and why."""
        _, choice = self.spec.chosen(
            self.problem,
            # By the data and the options, not by the workers: on any of them a run takes the same passes.
            rows=self.rows if len(self._ascent_bounds(self.rows)) == 2 else None,
            begun=self.begun,
        )
        return choice

    def why(self, result: SolveResult) -> str:
        """Return why the result was solved by what it was."""
        return result.why if self.choice.method == DEFAULT_METHOD else self.choice.why

    @cached_property
    def problem(self) -> Problem:
        """What is solved, in terms of the rows themselves."""
        return self.spec.problem_of(self.examples)

    @property
    def spec_of_method(self) -> ProblemSpec:
        """What is solved by the method that was chosen, A kept where it is to be stored."""
        return replace(self.spec, method=self.choice.method, keep_duals=self.stores_duals)

    @property
    def on_blocks(self) -> bool:
        """Whether blocks compute the kernel where they need it; else a factor of it is trained on."""
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
        # Where the blocks hold A anyway, a copy of up to the features' size: no certificate is as strong.
        held = self.method.needs_duals(self.problem.form, self.config.smoothing)
        return len(self.rows) * self.m * 4 <= max(STORED_DUALS_BYTES, self.rows.nbytes if held else 0)

    @property
    def keep_duals(self) -> bool:
        """Whether the blocks hold dual variables; smoothing and the dual methods need them."""
        return self.stores_duals or self.method.needs_duals(self.problem.form, self.config.smoothing)

    @property
    def bounds(self) -> list[int]:
        """Training rows at which blocks are cut, where the rows themselves are trained on."""
        return self.bounds_of(self.rows)

    def bounds_of(self, rows: TrainingRows) -> list[int]:
        """Return the rows at which blocks are cut; fixed by data and options, never by the workers.

        Frank-Wolfe does not mind how many there are.  Dual ascent takes several times the rounds as soon as
        two blocks move at the same time, so it gets no more than it needs.
        """
        if self.on_blocks:
            blocks = self.config.blocks or max(1, min(len(rows) // KERNEL_BLOCK_ROWS, KERNEL_BLOCKS))
            return list(block_bounds(len(rows), min(blocks, len(rows))))
        if self.method.one_block:
            return self._ascent_bounds(rows)
        return rows.block_bounds(most=self.config.blocks or BLOCKS_AT_MOST)

    def _ascent_bounds(self, rows: TrainingRows) -> list[int]:
        """Return the rows at which dual ascent has them cut."""
        return rows.block_bounds(most=self.config.blocks or -(-rows.nbytes // ASCENT_BLOCK_BYTES))


def plan_training(config: TrainConfig) -> TrainingPlan:
    """Open the data, check that it makes a problem and fit the transforms; nothing is written.

    Raises `InputError`, `ConfigError`, `InvalidProblemError` or `MismatchError` for what cannot be trained.
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
    # A resumed run goes on with the transforms and the method that it began with.
    found = None if config.resume is None else latest_checkpoint(store, config.resume, check_duals=False)
    transforms = (
        _fitted(config, raw) if found is None else Transforms.from_arrays(config.transforms, found.arrays)
    )
    # A smooth loss goes on from the weights of an earlier model.
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
    """Return the options with what the data decides filled in: the dataset's id, and k."""
    k = resolved_k(config, dataset.info.m)
    return config.model_copy(update={"dataset": dataset.info.id, "k": k})


def dataset_loss(config: TrainConfig, dataset: Dataset) -> Loss:
    """Return the loss that resolved options mean for the classes of a dataset."""
    facts = None
    if config.margins is not None:
        facts = ClassFacts(dataset.class_names, TrainingRows(dataset, "train").class_counts().tolist())
    return chosen_loss(config, dataset.info.m, facts)


def run_identity(config: TrainConfig, dataset: Dataset) -> dict[str, Any]:
    """Return what must be the same for a run to continue to the same answer; `config` is resolved."""
    chosen = config.model_dump(mode="json", exclude=set(MAY_CHANGE))
    if config.margins is not None:
        # The file may have changed since: its content makes the problem, not its name.
        loss = dataset_loss(config, dataset)
        content = loss.margins.tobytes() if isinstance(loss, StructuredHinge) else b""
        chosen["margins_sha256"] = hashlib.sha256(content).hexdigest()
    return {**chosen, "dataset": dataset.info.id, "dataset_digest": dataset.info.digest}


def resume_options(
    config: Options, recorded: Mapping[str, Any], what: str, may_change: frozenset[str]
) -> Options:
    """Return `config` with what is not given taken from the `recorded` options of `what`, which is resumed.

    Raises `MismatchError` naming what is given, differs and is not in `may_change`.
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
