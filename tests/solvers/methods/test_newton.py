"""Newton's method: its second-order sums against differences, and what does not depend on blocks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from tests.reference import losses as reference
from topline import (
    MaxHinge,
    NonFiniteError,
    OneVsAll,
    SerialExecutor,
    Softmax,
    Status,
    TopKEntropy,
    TopKHinge,
    TruncatedTopKEntropy,
    UsunierHinge,
    WeightedTopKHinge,
    solve,
)
from topline.solvers.blocks.second_order import CurvedRows, Envelopes
from topline.solvers.core.dual_points import PendingStep
from topline.solvers.core.problem import Problem, inner
from topline.solvers.operations import FindEnvelopes, FindSlope, MultiplyCurvature, SumGrams

N, D, M = 240, 9, 5
LOSSES = [
    MaxHinge(),
    TopKHinge(2),
    UsunierHinge(2),
    WeightedTopKHinge((1.0, 0.5)),
    OneVsAll("hinge"),
    Softmax(),
    TopKEntropy(2),
]


def examples(seed=0, n=N, d=D, m=M, noise=1.5):
    """Draw standardised rows of overlapping classes, their features correlated."""
    rng = np.random.default_rng(seed)
    y = rng.integers(m, size=n)
    X = (rng.standard_normal((m, d))[y] + noise * rng.standard_normal((n, d))) @ rng.standard_normal((d, d))
    return (X - X.mean(axis=0)) / X.std(axis=0), y


X, Y = examples()
#: Turns the features into correlated ones.
MIXED = np.random.default_rng(5).standard_normal((D, D))
WEIGHTS = np.random.default_rng(1).uniform(0.0, 2.0, N)


class At:
    """A point away from A = 0, on blocks that the rows are cut into."""

    def __init__(self, loss, smoothing=0.0, blocks=3, features=X, **options):
        rng = np.random.default_rng(2)
        self.problem = Problem(loss, n=N, d=D, m=M, lam=0.5 / N, smoothing=smoothing, **options)
        self.executor = SerialExecutor(blocks=blocks)
        self.executor.bind(self.problem, features, Y, keep_duals=True, weights=WEIGHTS)
        self.sigma = 0.0 if self.problem.form.smooth else 0.7
        pending = None
        if self.sigma:
            W = 0.2 * rng.standard_normal((D, M))
            self.executor.run(FindEnvelopes(0, W, sigma=self.sigma))
            pending = PendingStep(round=0, step=0.6)
        self.W = 0.3 * rng.standard_normal((D, M))
        self.V = rng.standard_normal((D, M))
        self.point = FindEnvelopes(1, self.W, pending, sigma=self.sigma)

    def gradient(self, W):
        """Give the product of the sum of envelopes, minus their gradient."""
        # Another round each time: nothing that is kept may answer.
        self.point = replace(self.point, round=self.point.round + 2, W=W)
        return self.executor.run(self.point).product


@pytest.mark.parametrize("smoothing", [0.0, 0.4])
@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.name)
def test_curvature_is_the_derivative_of_the_gradient(loss, smoothing) -> None:
    at = At(loss, 0.0 if isinstance(loss, Softmax | TopKEntropy) else smoothing)
    V = 1e-6 * at.V
    expected = (at.gradient(at.W - V) - at.gradient(at.W + V)) / 2e-6
    here = at.gradient(at.W)
    product = at.executor.run(MultiplyCurvature.at(at.point, V=at.V)).product
    # Between the two points of the difference hardly a row has a kink; float64 leaves ten digits of each.
    np.testing.assert_allclose(product, expected, rtol=0, atol=1e-4 * np.abs(expected).max())
    slope = at.executor.run(FindSlope.at(at.point, V=at.V, step=0.0)).total
    assert slope == pytest.approx(inner(here, at.V), rel=1e-12)
    ahead = at.executor.run(FindSlope.at(at.point, V=at.V, step=0.3)).total
    assert ahead == pytest.approx(inner(at.gradient(at.W + 0.3 * at.V), at.V), rel=1e-9)


@pytest.mark.parametrize("loss", [MaxHinge(), TopKHinge(2), OneVsAll("hinge")], ids=lambda loss: loss.name)
def test_gram_matrices_are_the_diagonal_blocks_of_the_hessian(loss) -> None:
    at = At(loss)
    at.gradient(at.W)
    grams = at.executor.run(SumGrams.at(at.point)).matrix.reshape(M, D, D)
    for j in range(M):
        for k in range(D):
            V = np.zeros((D, M))
            V[k, j] = 1.0
            column = at.executor.run(MultiplyCurvature.at(at.point, V=V)).product[:, j]
            # Of one-vs-all classes do not move together: there it is a preconditioner and no more.
            if not isinstance(loss, OneVsAll):
                np.testing.assert_allclose(grams[j, :, k], column, rtol=0, atol=1e-5 * np.abs(grams).max())
            assert grams[j, :, k] @ column >= 0.0


@pytest.mark.parametrize("features", [X, csr_matrix(X)], ids=["dense", "csr"])
@pytest.mark.parametrize("loss", [TopKHinge(2), OneVsAll("hinge"), Softmax()], ids=lambda loss: loss.name)
def test_the_whole_hessian_multiplies_as_its_products_do(loss, features) -> None:
    at = At(loss, features=features)
    at.gradient(at.W)
    hessian = at.executor.run(SumGrams.at(at.point, whole=True)).matrix
    product = at.executor.run(MultiplyCurvature.at(at.point, V=at.V)).product
    found = (hessian @ at.V.T.ravel()).reshape(M, D).T
    # A product is a difference over a step of 1e-7 of the envelope's width.
    np.testing.assert_allclose(found, product, rtol=0, atol=1e-5 * np.abs(product).max())
    np.testing.assert_allclose(hessian, hessian.T, rtol=0, atol=1e-12 * np.abs(hessian).max())


@pytest.mark.parametrize("loss", [MaxHinge(), TopKHinge(2), UsunierHinge(2)], ids=lambda loss: loss.name)
def test_the_whole_hessian_is_the_derivative_where_the_own_class_is_smoothed_less(loss) -> None:
    """There c J is no projector, and its differences are taken as they are."""
    at = At(loss, 0.4, smoothing_kind="others")
    columns = []
    for j in range(M):
        for k in range(D):
            V = np.zeros((D, M))
            V[k, j] = 1e-6
            column = (at.gradient(at.W - V) - at.gradient(at.W + V)) / 2e-6
            columns.append(column.T.ravel())
    at.gradient(at.W)
    hessian = at.executor.run(SumGrams.at(at.point, whole=True)).matrix
    np.testing.assert_allclose(hessian, columns, rtol=0, atol=1e-6 * np.abs(hessian).max())


def test_a_softmax_that_gram_matrices_serve_badly_takes_its_whole_hessian() -> None:
    """With the matrices of its classes alone it takes 50 passes, with the factor of the whole 32."""
    result = solve(X @ MIXED, Y, Softmax(), lam=1e-2 / N, method="newton", tol=1e-6)
    assert result.status is Status.SOLVED
    assert result.passes <= 40


@pytest.mark.parametrize("loss", [TopKHinge(2), Softmax()], ids=lambda loss: loss.name)
def test_what_is_kept_between_rounds_changes_no_sum(loss) -> None:
    at, again = At(loss), At(loss, blocks=1)
    first = at.executor.run(at.point)
    at.executor.run(FindSlope.at(at.point, V=at.V, step=0.25))
    following = replace(at.point, round=2, W=at.W + 0.25 * at.V, last_step=0.25)
    followed = at.executor.run(following)
    fresh = again.executor.run(replace(following, last_step=float("nan")))
    assert first.visited == fresh.visited == N
    assert followed.visited == 0
    np.testing.assert_allclose(
        followed.product, fresh.product, rtol=0, atol=1e-9 * np.abs(fresh.product).max()
    )
    assert followed.loss == pytest.approx(fresh.loss, rel=1e-12)
    # The same request again changes nothing.
    assert at.executor.run(following).loss == followed.loss


@pytest.mark.parametrize("features", [X, X.astype(np.float32), csr_matrix(X)], ids=["f64", "f32", "csr"])
@pytest.mark.sampled(3)
def test_runs_do_not_depend_on_blocks(features) -> None:
    results = [
        solve(
            features,
            Y,
            TopKHinge(2),
            lam=1e-2 / N,
            method="newton",
            tol=1e-6,
            executor=SerialExecutor(blocks=k),
        )
        for k in (1, 7)
    ]
    for result in results:
        assert result.status is Status.SOLVED
        assert result.primal == pytest.approx(results[0].primal, rel=1e-6)
        assert result.passes <= 1.5 * results[0].passes
    duals = np.maximum.accumulate([record.dual for record in results[1].history])
    # D is that of A, which exact steps never let fall but by rounding of float32.
    assert np.all([record.dual for record in results[1].history] >= duals - 1e-6)


@pytest.mark.parametrize(
    ("loss", "d", "said"),
    [
        (Softmax(), 9, "softmax is smooth"),
        (Softmax(), 130, "softmax is smooth"),
        (TruncatedTopKEntropy(2), 9, "truncated_topk_entropy is not convex"),
    ],
    ids=["few numbers", "many numbers", "not convex"],
)
def test_auto_takes_what_a_smooth_loss_asks_for(loss, d, said) -> None:
    X, y = examples(4, d=d)
    result = solve(X, y, loss, lam=1.0 / N, method="auto")
    assert result.method == "lbfgs"
    assert said in result.why


def test_passes_that_are_too_few_for_a_step_are_not_counted_as_taken() -> None:
    """One measures W = 0; of three passes two are left, and a step may take three."""
    result = solve(X, Y, MaxHinge(), lam=1e-3 / N, method="newton", max_passes=3)
    assert (result.status, result.passes) == (Status.MAX_PASSES, 1)


@pytest.mark.parametrize("loss", [MaxHinge(), TopKHinge(2), OneVsAll("hinge")], ids=lambda loss: loss.name)
def test_rows_of_the_hessian_are_projectors_however_large_c_is(loss) -> None:
    """The Hessian of a row is x x^T (x) J, and c J is a projector to more digits than a difference has."""
    at = At(loss)
    at.gradient(at.W)
    scores = X @ at.W
    rows = CurvedRows(np.arange(N), Y.astype(np.int32), WEIGHTS, scores, np.zeros_like(scores))
    envelopes = Envelopes(at.problem, at.sigma)
    rows = replace(rows, U=envelopes.gradients(scores, rows.y, WEIGHTS))
    rows = replace(rows, classes=envelopes.moving(rows, (0, 0)))
    projectors = at.sigma * envelopes.jacobians(rows)
    assert np.abs(projectors).max() > 0.4
    np.testing.assert_allclose(projectors @ projectors, projectors, rtol=0, atol=1e-13)
    np.testing.assert_allclose(projectors, projectors.transpose(0, 2, 1), rtol=0, atol=1e-15)


def test_a_class_that_a_random_step_leaves_where_it_was_is_in_the_hessian() -> None:
    """Of the classes in which u moves any may be missing, as long as there is another one of its face."""
    at = At(TopKHinge(2))
    at.gradient(at.W)
    scores = X @ at.W
    rows = CurvedRows(np.arange(N), Y.astype(np.int32), WEIGHTS, scores, np.zeros_like(scores))
    envelopes = Envelopes(at.problem, at.sigma)
    rows = replace(rows, U=envelopes.gradients(scores, rows.y, WEIGHTS))
    classes = envelopes.moving(rows, (0, 0))
    whole = envelopes.jacobians(replace(rows, classes=classes))
    for j in range(M):
        others = classes.copy()
        others[classes.sum(axis=1) > 1, j] = False
        some = envelopes.jacobians(replace(rows, classes=others))
        np.testing.assert_allclose(some, whole, rtol=0, atol=1e-12 * np.abs(whole).max())


def test_rows_of_the_hessian_look_no_further_than_the_next_kink() -> None:
    """A row misses its margin by 1e-3 in class 1; class 2 takes part where it misses it by half of that."""
    sigma, scores = 1e5, np.array([[0.0, 1e-3 - 1.0, 4e-4 - 1.0], [0.0, 1e-3 - 1.0, 6e-4 - 1.0]])
    problem = Problem(MaxHinge(), n=2, d=1, m=3, lam=1e-9)
    envelopes = Envelopes(problem, sigma)
    y, weights = np.zeros(2, dtype=np.int32), np.ones(2)
    U = envelopes.gradients(scores, y, weights)
    rows = CurvedRows(np.arange(2), y, weights, scores, U, classes=np.ones((2, 3), dtype=np.bool_))
    J = sigma * envelopes.jacobians(rows)
    two = np.array([[1.0, -1.0, 0.0], [-1.0, 1.0, 0.0], [0.0, 0.0, 0.0]]) / 2.0
    np.testing.assert_allclose(J, [two, np.eye(3) - 1.0 / 3.0], rtol=0, atol=1e-9)


@pytest.mark.parametrize(("m", "loss"), [(2, MaxHinge()), (3, TopKHinge(3))], ids=["max", "top-3"])
def test_small_dual_variables_take_no_more_passes_than_others(m, loss) -> None:
    """C = 1e6 where every margin can be kept: dual variables are of size 1e-7, and sigma as much larger."""
    for seed in range(4):
        rng = np.random.default_rng(seed)
        y = np.arange(60) % m
        rows = rng.standard_normal((m, 20))[y] + rng.standard_normal((60, 20))
        with SerialExecutor(blocks=3) as executor:
            result = solve(
                rows, y, loss, lam=1e-6 / 60, method="newton", max_passes=150, executor=executor
            )  # fmt: skip
        assert result.status is Status.SOLVED
        primal = reference.primal(rows, y, loss, result.problem.lam, 0.0, result.W)
        assert result.primal == pytest.approx(primal, rel=1e-9)


@pytest.mark.parametrize("blocks", [1, 3])
@pytest.mark.parametrize("method", ["newton", "auto"])
def test_classes_that_can_be_told_apart_are_solved_at_any_c(method, blocks) -> None:
    rng = np.random.default_rng(7)
    y = np.arange(150) % M
    rows = np.maximum(rng.standard_normal((M, 30))[y] + 0.3 * rng.standard_normal((150, 30)), 0.0)
    values = []
    for C in (1e3, 1e6):
        with SerialExecutor(blocks=blocks) as executor:
            result = solve(
                rows,
                y,
                TopKHinge(2),
                lam=1.0 / (C * len(y)),
                method=method,
                max_passes=600,
                executor=executor,
            )
        assert result.status is Status.SOLVED
        primal = reference.primal(rows, y, TopKHinge(2), result.problem.lam, 0.0, result.W)
        assert result.primal == pytest.approx(primal, rel=1e-9)
        values.append(result.primal * C)
    # With no row left with a loss P / lam does not depend on C.
    assert values[0] == pytest.approx(values[1], rel=2e-3)


def test_features_whose_squares_overflow_are_said() -> None:
    """SciPy refused the Hessian, as if infinity had been given to it by whoever called."""
    with pytest.raises(NonFiniteError, match="squares of the features overflow; scale the features"):
        solve(1e200 * X, Y, MaxHinge(), lam=1e-3, method="newton")


def test_float64_takes_over_where_rounding_of_float32_hides_the_gradient() -> None:
    """Features of Cauchy's distribution with a large C: |grad F|^2 / (2 lam) of float32 is above the gap."""
    rng = np.random.default_rng(10)
    rows = (rng.standard_normal((120, 8)) + rng.standard_cauchy((120, 8))).astype(np.float32)
    result = solve(
        rows, rng.integers(4, size=120), Softmax(), lam=1e-7 / 120, method="newton", max_passes=600
    )
    assert result.status is Status.SOLVED
    assert result.state.exact
