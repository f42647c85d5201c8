"""Options of a training run: what does not fit together is refused before any work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from pipeline.train_config import ClusterConfig, TrainConfig


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"C": 0.0}, "greater than 0"),
        ({"C": float("nan")}, "finite"),
        ({"smoothing": -1.0}, "greater than or equal to 0"),
        ({"k": 0}, "greater than or equal to 1"),
        ({"tol": 0.0}, "greater than 0"),
        ({"loss": "structured_hinge"}, "needs margins"),
        ({"margins": Path("m.csv")}, "margins belong to loss structured_hinge"),
        ({"weights": "linear"}, "weights belong to the weighted losses"),
        ({"loss": "max_hinge", "k": 3}, "k belongs to the top-k losses"),
        ({"weights": "steep", "loss": "weighted_topk_hinge"}, "flat"),
        ({"typo": 1}, "Extra inputs"),
    ],
    ids=str,
)
def test_refusals(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        TrainConfig(**options)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("standardize, pca:256,l2", ("standardize", "pca:256", "l2")),
        ("none", ()),
        ("", ()),
        (["bias"], ("bias",)),
    ],
)
def test_transforms_are_read_from_a_list_or_a_text(given: Any, expected: tuple[str, ...]) -> None:
    assert TrainConfig(transforms=given).transforms == expected


def test_options_survive_json() -> None:
    config = TrainConfig(loss="weighted_topk_hinge", weights=(0.5, 0.5), transforms="l2")
    assert TrainConfig.model_validate_json(config.model_dump_json()) == config


def test_cluster_options_are_closed() -> None:
    with pytest.raises(ValidationError, match="Extra inputs"):
        ClusterConfig(wokers=2)  # type: ignore[call-arg]
