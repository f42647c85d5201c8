"""What can be chosen about a training run, a search before it, and where it runs; checked before any work."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    StringConstraints,
    field_validator,
    model_validator,
)

from topline.pipeline.errors import ConfigError
from topline.solvers.names import DEFAULT_LOSS, DEFAULT_METHOD, LOSS_RULES, METHOD_NAMES, default_k, not_known


def _weights(given: Any) -> Any:
    """Return "none", "balanced" or the weight of each class that is named."""
    if not isinstance(given, str | Path) or given in ("none", "balanced"):
        return given
    path = Path(given).expanduser()
    try:
        if path.suffix.lower() == ".json":
            return json.loads(path.read_text(encoding="utf-8-sig"))
        if path.suffix.lower() in (".csv", ".tsv", ".txt"):
            lines = path.read_text(encoding="utf-8-sig").splitlines()
        else:
            lines = str(given).replace("=", ",").split(",")
            lines = [",".join(lines[place : place + 2]) for place in range(0, len(lines), 2)]
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from error
    mark = "\t" if path.suffix.lower() == ".tsv" else ","
    rows = [[word.strip() for word in row] for row in csv.reader(lines, delimiter=mark) if row]
    if rows and rows[0][-1:] in (["weight"], ["weights"]):
        rows = rows[1:]
    if not rows or any(len(row) != 2 for row in rows):
        raise ValueError("use none, balanced, weights such as cat=2,dog=0.5, or a file of class,weight")
    return dict(rows)


ClassWeightOption = Annotated[
    Literal["none", "balanced"] | dict[str, Annotated[float, Field(ge=0.0, allow_inf_nan=False)]],
    BeforeValidator(_weights),
]

Weights = Literal["flat", "linear", "exponential"]

NonEmpty = Annotated[str, StringConstraints(min_length=1, strip_whitespace=True)]

#: Where datasets and models go unless another store is named: step by step, and by whole jobs.
DATA_STORE, RUN_STORE = "topline-store", "topline-run"
DASHBOARD_PORT = 8788

#: Blocks into which rows are cut at most.
BLOCKS_AT_MOST = 256


def _transform_names(value: Any) -> Any:
    """Return the names in "standardize,pca:256,l2", and none for "none" or ""."""
    if isinstance(value, str):
        value = [name.strip() for name in value.split(",") if name.strip()]
    return () if value == ["none"] else value


def _as_text(value: Any) -> Any:
    return str(value) if isinstance(value, Path) else value


TransformNames = Annotated[tuple[str, ...], BeforeValidator(_transform_names)]
MarginsText = Annotated[NonEmpty, BeforeValidator(_as_text)]
DEFAULT_TRANSFORMS = ("l2", "bias")
PRECOMPUTED = "precomputed"
KernelName = Literal["linear", "rbf", "polynomial", "chi2", "laplacian", "intersection", "precomputed"]


def option(text: str, default: Any = None, **limits: Any) -> Any:
    """Return a field with its help, its default and its limits."""
    return Field(default=default, description=text, **limits)


class Options(BaseModel):
    """Options that belong together: values never change, and a name that none of them has is refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)


class ProblemConfig(Options):
    """What a training run and every cell of a sweep have in common: the data, and parts of the problem."""

    store: NonEmpty = option("Store that holds the dataset", DATA_STORE)
    dataset: NonEmpty = option("Dataset id, or latest", "latest")
    weights: Weights | tuple[float, ...] | None = option(
        "Rank weights of the weighted losses: flat, linear, exponential or numbers"
    )
    margins: MarginsText | None = option(
        "Margins of the structured hinge: an m x m matrix (.npy or .csv), logit-adjusted[:TAU] or"
        " ldam[:POWER] by class sizes, or tree:FILE of child,parent"
    )
    temperature: float | None = option("Temperature of the loss ldr_kl (0.3)", gt=0.0, allow_inf_nan=False)
    smoothing_kind: Literal["moreau", "others"] = option(
        "Smooth in all m scores, or (others) in those of the other classes only", "moreau"
    )
    class_weight: ClassWeightOption = option(
        "balanced: every class counts equally, whatever its number of rows; or weights of"
        " classes, 1 for others, as cat=2,dog=0.5 or a file (.csv with a line class,weight for each, .json)",
        "none",
    )
    kernel: KernelName | None = option(
        "Exact kernel: linear, rbf, polynomial, chi2, laplacian or intersection; precomputed (not"
        " for a sweep) where each row holds its values with the training rows; none trains on the features"
    )
    transforms: TransformNames = option(
        "Transforms fitted on the training rows, in this order: any of l2, power:0.5, hellinger,"
        " chi2, standardize, pca:N, nystroem:N, fourier:N and bias, or none",
        DEFAULT_TRANSFORMS,
    )
    seed: int = option("Seed of the random numbers", 0, ge=0)

    @model_validator(mode="wrap")
    @classmethod
    def _with_loss_of_k(cls, given: Any, validate: ModelWrapValidatorHandler[Self]) -> Self:
        """Return options with the top-k hinge, not counted as given, if they name a k and no loss."""
        if not (isinstance(given, dict) and given.get("k") and "loss" not in given):
            return validate(given)
        made = validate({"loss": "topk_hinge", **given})
        made.model_fields_set.discard("loss")
        return made


class TrainConfig(ProblemConfig):
    """One training run: the data, the problem and when to stop.

    `lam` of the mathematics is 1 / (n C).  `resume` names an interrupted run; everything else must then be
    the same as in that run, except the stopping rules and the pace of checkpoints.
    """

    loss: NonEmpty = option(", ".join(LOSS_RULES) + "; with k alone topk_hinge", DEFAULT_LOSS)
    k: int | None = option("k of the top-k losses (5, or half of the classes if they are few)", ge=1)
    C: float = option("Cost of the losses, 1 / (lam n)", 1.0, gt=0.0, allow_inf_nan=False)
    smoothing: float = option("gamma of the Moreau envelope of a hinge", 0.0, ge=0.0, allow_inf_nan=False)
    average_top: float | None = option(
        "Minimise the mean of the K largest losses, not of all; below 1 a share of the rows",
        gt=0.0,
        allow_inf_nan=False,
    )
    method: NonEmpty = option("auto chooses by the problem: " + ", ".join(METHOD_NAMES), DEFAULT_METHOD)
    kernel_gamma: float | Literal["scale", "auto", "median"] | None = option(
        "gamma of the kernel: a number, scale = 1 / (d var X), auto = 1 / d or median = 1 over"
        " the median distance"
    )
    kernel_degree: int | None = option("Degree of the polynomial kernel (3)", ge=1)
    kernel_coef0: float | None = option("Constant of the polynomial kernel (0)", ge=0.0, allow_inf_nan=False)
    kernel_bytes: int = option("Most bytes of memory for the kernel matrix and its factor", 8 << 30, ge=1)
    tol: float = option("Relative duality gap to reach", 1e-3, gt=0.0, lt=1.0)
    max_passes: int = option("Most passes over the data", 1000, ge=1)
    time_limit: float | None = option("Most seconds of training", gt=0.0)
    blocks: int | None = option(
        "Blocks of rows that are updated at the same time, at least one per worker; fewer blocks"
        " take fewer rounds (default: by the size of the data)",
        ge=1,
        le=BLOCKS_AT_MOST,
    )
    resume: NonEmpty | None = option("Id of an interrupted run to continue")
    start_from: NonEmpty | None = option("Id of a model of the store to start from (default: from zero)")
    keep_duals: bool | None = option(
        "Store the dual variables with the model (default: if they are small, or no larger than"
        " the features and held anyway)"
    )
    checkpoint_seconds: float = option("Seconds between checkpoints, more if saving is slow", 2.0, gt=0.0)
    chosen: dict[str, Any] | None = option(
        "What the search compared that chose loss, C and transforms", json_schema_extra={"flag": False}
    )
    certify: bool = option("Recompute the gap from what was stored, after training", True)

    @model_validator(mode="wrap")
    @classmethod
    def _what_follows(cls, given: Any, validate: ModelWrapValidatorHandler[Self]) -> Self:
        """Transform no kernel values unless that is asked for, which is refused."""
        if isinstance(given, dict) and given.get("kernel") == PRECOMPUTED:
            given = {"transforms": (), **given}
        return validate(given)

    @model_validator(mode="after")
    def _parameters_fit_the_loss(self) -> TrainConfig:
        if self.loss not in LOSS_RULES:
            raise ValueError(not_known("loss", self.loss, LOSS_RULES))
        if self.loss == "structured_hinge" and self.margins is None:
            raise ValueError(
                "loss structured_hinge needs margins: give an m x m matrix as .npy or .csv, logit-adjusted,"
                " ldam or tree:FILE"
            )
        if self.margins is not None and self.loss != "structured_hinge":
            raise ValueError(f"margins belong to loss structured_hinge, not to {self.loss}")
        if self.temperature is not None and self.loss != "ldr_kl":
            raise ValueError(f"temperature belongs to loss ldr_kl, not to {self.loss}")
        if self.weights is not None and not self.loss.startswith("weighted_"):
            raise ValueError(f"weights belong to the weighted losses, not to {self.loss}")
        rule = LOSS_RULES[self.loss]
        if self.k is not None and not (rule.takes_k or rule.optional_k):
            raise ValueError(
                f"k belongs to the top-k losses, not to {self.loss}: name one, such as topk_hinge"
            )
        parameters = (self.kernel_gamma, self.kernel_degree, self.kernel_coef0)
        if self.kernel is None and any(value is not None for value in parameters):
            raise ValueError("kernel_gamma, kernel_degree and kernel_coef0 belong to a kernel: name one")
        if self.kernel == PRECOMPUTED and self.transforms:
            raise ValueError(
                f"transforms {','.join(self.transforms)} would change the values of a precomputed kernel:"
                " leave them out"
            )
        return self


#: What says how to train: any of these is one fit.
SETTLED = (
    "loss", "C", "k", "weights", "margins", "temperature", "smoothing", "smoothing_kind", "average_top",
    "method", "kernel", "resume", "start_from",
)  # fmt: skip
#: Of these a search that is asked for leaves what is given.
LEFT = ("loss", "C", "k")


class SearchConfig(Options):
    """Whether loss, C and scaling are searched, and for which accuracy."""

    auto: bool | None = option(
        "Search loss, C and, of imported columns, scaling before training, with the work of"
        " six trainings at most, or 10 seconds of computing where that is more"
    )
    goal: str = option(
        "Accuracy to search for: top-1, another such as top-3, top-k (5, or half of the classes)"
        " or macro, the mean over classes",
        "top-1",
        alias="for",
    )

    @field_validator("goal")
    @classmethod
    def _goal_is_known(cls, goal: str) -> str:
        if goal not in ("macro", "top-k") and not re.fullmatch(r"top-[1-9]\d*", goal):
            raise ValueError("use top-1, another number of guesses such as top-3, top-k or macro")
        return goal

    def guesses(self, m: int) -> int:
        """Return in how many guesses a row is right, for m classes; `ConfigError` where all rows are."""
        if self.goal == "macro":
            return 1
        k = default_k(m) if self.goal == "top-k" else int(self.goal.removeprefix("top-"))
        if k >= m:
            raise ConfigError(f"--for {self.goal} is always right of {m} classes: use a smaller number")
        return k

    def refuse_goal(self, *, searched: bool) -> None:
        """Raise `ConfigError` where an accuracy is named and nothing is searched for it."""
        if not searched and "goal" in self.model_fields_set:
            raise ConfigError(
                f"--for {self.goal} says what a search goes by, and nothing is searched: add --auto, or leave"
                " --for out"
            )

    def searches(self, train: TrainConfig) -> bool:
        """Return whether a search precedes training; raise `ConfigError` for one that would drop options."""
        given = [name for name in SETTLED if name in train.model_fields_set]
        if not self.auto:
            found = self.auto is None and not given
            self.refuse_goal(searched=found)
            return found
        outside = [name for name in given if name not in LEFT]
        if outside:
            raise ConfigError(
                f"--auto searches loss, C and scaling of linear models: leave out"
                f" --{outside[0].replace('_', '-')} or --auto"
            )
        return True


class ClusterConfig(Options):
    """Where a job runs: in this process (workers = 0), on a cluster of its own, or on a running one."""

    workers: int | None = option("Workers; 0: in this process (default: one per core)", ge=0)
    threads_per_worker: int = option("Threads of each worker", 1, ge=1)
    memory_limit: NonEmpty | None = option(
        "Memory of all processes together, such as 6GiB; a running cluster keeps its own limits"
    )
    scheduler: NonEmpty | None = option("Address of a running Dask scheduler")
    cache_bytes: int | None = option(
        "Bytes of features kept in memory, all workers together (default: what the memory limit leaves, or a"
        " quarter of the memory)",
        ge=0,
    )
    worker_wait: float = option("Seconds to wait for a first worker", 60.0, gt=0.0)
    heartbeat_timeout: float = option(
        "Seconds without a heartbeat, or progress of its call, after which a worker is lost", 60.0, gt=0.0
    )
    dashboard: bool = option("Serve Dask's dashboard on this machine, to all who use it", False)

    @property
    def left_to_scheduler(self) -> tuple[str, ...]:
        """The options that somebody gave and that a running cluster decides for itself."""
        given = {
            "--workers": self.workers is not None,
            "--threads-per-worker": self.threads_per_worker != 1,
            "--memory-limit": self.memory_limit is not None,
        }
        return tuple(name for name, chosen in given.items() if chosen and self.scheduler is not None)


class EvaluateConfig(Options):
    """What is evaluated after training."""

    split: Literal["train", "val", "test"] = option("Rows to evaluate on", "test")
    confused: int = option("Most confused pairs to list", 20, ge=0)
