"""Options of a training run: what does not fit together is refused before any work."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from topline.pipeline.options import ClusterConfig, SweepConfig, TrainConfig
from topline.pipeline.training.plan import handed_on
from topline.solvers.errors import InvalidProblemError
from topline.solvers.losses import LOSSES, make_loss
from topline.solvers.methods import METHODS
from topline.solvers.names import LOSS_RULES, METHOD_NAMES


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
        ({"loss": "softmax", "k": 3}, "k belongs to the top-k losses, not to softmax"),
        ({"smoothing_kind": "lapin"}, "'moreau' or 'others'"),
        ({"class_weight": "sqrt"}, "use none, balanced, weights such as"),
        ({"typo": 1}, "Extra inputs"),
    ],
    ids=str,
)
def test_refusals(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        TrainConfig(**options)


def test_k_alone_names_its_hinge_and_gives_no_loss() -> None:
    """What goes on from a model or a run keeps the loss of that."""
    made = TrainConfig(k=3)
    assert (made.loss, made.model_fields_set) == ("topk_hinge", {"k"})
    assert TrainConfig(k=3, loss="topk_hinge").model_fields_set == {"k", "loss"}
    several = SweepConfig(k=(3,))
    assert (several.loss, several.model_fields_set) == (("topk_hinge",), {"k"})
    record = SimpleNamespace(config={"loss": "topk_entropy", "k": 2, "C": 3.0, "method": "lbfgs"})
    taken = handed_on(TrainConfig(k=3), record)
    assert taken == {"loss": "topk_entropy", "C": 3.0, "method": "lbfgs"}


def test_names_and_k_are_those_of_the_solvers() -> None:
    assert tuple(METHODS) == METHOD_NAMES
    with_k = {name for name, rule in LOSS_RULES.items() if rule.takes_k}
    guide = (Path(__file__).resolve().parents[3] / "solvers" / "README.md").read_text(encoding="utf-8")
    assert not [name for name in (*LOSSES, *METHODS) if f"`{name}`" not in guide]
    for name, rule in LOSS_RULES.items():
        made = make_loss(
            name,
            2 if rule.takes_k else None,
            "flat" if rule.parameter == "rho" else None,
            1.0 - np.eye(4) if rule.parameter == "margins" else None,
        )
        assert (made.name, made.form(4).smooth) == (name, rule.smooth)
    for name in sorted(with_k):
        weights = "flat" if name.startswith("weighted_") else None
        largest = 3 if LOSS_RULES[name].of_others else 4
        make_loss(name, largest, weights).form(4)
        with pytest.raises(InvalidProblemError, match=f"use k <= {largest}"):
            make_loss(name, largest + 1, weights).form(4)


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
        ClusterConfig(wokers=2)
