"""What can be chosen about the whole job, besides the options of its steps."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from topline.pipeline.options.ingest import ExtractConfig
from topline.pipeline.options.train import EvaluateConfig, NonEmpty, TrainConfig


class JobOptions(BaseModel):
    """Where everything goes; the section [run] of a configuration file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    store: NonEmpty = Field(default="topline-run", description="Store for features, models and reports")
    report: Path | None = Field(default=None, description="Report to write (default: in the store)")


class RunConfig(JobOptions):
    """The whole job: its own options, and those of its steps, whose `store` it replaces.

    Without images it takes the digits that come with scikit-learn.
    """

    extract: ExtractConfig = ExtractConfig()
    train: TrainConfig = TrainConfig()
    evaluate: EvaluateConfig = EvaluateConfig()
