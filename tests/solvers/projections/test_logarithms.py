"""Logarithms of a row against the library's."""

from __future__ import annotations

import numpy as np
import pytest

from topline.solvers.projections.exponentials import log_of_one_and


@pytest.mark.parametrize(("dtype", "rounding"), [(np.float32, 2e-7), (np.float64, 5e-16)])
def test_what_a_small_number_adds_to_one_is_exact(dtype, rounding) -> None:
    x = np.append(np.geomspace(1e-37, 1.0, 1000), 0.0).astype(dtype)
    out = np.empty_like(x)
    log_of_one_and(x, out)
    np.testing.assert_allclose(out, np.log1p(x.astype(np.float64)), rtol=rounding, atol=0.0)
