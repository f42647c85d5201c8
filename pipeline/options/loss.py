"""The loss that a training run's options mean."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topline.pipeline.errors import InputError
from topline.pipeline.options.train import TrainConfig
from topline.solvers.losses import Loss, make_loss
from topline.solvers.names import LOSS_RULES

DEFAULT_K = 5


def settled_k(config: TrainConfig, m: int) -> int | None:
    """Give the k that was asked for, or the default one, which bends to a small m."""
    rule = LOSS_RULES.get(config.loss)
    if config.k is not None or rule is None or not rule.takes_k or isinstance(config.weights, tuple):
        return config.k
    return min(DEFAULT_K, m - 1 if rule.of_others else m)


def chosen_loss(config: TrainConfig) -> Loss:
    """Make the loss that the options name."""
    weights: Any = config.weights
    if weights is None and config.loss.startswith("weighted_"):
        weights = "linear"
    margins = None if config.margins is None else read_margins(config.margins)
    return make_loss(config.loss, config.k, weights, margins)


def read_margins(path: Path) -> NDArray[np.float64]:
    """Read an m x m matrix from a .npy file or from numbers with commas between them."""
    try:
        if path.suffix == ".npy":
            return np.asarray(np.load(path, allow_pickle=False), dtype=np.float64)
        return np.loadtxt(path, delimiter=",", ndmin=2)
    except (OSError, ValueError) as error:
        raise InputError(f"margins {path} cannot be read: {error}") from error
