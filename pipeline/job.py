"""The whole job: a folder of images becomes a certified, evaluated model and a report."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pipeline.evaluation import Evaluation
from pipeline.train_config import ClusterConfig
from pipeline.training import TrainResult

if TYPE_CHECKING:
    from distributed import Client

    from pipeline.config import RunConfig
    from pipeline.progress import Progress


@dataclass(frozen=True)
class JobResult:
    """What the whole job made: the model, its accuracies on held-out rows and the path of the report."""

    train: TrainResult
    evaluation: Evaluation | None
    report: str
    store: str
    images: str
    rows: int
    rejected: int

    def to_dict(self) -> dict[str, Any]:
        """Give the object that `topline run --json` prints: that of `train`, and the accuracies and report."""
        evaluation = self.evaluation
        return {
            **self.train.to_dict(),
            "accuracy": None if evaluation is None else {str(k): v for k, v in evaluation.topk.items()},
            "split": None if evaluation is None else evaluation.split,
            "report": self.report,
            "store": self.store,
            "images": self.images,
            "rows": self.rows,
            "rejected": self.rejected,
        }


def run(
    config: RunConfig,
    cluster: ClusterConfig | None = None,
    progress: Progress | None = None,
    client: Client | None = None,
) -> JobResult:
    """Extract, train, certify, evaluate and report; steps whose result is stored already are not repeated."""
    raise NotImplementedError
