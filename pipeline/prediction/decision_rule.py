"""Which classes a model predicts, given the scores of all of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topline.pipeline.errors import ConfigError
from topline.pipeline.options import PredictConfig
from topline.storage.models import ModelRecord


@dataclass(frozen=True)
class DecisionRule:
    """The best `top_k` classes of a row, or of them those that score above a threshold."""

    top_k: int
    threshold: float | None = None

    @classmethod
    def of(cls, record: ModelRecord, config: PredictConfig) -> DecisionRule:
        """Return what the options mean for a model; `ConfigError` for those that it has no use for.

        A model of several labels predicts all that score above its threshold, or the best `top_k` of these
        where that was asked for.
        """
        asked = "top_k" in config.model_fields_set
        if asked and config.top_k > record.m:
            raise ConfigError(f"--top-k {config.top_k} is more than the model's {record.m} classes")
        if record.multilabel:
            return cls(config.top_k if asked else record.m, _threshold(record, config))
        if config.threshold is not None:
            raise ConfigError(f"model {record.id} predicts the best classes of a row: leave --threshold out")
        return cls(min(config.top_k, record.m))

    def best(self, scores: NDArray[Any]) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """Return classes, the best first, and their scores, both (r, top_k); -1 and NaN if not predicted."""
        classes = np.argsort(-scores, axis=1, kind="stable")[:, : self.top_k]
        kept = np.take_along_axis(scores, classes, axis=1)
        if self.threshold is not None:
            # In float64, before the scores are rounded.
            classes = np.where(kept > self.threshold, classes, -1)
            kept = np.where(classes >= 0, kept, np.nan)
        return classes.astype(np.int32), kept.astype(np.float32)

    def text(self) -> str:
        """Return the rule in words."""
        if self.threshold is None:
            return f"the best {self.top_k} of each row"
        return f"those of each row above {self.threshold:.4g}, {self.top_k} at most"


def _threshold(record: ModelRecord, config: PredictConfig) -> float:
    if config.threshold is not None:
        return config.threshold
    if record.threshold is None:
        raise ConfigError(
            f"model {record.id} has no threshold yet, above which it predicts a label: topline evaluate"
            " chooses one, or give --threshold"
        )
    return float(record.threshold["value"])
