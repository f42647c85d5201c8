"""The written rule by which a challenger becomes champion."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, Field

if TYPE_CHECKING:
    from topline.storage.models import ModelRecord


class PromotionRule(BaseModel):
    """When a challenger becomes champion: every condition must hold, and a limit of none is no condition."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    k: int | None = Field(
        default=None, ge=1, description="k of the top-k accuracy that decides (default: the loss's k)"
    )
    metric: str | None = Field(
        default=None, description="Metric that decides instead, by its name in evaluation records"
    )
    least_gain: float = Field(
        default=0.0, ge=-1.0, le=1.0, description="Gain in accuracy that is needed; negative: loss allowed"
    )
    confidence: float = Field(default=0.95, gt=0.0, lt=1.0, description="Level of the gain's interval")
    prove_gain: bool = Field(
        default=False, description="The interval's lower end must reach the gain, not the estimate alone"
    )
    need_certificate: bool = Field(default=True, description="Only a certified model is promoted")
    most_feature_drift: float | None = Field(
        default=0.25, ge=0.0, description="Mean stability index of the features at most"
    )
    most_balance_change: float | None = Field(
        default=0.2, ge=0.0, le=1.0, description="Total variation of the class shares at most"
    )

    def metric_for(self, record: ModelRecord) -> str:
        """Return the name of the metric that decides for a model.

        Of top-k accuracies k is that of the loss, and smaller than the number of classes: with as many
        guesses as classes all would be right.
        """
        if self.metric is not None:
            return self.metric
        k = self.k or max(1, min(int(record.loss.get("k") or 1), record.m - 1))
        return f"top-{k}"
