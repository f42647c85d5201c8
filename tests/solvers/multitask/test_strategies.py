"""Multitask learning: the subproblems against outside solvers, the turns against their own explicit form."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from scipy import sparse
from scipy.optimize import minimize_scalar
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics.pairwise import rbf_kernel
from sklearn.model_selection import GridSearchCV
from sklearn.svm import LinearSVC

from tests.reference.qp import minimise_qp
from tests.solvers.problems import M, examples
from topline import (
    InvalidProblemError,
    MultitaskClassifier,
    NonFiniteError,
    OneVsAll,
    RBFKernel,
    Status,
    TopKClassifier,
)
from topline.solvers.core.state import StoppingCriteria
from topline.solvers.multitask import (
    SharedProblem,
    ascend,
    solve_multi,
    solve_single,
    solve_stacked,
    trace_norm_bounds,
)
from topline.solvers.multitask.strategies import smooth_hinge, visit_tasks

X, Y = examples()
K = X @ X.T
SIGNS = np.where(Y[:, None] == np.arange(M), 1.0, -1.0)
TIGHT = {"tol": 1e-9, "max_passes": 100_000}
RNG = np.random.default_rng(11)


def losses(scores, gamma=0.0):
    """The smooth hinge by its definition: the largest of v (1 - z) - gamma/2 v^2 on a fine grid of v."""
    v = np.linspace(0.0, 1.0, 2001)
    return np.max(v * (1.0 - SIGNS * scores)[..., None] - 0.5 * gamma * v**2, axis=-1)


@pytest.mark.parametrize("gamma", [0.0, 0.3, 1.0, 4.0])
def test_the_smooth_hinge_is_its_definition(gamma) -> None:
    scores = RNG.normal(0.0, 2.0, SIGNS.shape)
    # Half a grid step squared times the curvature.
    np.testing.assert_allclose(smooth_hinge(SIGNS * scores, gamma), losses(scores, gamma), atol=2e-7)


@pytest.mark.parametrize("C", [0.02, 1.0])
def test_single_tasks_are_linear_svms_without_intercept(C) -> None:
    ours = X.T @ solve_single(K, SIGNS, C, **TIGHT).coefficients
    theirs = LinearSVC(loss="hinge", C=C, fit_intercept=False, tol=1e-10, max_iter=1_000_000).fit(X, Y)
    # Strong convexity: a gap g in 1/2 |w|^2 + ... leaves |w - w*| <= sqrt(2 g), here of either solver.
    np.testing.assert_allclose(ours.T, theirs.coef_, atol=1e-4)


@pytest.mark.parametrize("gamma", [0.0, 0.5])
def test_single_tasks_with_a_kernel_are_quadratic_programs(gamma) -> None:
    C, gram = 2.0, rbf_kernel(X, gamma=0.2)
    result = solve_single(gram, SIGNS, C, smoothing=gamma, **TIGHT)
    n = len(gram)
    for task in range(2):
        y = SIGNS[:, task]
        P = gram * np.outer(y, y) + np.eye(n) * gamma / C
        box = sparse.csc_matrix(np.vstack([np.eye(n), -np.eye(n)]))
        v = minimise_qp(sparse.csc_matrix(P), -np.ones(n), box, np.concatenate([np.full(n, C), np.zeros(n)]))
        # A relative gap of 1e-9 leaves |w - w*|^2 / 2 <= 1e-9 C n, and the rows have norm 1.
        np.testing.assert_allclose(gram @ (y * v), gram @ result.coefficients[:, task], atol=5e-4)


@pytest.mark.parametrize("gamma", [0.0, 0.5])
def test_the_gap_is_that_of_the_coefficients(gamma) -> None:
    C, n = 0.5, len(K)
    result = solve_single(K, SIGNS, C, smoothing=gamma)
    a = result.coefficients / C
    assert (SIGNS * a).min() >= 0.0
    assert (SIGNS * a).max() <= 1.0
    scores = K @ result.coefficients
    half = np.einsum("it,it->t", result.coefficients, scores) / (2 * C * n)
    primal = losses(scores, gamma).mean(axis=0) + half
    dual = (SIGNS * a - 0.5 * gamma * a**2).mean(axis=0) - half
    assert result.primal == pytest.approx(primal.mean(), abs=1e-6)
    assert result.dual == pytest.approx(dual.mean(), abs=1e-12)
    assert result.status is Status.SOLVED
    assert result.subproblem_gap == pytest.approx(((primal - dual) / primal).max(), abs=1e-5)
    assert result.subproblem_gap <= 1e-3


def test_examples_without_features_do_not_keep_the_gap_open() -> None:
    """The thesis skips them; their loss of 1 then stays in the gap for ever."""
    rows = np.vstack([X, np.zeros((7, X.shape[1]))])
    signs = np.vstack([SIGNS, np.ones((7, M))])
    result = solve_single(rows @ rows.T, signs, tol=1e-6, max_passes=20_000)
    assert result.status is Status.SOLVED
    np.testing.assert_array_equal(result.coefficients[-7:], 1.0)


def thesis_pass(x, signs, w, mu, gamma, tasks, orders):
    """U-SDCA with U (d, r) and w_t (r,) there: (4.6) and (4.7), without the skip rule and without kernels."""
    n, T = signs.shape
    U, alpha = np.zeros((x.shape[1], w.shape[0])), np.zeros((n, T))
    for t, order in zip(tasks, orders, strict=True):
        for i in order:
            y = signs[i, t]
            norm = x[i] @ x[i] * (w[:, t] @ w[:, t]) / (mu * n * T)
            step = (1 - y * x[i] @ U @ w[:, t] - gamma * y * alpha[i, t]) / (norm + gamma)
            change = y * max(-y * alpha[i, t], min(1 - y * alpha[i, t], step))
            alpha[i, t] += change
            U += change * np.outer(x[i], w[:, t]) / (mu * n * T)
    return U, alpha


@pytest.mark.parametrize("gamma", [0.0, 0.7])
def test_visits_are_the_steps_of_the_thesis(gamma) -> None:
    n, mu = len(X), 0.003
    C = 1.0 / (mu * n * M)
    w = RNG.normal(size=(3, M))
    tasks = np.concatenate([RNG.permutation(M) for _ in range(4)])
    orders = np.stack([RNG.permutation(n) for _ in tasks])
    U, alpha = thesis_pass(X, SIGNS, w, mu, gamma, tasks, orders)
    A, products = np.zeros((M, n)), np.zeros((M, n))
    visit_tasks(K, np.ascontiguousarray(SIGNS.T), tasks, orders, C, gamma, w.T @ w, A, products)
    np.testing.assert_allclose(A.T, alpha, atol=1e-12)
    np.testing.assert_allclose(C * X.T @ A.T @ w.T, U, atol=1e-12)
    np.testing.assert_allclose(products, A @ K, atol=1e-10)


def test_the_representation_is_certified() -> None:
    """P and D of (4.4) and (4.5), with U itself."""
    n, C, gamma = len(X), 0.3, 0.2
    w = RNG.normal(size=(4, M))
    found = ascend(K, SIGNS, C, w.T @ w, StoppingCriteria(1e-6, 20_000), smoothing=gamma)
    U = C * X.T @ found.A @ w.T
    half = np.sum(U**2) / (2 * C * n * M)
    primal = losses(X @ U @ w, gamma).mean() + half
    dual = np.mean(SIGNS * found.A - 0.5 * gamma * found.A**2) - half
    assert found.status is Status.SOLVED
    assert found.primal.mean() == pytest.approx(primal, abs=1e-6)
    assert found.dual.mean() == pytest.approx(dual, abs=1e-12)
    assert 0.0 <= (primal - dual) / primal + 1e-6 <= 1e-5


def F(U, W, C_tasks, C_shared, gamma):
    n = len(X)
    return (
        losses(X @ U @ W, gamma).mean()
        + np.sum(W**2) / (2 * C_tasks * n * M)
        + np.sum(U**2) / (2 * C_shared * n * M)
    )


@pytest.mark.parametrize("gamma", [0.0, 0.5])
@pytest.mark.parametrize("C", [0.05, 1.0])
def test_turns_never_raise_the_objective(C, gamma) -> None:
    result = solve_multi(K, SIGNS, C, 0.5 * C, 2 * C, smoothing=gamma, max_alternations=12)
    values = [value for turn in result.alternations for value in (turn.objective_tasks, turn.objective)]
    assert len(values) > 4
    assert np.diff(values).max() <= 1e-12
    assert values[-1] < values[0]
    for turn in result.alternations:
        assert max(turn.gap_tasks, turn.gap_shared) <= 1e-3
    assert result.subproblem_gap <= 1e-3
    point = result.shared
    U = X.T @ point.Q
    assert result.primal == pytest.approx(F(U, point.W, 0.5 * C, 2 * C, gamma), abs=1e-6)


def explicit_turns(C, C_tasks, C_shared, gamma, turns):
    """Algorithm 4.1 with U (d, T) and W (T, T) written out, subproblems by projected gradients."""
    n = len(X)

    def svm(features, M_, C_):
        """Duals (n, T) of hinge losses with kernel features features^T (x) M_, by projected gradients."""
        gram = features @ features.T
        a = np.zeros((n, M))
        step = 1.0 / (C_ * np.linalg.eigvalsh(gram)[-1] * np.linalg.eigvalsh(M_)[-1] + gamma)
        ahead, t = a, 1.0
        for _ in range(30_000):
            gradient = SIGNS - C_ * gram @ ahead @ M_ - gamma * ahead
            new = SIGNS * np.clip(SIGNS * (ahead + step * gradient), 0.0, 1.0)
            faster = 0.5 * (1.0 + np.sqrt(1.0 + 4.0 * t * t))
            moved = np.abs(new - a).max()
            ahead, a, t = new + (t - 1.0) / faster * (new - a), new, faster
            if moved < 1e-12:
                break
        return a

    U = C * X.T @ svm(X, np.eye(M), C)
    for _ in range(turns):
        Z = X @ U
        W = C_tasks * Z.T @ svm(Z, np.eye(M), C_tasks)
        U = C_shared * X.T @ svm(X, W.T @ W, C_shared) @ W.T
    return U, W


def test_the_kernel_form_is_the_linear_form() -> None:
    """With smoothing every subproblem has one solution, so that both forms go through the same points."""
    gamma, C = 0.5, 0.2
    U, W = explicit_turns(C, C, C, gamma, turns=3)
    result = solve_multi(
        K, SIGNS, C, smoothing=gamma, tol=1e-11, max_passes=100_000, max_alternations=3, change_tol=0.0
    )
    point = result.shared
    scale = np.abs(U).max()
    np.testing.assert_allclose(X.T @ point.Q, U, atol=1e-4 * scale)
    np.testing.assert_allclose(point.W, W, atol=1e-4 * np.abs(W).max())
    np.testing.assert_allclose(X.T @ result.coefficients, U @ W, atol=1e-4 * np.abs(U @ W).max())


def test_gram_matrices_are_those_of_algorithm_B1() -> None:
    """K_Z = K A M A^T K with M = W^T W = B^T K_Z' B, and scores K A M, in the thesis's scaled duals."""
    C = 0.3
    turn = {"smoothing": 0.5, "tol": 1e-10, "max_passes": 100_000, "change_tol": 0.0}
    one = solve_multi(K, SIGNS, C, max_alternations=1, **turn)
    A, B = C * one.shared.A, C * one.shared.B
    first = C * ascend(K, SIGNS, C, None, StoppingCriteria(1e-10, 100_000), smoothing=0.5).A
    K_Z = (K @ first) @ (K @ first).T
    M_ = B.T @ K_Z @ B
    np.testing.assert_allclose(one.shared.W.T @ one.shared.W, M_, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(K @ one.coefficients, K @ A @ M_, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(one.shared.Z @ one.shared.Z.T, K @ A @ M_ @ A.T @ K, rtol=1e-6, atol=1e-8)


def trace_norm_optimum(C, gamma, steps=4000):
    """min over V of the mean smooth hinge plus |V|_* / (n T C), by accelerated proximal gradients on V."""
    n = len(X)
    tau, smooth = 1.0 / (n * M * C), np.linalg.eigvalsh(X.T @ X)[-1] / (gamma * n * M)
    V = ahead = np.zeros((X.shape[1], M))
    t = 1.0
    for _ in range(steps):
        v = np.clip((1.0 - SIGNS * (X @ ahead)) / gamma, 0.0, 1.0)
        u, s, vt = np.linalg.svd(ahead + X.T @ (SIGNS * v) / (n * M * smooth), full_matrices=False)
        new = (u * np.maximum(s - tau / smooth, 0.0)) @ vt
        faster = 0.5 * (1.0 + np.sqrt(1.0 + 4.0 * t * t))
        ahead, V, t = new + (t - 1.0) / faster * (new - V), new, faster
    return losses(X @ V, gamma).mean() + tau * np.linalg.svd(V, compute_uv=False).sum()


@pytest.mark.parametrize("C", [0.05, 0.5])
def test_the_lower_bound_is_one_and_comes_near(C) -> None:
    gamma = 0.5
    optimum = trace_norm_optimum(C, gamma)
    result = solve_multi(
        K, SIGNS, C, smoothing=gamma, tol=1e-7, max_passes=50_000, max_alternations=200, change_tol=1e-5
    )
    assert result.dual <= optimum + 1e-7
    # The hinge on a grid and the proximal steps are good to 1e-6; alternation stalls a little above.
    assert optimum - 1e-6 <= result.primal <= 1.002 * optimum
    assert result.relative_gap <= 0.02


@pytest.mark.parametrize("gamma", [0.0, 0.5])
def test_no_factors_lie_below_the_bound(gamma) -> None:
    C_tasks, C_shared = 0.4, 1.5
    problem = SharedProblem(K, SIGNS, C_tasks, C_shared, gamma)
    result = solve_multi(K, SIGNS, C_tasks, C_tasks, C_shared, smoothing=gamma)
    U, W = X.T @ result.shared.Q, result.shared.W
    for size in (0.0, 0.01, 0.3):
        for _ in range(20):
            near = F(
                U + size * RNG.normal(size=U.shape),
                W + size * RNG.normal(size=W.shape),
                C_tasks,
                C_shared,
                gamma,
            )
            assert near >= result.dual - 1e-6
    for _ in range(20):
        duals = SIGNS * RNG.uniform(0.0, 1.0, SIGNS.shape)
        assert problem.lower_bound(duals, K @ duals) <= result.primal


@pytest.mark.parametrize("C", [0.05, 0.5])
def test_the_convex_problem_is_solved_to_its_end(C) -> None:
    gamma = 0.5
    found, _ = trace_norm_bounds(SharedProblem(K, SIGNS, C, C, gamma), tol=1e-4)
    assert found.relative_gap <= 1e-4
    # The hinge on a grid and the proximal steps are good to 1e-6.
    assert found.dual - 1e-6 <= trace_norm_optimum(C, gamma) <= found.primal + 1e-6


def test_one_task_with_the_hinge_is_an_svm_whose_norm_is_not_squared() -> None:
    """min sum hinge + tau |v| has the v of an SVM with lambda = tau / |v|, found here by a search over it."""
    C, signs = 0.5, SIGNS[:, :1]

    def value(logarithm: float) -> float:
        result = solve_single(K, signs, float(np.exp(logarithm)), tol=1e-5, max_passes=2000)
        w = X.T @ result.coefficients[:, 0]
        return (np.maximum(0.0, 1.0 - signs[:, 0] * (X @ w)).sum() + np.linalg.norm(w) / C) / len(X)

    best = minimize_scalar(value, bounds=(-4.0, 4.0), method="bounded", options={"maxiter": 20}).fun
    found, _ = trace_norm_bounds(SharedProblem(K, signs, C, C), tol=1e-3, max_passes=5000)
    assert found.relative_gap <= 1e-3
    assert found.dual <= best <= found.primal + 1e-3 * best


def test_certified_turns_with_the_hinge_itself() -> None:
    """The turns alone leave their bound at half of the objective."""
    turns, certified = (solve_multi(K, SIGNS, 0.5, certify=certify, tol=5e-3) for certify in (False, True))
    assert certified.primal == turns.primal
    assert turns.dual < 0.6 * turns.primal
    assert 0.99 * certified.primal <= certified.dual <= certified.primal
    assert certified.passes > turns.passes
    easy = solve_multi(K, SIGNS, 0.05, smoothing=0.5, certify=True, tol=5e-3)
    assert easy.status is Status.SOLVED


def test_no_examples_with_features_leave_the_loss_at_zero() -> None:
    found, _ = trace_norm_bounds(SharedProblem(np.zeros((3, 3)), np.ones((3, 2)), 1.0, 1.0))
    assert found.primal == 1.0


def test_the_end_says_what_is_certified() -> None:
    easy = solve_multi(K, SIGNS, 1e-4, smoothing=1.0)
    assert easy.status is Status.SOLVED
    assert easy.relative_gap <= 1e-3
    assert solve_multi(K, SIGNS, 1.0).status is Status.NO_PROGRESS
    assert solve_multi(K, SIGNS, 1.0, change_tol=0.0, max_alternations=1).status is Status.MAX_PASSES


def test_the_second_layer_is_an_svm_on_the_scores_of_the_first() -> None:
    C, second = 0.5, 0.05
    first = LinearSVC(loss="hinge", C=C, fit_intercept=False, tol=1e-10, max_iter=1_000_000).fit(X, Y)
    scores = X @ first.coef_.T
    theirs = LinearSVC(loss="hinge", C=second, fit_intercept=False, tol=1e-10, max_iter=1_000_000)
    theirs.fit(scores, Y)
    ours = solve_stacked(K, SIGNS, C, second, **TIGHT)
    new = examples(n=30, seed=3)[0]
    np.testing.assert_allclose(
        new @ X.T @ ours.coefficients, theirs.decision_function(new @ first.coef_.T), atol=1e-3
    )
    assert ours.subproblem_gap <= 1e-9


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"K": K[:5]}, "the kernel matrix has the shape"),
        ({"signs": SIGNS[:5]}, "the labels have the shape"),
        ({"signs": SIGNS + 1.0}, "values other than 1 and -1"),
        ({"C": 0.0}, "C is 0.0"),
        ({"C_shared": -1.0}, "C_shared is -1.0"),
        ({"K": -K}, "negative diagonal"),
        ({"smoothing": -1.0}, "smoothing is -1.0"),
        ({"tol": 0.0}, "tol is 0.0"),
    ],
)
def test_what_makes_no_problem_is_refused(change, message) -> None:
    with pytest.raises(InvalidProblemError, match=message):
        solve_multi(**{"K": K, "signs": SIGNS, **change})


def test_kernel_values_that_are_no_numbers_are_refused() -> None:
    with pytest.raises(NonFiniteError, match="NaN or infinity"):
        solve_single(np.where(K > 3.0, np.nan, K), SIGNS)


NEW = examples(n=25, seed=5)[0]


def fitted(strategy="multi", labels=Y, **parameters):
    return MultitaskClassifier(strategy, **{"smoothing": 0.5, **parameters}).fit(X, labels)


def test_single_tasks_are_scikit_learns_linear_svms_with_a_regularised_intercept() -> None:
    ours = fitted("single", C=0.3, smoothing=0.0, tol=1e-9, max_passes=100_000)
    theirs = LinearSVC(loss="hinge", C=0.3, tol=1e-10, max_iter=1_000_000).fit(X, Y)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=1e-4)
    np.testing.assert_allclose(ours.intercept_, theirs.intercept_, atol=1e-4)
    np.testing.assert_array_equal(ours.predict(NEW), theirs.predict(NEW))


def test_single_tasks_are_one_vs_all_of_the_top_k_classifier() -> None:
    ours = fitted("single", C=0.3, kernel="rbf", gamma=0.2, tol=1e-7, max_passes=20_000)
    theirs = TopKClassifier(OneVsAll("hinge"), C=0.3, smoothing=0.5, kernel="rbf", gamma=0.2, tol=1e-7)
    theirs.fit(X, Y)
    # The objective there is the sum over classes.
    assert ours.primal_ * M == pytest.approx(theirs.primal_, rel=1e-6)
    np.testing.assert_allclose(ours.decision_function(NEW), theirs.decision_function(NEW), atol=2e-3)


@pytest.mark.parametrize("kernel", ["linear", "rbf"])
def test_it_is_solve_multi(kernel) -> None:
    model = fitted(C=0.3, C_shared=0.6, kernel=kernel, gamma=None if kernel == "linear" else 0.2)
    gram = lambda A, B: (A @ B.T if kernel == "linear" else rbf_kernel(A, B, gamma=0.2)) + 1.0  # noqa: E731
    result = solve_multi(gram(X, X), SIGNS, 0.3, None, 0.6, smoothing=0.5)
    scores = gram(NEW, X) @ result.coefficients
    np.testing.assert_allclose(model.decision_function(NEW), scores, atol=1e-6)
    np.testing.assert_array_equal(model.predict(NEW), scores.argmax(axis=1))
    assert (model.primal_, model.dual_) == pytest.approx((result.primal, result.dual), rel=1e-6)
    assert model.relative_gap_ == pytest.approx((model.primal_ - model.dual_) / model.primal_)
    assert len(model.alternations_) == len(result.alternations)
    np.testing.assert_allclose(model.represent(NEW) @ result.shared.W, scores, atol=1e-5)


def test_weights_of_the_linear_kernel_have_the_rank_of_few_factors() -> None:
    """The trace norm makes low rank, and more so the less the losses weigh."""
    model = fitted(C=0.01, tol=1e-6, change_tol=1e-6, max_passes=20_000, max_alternations=200)
    np.testing.assert_allclose(
        model.decision_function(NEW), NEW @ model.coef_.T + model.intercept_, atol=1e-10
    )
    extended = np.column_stack([model.coef_, model.intercept_])
    shares = np.linalg.svd(extended, compute_uv=False)
    assert (shares > 1e-2 * shares[0]).sum() < min(extended.shape)


@pytest.mark.parametrize("strategy", ["single", "stacked", "multi"])
def test_two_classes_are_one_task(strategy) -> None:
    labels = np.where(Y < 2, "no", "yes")
    model = fitted(strategy, labels)
    scores = model.decision_function(NEW)
    assert scores.shape == (len(NEW),)
    assert model.coef_.shape == (1, X.shape[1])
    np.testing.assert_allclose(scores, NEW @ model.coef_[0] + model.intercept_[0], atol=1e-10)
    np.testing.assert_array_equal(model.predict(NEW), np.where(scores > 0, "yes", "no"))
    swapped = fitted(strategy, np.where(Y < 2, "yes", "no"))
    np.testing.assert_allclose(swapped.decision_function(NEW), -scores, atol=1e-9)


@pytest.mark.parametrize("strategy", ["single", "multi"])
def test_precomputed_and_sparse_are_the_same(strategy) -> None:
    parameters = {"C": 0.5, "fit_intercept": False}
    plain = fitted(strategy, **parameters).decision_function(NEW)
    gram = MultitaskClassifier(strategy, kernel="precomputed", smoothing=0.5, **parameters).fit(X @ X.T, Y)
    np.testing.assert_allclose(gram.decision_function(NEW @ X.T), plain, atol=1e-8)
    rows = MultitaskClassifier(strategy, smoothing=0.5, **parameters).fit(sparse.csr_matrix(X), Y)
    np.testing.assert_allclose(rows.decision_function(sparse.csr_matrix(NEW)), plain, atol=1e-8)


def test_without_a_kernel_it_is_linear_and_copies_predict_the_same() -> None:
    model = fitted("stacked", kernel=None, C_tasks=0.1)
    again = pickle.loads(pickle.dumps(clone(model).fit(X, Y)))
    np.testing.assert_array_equal(again.decision_function(NEW), model.decision_function(NEW))
    assert model.kernel_.name == "linear"
    with pytest.raises(AttributeError):
        model.represent(NEW)
    value = MultitaskClassifier("single", kernel=RBFKernel(0.2)).fit(X, Y)
    named = MultitaskClassifier("single", kernel="rbf", gamma=0.2).fit(X, Y)
    np.testing.assert_array_equal(value.decision_function(NEW), named.decision_function(NEW))


def test_a_search_over_strategies() -> None:
    grid = {"strategy": ["single", "multi"], "C": [0.01, 0.3]}
    search = GridSearchCV(MultitaskClassifier(smoothing=0.5), grid, cv=2).fit(X, Y)
    assert search.best_score_ > 1.5 / M


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"strategy": "many"}, "no strategy named 'many'; use one of single, stacked, multi"),
        ({"strategy": "single", "C_tasks": 1.0}, "the strategy single has no C_tasks, which is 1.0"),
        ({"strategy": "stacked", "max_alternations": 3}, "the strategy stacked has no max_alternations"),
        ({"C": "big"}, "C is 'big'"),
        ({"C_tasks": -1.0}, "C_tasks is -1.0"),
        ({"max_alternations": 0}, "max_alternations is 0"),
        ({"change_tol": -1.0}, "change_tol is -1.0"),
        ({"smoothing": None}, "smoothing is None"),
        ({"kernel": "cubic"}, "no kernel named 'cubic'"),
        ({"kernel": "precomputed"}, "square matrix"),
    ],
)
def test_what_cannot_be_is_refused(parameters, message) -> None:
    with pytest.raises(InvalidProblemError, match=message):
        MultitaskClassifier(**parameters).fit(X, Y)


def test_an_indefinite_matrix_is_refused() -> None:
    gram = X @ X.T
    gram[0, 1] = gram[1, 0] = 1e3
    with pytest.raises(InvalidProblemError, match="not positive semi-definite"):
        MultitaskClassifier(kernel="precomputed").fit(gram, Y)


@pytest.mark.parametrize("strategy", ["single", "stacked", "multi"])
def test_a_budget_that_runs_out_is_told(strategy) -> None:
    with pytest.warns(ConvergenceWarning, match="training ended after"):
        model = MultitaskClassifier(strategy, C=10.0, max_passes=2).fit(X, Y)
    assert model.subproblem_gap_ > 1e-3
    if strategy == "single":
        assert model.status_ is Status.MAX_PASSES
        short = solve_single(X @ X.T + 1.0, SIGNS, 10.0, max_passes=2)
        assert model.subproblem_gap_ == pytest.approx(short.subproblem_gap, rel=1e-3)
