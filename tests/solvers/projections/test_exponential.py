"""exp and the entropic weights of a row against the library's."""

from __future__ import annotations

import numpy as np
import pytest

from topline.solvers.projections.entropic import entropic_start, entropic_step, entropic_weight
from topline.solvers.projections.exponentials import exp_of_row


@pytest.mark.parametrize("m", [1, 2, 7, 1000])
@pytest.mark.parametrize("scale", [0.0, 1e-300, 1e-12, 0.3, 1.0, 30.0, 700.0])
def test_it_is_exp_to_the_last_bits(m, scale) -> None:
    x = -scale * np.random.default_rng(m).random(m)
    out = np.empty(m)
    exp_of_row(x, out)
    np.testing.assert_allclose(out, np.exp(x), rtol=4e-16, atol=0.0)


@pytest.mark.parametrize("scale", [0.0, 1e-30, 0.3, 1.0, 30.0, 87.0])
def test_in_single_precision_it_is_exp_to_its_last_bits(scale) -> None:
    x = (scale * np.random.default_rng(0).uniform(-1.0, 1.0, 1000)).astype(np.float32)
    out = np.empty_like(x)
    exp_of_row(x, out)
    np.testing.assert_allclose(out, np.exp(x.astype(np.float64)), rtol=1.5e-7, atol=0.0)


def test_what_is_above_one_too() -> None:
    x, out = np.array([0.5, 1.0, 20.0, 300.0, 709.0]), np.empty(5)
    exp_of_row(x, out)
    np.testing.assert_allclose(out, np.exp(x), rtol=4e-16, atol=0.0)


@pytest.mark.parametrize("c", [0.0, 1e-300, 1e-12, 1e-3, 0.3, 1.0, 16.0, 1e4, 1e9])
def test_the_weights_of_a_row_solve_their_equation(c) -> None:
    """c x + log x = u to the last digits of u, wherever the search for t may look."""
    random = np.random.default_rng(0)
    for scale in (1e-9, 1.0, 30.0, 700.0, 1e9):
        b = np.append(-scale * random.random(40), 0.0)
        log_c = np.log(c) if c > 0.0 else -np.inf
        # At most the largest weight is 1, or as much more as the search begins with.
        for t in (-c, -0.5 * c, 0.0, 1.0, 40.0):
            x, logs = np.empty(len(b)), np.empty(len(b))
            entropic_start(b, t, log_c, logs)
            for _ in range(3):
                exp_of_row(logs, x)
                total, slope, _ = entropic_step(b, t, c, x, logs)
            assert total == pytest.approx(x.sum(), rel=1e-14)
            assert slope == pytest.approx(-(x / (1.0 + c * x)).sum(), rel=1e-14)
            u = b - t
            inside = u > -700.0
            near = x[inside]
            error = np.abs(c * near + np.log(near) - u[inside]) / (1.0 + c * near)
            np.testing.assert_array_less(error, 4e-15 * (1.0 + np.abs(u[inside])))
            assert (x[u < -710.0] == 0.0).all()
            for value, other in zip(near, u[inside], strict=True):
                assert value == pytest.approx(entropic_weight(other, c, log_c), rel=1e-12)


def test_what_is_far_below_is_next_to_nothing() -> None:
    out = np.empty(3)
    exp_of_row(np.array([-708.5, -1e9, -1e300]), out)
    assert (out > 0.0).all()
    assert (out < 1e-306).all()
