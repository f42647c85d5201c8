"""The average top-k risk as an option of training: what K means, and what it does not go with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from topline.pipeline.errors import ConfigError
from topline.solvers.core.risks import MEAN_RISK, AverageTopK, Risk

if TYPE_CHECKING:
    from topline.pipeline.options.train import TrainConfig


def top_count(config: Mapping[str, Any], n: int) -> float | None:
    """Give k of the average top-k risk of n rows from a run's options; None for the mean of all losses.

    A number of at least 1 counts losses, a smaller one is a share of the rows.
    """
    asked = config.get("average_top")
    if asked is None:
        return None
    return float(asked) if asked >= 1.0 else float(asked) * n


def chosen_risk(config: TrainConfig, n: int) -> Risk:
    """Give the risk that the options mean for n rows; `ConfigError` where there is none."""
    k = top_count({"average_top": config.average_top}, n)
    if k is None:
        return MEAN_RISK
    if not 1.0 <= k <= n:
        raise ConfigError(
            f"average_top {config.average_top:g} is {k:g} of {n} training rows: give a count from 1 to {n}"
            f" or a share from {1.0 / n:.2g} on"
        )
    return AverageTopK(k)


def check_average_top(config: TrainConfig) -> None:
    """Refuse what does not go with the average top-k risk."""
    if config.average_top is None:
        return
    if config.class_weight != "none":
        raise ConfigError(
            f"average_top chooses what each example counts: leave class_weight {config.class_weight} out"
        )
    if config.kernel is not None:
        raise ConfigError(
            f"average_top does not go with kernel {config.kernel}, whose models are dual variables: take the"
            " transform nystroem or fourier in its place, or solvers.solve in Python"
        )
    if config.keep_duals:
        raise ConfigError("average_top keeps no dual variables: leave keep_duals out")
