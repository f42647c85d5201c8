"""Stand-ins for what only compiled code can do, for runs of the projections as plain Python."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from numba.core import config

from topline.solvers.losses import one_vs_all
from topline.solvers.projections import entropic, exponentials, isotonic, simplex


def power_of_two(whole: np.floating) -> np.floating:
    """Return 2^n for the float n + 1.5 * 2^52 (float32: 1.5 * 2^23), as the intrinsic does by its bits."""
    ones = 1.5 * 2.0 ** np.finfo(whole.dtype).nmant
    return whole.dtype.type(2.0 ** float(whole - ones))


@pytest.fixture(autouse=True)
def _without_intrinsics() -> Iterator[None]:
    """Let intrinsics be Python where nothing is compiled, as in a run of `tests.mutation`.

    Compiled code warns of no infinity, either.
    """
    if not config.DISABLE_JIT:
        yield
        return
    with pytest.MonkeyPatch.context() as patch, np.errstate(all="ignore"):
        patch.setattr(exponentials, "_power_of_two", power_of_two)
        for module in (one_vs_all, entropic, isotonic, simplex):
            patch.setattr(module, "borrowed", lambda problem: problem)
        yield
