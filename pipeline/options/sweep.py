"""What a sweep tries: a grid of C, k, losses and smoothings, and how its cells are compared and ended."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any, Literal

from pydantic import field_validator, model_validator

from topline.pipeline.options.train import (
    PRECOMPUTED,
    KernelName,
    NonEmpty,
    ProblemConfig,
    TrainConfig,
    option,
)
from topline.solvers.names import DEFAULT_LOSS, LOSS_RULES, LossRule

Rule = Literal["race", "certificate", "none"]
GammaRule = Literal["scale", "auto", "median"]

# Options that every cell has in common with the sweep.
SHARED = {"store", "dataset", "smoothing_kind", "class_weight", "method", "transforms", "tol", "seed"}


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _costs(text: str) -> tuple[float, ...]:
    """Return the numbers in "0.1,1,10" or "1e-3:1e2:11"; such a range is rounded to four digits."""
    try:
        if ":" not in text:
            return tuple(float(part) for part in _parts(text))
        low, high, count = text.split(":")
        first, last, number = float(low), float(high), int(count)
    except ValueError:
        raise ValueError("give numbers as in 0.1,1,10, or LOW:HIGH:COUNT as in 1e-3:1e2:11") from None
    if not (0.0 < first <= last < float("inf") and number >= 1):
        raise ValueError("a range is LOW:HIGH:COUNT with 0 < LOW <= HIGH, as in 1e-3:1e2:11")
    steps = [(last / first) ** (step / max(number - 1, 1)) for step in range(number)]
    return tuple(float(f"{first * step:.4g}") for step in steps)


@dataclass(frozen=True)
class KernelChoice:
    """A kernel with its parameters as they were given, None for its defaults."""

    name: KernelName
    gamma: float | GammaRule | None = None
    degree: int | None = None
    coef0: float | None = None

    @property
    def text(self) -> str:
        """Name and parameters in a few words."""
        given = (("gamma", self.gamma), ("degree", self.degree), ("coef0", self.coef0))
        shown = (f" {name}={value if isinstance(value, str) else f'{value:g}'}" for name, value in given
                 if value is not None)  # fmt: skip
        return f"{self.name}{''.join(shown)}"


@dataclass(frozen=True)
class Variant:
    """A loss with its parameters and a kernel: what a path of C is solved for."""

    loss: str
    k: int | None
    smoothing: float
    kernel: KernelChoice | None = None

    @property
    def name(self) -> str:
        """Loss, kernel and parameters in a few words."""
        k = "" if self.k is None else f" k={self.k}"
        smoothing = f" smoothing={self.smoothing:g}" if self.smoothing else ""
        return f"{self.loss}{k}{smoothing}" + ("" if self.kernel is None else f" {self.kernel.text}")


@dataclass(frozen=True)
class Cell:
    """One point of the grid."""

    variant: Variant
    C: float


class SweepConfig(ProblemConfig):
    """A sweep by cross-validation on the training rows of a dataset.

    Every list is tried with every other; `k` counts for the losses that have one, `smoothing` for those that
    are not smooth as they are.  `resume` names a sweep that was stopped, and nothing but the store, the
    number of passes and what is done with the best cell may then change.
    """

    C: tuple[float, ...] = option(
        "Costs to try: numbers, or LOW:HIGH:COUNT for COUNT values a constant factor apart",
        _costs("1e-3:1e2:11"),
    )
    loss: tuple[NonEmpty, ...] = option("Losses to try", (DEFAULT_LOSS,))
    k: tuple[int, ...] = option("k of the top-k losses to try (as for train)", ())
    smoothing: tuple[float, ...] = option("Smoothings to try", (0.0,))
    topk: int | None = option("Cells are compared by top-k accuracy at this k (the k tried, or 1)", ge=1)
    metric: NonEmpty | None = option(
        "Metric to compare by instead: top-K, macro-top-K (mean over classes) or tail-top-K (mean"
        " over the rarest third of the classes)"
    )
    folds: int = option("Number of stratified folds, the same for all cells", 5, ge=2, le=50)
    rows: int | None = option("Use this many training rows, a sample stratified by class", ge=2)
    rule: Rule = option(
        "When cells end early: by certificate alone, also by a race over the folds, or none", "race"
    )
    confidence: float = option("Confidence with which the race drops a cell", 0.95, gt=0.5, lt=1.0)
    kernel_gamma: tuple[float | GammaRule, ...] = option(
        "Values of the kernel's gamma to try: numbers, scale, auto or median", ()
    )
    kernel_degree: tuple[int, ...] = option("Degrees of the polynomial kernel to try", ())
    kernel_coef0: tuple[float, ...] = option("Constants of the polynomial kernel to try", ())
    method: NonEmpty = option("dual_ascent or sdca", "dual_ascent")
    tol: float = option("Relative gap at which a cell ends at the latest", 1e-3, gt=0.0, allow_inf_nan=False)
    max_passes: int = option("Most passes over a fold's rows, for each cell", 3000, ge=1)
    resume: NonEmpty | None = option("Id of a stopped sweep to continue")
    train_best: bool = option("Train the best cell on all training rows at the end", False)

    @field_validator("C", mode="before")
    @classmethod
    def _read_costs(cls, value: object) -> object:
        return _costs(value) if isinstance(value, str) else value

    @field_validator("loss", "k", "smoothing", "kernel_gamma", "kernel_degree", "kernel_coef0", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        return tuple(_parts(value)) if isinstance(value, str) else value

    @model_validator(mode="after")
    def _cells_can_be_trained(self) -> SweepConfig:
        if not self.C or not self.loss or not self.smoothing:
            raise ValueError("there is no cell to try: give at least one C, one loss and one smoothing")
        if any(not 0.0 < C < float("inf") for C in self.C):
            raise ValueError("every C must be a positive number")
        if self.metric is not None and self.topk is not None:
            raise ValueError(f"cells are compared by one metric: give topk or metric {self.metric}, not both")
        if self.method not in ("dual_ascent", "sdca"):
            raise ValueError(f"a sweep goes from C to C with dual_ascent or sdca, not with {self.method}")
        if "truncated_topk_entropy" in self.loss:
            raise ValueError("truncated_topk_entropy is not convex and has no certificate: leave it out")
        if self.kernel is None and (self.kernel_gamma or self.kernel_degree or self.kernel_coef0):
            raise ValueError("kernel_gamma, kernel_degree and kernel_coef0 belong to a kernel: name one")
        if self.kernel == PRECOMPUTED:
            raise ValueError(
                "a sweep cuts rows into folds, and the columns of a precomputed kernel are rows too: name the"
                " kernel instead"
            )
        for variant in self.variants():
            self.train_config(Cell(variant, self.C[0]))
        return self

    def variants(self) -> list[Variant]:
        """Return all losses with their parameters, each once; `k` is None where the data decides it."""
        found: dict[Variant, None] = {}
        # Losses of one kernel follow each other: what is computed for it serves all of them.
        for kernel, loss, k, smoothing in product(
            self._kernels(), self.loss, self.k or (None,), self.smoothing
        ):
            rule = LOSS_RULES.get(loss, LossRule())
            k_here = k if rule.takes_k or rule.optional_k else None
            found[Variant(loss, k_here, 0.0 if rule.smooth else smoothing, kernel)] = None
        return list(found)

    def _kernels(self) -> list[KernelChoice | None]:
        if self.kernel is None:
            return [None]
        return [
            KernelChoice(self.kernel, gamma, degree, coef0)
            for gamma in self.kernel_gamma or (None,)
            for degree in self.kernel_degree or (None,)
            for coef0 in self.kernel_coef0 or (None,)
        ]

    def grid(self) -> tuple[float, ...]:
        """Return the values of C, each once and from the smallest."""
        return tuple(sorted(set(self.C)))

    def train_config(self, cell: Cell) -> TrainConfig:
        """Return the options of `train` for a cell, on all training rows."""
        shared: dict[str, Any] = self.model_dump(include=SHARED)
        loss = cell.variant.loss
        if not cell.variant.smoothing:
            del shared["smoothing_kind"]
        if (kernel := cell.variant.kernel) is not None:
            shared |= {
                "kernel": kernel.name, "kernel_gamma": kernel.gamma, "kernel_degree": kernel.degree,
                "kernel_coef0": kernel.coef0,
            }  # fmt: skip
        return TrainConfig(
            **shared,
            C=cell.C,
            loss=loss,
            k=cell.variant.k,
            smoothing=cell.variant.smoothing,
            max_passes=self.max_passes,
            weights=self.weights if loss.startswith("weighted_") else None,
            margins=self.margins if loss == "structured_hinge" else None,
            temperature=self.temperature if loss == "ldr_kl" else None,
        )
