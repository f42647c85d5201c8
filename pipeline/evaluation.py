"""Top-k accuracy of a stored model on held-out rows, ties counted against it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipeline.progress import Progress


@dataclass(frozen=True)
class ClassAccuracy:
    """Accuracies on the rows of one class: share of rows whose own class is among the first k."""

    name: str
    rows: int
    topk: dict[int, float]


@dataclass(frozen=True)
class Confusion:
    """`count` rows of class `true` were given to class `predicted` first."""

    true: str
    predicted: str
    count: int


@dataclass(frozen=True)
class Evaluation:
    """Accuracies of a model on one split."""

    model: str
    dataset: str
    split: str
    rows: int
    topk: dict[int, float]
    majority_class: str
    majority_baseline: float
    per_class: tuple[ClassAccuracy, ...]
    confused: tuple[Confusion, ...]
    seconds: float
    created: str

    def to_dict(self) -> dict[str, Any]:
        """Give plain values for JSON; the keys of `topk` become strings there."""
        return asdict(self)


def evaluate(
    model_url: str,
    split: str = "test",
    progress: Progress | None = None,
    *,
    confused: int = 20,
    store: bool = True,
) -> Evaluation:
    """Evaluate the model at `model_url` on one split of its dataset; with `store`, record the result."""
    raise NotImplementedError
