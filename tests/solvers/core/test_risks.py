"""The average top-k risk, against its definition, a general convex solver and the dual points themselves."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from tests.reference import losses as reference
from tests.reference.risks import (
    dual_of_cuts,
    losses_at,
    mean_of_largest,
    top_entropy_optimum,
    top_optimum,
    top_primal,
    top_weights,
)
from tests.solvers.problems import EVERY_LOSS, M, examples, loss_name
from topline import (
    AverageTopK,
    InvalidProblemError,
    MaxHinge,
    MultilabelHinge,
    SerialExecutor,
    Softmax,
    Status,
    TopKHinge,
    TruncatedTopKEntropy,
    UnsupportedCombinationError,
    solve,
)
from topline.solvers.core.problem import LargestLosses, MeanRisk, Problem
from topline.solvers.errors import StateLostError
from topline.solvers.methods import METHODS, atoms
from topline.solvers.methods.frank_wolfe import atoms_of
from topline.solvers.operations import FindLargestLosses, FindSelectedVertices

CONVEX = [loss for loss in EVERY_LOSS if loss.form(M).convex]
HINGES = [loss for loss in CONVEX if not loss.form(M).smooth]
ENTROPIES = [loss for loss in CONVEX if loss.form(M).smooth]
#: Every convex loss as it is, and the hinges smoothed.
CASES = [(loss, 0.0) for loss in CONVEX] + [(loss, 0.5) for loss in HINGES]
ABLE = [name for name, spec in METHODS.items() if spec.any_risk]


def case_name(value):
    return getattr(value, "name", None)


def run(X, y, loss, k, *, lam=0.05, **options):
    options = {"tol": 1e-7, "max_passes": 400, "m": M, **options}
    return solve(X, y, loss, lam, risk=AverageTopK(k), **options)


def clouds(n=30, d=4):
    return examples(n=n, d=d)


class TestTheLargestLosses:
    """Selection on its own, for the blocks and the coordinator do the same arithmetic."""

    @pytest.mark.parametrize("k", [1.0, 2.0, 3.5, 6.25, 7.0])
    def test_the_weights_attain_the_maximum_and_ties_go_by_row(self, k) -> None:
        losses = np.array([1.0, 0.0, 3.0, 1.0, 3.0, 1.0, 0.5])
        found = LargestLosses.of(math.ceil(k), np.arange(7), losses)
        chosen = AverageTopK(k).selected(found, 7)
        p = np.zeros(7)
        p[chosen.rows] = chosen.weights / 7
        np.testing.assert_allclose(p, top_weights(losses, k), rtol=1e-15)
        assert p @ losses == pytest.approx(mean_of_largest(losses, k), rel=1e-15)

    @pytest.mark.parametrize("k", [1.0, 2.5, 4.0, 7.0])
    def test_the_papers_objective_is_k_over_n_times_the_risk(self, k) -> None:
        """It is min over t >= 0 of (1/n) sum max(0, l_i - t) + (k/n) t, with lam = n/(k C) for its C."""
        losses = np.abs(np.random.default_rng(3).standard_normal(7))
        breaks = np.append(losses, 0.0)  # it is convex and piecewise linear in t
        papers = min(np.mean(np.maximum(losses - t, 0.0)) + k / 7 * t for t in breaks)
        assert papers == pytest.approx(k / 7 * mean_of_largest(losses, k), rel=1e-14)

    def test_merging_in_any_split_keeps_the_same_rows(self) -> None:
        random = np.random.default_rng(0)
        losses = random.integers(0, 6, 40).astype(float)
        rows = np.arange(40)
        whole = LargestLosses.of(11, rows, losses)
        for cut in range(41):
            left = LargestLosses.of(11, rows[:cut], losses[:cut])
            merged = left.merge(LargestLosses.of(11, rows[cut:], losses[cut:]))
            np.testing.assert_array_equal(merged.rows, whole.rows)
            np.testing.assert_array_equal(merged.losses, whole.losses)

    def test_a_loss_that_is_no_number_is_among_them(self) -> None:
        found = LargestLosses.of(2, np.arange(4), np.array([1.0, 2.0, np.nan, 3.0]))
        assert list(found.rows) == [2, 3]
        assert found.losses[0] == np.inf


@pytest.mark.parametrize(("loss", "smoothing"), CASES, ids=case_name)
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.sampled(2)
def test_every_row_has_its_own_loss(loss, smoothing, dtype) -> None:
    """At any W, as by definition; blocks otherwise only sum them."""
    X, y = clouds(n=12)
    X, W = X.astype(dtype), np.random.default_rng(5).standard_normal((4, M)).astype(dtype)
    with SerialExecutor(blocks=3) as executor:
        problem = Problem(loss, *X.shape, M, 0.1, smoothing)
        executor.bind(problem, X, y.astype(np.int32), keep_duals=False)
        found = executor.run(FindLargestLosses(W, 12, exact=dtype == np.float64)).largest
    expected = losses_at(X, y, loss, smoothing, W.astype(np.float64))
    np.testing.assert_array_equal(found.rows, np.arange(12))
    rtol, atol = (1e-7, 1e-11) if dtype == np.float64 else (1e-5, 1e-4)
    np.testing.assert_allclose(found.losses, expected, rtol=rtol, atol=atol)


@pytest.mark.parametrize("k", [1.0, 5.0, 7.5, 30.0, 60.0])
@pytest.mark.parametrize("loss", [loss for loss in CONVEX if loss.form(M).family.bounded], ids=loss_name)
@pytest.mark.sampled(13)
def test_sixty_examples_end_at_the_optimum_of_a_general_solver(loss, k) -> None:
    """For every convex loss and k from the maximum to the mean, D <= P* <= P at a relative gap of 1e-5."""
    check_against_a_general_solver(loss, 60, k, 1e-5)


def check_against_a_general_solver(loss, n, k, tol):
    X, y = clouds(n=n, d=3)
    best = (top_entropy_optimum if loss in ENTROPIES else top_optimum)(X, y, loss, 0.05, k, M)
    result = run(X, y, loss, k, tol=tol, max_passes=2000)
    assert result.status is Status.SOLVED
    assert result.dual <= best * (1.0 + 1e-6)
    assert best <= result.primal * (1.0 + 1e-6)


@pytest.mark.parametrize(("loss", "smoothing"), CASES, ids=case_name)
@pytest.mark.sampled(2)
def test_the_cuts_of_a_run_are_a_dual_point_that_certifies_it(loss, smoothing) -> None:
    """p and A made of the stored points by definition are feasible, and D there is not below the reported."""
    X, y = clouds(n=20, d=3)
    k = 9.5
    result = run(X, y, loss, k, smoothing=smoothing, tol=1e-4 if smoothing == 0 else 1e-2)
    assert result.status is Status.SOLVED
    assert result.gap_kind == "true"
    primal = top_primal(X, y, loss, 0.05, smoothing, k, result.W)
    assert result.primal == pytest.approx(primal, rel=1e-11)
    points, shares = atoms_of(result.problem, result.state).cuts()
    assert (shares > 0).all()
    assert shares.sum() <= 1.0 + 1e-12
    p, A, dual = dual_of_cuts(X, y, loss, 0.05, smoothing, k, points, shares)
    assert p.min() >= 0.0
    assert p.max() <= (1.0 + 1e-12) / k
    assert p.sum() <= 1.0 + 1e-12
    for i in np.flatnonzero(p):
        assert reference.infeasibility(loss, A[i] / p[i], y[i]) <= 1e-9
    assert dual >= result.dual - 1e-10 * abs(result.primal)
    assert dual <= primal * (1.0 + 1e-10)
    W = result.W if result.W_dual is None else result.W_dual
    np.testing.assert_allclose(X.T @ A / 0.05, W, atol=1e-9)


@pytest.mark.parametrize("method", ABLE)
@pytest.mark.parametrize("loss", [TopKHinge(3), Softmax()], ids=loss_name)
@pytest.mark.sampled(2)
def test_every_method_bounds_the_same_optimum(method, loss) -> None:
    X, y = clouds()
    best = run(X, y, loss, 6.5)
    result = run(X, y, loss, 6.5, method=method, tol=1e-2, max_passes=300)
    assert result.dual <= best.primal * (1.0 + 1e-12)
    assert best.dual <= result.primal * (1.0 + 1e-12)
    assert 0.0 <= result.relative_gap < 0.25


@pytest.mark.parametrize("loss", HINGES, ids=loss_name)
def test_the_gap_is_the_slope_towards_the_vertex(loss) -> None:
    """lam |W|^2 + AT_k - b = b_U - b - lam <W, W_U> + lam |W|^2, with U made by definition."""
    X, y = clouds()
    k, lam, states = 7.5, 0.05, []
    result = run(
        X, y, loss, k, method="fw", max_passes=30, tol=1e-12, callbacks=[lambda _, s: states.append(s)]
    )
    for record, state in list(zip(result.history[1:], states[:-1], strict=True))[::7]:
        S = X @ state.W
        losses = np.array([reference.sorted_loss(loss, s, label) for s, label in zip(S, y, strict=True)])
        p = top_weights(losses, k)
        U = np.array([reference.gradient(loss, s, label) for s, label in zip(S, y, strict=True)])
        b = sum(p[i] * reference.minus_conjugate(loss, U[i], y[i]) for i in range(len(y)))
        W_U = X.T @ (p[:, None] * U) / lam
        slope = b - state.point.conjugate_mean - lam * np.sum(state.W * (W_U - state.W))
        primal = top_primal(X, y, loss, lam, 0.0, k, state.W)
        assert primal - record.dual == pytest.approx(slope, rel=1e-9, abs=1e-12)
        assert record.primal <= primal * (1.0 + 1e-12)


@pytest.mark.parametrize("loss", [MaxHinge(), Softmax()], ids=loss_name)
def test_all_losses_are_the_mean(loss) -> None:
    X, y = clouds()
    top = run(X, y, loss, float(len(y)))
    mean = solve(X, y, loss, 0.05, method="fw_fully_corrective", tol=1e-7, max_passes=400, m=M)
    other = solve(X, y, loss, 0.05, risk=MeanRisk(), tol=1e-6, max_passes=2000, m=M)
    assert top.primal == pytest.approx(mean.primal, rel=2e-7)
    assert top.dual <= other.primal * (1.0 + 1e-12)
    assert other.dual <= top.primal * (1.0 + 1e-12)


def test_a_run_goes_on_where_it_stopped() -> None:
    X, y = clouds()
    straight = run(X, y, TopKHinge(2), 6.5)
    first = run(X, y, TopKHinge(2), 6.5, max_passes=12)
    assert first.status is Status.MAX_PASSES
    second = run(X, y, TopKHinge(2), 6.5, state=first.state)
    np.testing.assert_array_equal(second.W, straight.W)
    assert second.passes == straight.passes


class TestCollapse:
    """Every example twice, with two labels: no W gets more than half of the losses below those of W = 0."""

    def data(self):
        X, y = clouds()
        return np.concatenate([X, X]), np.concatenate([y, (y + 1) % M])

    def test_it_is_found_and_said(self) -> None:
        X, y = self.data()
        result = run(X, y, MaxHinge(), 5.0, tol=1e-4)
        assert result.status is Status.SOLVED
        assert result.collapsed
        # The loss of every example at W = 0 is 1, and W = 0 is the optimum.
        assert result.primal == pytest.approx(1.0, rel=2e-4)
        assert result.dual == pytest.approx(1.0, rel=2e-4)

    def test_it_is_not_said_of_others(self) -> None:
        X, y = clouds()
        assert not run(X, y, MaxHinge(), 20.0).collapsed
        assert not run(*self.data(), MaxHinge(), 5.0, max_passes=2).collapsed

    def test_weights_of_exactly_zero_are_said_of_the_mean_too(self) -> None:
        result = solve(*self.data(), MaxHinge(), 1e6, m=M)
        assert result.collapsed
        assert not result.W.any()

    def test_weights_that_a_large_lam_keeps_near_zero_are_no_collapse(self) -> None:
        """W = 0 is within tol of the optimum, and yet W is better and tells the classes apart."""
        X, y = clouds()
        result = solve(X, y, Softmax(), 1e3, risk=AverageTopK(len(y)), m=M, tol=1e-2)
        assert np.log(M) - result.dual <= 1e-2 * np.log(M)
        assert not result.collapsed
        assert result.primal < np.log(M)


def test_atoms_that_became_one_still_bound_the_optimum(monkeypatch) -> None:
    """Where there is room for few atoms two become one, which no single W is the vertex of."""
    X, y = clouds()
    best = run(X, y, TopKHinge(2), 9.5)
    monkeypatch.setattr(atoms, "_MOST", 6)
    result = run(X, y, TopKHinge(2), 9.5, max_passes=60)
    assert result.dual <= best.primal * (1.0 + 1e-12)
    assert best.dual <= result.primal * (1.0 + 1e-12)
    assert result.relative_gap < 0.3
    assert atoms_of(result.problem, result.state).cuts() is None


def test_examples_with_several_labels() -> None:
    """The risk asks a loss for nothing but losses and gradients."""
    X, y = clouds()
    Y = np.eye(M, dtype=int)[y] | np.eye(M, dtype=int)[(y + (X[:, 0] > 0)) % M]
    all_of_them = run(X, Y, MultilabelHinge(), 30.0, m=None)
    mean = solve(X, Y, MultilabelHinge(), 0.05, tol=1e-6, max_passes=2000)
    assert all_of_them.dual <= mean.primal * (1.0 + 1e-12)
    assert mean.dual <= all_of_them.primal * (1.0 + 1e-12)
    largest = run(X, Y, MultilabelHinge(), 9.5, m=None)
    assert largest.status is Status.SOLVED
    assert largest.primal > all_of_them.primal


def test_a_kernel_sees_the_same_risk() -> None:
    X, y = clouds()
    plain = run(X, y, TopKHinge(2), 6.5)
    kernel = run(X, y, TopKHinge(2), 6.5, kernel="linear")
    assert kernel.primal == pytest.approx(plain.primal, rel=1e-6)
    assert kernel.relative_gap <= 1e-6
    np.testing.assert_allclose(kernel.decision_function(X), plain.decision_function(X), atol=1e-4)


class TestLostRows:
    """A block that answers for other rows than it was asked for is noticed."""

    def test_a_vertex_that_lacks_rows_is_refused(self) -> None:
        class Careless(SerialExecutor):
            def run(self, request):
                if isinstance(request, FindSelectedVertices):
                    request = FindSelectedVertices(request.W, request.rows.between(0, 5), request.exact)
                return super().run(request)

        X, y = clouds()
        with pytest.raises(StateLostError, match="of the 7 rows"):
            run(X, y, MaxHinge(), 7.0, executor=Careless())

    def test_an_answer_that_lacks_losses_is_refused(self) -> None:
        class Careless(SerialExecutor):
            def run(self, request):
                answer = super().run(request)
                fewer = LargestLosses.of(3, answer.largest.rows, answer.largest.losses)
                return replace(answer, largest=fewer)

        with pytest.raises(StateLostError, match="cover 30 of 30 rows"):
            run(*clouds(), MaxHinge(), 7.0, executor=Careless())


def test_an_overflow_is_said() -> None:
    X, y = clouds()
    assert run(1e200 * X, y, MaxHinge(), 7.0, lam=2.0).status is Status.NONFINITE


class TestRefusals:
    @pytest.mark.parametrize("k", [0.5, 0, -1, math.nan, math.inf, True, "5", None])
    def test_a_k_that_is_none(self, k) -> None:
        with pytest.raises(InvalidProblemError, match="average_top_k"):
            AverageTopK(k)

    def test_more_examples_than_there_are(self) -> None:
        with pytest.raises(InvalidProblemError, match=r"there are 30 rows; use k <= 30"):
            run(*clouds(), MaxHinge(), 31)

    def test_a_risk_that_is_none(self) -> None:
        X, y = clouds()
        with pytest.raises(InvalidProblemError, match="AverageTopK"):
            solve(X, y, MaxHinge(), 0.1, risk=5)

    @pytest.mark.parametrize("method", sorted(set(METHODS) - set(ABLE)))
    def test_methods_that_need_other_duals(self, method) -> None:
        with pytest.raises(UnsupportedCombinationError, match="average_top_k; use one of auto, fw"):
            run(*clouds(), Softmax(), 5, method=method)

    @pytest.mark.parametrize("method", [name for name in ABLE if METHODS[name].smooths_through_duals])
    def test_smoothing_through_duals(self, method) -> None:
        with pytest.raises(UnsupportedCombinationError, match="use one of auto, fw_away"):
            run(*clouds(), MaxHinge(), 5, smoothing=0.5, method=method)

    def test_what_counts_examples(self) -> None:
        X, y = clouds()
        with pytest.raises(UnsupportedCombinationError, match="sample_weight"):
            run(X, y, MaxHinge(), 5, sample_weight=np.arange(30.0))
        with pytest.raises(UnsupportedCombinationError, match="keep_duals"):
            run(X, y, MaxHinge(), 5, method="fw", keep_duals=True)

    def test_a_loss_that_is_not_convex(self) -> None:
        with pytest.raises(UnsupportedCombinationError, match="not convex"):
            run(*clouds(), TruncatedTopKEntropy(2), 5)
