"""The problem that a training run's options mean: its loss, and the risk that sums the losses up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from topline.pipeline.errors import ConfigError
from topline.pipeline.options.margins import ClassFacts, make_margins
from topline.pipeline.options.train import TrainConfig
from topline.solvers.core.problem import MEAN_RISK, AverageTopK, Risk
from topline.solvers.losses import Loss, make_loss
from topline.solvers.names import LOSS_RULES, default_k


def resolved_k(config: TrainConfig, m: int) -> int | None:
    """Return the k that was asked for, or the default one, which is no more than half of the classes."""
    rule = LOSS_RULES.get(config.loss)
    if config.k is not None or rule is None or not rule.takes_k or isinstance(config.weights, tuple):
        return config.k
    return default_k(m)


def chosen_loss(config: TrainConfig, m: int, facts: ClassFacts | None = None) -> Loss:
    """Return the loss that the options name for m classes, of which margins by a rule need the `facts`."""
    weights: Any = config.weights
    if weights is None and config.loss.startswith("weighted_"):
        weights = "linear"
    margins = None if config.margins is None else make_margins(config.margins, facts, m)
    return make_loss(config.loss, config.k, weights, margins)


def top_count(config: Mapping[str, Any], n: int) -> float | None:
    """Return k of the average top-k risk of n rows from a run's options; None for the mean of all losses.

    A number of at least 1 counts losses, a smaller one is a share of the rows.
    """
    asked = config.get("average_top")
    if asked is None:
        return None
    return float(asked) if asked >= 1.0 else float(asked) * n


def chosen_risk(config: TrainConfig, n: int) -> Risk:
    """Return the risk that the options mean for n rows; `ConfigError` where there is none."""
    k = top_count({"average_top": config.average_top}, n)
    if k is None:
        return MEAN_RISK
    if not 1.0 <= k <= n:
        raise ConfigError(
            f"average_top {config.average_top:g} is {k:g} of {n} training rows: give a count from 1 to {n}"
            f" or a share from {1.0 / n:.2g} on"
        )
    return AverageTopK(k)
