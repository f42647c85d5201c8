"""Joint features of examples and classes: the ordinary problem as a case, sums written out, new classes."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from sklearn.datasets import load_digits

from tests.reference.qp import minimise_qp
from tests.solvers.problems import M, examples
from topline import (
    ClassEmbeddings,
    InvalidProblemError,
    MaxHinge,
    OneVsAll,
    SerialExecutor,
    Softmax,
    Status,
    TopKHinge,
    UnsupportedCombinationError,
    solve,
    solve_with_features,
)
from topline.solvers.methods import METHODS

X, Y = examples()
N, D = X.shape
LAM = 0.02
# "auto" takes one of the others, by the clock.
CASES = [(method, TopKHinge(2), 0.0) for method in METHODS if method not in {"auto", "lbfgs"}]
CASES += [(method, TopKHinge(2), 0.5) for method in ("newton", "fw", "lbfgs", "fw_pairwise_columns")]
CASES += [(method, Softmax(), 0.0) for method in METHODS if method != "auto" and "columns" not in method]
CASES += [("lbfgs", OneVsAll("logistic"), 0.0)]


@pytest.mark.parametrize(("method", "loss", "smoothing"), CASES)
def test_unit_embeddings_are_the_ordinary_problem(method, loss, smoothing) -> None:
    """psi(x, j) = e_j (x) x, round by round: the products with a unit matrix are exact.

    Methods that sweep have one block: on several the ordinary problem keeps the rows' mean direction apart.
    """
    with SerialExecutor(blocks=1 if METHODS[method].one_block else 2) as executor:
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


@pytest.mark.parametrize("blocks", [1, 3])
def test_auto_solves_similar_classes_with_a_large_C_on_any_blocks(blocks) -> None:
    """Dual ascent alone needs more than a thousand passes; each certificate bounds the other's."""
    rng = np.random.default_rng(0)
    rows = 2.0 + 0.3 * rng.normal(size=(200, 8))
    labels = ((rows - 2.0) @ rng.normal(size=(8, M)) + 0.2 * rng.normal(size=(200, M))).argmax(axis=1)
    classes, lam = ClassEmbeddings(1.0 + rng.normal(size=(M, 4))), 1e-3 / 200
    best = solve_with_features(rows, labels, MaxHinge(), lam, classes, method="newton", max_passes=5000)
    with SerialExecutor(blocks=blocks) as executor:
        ours = solve_with_features(rows, labels, MaxHinge(), lam, classes, executor=executor, max_passes=300)
    assert (best.status, ours.status) == (Status.SOLVED, Status.SOLVED)
    assert "newton" in ours.method
    assert best.dual <= ours.primal
    assert ours.dual <= best.primal


#: Passes of dual ascent on vectors that are alike grow like 1 / lam.
WRITTEN_LAM = 0.1
CLASS_VECTORS = {
    # Orthonormal: the unit vectors of another basis.
    "turned": np.linalg.qr(np.random.default_rng(0).normal(size=(M, M)))[0],
    # In three dimensions, alike to each other, of unequal length.
    "alike": np.abs(np.random.default_rng(3).normal(size=(M, 3))) * np.arange(1, M + 1)[:, None] / 3,
}


@pytest.mark.parametrize(
    "method",
    [
        "auto",
        "dual_ascent",
        "newton",
        "fw_fully_corrective",
        *(pytest.param(slow, marks=pytest.mark.slow) for slow in ("sdca", "fw_pairwise", "fw_away_columns")),
    ],
)
@pytest.mark.parametrize("blocks", [1, 3])
def test_every_method_ends_at_the_optimum_of_written_out_features(method, blocks) -> None:
    """Clarabel solves the problem with psi(x, j) = x c_j^T formed for every row and class."""
    for name, C in CLASS_VECTORS.items():
        truth = reference_of(name)
        with SerialExecutor(blocks=blocks) as executor:
            result = solve_with_features(
                X, Y, MaxHinge(), WRITTEN_LAM, ClassEmbeddings(C), method=method, tol=1e-3,
                max_passes=20_000, executor=executor,
            )  # fmt: skip
        assert result.status is Status.SOLVED
        assert result.dual <= truth * (1 + 1e-7)
        assert truth * (1 - 1e-7) <= result.primal <= truth * (1 + 1.1e-3)


@cache
def reference_of(name: str) -> float:
    """Return the least objective of the max hinge with class vectors of a name, by Clarabel."""
    C = CLASS_VECTORS[name]
    joint = X.astype(np.float64)[:, None, :, None] * C[None, :, None, :]
    against = (joint - joint[np.arange(N), Y][:, None]).reshape(N * M, -1)
    slack = np.kron(np.eye(N), np.ones((M, 1)))
    size = against.shape[1]
    P = np.diag(np.concatenate([np.full(size, WRITTEN_LAM), np.zeros(N)]))
    linear = np.concatenate([np.zeros(size), np.full(N, 1 / N)])
    margins = (np.arange(M) != Y[:, None]).astype(float).ravel()
    z = minimise_qp(P, linear, np.hstack([against, -slack]), -margins)
    return float(0.5 * z @ P @ z + linear @ z)


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


@pytest.mark.parametrize("width", [3, M, 8], ids=["few", "as many as classes", "more"])
def test_one_vs_all_with_embeddings_is_minimised_as_a_whole(width) -> None:
    """Its loss is a sum over the classes, whose scores have weights in common: V has no column for each."""
    C = np.random.default_rng(4).normal(size=(M, width))
    result = solve_with_features(X, Y, OneVsAll("logistic"), LAM, ClassEmbeddings(C), tol=1e-5)
    assert (result.status, result.method) == (Status.SOLVED, "lbfgs")
    signs = np.where(np.arange(M) == Y[:, None], 1.0, -1.0)
    losses = np.logaddexp(0.0, -signs * (X @ result.W @ C.T)).sum(axis=1)
    objective = 0.5 * LAM * np.sum(result.W**2) + losses.mean()
    assert result.primal == pytest.approx(objective, rel=1e-9)
    newton = solve_with_features(
        X, Y, OneVsAll("logistic"), LAM, ClassEmbeddings(C), tol=1e-5, method="newton"
    )
    assert newton.primal >= result.dual
    assert result.primal >= newton.dual


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
    with pytest.raises(UnsupportedCombinationError, match="ranked lists of classes, which softmax"):
        solve_with_features(X, Y, Softmax(), LAM, known, method="fw_away_columns")
    with pytest.raises(InvalidProblemError, match="one row of finite numbers"):
        ClassEmbeddings(np.array([1.0, np.nan]))
    with pytest.raises(InvalidProblemError, match="such as ClassEmbeddings"):
        solve_with_features(X, Y, MaxHinge(), LAM, np.eye(M))
    result = solve_with_features(X, Y, MaxHinge(), LAM, known, tol=0.1)
    with pytest.raises(InvalidProblemError, match=r"shape \(.*, 2\)"):
        result.decision_function(X, ClassEmbeddings(np.ones((3, 2))))


@pytest.mark.parametrize("blocks", [1, 3])
def test_class_vectors_that_are_alike_and_a_large_C_are_for_newton(blocks) -> None:
    """Steps of single rows get short there: dual ascent alone is at a gap of 1 after 1,000 passes."""
    X, y = load_digits(return_X_y=True)
    X, y, vectors = X[:600] / 16.0, y[:600], np.abs(np.random.default_rng(0).normal(size=(10, 6)))
    with SerialExecutor(blocks=blocks) as executor:
        result = solve_with_features(
            X, y, MaxHinge(), 0.1 / len(y), ClassEmbeddings(vectors), tol=1e-3, max_passes=400,
            executor=executor,
        )  # fmt: skip
    assert (result.status, result.method) == (Status.SOLVED, "dual_ascent, newton")
