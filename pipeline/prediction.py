"""New images through a stored model: the same backbone, the same transforms, the classifier's scores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pipeline.ingest_config import PredictConfig
from pipeline.progress import Progress


@dataclass(frozen=True)
class Prediction:
    """One image: its best classes with their scores, the best first; or why it could not be read."""

    sample: str
    status: str
    labels: tuple[str, ...] = ()
    scores: tuple[float, ...] = ()
    error: str = ""


@dataclass(frozen=True)
class PredictResult:
    """Predictions of a model, in the order of the images."""

    model: str
    predictions: tuple[Prediction, ...]
    ignored: int

    def to_dict(self) -> dict[str, Any]:
        """Give the object that `topline predict --json` prints."""
        raise NotImplementedError


def predict(model_url: str, config: PredictConfig, progress: Progress | None = None) -> PredictResult:
    """Classify the images that `config` names with the model at `model_url`.

    An image that cannot be read keeps its place with status "rejected".  Raises `InputError` where the model
    was trained on imported features, or where its backbone is not what it was.
    """
    raise NotImplementedError
