"""The squared top-k hinge of the guide is the loss that it says, and trains with its certificate."""

from __future__ import annotations

import re
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from tests.reference.envelopes import envelope_losses
from topline import solve
from topline.solvers.losses.rows import nearest_rows

GUIDE = Path(__file__).resolve().parents[3] / "solvers" / "README.md"


@pytest.fixture(scope="module")
def guide():
    """Run the example of the guide as printed, on a few rows; gives what it defines."""
    blocks = re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    (example,) = [block for block in blocks if "class SquaredTopKHinge" in block]
    random = np.random.default_rng(0)
    y = random.integers(0, 5, 60)
    X = random.standard_normal((5, 4))[y] + random.standard_normal((60, 4))
    names = {"X": X, "y": y, "n": 60, "np": np, "solve": solve, "ClassVar": ClassVar, "__name__": "guide"}
    exec(compile(example, str(GUIDE), "exec"), names)
    return names


def hinge(scores, y, k):
    """Half the square of the mean of the k largest violations of the others, by a full sort."""
    rows = np.arange(len(y))
    a = 1.0 + scores - scores[rows, y][:, None]
    a[rows, y] = -np.inf
    return 0.5 * np.maximum(np.sort(a, axis=1)[:, ::-1][:, :k].mean(axis=1), 0.0) ** 2


@pytest.mark.parametrize("k", [1, 2, 4])
def test_it_is_half_the_square_of_the_hinge(guide, k) -> None:
    random = np.random.default_rng(k)
    scores, y = 2.0 * random.standard_normal((60, 6)), random.integers(0, 6, 60)
    form = guide["SquaredTopKHinge"](k).form(6)
    np.testing.assert_allclose(envelope_losses(form, scores, y, 0.0), hinge(scores, y, k), atol=1e-13)
    # The envelope lies below the loss, by at most gamma/2 |u|^2 where u is the slope there.
    smoothed = envelope_losses(form, scores, y, 1e-6)
    assert (smoothed <= hinge(scores, y, k) + 1e-13).all()
    np.testing.assert_allclose(smoothed, hinge(scores, y, k), atol=1e-4)


def test_it_trains_to_a_certificate_that_numpy_confirms(guide) -> None:
    """P from its definition, D from what the dual rows of any feasible point give."""
    result = guide["result"]
    X, y, n = guide["X"], guide["y"], guide["n"]
    assert result.relative_gap <= 1e-3
    primal = 0.5 / n * np.sum(result.W**2) + hinge(X @ result.W, y, 3).mean()
    assert result.primal == pytest.approx(primal, rel=1e-6)
    random = np.random.default_rng(1)
    W = result.W + 0.1 * random.standard_normal((20, *result.W.shape))
    others = [0.5 / n * np.sum(w**2) + hinge(X @ w, y, 3).mean() for w in W]
    assert result.dual <= min(others)


def test_points_of_its_domain_are_their_own_nearest(guide) -> None:
    form = guide["SquaredTopKHinge"](2).form(4)
    A = np.array([[-1.5, -1.5, 3.0, 0.0], [0.0, 0.0, 0.0, 0.0], [-0.2, -0.1, 0.4, -0.1]])
    np.testing.assert_allclose(nearest_rows(form, A, np.array([2, 1, 2])), A, atol=1e-9)
