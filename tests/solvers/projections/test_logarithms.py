"""Logarithms of a row against the library's."""

from __future__ import annotations

import numpy as np
import pytest

from topline.solvers.projections.exponentials import log_of_one_and, log_of_row, minus_log_of_rest


@pytest.mark.parametrize("n", [1, 2, 7, 1000])
@pytest.mark.parametrize("scale", [1e-300, 1e-3, 1.0, 1e4, 1e300])
def test_it_is_log_to_the_last_bits(n, scale) -> None:
    x = scale * np.random.default_rng(n).uniform(0.1, 10.0, n)
    out = np.empty(n)
    log_of_row(x.copy(), out)
    np.testing.assert_allclose(out, np.log(x), rtol=1e-15, atol=3e-16)


def test_powers_of_two_and_what_is_beside_them() -> None:
    x = np.ldexp(
        np.array([1.0, np.nextafter(1.0, 0.0), np.nextafter(1.0, 2.0), np.sqrt(2.0)])[:, None], [-3, 0, 9]
    )
    out = np.empty(x.size)
    log_of_row(x.ravel().copy(), out)
    np.testing.assert_allclose(out, np.log(x.ravel()), rtol=1e-15)


def test_what_a_small_number_lacks_of_one_is_exact() -> None:
    x = np.append(np.geomspace(1e-300, 0.5, 1000), 0.0)
    out = np.empty(len(x))
    minus_log_of_rest(x, out)
    np.testing.assert_allclose(out, -np.log1p(-x), rtol=5e-16, atol=0.0)


@pytest.mark.parametrize(("dtype", "rounding"), [(np.float32, 2e-7), (np.float64, 5e-16)])
def test_so_is_what_it_adds_to_one(dtype, rounding) -> None:
    x = np.append(np.geomspace(1e-37, 1.0, 1000), 0.0).astype(dtype)
    out = np.empty_like(x)
    log_of_one_and(x, out)
    np.testing.assert_allclose(out, np.log1p(x.astype(np.float64)), rtol=rounding, atol=0.0)
