"""Losses of one score against their textbook formulas and finite differences."""

from __future__ import annotations

import numpy as np
import pytest

from tests.reference.average_top import loss_values
from tests.solvers.average_top.problems import BINARY, EVERY_LOSS
from topline import InvalidProblemError
from topline.solvers.average_top import INDIVIDUAL_LOSSES, Hinge, individual_loss

Z = np.concatenate([np.linspace(-3.0, 3.0, 41) + 0.01, [40.0, -40.0]])


def test_every_loss_is_tested() -> None:
    assert sorted(INDIVIDUAL_LOSSES) == sorted(EVERY_LOSS)


@pytest.mark.parametrize("name", EVERY_LOSS)
@pytest.mark.parametrize("target", [-1.0, 1.0])
def test_values_and_derivatives(name, target) -> None:
    loss, y = INDIVIDUAL_LOSSES[name], np.full(len(Z), target)
    pieces = loss.pieces(Z, y)
    np.testing.assert_allclose(pieces.losses(), loss_values(name, Z, y), rtol=1e-13, atol=1e-300)
    # Central differences: no score is within a step of a kink.
    step = 1e-6
    above, below = (loss_values(name, Z + sign * step, y) for sign in (1.0, -1.0))
    np.testing.assert_allclose(pieces.subgradients(), (above - below) / (2.0 * step), atol=1e-7)
    up, down = (loss.pieces(Z + sign * 1e-5, y).slopes for sign in (1.0, -1.0))
    np.testing.assert_allclose(pieces.curvatures, (up - down) / 2e-5, atol=1e-8)


@pytest.mark.parametrize("name", BINARY)
def test_a_score_of_zero_costs_one(name) -> None:
    loss = INDIVIDUAL_LOSSES[name]
    assert loss.binary
    assert loss.pieces(np.zeros(2), np.array([1.0, -1.0])).losses() == pytest.approx([1.0, 1.0])


def test_losses_by_name_and_value() -> None:
    assert individual_loss("hinge") == Hinge() == individual_loss(Hinge())
    for wrong in ("topk_hinge", Hinge, 3):
        with pytest.raises(InvalidProblemError, match="use one of hinge, logistic, square, absolute"):
            individual_loss(wrong)
