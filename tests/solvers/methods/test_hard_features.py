"""Features that invite wrong answers: the certificate holds all the same, by definition."""

from __future__ import annotations

import numpy as np
import pytest

from tests.reference import losses as reference
from topline import MaxHinge, Softmax, Status, TopKHinge, solve

CASES = (
    "small", "large", "mixed", "constant", "offset", "duplicates", "one example", "absent class",
    "two classes", "fewer rows than classes", "zero",
)  # fmt: skip


def hard(case):
    """Give float32 features, labels and the number of classes."""
    random = np.random.default_rng(0)
    m, y = 5, np.arange(40) % 5
    X = random.standard_normal((40, 6))
    match case:
        case "small":
            X *= 1e-4
        case "large":
            X *= 1e4
        case "mixed":
            X *= np.array([1e-4, 1e4, 1.0, 1e-4, 1e4, 1.0])
        case "constant":
            X[:, 2:] = 3.0
        case "offset":
            X += 1e3
        case "duplicates":
            X[20:], y[20:] = X[:20], y[:20]
        case "one example":
            y = np.where(np.arange(40) == 0, 4, np.arange(40) % 4)
        case "absent class":
            y = np.arange(40) % 3
        case "two classes":
            m, y = 2, np.arange(40) % 2
        case "fewer rows than classes":
            X, y = X[:3], np.array([0, 3, 4])
        case "zero":
            X[:] = 0.0
    return X.astype(np.float32), y, m


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(
    ("method", "loss", "smoothing", "tol"),
    [
        ("dual_ascent", MaxHinge(), 0.0, 1e-4),
        ("dual_ascent", TopKHinge(2), 0.5, 1e-6),
        ("dual_ascent", Softmax(), 0.0, 1e-6),
        ("sdca", MaxHinge(), 0.0, 1e-3),
        ("sdca", TopKHinge(2), 0.5, 1e-6),
        ("sdca", Softmax(), 0.0, 1e-6),
        ("lbfgs", TopKHinge(2), 0.5, 1e-6),
        ("lbfgs", Softmax(), 0.0, 1e-6),
    ],
    ids=lambda value: getattr(value, "name", str(value)),
)
@pytest.mark.sampled(4)
def test_the_certificate_holds_by_definition(case, method, loss, smoothing, tol) -> None:
    X, y, m = hard(case)
    size = float(np.mean(np.sum(X.astype(float) ** 2, axis=1))) or 1.0
    lam = 0.1 * size / len(y)
    result = solve(X, y, loss, lam, smoothing, method, tol=tol, max_passes=5000, m=m, keep_duals=True)
    assert result.status is Status.SOLVED
    P = reference.primal(X, y, loss, lam, smoothing, result.W)
    D = reference.dual(X, y, loss, lam, smoothing, result.A)
    gap = P - D
    assert gap <= 1.001 * tol * P + 1e-14
    assert (result.primal, result.dual) == pytest.approx((P, D), rel=1e-9, abs=1e-12)
    for row, label in zip(result.A, y, strict=True):
        assert reference.infeasibility(loss, row.astype(float), label) <= 1e-6
