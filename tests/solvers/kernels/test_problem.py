"""solve with a kernel: the optimum of general solvers, values recomputed from K and A alone, refusals."""

from __future__ import annotations

import re

import numpy as np
import pytest
from scipy import sparse
from scipy.special import entr
from sklearn.metrics.pairwise import chi2_kernel, polynomial_kernel, rbf_kernel
from sklearn.svm import SVC

from tests.reference import losses as reference
from tests.reference.training_qp import optimum
from tests.solvers.problems import LOSSES, M, examples, loss_name, psd_root, random_margins
from topline import (
    ChiSquaredKernel,
    InvalidProblemError,
    MaxHinge,
    NonFiniteError,
    OneVsAll,
    PolynomialKernel,
    PrecomputedKernel,
    RBFKernel,
    SerialExecutor,
    Softmax,
    Status,
    StructuredHinge,
    SumExponential,
    ThreadExecutor,
    TopKEntropy,
    TopKHinge,
    TruncatedTopKEntropy,
    UnsupportedCombinationError,
    UsunierHinge,
    regularisation_path,
    solve,
)
from topline.solvers.kernels import KernelFeatures, KernelResult, factor
from topline.solvers.kernels import problem as kernel_features
from topline.solvers.methods import METHODS

X, Y = examples()
NEW = examples(n=25, seed=5)[0]
LAM = 0.02
RBF = RBFKernel(0.3)
K = rbf_kernel(X, gamma=0.3)
SMOOTH = [Softmax(), TopKEntropy(2), OneVsAll("logistic"), OneVsAll("hinge")]


# ---------------------------------------------------------------- against other solvers


@pytest.mark.parametrize("loss", [*LOSSES, *SMOOTH], ids=loss_name)
def test_the_linear_kernel_is_the_linear_problem(loss) -> None:
    features = solve(X, Y, loss, LAM, tol=1e-5, max_passes=5000)
    kernel = solve(X, Y, loss, LAM, tol=1e-5, max_passes=5000, kernel="linear")
    assert isinstance(kernel, KernelResult)
    assert kernel.status is features.status is Status.SOLVED
    # Each D bounds the other's P: both certificates speak of one problem.
    for one, other in ((features, kernel), (kernel, features)):
        assert one.dual <= other.primal <= one.dual + 2e-5 * other.primal
    np.testing.assert_allclose(kernel.decision_function(NEW), NEW @ (X.T @ kernel.A) / (LAM * 60), rtol=1e-9)


@pytest.mark.parametrize("smoothing", [0.0, 0.5])
@pytest.mark.parametrize(
    "loss", [MaxHinge(), StructuredHinge(random_margins()), TopKHinge(3), UsunierHinge(2)]
)
def test_a_general_solver_finds_the_same_optimum(loss, smoothing) -> None:
    rows, labels = X[:24], Y[:24]
    best = optimum(psd_root(K[:24, :24]), labels, loss, LAM, smoothing, m=M)
    ours = solve(rows, labels, loss, LAM, smoothing, tol=1e-6, kernel=RBF, m=M, max_passes=5000)
    assert ours.dual <= best * (1 + 1e-6)
    assert ours.primal >= best * (1 - 1e-6)
    assert ours.primal == pytest.approx(best, rel=3e-6)


@pytest.mark.parametrize("C", [0.3, 5.0])
def test_two_classes_are_a_binary_machine(C) -> None:
    """With f = f_1 - f_0 = 2 f_1, lam/2 |W|^2 is lam/4 |f|^2: the binary machine has half the C of ours.

    SVC has a bias that costs nothing and ours has none: opposite points with opposite labels make it 0.
    """
    labels = (Y > 1).astype(int)
    rows, both = np.vstack([X, -X]), np.concatenate([labels, 1 - labels])
    ours = solve(rows, both, MaxHinge(), 1.0 / (C * 120), tol=1e-8, kernel=RBF, max_passes=20000)
    peer = SVC(C=2 * C, gamma=0.3, tol=1e-9).fit(rows, both)
    scores = ours.decision_function(NEW)
    np.testing.assert_allclose(scores[:, 1] - scores[:, 0], peer.decision_function(NEW), atol=1e-3 * C)


# ---------------------------------------------------------------- what is reported


@pytest.mark.parametrize("method", ["dual_ascent", "fw"])
@pytest.mark.parametrize("smoothing", [0.0, 0.5])
@pytest.mark.parametrize("loss", LOSSES, ids=loss_name)
@pytest.mark.sampled(2)
def test_the_values_are_those_of_K_and_A(loss, smoothing, method) -> None:
    result = solve(X, Y, loss, LAM, smoothing, method, tol=1e-2, kernel=RBF)
    root = psd_root(K)
    W = reference.weights_of(root, LAM, result.A)
    assert result.primal == pytest.approx(reference.primal(root, Y, loss, LAM, smoothing, W), rel=1e-9)
    assert result.dual == pytest.approx(reference.dual(root, Y, loss, LAM, smoothing, result.A), rel=1e-9)
    assert result.gap == result.primal - result.dual
    assert result.relative_gap == pytest.approx(result.gap / result.primal)
    assert 0.0 <= result.gap <= result.smoothed_gap * (1 + 1e-12)
    np.testing.assert_allclose(
        result.decision_function(NEW),
        rbf_kernel(NEW, X, gamma=0.3) @ result.A / (LAM * 60),
        rtol=1e-9,
        atol=1e-12,
    )


def test_auto_says_why_it_takes_what_a_kernel_needs() -> None:
    result = solve(X, Y, MaxHinge(), LAM, method="auto", kernel=RBF)
    assert (result.method, result.why) == ("dual_ascent", "a model with a kernel is its dual variables")


def test_a_method_that_moves_W_apart_from_A_is_refused() -> None:
    with pytest.raises(UnsupportedCombinationError, match="newton moves W apart from A"):
        solve(X, Y, MaxHinge(), LAM, method="newton", kernel=RBF)


@pytest.mark.parametrize("loss", [MaxHinge(), Softmax()], ids=loss_name)
@pytest.mark.parametrize("method", [name for name, spec in METHODS.items() if spec.follows_duals])
def test_every_method_brackets_the_same_optimum(method, loss) -> None:
    """Also those without dual variables, whose scores come from the rows at the pivots."""
    best = solve(X, Y, loss, LAM, tol=1e-6, kernel=RBF, max_passes=5000)
    try:
        result = solve(X, Y, loss, LAM, method=method, tol=2e-2, kernel=RBF, max_passes=5000)
    except UnsupportedCombinationError as refusal:
        # Exactly as without a kernel.
        with pytest.raises(UnsupportedCombinationError, match=re.escape(str(refusal))):
            solve(X, Y, loss, LAM, method=method)
        return
    assert result.status is Status.SOLVED
    assert result.relative_gap <= 2e-2
    assert result.dual <= best.primal * (1 + 1e-12)
    assert result.primal >= best.dual * (1 - 1e-12)
    if result.A is None:
        assert not METHODS[method].keeps_duals
        assert not METHODS[method].smooths_through_duals
        np.testing.assert_array_equal(np.sort(result.expansion.support), np.arange(60))


def test_a_method_without_duals_scores_as_one_with_them() -> None:
    """Here every row is a pivot, in an order of their own."""
    scores = []
    for method in ("dual_ascent", "lbfgs"):
        result = solve(X, Y, Softmax(), 0.01, method=method, kernel=RBFKernel(2.0), tol=1e-9)
        assert len(result.W) == len(X)
        scores.append(result.decision_function(X))
    np.testing.assert_allclose(*scores, atol=1e-3)
    assert np.abs(scores[0]).max() > 1.0


def test_a_nonconvex_loss_has_scores_and_no_certificate() -> None:
    loss = TruncatedTopKEntropy(2)
    kernel = solve(X, Y, loss, LAM, method="lbfgs", kernel="linear")
    features = solve(X, Y, loss, LAM, method="lbfgs")
    assert np.isnan(kernel.dual)
    assert np.isnan(kernel.gap)
    assert kernel.status is features.status is Status.SOLVED
    assert kernel.primal == pytest.approx(features.primal, rel=1e-9)
    np.testing.assert_allclose(kernel.decision_function(NEW), features.decision_function(NEW), atol=1e-8)


@pytest.mark.parametrize(
    ("name", "kernel", "peer"),
    [
        ("rbf", RBFKernel("auto"), lambda A, B: rbf_kernel(A, B, gamma=0.25)),
        ("polynomial", PolynomialKernel(2, 0.5, 1.0), lambda A, B: polynomial_kernel(A, B, 2, 0.5, 1.0)),
        ("chi2", ChiSquaredKernel(0.2), lambda A, B: chi2_kernel(A, B, gamma=0.2)),
    ],
)
def test_a_precomputed_matrix_says_what_its_kernel_says(name, kernel, peer) -> None:
    rows, new = np.abs(X), np.abs(NEW)
    named = solve(rows, Y, TopKHinge(2), LAM, tol=1e-4, kernel=kernel)
    given = solve(peer(rows, rows), Y, TopKHinge(2), LAM, tol=1e-4, kernel="precomputed")
    assert named.kernel.name == name
    assert given.kernel == PrecomputedKernel()
    assert given.primal == pytest.approx(named.primal, rel=1e-4)
    assert given.dual <= named.primal
    assert named.dual <= given.primal
    expected = peer(new, rows) @ given.A / (LAM * 60)
    np.testing.assert_allclose(given.decision_function(peer(new, rows)), expected, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(
        named.decision_function(new), peer(new, rows) @ named.A / (LAM * 60), rtol=1e-9, atol=1e-12
    )


def test_sample_weights_count_as_repeated_rows() -> None:
    """Weights 1 and 2 are the problem with rows twice, of which K has rank n all the same."""
    weights = 1.0 + np.arange(60) % 2
    twice = np.repeat(np.arange(60), weights.astype(int))
    weighed = solve(X, Y, TopKHinge(2), LAM, 0.5, sample_weight=weights, tol=1e-7, kernel=RBF)
    lam = LAM * 60 / len(twice)
    repeated = solve(X[twice], Y[twice], TopKHinge(2), lam, 0.5, tol=1e-7, kernel=RBF)
    assert repeated.W.shape[0] == weighed.W.shape[0] == 60
    assert repeated.primal * len(twice) == pytest.approx(weighed.primal * 60, rel=1e-6)
    np.testing.assert_allclose(weighed.decision_function(NEW), repeated.decision_function(NEW), atol=2e-3)


def test_repeated_rows_cost_no_features() -> None:
    rows = np.vstack([X, X[:30], X[:10]])
    result = solve(rows, np.concatenate([Y, Y[:30], Y[:10]]), MaxHinge(), LAM, tol=1e-4, kernel=RBF)
    assert result.status is Status.SOLVED
    assert result.W.shape == (60, M)


def test_only_the_support_is_kept() -> None:
    far = X * 6.0
    result = solve(far, Y, MaxHinge(), LAM, tol=1e-4, kernel="linear")
    support = np.flatnonzero(result.A.any(axis=1))
    assert len(support) < 50
    np.testing.assert_array_equal(result.expansion.support, support)
    assert result.expansion.rows.shape == (len(support), 4)
    np.testing.assert_allclose(
        result.decision_function(NEW), NEW @ (far.T @ result.A) / (LAM * 60), rtol=1e-9
    )


def test_scores_do_not_depend_on_the_tiles(monkeypatch) -> None:
    result = solve(X, Y, MaxHinge(), LAM, tol=1e-3, kernel=RBF)
    whole = result.decision_function(NEW)
    monkeypatch.setattr("topline.solvers.kernels.problem._SCORED_BYTES", 1500)
    np.testing.assert_allclose(result.decision_function(NEW), whole, rtol=1e-12)


@pytest.mark.parametrize("executor", [lambda: SerialExecutor(blocks=3), lambda: ThreadExecutor(2, blocks=4)])
def test_executors_and_resuming(executor) -> None:
    with executor() as given:
        first = solve(X, Y, TopKHinge(2), LAM, 0.5, kernel=RBF, executor=given, max_passes=6, tol=1e-9)
        again = solve(
            X, Y, TopKHinge(2), LAM, 0.5, kernel=RBF, executor=given, tol=1e-6,
            state=first.state, duals=[(0, 60, first.A)],
        )  # fmt: skip
    assert first.status is Status.MAX_PASSES
    assert again.status is Status.SOLVED
    assert again.passes > first.passes
    alone = solve(X, Y, TopKHinge(2), LAM, 0.5, kernel=RBF, tol=1e-6)
    assert again.primal == pytest.approx(alone.primal, rel=1e-6)


def test_duals_alone_start_a_run_whatever_the_kernel_was() -> None:
    first = solve(X, Y, TopKHinge(2), LAM, 0.5, kernel=RBF, tol=1e-6)
    warm = solve(X, Y, TopKHinge(2), LAM, 0.5, kernel=RBF, tol=1e-3, duals=[(0, 60, first.A)])
    assert warm.history[0].relative_gap <= 1e-3
    other = RBFKernel(0.4)
    moved = solve(X, Y, TopKHinge(2), LAM, 0.5, kernel=other, tol=1e-6, duals=[(0, 60, first.A)])
    cold = solve(X, Y, TopKHinge(2), LAM, 0.5, kernel=other, tol=1e-6)
    assert moved.history[0].dual > cold.history[0].dual
    assert moved.primal == pytest.approx(cold.primal, rel=2e-6)


@pytest.mark.parametrize(
    ("method", "smoothing"), [("dual_ascent", 0.5), ("dual_ascent", 0.0), ("lbfgs", 0.5)]
)
def test_a_path_factors_the_matrix_once(method, smoothing, monkeypatch) -> None:
    calls = []
    monkeypatch.setattr(kernel_features, "factor", lambda *a, **k: calls.append(1) or factor(*a, **k))
    found = regularisation_path(X, Y, TopKHinge(2), [0.1, 1.0, 10.0], smoothing, method, kernel=RBF, tol=1e-4)
    assert len(calls) == 1
    for C, result in zip([0.1, 1.0, 10.0], found, strict=True):
        alone = solve(X, Y, TopKHinge(2), 1.0 / (60 * C), smoothing, tol=1e-5, kernel=RBF, max_passes=5000)
        assert result.relative_gap <= 1e-4
        assert result.dual <= alone.primal * (1 + 1e-12)
        assert alone.dual <= result.primal * (1 + 1e-12)
        assert result.decision_function(NEW).shape == (25, M)


def test_features_of_other_rows_are_refused() -> None:
    with pytest.raises(InvalidProblemError, match="computed for 25 rows, and there are 60"):
        solve(X, Y, MaxHinge(), LAM, kernel=KernelFeatures.of(RBF, NEW))


@pytest.mark.parametrize("form", [sparse.csr_matrix, lambda a: a.astype(np.float32), np.ndarray.tolist])
def test_rows_in_other_forms(form) -> None:
    low = X.astype(np.float32).astype(float)
    result = solve(form(low), Y, MaxHinge(), LAM, tol=1e-6, kernel=RBFKernel())
    assert result.primal == pytest.approx(
        solve(low, Y, MaxHinge(), LAM, tol=1e-6, kernel=RBFKernel()).primal, rel=2e-6
    )


def test_a_kernel_of_zeros_has_the_loss_of_zero() -> None:
    result = solve(np.zeros((6, 6)), np.arange(6) % 3, MaxHinge(), 1.0, kernel="precomputed")
    assert result.status is Status.SOLVED
    assert result.primal == pytest.approx(1.0)


# ---------------------------------------------------------------- the factor


@pytest.mark.parametrize("n", [1, 2, 7, 150])
@pytest.mark.parametrize("rank", [1, 3, 200])
def test_the_factor_is_triangular_at_its_pivots_and_gives_K_back(n, rank) -> None:
    root = np.random.default_rng(n).normal(size=(n, rank)) * np.geomspace(1, 1e4, n)[:, None]
    gram = root @ root.T
    F, pivots, dropped = factor(gram)
    assert F.shape == (n, min(n, rank))
    np.testing.assert_allclose(F @ F.T, gram, atol=1e-12 * gram.max())
    assert not np.triu(F[pivots], 1).any()
    assert (np.diag(F[pivots]) > 0).all()
    assert 0.0 <= dropped <= n * n * 2.0**-52 * gram.max()


def test_coefficients_at_the_pivots_make_the_same_scores() -> None:
    rows = np.vstack([X, X])
    features = KernelFeatures.of(RBF, rows)
    W = np.random.default_rng(0).normal(size=(60, 3))
    np.testing.assert_allclose(
        features.K[:, features.pivots] @ features.coefficients(W), features.rows @ W, atol=1e-8
    )


# ---------------------------------------------------------------- refusals


def gram(change=None):
    values = K.copy()
    if change is not None:
        change(values)
    return values


def spoil(row, column, value):
    def change(values):
        values[row, column] += value

    return change


def test_a_loss_without_bounds_needs_its_duals_where_the_matrix_is_singular() -> None:
    """What the factor drops times an unknown A could be anything; a known A gives D on K itself."""
    twice, y = np.concatenate([X[:20], X[:20]]), np.concatenate([Y[:20], Y[20:40]])
    with pytest.raises(UnsupportedCombinationError, match="nothing bounds the dual variables of sum_exp"):
        solve(twice, y, SumExponential(), LAM, kernel=RBF, method="lbfgs")
    result = solve(twice, y, SumExponential(), LAM, kernel=RBF, method="dual_ascent")
    A = np.asarray(result.A, dtype=np.float64)
    x = np.where(np.arange(M) == y[:, None], 0.0, -A)
    norm = np.vdot(A, rbf_kernel(twice, gamma=0.3) @ A) / (LAM * len(y))
    assert result.dual == pytest.approx((x.sum() + entr(x).sum() - 0.5 * norm) / len(y), rel=1e-9)
    assert result.relative_gap <= 1e-3
    assert solve(X, Y, SumExponential(), LAM, kernel=RBF, method="lbfgs").relative_gap <= 1e-3


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (K[:, :50], r"has the shape \(60, 50\); give the square matrix"),
        (gram(spoil(3, 4, 0.1)), "is not symmetric: entries differ by up to 0.1"),
        (K - 2.0 * np.eye(60), "precomputed is not positive semi-definite: 0 of 60 pivots"),
        (K - np.linalg.eigvalsh(K)[0] * np.eye(60) - 1e-3 * np.eye(60), "is not positive semi-definite"),
        (np.fliplr(np.eye(60)), "not positive semi-definite: 0 of 60 pivots are positive, and what remains"),
    ],
    ids=["square", "symmetric", "negative", "slightly", "off the diagonal"],
)
def test_what_is_no_kernel_matrix_is_refused(given, message) -> None:
    with pytest.raises(InvalidProblemError, match=message):
        solve(given, Y, MaxHinge(), LAM, kernel="precomputed")


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_matrices_may_be_off_by_the_rounding_of_float32(dtype) -> None:
    """Also where they have been widened since."""
    root = psd_root(K)[:, -20:]
    exact, low = root @ root.T, (root @ root.T).astype(np.float32).astype(dtype)
    assert np.linalg.eigvalsh(low.astype(float))[0] < -1e-8
    result = solve(low, Y, MaxHinge(), LAM, kernel="precomputed", tol=1e-4)
    assert result.status is Status.SOLVED
    best = solve(exact, Y, MaxHinge(), LAM, kernel="precomputed", tol=1e-6, max_passes=5000)
    assert result.primal == pytest.approx(best.primal, rel=2e-4)


def test_numbers_that_are_none_are_named() -> None:
    for kernel, features in (("rbf", X), ("precomputed", K)):
        bad = features.copy()
        bad[[4, 17], 2] = np.nan
        with pytest.raises(NonFiniteError, match="rows 4, 17 hold NaN or infinity"):
            solve(bad, Y, MaxHinge(), LAM, kernel=kernel)
    with pytest.raises(NonFiniteError, match="values of the kernel polynomial overflow"):
        solve(X * 1e150, Y, MaxHinge(), LAM, kernel=PolynomialKernel(3, 1.0))


def test_too_many_rows_are_refused_before_any_work(monkeypatch) -> None:
    monkeypatch.setattr(kernel_features, "MEMORY_BYTES", 3 * 8 * 50**2)
    with pytest.raises(InvalidProblemError, match="enough for 50 examples; use Nystroem or random Fourier"):
        solve(X, Y, MaxHinge(), LAM, kernel="rbf")


def test_scores_need_rows_of_the_right_width() -> None:
    result = solve(X, Y, MaxHinge(), LAM, kernel="rbf")
    with pytest.raises(InvalidProblemError, match="give rows of 4 features"):
        result.decision_function(K)
    result = solve(K, Y, MaxHinge(), LAM, kernel="precomputed")
    with pytest.raises(InvalidProblemError, match="give rows of 60 kernel values"):
        result.decision_function(NEW)
