"""What can be chosen about a retraining, besides the options of its steps."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from topline.pipeline.errors import ConfigError
from topline.pipeline.options.ingest import ExtractConfig
from topline.pipeline.options.promotion import PromotionRule
from topline.pipeline.options.train import NonEmpty, TrainConfig


class RetrainOptions(BaseModel):
    """Where it happens and what it starts from; the section [retrain] of a configuration file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    store: NonEmpty = Field(default="topline-run", description="Store for features, models and decisions")
    start: Literal["last", "champion", "zero"] = Field(
        default="last", description="Model that training starts from: the last one, the champion or none"
    )
    overlap: Literal["refuse", "wait"] = Field(
        default="refuse", description="What a retraining does while another one works on the store"
    )
    wait_seconds: float = Field(
        default=3600.0, ge=0.0, description="How long it waits for the other one, with overlap wait"
    )


class RetrainConfig(RetrainOptions):
    """A retraining: its own options, and those of its steps, whose `store` it replaces."""

    extract: ExtractConfig = ExtractConfig()
    train: TrainConfig = TrainConfig()
    promote: PromotionRule = PromotionRule()
    split: Literal["val", "test"] = Field(default="test", description="Held-out rows that decide")


def refuse_label_sets(images: ExtractConfig) -> None:
    """`ConfigError` where images have several labels: no rule compares their models yet."""
    if images.label_separator is not None:
        raise ConfigError(
            "--label-separator gives images several labels, and a champion is chosen by top-k accuracy, which"
            " is for one each: use topline run"
        )
