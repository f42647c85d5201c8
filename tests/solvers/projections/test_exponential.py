"""exp of a row against the library's."""

from __future__ import annotations

import numpy as np
import pytest

from topline.solvers.projections.exponentials import exp_of_negatives


@pytest.mark.parametrize("m", [1, 2, 7, 1000])
@pytest.mark.parametrize("scale", [0.0, 1e-300, 1e-12, 0.3, 1.0, 30.0, 700.0])
def test_it_is_exp_to_the_last_bits(m, scale) -> None:
    x = -scale * np.random.default_rng(m).random(m)
    out = np.empty(m)
    exp_of_negatives(x, out, np.empty(m))
    np.testing.assert_allclose(out, np.exp(x), rtol=4e-16, atol=0.0)


def test_what_is_far_below_is_next_to_nothing() -> None:
    out = np.empty(3)
    exp_of_negatives(np.array([-708.5, -1e9, -1e300]), out, np.empty(3))
    assert (out > 0.0).all()
    assert (out < 1e-306).all()
