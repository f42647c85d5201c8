"""Joint features of examples and classes: the ordinary problem as a case, sums written out, new classes."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.datasets import load_digits

from tests.solvers.problems import M, examples
from topline import (
    ClassEmbeddings,
    InvalidProblemError,
    MaxHinge,
    SerialExecutor,
    Softmax,
    Status,
    TopKHinge,
    UnsupportedCombinationError,
    solve,
    solve_with_features,
)
from topline.solvers.run.mapped import BY_WEIGHTS

X, Y = examples()
N, D = X.shape
LAM = 0.02
HINGES = [method for method in BY_WEIGHTS if method != "lbfgs"]
CASES = [(method, TopKHinge(2), 0.0) for method in HINGES]
CASES += [("fw", MaxHinge(), 0.5), ("lbfgs", Softmax(), 0.0), ("lbfgs", TopKHinge(2), 0.5)]


@pytest.mark.parametrize(("method", "loss", "smoothing"), CASES)
def test_unit_embeddings_are_the_ordinary_problem(method, loss, smoothing) -> None:
    """psi(x, j) = e_j (x) x, round by round: the products with a unit matrix are exact."""
    with SerialExecutor(blocks=2) as executor:
        options = {
            "smoothing": smoothing,
            "method": method,
            "tol": 1e-3,
            "max_passes": 60,
            "executor": executor,
        }
        ordinary = solve(X, Y, loss, LAM, m=M, **options)
        mapped = solve_with_features(X, Y, loss, LAM, ClassEmbeddings(np.eye(M)), **options)
    np.testing.assert_allclose(mapped.W, ordinary.W, atol=1e-10)
    assert (mapped.primal, mapped.dual) == pytest.approx((ordinary.primal, ordinary.dual), abs=1e-10)
    assert (mapped.status, mapped.passes) == (ordinary.status, ordinary.passes)


@pytest.mark.parametrize(
    "method", ["fw_fully_corrective", pytest.param("fw_pairwise", marks=pytest.mark.slow)]
)
def test_rotated_embeddings_leave_the_optimum_where_it_is(method) -> None:
    """Class vectors that are orthonormal are the unit vectors of another basis."""
    turned = np.linalg.qr(np.random.default_rng(0).normal(size=(M, M)))[0]
    ordinary = solve(X, Y, MaxHinge(), LAM, m=M, tol=1e-4, max_passes=3000)
    mapped = solve_with_features(
        X, Y, MaxHinge(), LAM, ClassEmbeddings(turned), method=method, tol=1e-3, max_passes=5000
    )
    assert mapped.dual <= ordinary.primal
    assert ordinary.dual <= mapped.primal <= ordinary.primal * (1 + 1.2e-3)


@pytest.mark.parametrize("loss", [MaxHinge(), Softmax()])
def test_embeddings_are_joint_features_written_out(loss) -> None:
    """P at V and the bound of D, from psi(x, j) = x c_j^T formed for every row and class."""
    C = np.random.default_rng(1).normal(size=(M, 3))
    result = solve_with_features(X, Y, loss, LAM, ClassEmbeddings(C), tol=1e-3, max_passes=5000)
    assert result.status is Status.SOLVED
    psi = X.astype(np.float64)[:, None, :, None] * C[None, :, None, :]
    scores = np.einsum("ijde,de->ij", psi, result.W)
    np.testing.assert_allclose(result.decision_function(X), scores, atol=1e-9)
    own = scores[np.arange(N), Y][:, None]
    if isinstance(loss, MaxHinge):
        losses = (scores - own + (np.arange(M) != Y[:, None])).max(axis=1)
    else:
        losses = np.log(np.exp(scores - own).sum(axis=1))
    objective = 0.5 * LAM * np.sum(result.W**2) + losses.mean()
    assert result.primal == pytest.approx(objective, rel=1e-9)
    # No point near V is below the dual value.
    random = np.random.default_rng(2)
    for size in (1e-3, 1e-2, 0.1):
        V = result.W + size * random.normal(size=result.W.shape)
        other = np.einsum("ijde,de->ij", psi, V)
        own = other[np.arange(N), Y][:, None]
        hinge = (other - own + (np.arange(M) != Y[:, None])).max(axis=1)
        soft = np.log(np.exp(other - own).sum(axis=1))
        value = 0.5 * LAM * np.sum(V**2) + (hinge if isinstance(loss, MaxHinge) else soft).mean()
        assert value >= result.dual


def pairs_of_digits(part: int, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Two digits from 0 to 4 side by side, of every second image; their pair is the class."""
    images, digits = (values[part::2] for values in load_digits(n_class=5, return_X_y=True))
    random = np.random.default_rng(part)
    left, right = random.integers(0, len(digits), (2, rows))
    X = np.hstack([images[left], images[right], np.full((rows, 1), 16.0)]) / 16.0
    return X.astype(np.float32), 5 * digits[left] + digits[right]


def test_classes_without_images_are_told_apart_by_what_is_known_of_them() -> None:
    X, y = pairs_of_digits(0, 2000)
    known = ClassEmbeddings(np.hstack([np.eye(5).repeat(5, axis=0), np.tile(np.eye(5), (5, 1))]))
    unseen = np.array([1, 7, 13, 19, 20])
    seen = ~np.isin(y, unseen)
    result = solve_with_features(X[seen], y[seen], MaxHinge(), 1e-3, known, tol=0.05)
    new, labels = pairs_of_digits(1, 1000)
    of_unseen = np.isin(labels, unseen)
    found = result.decision_function(new[of_unseen]).argmax(axis=1)
    # One in 25 is chance, and an ordinary classifier gets none right.
    assert (found == labels[of_unseen]).mean() > 0.8


def test_what_does_not_go_together_is_refused() -> None:
    known = ClassEmbeddings(np.eye(M))
    with pytest.raises(UnsupportedCombinationError, match="dual_ascent updates the weights of"):
        solve_with_features(X, Y, MaxHinge(), LAM, known, method="dual_ascent")
    with pytest.raises(InvalidProblemError, match="one row of finite numbers"):
        ClassEmbeddings(np.array([1.0, np.nan]))
    with pytest.raises(InvalidProblemError, match="such as ClassEmbeddings"):
        solve_with_features(X, Y, MaxHinge(), LAM, np.eye(M))
    result = solve_with_features(X, Y, MaxHinge(), LAM, known, tol=0.1)
    with pytest.raises(InvalidProblemError, match=r"shape \(.*, 2\)"):
        result.decision_function(X, ClassEmbeddings(np.ones((3, 2))))
