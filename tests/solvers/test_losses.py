"""The six losses."""

from __future__ import annotations

import numpy as np
import pytest

from solvers import (
    InvalidProblemError,
    Loss,
    MaxHinge,
    StructuredHinge,
    TopKHinge,
    UsunierHinge,
    WeightedTopKHinge,
    WeightedUsunierHinge,
    exponential,
    flat,
    linear,
    loss_from_dict,
    make_loss,
)
from tests.contracts.loss_contract import LossContract
from tests.reference.losses import sorted_loss
from tests.solvers.problems import LOSSES, loss_name, random_margins

EXTREMES = [TopKHinge(1), TopKHinge(5), UsunierHinge(5), WeightedTopKHinge([3.0, 1.0, 0.0])]


@pytest.mark.parametrize("loss", LOSSES + EXTREMES, ids=str)
class TestEveryLoss(LossContract):
    @pytest.fixture
    def loss(self, request: pytest.FixtureRequest) -> Loss:
        return request.param


def test_a_flat_weighting_is_the_unweighted_loss() -> None:
    s = np.random.default_rng(0).standard_normal((50, 5))
    for row in s:
        assert sorted_loss(WeightedTopKHinge(flat(3)), row, 2) == sorted_loss(TopKHinge(3), row, 2)
        assert sorted_loss(WeightedUsunierHinge(flat(3)), row, 2) == sorted_loss(UsunierHinge(3), row, 2)


@pytest.mark.parametrize("weights", [flat, linear, exponential])
def test_rank_weights_sum_to_one_and_fall(weights) -> None:
    for k in (1, 2, 7):
        rho = weights(k)
        assert rho.shape == (k,)
        assert rho.sum() == pytest.approx(1.0, abs=1e-15)
        assert (np.diff(rho) <= 0).all()


def test_rank_weights_have_the_printed_values() -> None:
    np.testing.assert_allclose(linear(5), np.array([5, 4, 3, 2, 1]) / 15)
    np.testing.assert_allclose(
        exponential(3) * np.exp(-np.arange(1, 4) / 3).sum(), np.exp([-1 / 3, -2 / 3, -1])
    )


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"name": "max_hinge"}, MaxHinge()),
        ({"name": "topk_hinge", "k": 2}, TopKHinge(2)),
        ({"name": "usunier_hinge", "k": 2}, UsunierHinge(2)),
        ({"name": "weighted_topk_hinge", "k": 3, "weights": "linear"}, WeightedTopKHinge(linear(3))),
        ({"name": "weighted_usunier_hinge", "weights": [2, 1]}, WeightedUsunierHinge([2.0, 1.0])),
        ({"name": "structured_hinge", "margins": random_margins()}, StructuredHinge(random_margins())),
    ],
    ids=lambda value: value["name"] if isinstance(value, dict) else "",
)
def test_losses_are_made_by_name(arguments, expected) -> None:
    assert make_loss(**arguments) == expected


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TopKHinge(0), "k of topk_hinge is 0"),
        (lambda: UsunierHinge(2.5), "k of usunier_hinge is 2.5"),
        (lambda: TopKHinge(True), "k of topk_hinge is True"),
        (lambda: WeightedTopKHinge([1, 2]), "rho rises from 1 to 2 at rank 2"),
        (lambda: WeightedTopKHinge([1, -1]), "rho holds -1"),
        (lambda: WeightedUsunierHinge([np.nan]), "rho holds NaN"),
        (lambda: WeightedUsunierHinge([0.0]), "rho is all zero"),
        (lambda: WeightedTopKHinge([]), "give a sequence of at least one number"),
        (lambda: WeightedTopKHinge("steep"), "rho is 'steep'"),
        (lambda: StructuredHinge(np.ones((2, 2))), "the margin of class 0 towards itself is 1"),
        (lambda: StructuredHinge(np.zeros((2, 3))), r"margins have the shape \(2, 3\)"),
        (lambda: StructuredHinge([[0, -1], [1, 0]]), "margins hold -1"),
        (lambda: StructuredHinge([[0, np.inf], [1, 0]]), "margins hold NaN or infinity"),
        (lambda: StructuredHinge(random_margins(4)).form(5), "margins are for 4 classes but there are 5"),
        (lambda: TopKHinge(6).form(5), "there are only 5 classes; take k <= 5"),
        (lambda: MaxHinge().form(1), "there are 1 classes"),
        (lambda: flat(0), "k is 0"),
        (lambda: linear(1.5), "k is 1.5"),
        (lambda: make_loss("hinge"), "there is no loss named 'hinge'; take one of max_hinge"),
        (lambda: make_loss("max_hinge", k=3), "takes no k"),
        (lambda: make_loss("topk_hinge"), "needs k"),
        (lambda: make_loss("weighted_topk_hinge", k=3), "needs weights"),
        (lambda: make_loss("weighted_topk_hinge", weights="steep", k=3), "no weights named 'steep'"),
        (lambda: make_loss("weighted_topk_hinge", weights="linear"), "linear weights need k"),
        (lambda: make_loss("weighted_topk_hinge", weights=[1.0], k=3), "k is 3 but 1 weights"),
        (
            lambda: loss_from_dict({"name": "topk_hinge"}),
            r"described by \['name'\]; it takes|described by \[\]",
        ),
    ],
)
def test_what_makes_no_loss_is_refused(make, message) -> None:
    with pytest.raises(InvalidProblemError, match=message):
        make()


def test_losses_are_told_apart() -> None:
    assert len({*LOSSES, *LOSSES}) == len(LOSSES)
    assert StructuredHinge(random_margins()) != StructuredHinge(2 * random_margins())
    assert loss_name(TopKHinge(2)) == "topk_hinge"
