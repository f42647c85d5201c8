"""Options of all commands in one place, and the TOML file that can hold them."""

from __future__ import annotations

from pipeline.train_config import ClusterConfig, EvaluateConfig, TrainConfig

__all__ = ["ClusterConfig", "EvaluateConfig", "TrainConfig"]
