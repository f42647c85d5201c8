"""Everything about a training run that is settled before its first round."""

from __future__ import annotations

import hashlib
import importlib.metadata
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from topline.pipeline.errors import ConfigError
from topline.pipeline.options.average_top_k import chosen_risk
from topline.pipeline.options.loss import chosen_loss, read_margins, settled_k
from topline.pipeline.options.train import TrainConfig
from topline.pipeline.rows.partition import TrainingRows
from topline.pipeline.rows.transforms import Transforms
from topline.pipeline.training.checkpointing import RunPlace
from topline.pipeline.training.checks import check_labels, check_problem
from topline.pipeline.training.kernel_training import planned_kernel
from topline.pipeline.training.starting_point import StartingPoint, starting_point
from topline.solvers.core.risks import Risk
from topline.solvers.kernels.functions import Kernel
from topline.solvers.losses import Loss
from topline.solvers.losses.label_sets import LabelSets
from topline.solvers.methods.registry import MethodSpec, method_named
from topline.storage.cache import StoredKernel
from topline.storage.datasets import Dataset
from topline.storage.errors import MismatchError
from topline.storage.models import ModelRecord
from topline.storage.runs import create_run, latest_checkpoint, read_run
from topline.storage.stores import Store, open_store

# Dual variables are stored with the model by default while they take no more than this.
STORED_DUALS_BYTES = 256 << 20
# Dual ascent keeps data of up to this size in one block.
ASCENT_BLOCK_BYTES = 512 << 20

# What may differ between a run and its resumption: when to stop, and how often to save.
MAY_CHANGE = frozenset(
    {"store", "resume", "tol", "max_passes", "time_limit", "checkpoint_seconds", "certify", "kernel_bytes"}
    | {"start_from"}
)


@dataclass(frozen=True, eq=False)
class TrainingPlan:
    """A run that can start: its data, problem and place.

    `config` is resolved: the dataset has its id, k its value.  `resumes` says whether checkpoints of `run_id`
    are to be looked for.  With a `kernel`, `factor` are the rows that training reads in place of features,
    once `topline.pipeline.training.kernel_training` has them.
    """

    config: TrainConfig
    store: Store
    rows: TrainingRows
    loss: Loss
    transforms: Transforms
    run_id: str
    resumes: bool
    kernel: Kernel | None = None
    stored_kernel: StoredKernel | None = None
    factor: TrainingRows | None = None

    @property
    def trained(self) -> TrainingRows:
        """The rows that training reads."""
        return self.rows if self.factor is None else self.factor

    @property
    def m(self) -> int:
        """Number of classes."""
        return self.rows.dataset.info.m

    @property
    def label_sets(self) -> LabelSets | None:
        """The label sets that labels are numbers of, None where each row has one label."""
        return self.rows.solver_label_sets

    @property
    def lam(self) -> float:
        """Weight of the regulariser, 1 / (n C)."""
        return 1.0 / (len(self.rows) * self.config.C)

    @property
    def risk(self) -> Risk:
        """How the losses make one number: their mean, or that of the largest."""
        return chosen_risk(self.config, len(self.rows))

    @property
    def convex(self) -> bool:
        """Whether the loss has a dual problem, and its models a certificate."""
        return self.loss.form(self.m).convex

    @cached_property
    def class_weights(self) -> NDArray[np.float64] | None:
        """How often an example of each class counts (m,), None once; n / (classes * rows of the class).

        Classes without rows count for nothing and are not counted.
        """
        if self.config.class_weight == "none":
            return None
        counts = np.bincount(self.rows.labels(), minlength=self.m)
        share = len(self.rows) / np.count_nonzero(counts)
        return np.divide(share, counts, out=np.zeros(self.m), where=counts > 0)

    @property
    def sample_weight(self) -> NDArray[np.float64] | None:
        """How often each example counts (n,), None once."""
        return None if self.class_weights is None else self.class_weights[self.rows.labels()]

    @property
    def method(self) -> MethodSpec:
        """What the chosen method asks for."""
        return method_named(self.config.method)

    @property
    def stores_duals(self) -> bool:
        """Whether the dual variables are stored with the model; with a kernel they are the model."""
        if self.kernel is not None:
            return True
        if self.method.dual_free or not self.convex or self.config.average_top is not None:
            return False
        if self.config.keep_duals is not None:
            return self.config.keep_duals
        return len(self.rows) * self.m * 4 <= STORED_DUALS_BYTES

    @property
    def keep_duals(self) -> bool:
        """Whether the blocks hold dual variables; smoothing and the dual methods need them."""
        return self.stores_duals or self.method.needs_duals(self.config.smoothing)

    @property
    def bounds(self) -> list[int]:
        """Training rows at which blocks are cut; fixed by data and options, never by the workers.

        Frank-Wolfe does not mind how many there are.  Dual ascent takes several times the rounds as soon as
        two blocks move at the same time, so it gets no more than it needs.
        """
        if self.config.blocks is not None:
            return self.trained.block_bounds(most=self.config.blocks)
        if self.method.one_block:
            return self.trained.block_bounds(most=-(-self.trained.nbytes // ASCENT_BLOCK_BYTES))
        return self.trained.block_bounds()

    @property
    def how_to_resume(self) -> str:
        """The sentence that ends every message about a run that stopped early."""
        return f"continue with: topline train --store {self.store.url} --resume {self.run_id}"

    @cached_property
    def place(self) -> RunPlace:
        """Where the run keeps its checkpoints and history."""
        print_ = fingerprint(self.config, self.rows.dataset)
        if self.stored_kernel is not None:
            # Another factor of the same matrix is another basis of the weights.
            print_["factor"] = self.stored_kernel.folder
        return RunPlace(self.store, self.run_id, print_, self.transforms.arrays(), self.keep_duals)

    @cached_property
    def start(self) -> StartingPoint | None:
        """What an earlier model gives to start from, None where nobody asked."""
        return None if self.config.start_from is None else starting_point(self, self.config.start_from)

    def model_record(self, result: Mapping[str, Any]) -> ModelRecord:
        """Give the record of the model that this run made."""
        info = self.rows.dataset.info
        return ModelRecord(
            dataset=info.id,
            dataset_digest=info.digest,
            config=self.config.model_dump(mode="json"),
            loss=self.loss.to_dict(),
            lam=self.lam,
            C=self.config.C,
            smoothing=self.config.smoothing,
            smoothing_kind=self.config.smoothing_kind,
            class_weights=None if self.class_weights is None else tuple(self.class_weights.tolist()),
            method=self.config.method,
            n=len(self.rows),
            d=self.rows.shape[1],
            m=self.m,
            class_names=info.class_names,
            multilabel=info.label_sets is not None,
            features=info.features,
            transforms=self.transforms.record(),
            kernel=None if self.kernel is None else self.kernel.to_dict(),
            result=result if self.start is None else {**result, "start": self.start.to_dict()},
            parents=(self.start.model,) if self.start is not None and self.start.how != "zero" else (),
            run=self.run_id,
            code_version=importlib.metadata.version("topline"),
        )


def plan_training(config: TrainConfig) -> TrainingPlan:
    """Open the data, check that it makes a problem, fit the transforms and begin (or find) the run."""
    store = open_store(config.store)
    if config.resume is not None:
        config = _as_it_was(config, store)
    dataset = Dataset.open(store, config.dataset)
    raw = TrainingRows(dataset, "train")
    check_labels(raw)
    config = settled(config, dataset)
    loss = chosen_loss(config)
    check_problem(config, loss, raw)
    transforms = _transforms(config, store, raw)
    rows = TrainingRows(dataset, "train", transforms)
    kernel = planned_kernel(config, rows)
    run_id = config.resume or create_run(
        store,
        config.model_dump(mode="json"),
        dataset=dataset.info.id,
        fingerprint=fingerprint(config, dataset),
    )
    return TrainingPlan(
        config=config,
        store=store,
        rows=rows,
        loss=loss,
        transforms=transforms,
        run_id=run_id,
        resumes=config.resume is not None,
        kernel=kernel,
    )


def settled(config: TrainConfig, dataset: Dataset) -> TrainConfig:
    """Give the options with what the data decides filled in: the dataset's id, and k."""
    k = settled_k(config, dataset.info.m)
    return config.model_copy(update={"dataset": dataset.info.id, "k": k})


def fingerprint(config: TrainConfig, dataset: Dataset) -> dict[str, Any]:
    """What must be the same for a run to go on to the same answer, by name."""
    chosen = config.model_dump(mode="json", exclude=set(MAY_CHANGE))
    if config.margins is not None:
        # The file may have changed since: its content makes the problem, not its name.
        content = read_margins(config.margins).tobytes()
        chosen["margins_sha256"] = hashlib.sha256(content).hexdigest()
    return {**chosen, "dataset": dataset.info.id, "dataset_digest": dataset.info.digest}


def _as_it_was(config: TrainConfig, store: Store) -> TrainConfig:
    """Take from the run what is not given now; `MismatchError` names what is given and differs."""
    run = read_run(store, str(config.resume))
    given = config.model_dump(mode="json", include=config.model_fields_set)
    if given.get("dataset") == "latest":
        del given["dataset"]
    changed = sorted(
        key for key, value in given.items() if key not in MAY_CHANGE and run.config.get(key) != value
    )
    if changed:
        detail = ", ".join(f"{key} was {run.config.get(key)!r}, now {given[key]!r}" for key in changed)
        raise MismatchError(
            f"run {run.id} cannot go on with other settings ({detail}): leave these options out"
        )
    try:
        return TrainConfig.model_validate({**run.config, **given})
    except ValidationError as error:
        raise ConfigError(f"the configuration of run {run.id} cannot be read: {error}") from error


def _transforms(config: TrainConfig, store: Store, raw: TrainingRows) -> Transforms:
    """Fit on the training rows; a resumed run takes those that it began with."""
    if config.resume is not None:
        found = latest_checkpoint(store, config.resume, check_duals=False)
        if found is not None:
            return Transforms.from_arrays(config.transforms, found.arrays)
    return Transforms.fit(
        config.transforms,
        lambda: (rows for _, _, rows in raw.tiles()),
        is_sparse=raw.dataset.info.layout == "csr",
        seed=config.seed,
    )
