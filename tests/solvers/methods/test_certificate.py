"""The certificate by one reading of the rows: its gap and the bounds of its sums, by exact arithmetic."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from tests.reference import losses as reference
from tests.solvers.problems import Requests
from topline import (
    LDRKL,
    ClassEmbeddings,
    MaxHinge,
    SerialExecutor,
    Softmax,
    Status,
    TopKEntropy,
    TopKHinge,
    solve,
    solve_with_features,
)
from topline.solvers.core.dual_points import FoundAt
from topline.solvers.core.problem import Problem
from topline.solvers.core.state import Best, SolverState
from topline.solvers.losses import OneVsAll
from topline.solvers.losses.rows import gradient_rows
from topline.solvers.methods import certificate
from topline.solvers.operations import Certify, Evaluate, Rebuild

LAYOUTS = {"dense": np.asarray, "csr": csr_matrix}


@pytest.fixture(autouse=True)
def _small_problems_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(certificate, "_LARGE", 0)
    monkeypatch.setattr(certificate, "_LARGE_SMOOTH", 0)


def cancelling(rng: np.random.Generator, n: int, d: int) -> np.ndarray:
    """Draw rows whose products with equal weights cancel: large numbers of both signs beside small ones."""
    X = rng.standard_normal((n, d)) * 10.0 ** rng.integers(-3, 4, (n, d))
    X[:, 1::2] = -X[:, ::2][:, : d // 2] * (1.0 + 1e-6 * rng.standard_normal((n, d // 2)))
    return X.astype(np.float32)


def one_sign(rng: np.random.Generator, n: int, d: int) -> np.ndarray:
    """Draw positive rows, whose sums grow: every addition rounds."""
    return (1.0 + rng.random((n, d)) / 3.0).astype(np.float32)


def exactly(X: np.ndarray, Y: np.ndarray) -> np.ndarray:
    """Return X Y by fractions, rounded once."""
    left, right = ([[Fraction(float(v)) for v in row] for row in rows] for rows in (X, Y.T))
    return np.array([[float(sum(a * b for a, b in zip(x, y, strict=True))) for y in right] for x in left])


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("rows", [cancelling, one_sign])
@pytest.mark.parametrize("share", [None, 0.7])
def test_sums_are_off_by_no_more_than_their_bounds(rows, layout, share) -> None:
    rng = np.random.default_rng(0)
    n, d, m = 9, 300, 3
    X, y = rows(rng, n, d), np.arange(n, dtype=np.int32) % m
    V = (1.0 + 0.1 * rng.standard_normal((d, m))).astype(np.float32).astype(np.float64) / 300.0
    V = V.astype(np.float32).astype(np.float64)
    problem = Problem(Softmax(), n, d, m, lam=0.1)
    with SerialExecutor() as executor:
        executor.bind(problem, LAYOUTS[layout](X), y, keep_duals=True)
        sums = executor.run(Certify(V, share if share is not None else 0.5))
        if share is None:
            sums = executor.run(Certify(V))
        A = np.concatenate([rows.astype(np.float64) for *_, rows in executor.duals()])
    scores, sizes = exactly(X, V), np.linalg.norm(X.astype(np.float64), axis=1)
    assert 0 < sums.terms <= d
    assert sums.row_sq == pytest.approx(np.sum(sizes**2), rel=1e-5)
    assert sums.alpha_sq == pytest.approx(np.sum(A**2), rel=1e-6)
    off = certificate._gamma(sums.terms) * np.linalg.norm(V, axis=0).max()
    true = np.array([reference.sorted_loss(Softmax(), s, label) for s, label in zip(scores, y, strict=True)])
    conjugates = np.array(
        [reference.minus_conjugate(Softmax(), a, label) for a, label in zip(A, y, strict=True)]
    )
    gap = float(np.sum(true - conjugates + np.sum(A * scores, axis=1)))
    assert abs(sums.loss - sums.conjugate + sums.cross - gap) <= off * (sums.slack + off * sums.row_sq)
    np.testing.assert_allclose(sums.sizes, sizes @ np.abs(A), rtol=1e-5)
    of_sum = certificate._gamma(sums.summed) * sums.sizes
    assert (np.linalg.norm(sums.product - exactly(X.T, A), axis=0) <= of_sum).all()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("loss", "method"),
    [
        (Softmax(), "dual_ascent"),
        (Softmax(), "lbfgs"),
        (TopKEntropy(2), "dual_ascent"),
        (LDRKL(0.3), "lbfgs"),
        (OneVsAll("logistic"), "lbfgs"),
        (MaxHinge(), "dual_ascent"),
        (TopKHinge(2), "dual_ascent"),
    ],
    ids=str,
)
@pytest.mark.parametrize("offset", [0.0, 30.0])
def test_no_gap_is_below_the_true_one(loss, method, layout, offset) -> None:
    """Also where all rows have much in common, and scores cancel."""
    rng = np.random.default_rng(1)
    n, d, m, lam = 150, 200, 4, 0.02
    y = rng.integers(m, size=n).astype(np.int32)
    X = (rng.standard_normal((m, d))[y] + 3.0 * rng.standard_normal((n, d)) + offset).astype(np.float32)
    X /= np.linalg.norm(X, axis=1, keepdims=True).astype(np.float32)
    result = solve(LAYOUTS[layout](X), y, loss, lam, method=method, tol=2e-2, max_passes=500)
    assert result.status is Status.SOLVED
    assert 0.0 <= result.objective.rounding <= result.gap <= 2e-2 * result.primal
    assert (result.objective.rounding > 1e-12) == loss.form(m).smooth
    W, wide = result.W.astype(np.longdouble), X.astype(np.longdouble)
    primal = reference.primal(X.astype(np.float64), y, loss, lam, 0.0, result.W)
    assert result.primal == pytest.approx(primal, rel=1e-5)
    scores, A = wide @ W, result.A
    if A is None:
        A = [
            reference.gradient(loss, s.astype(np.float64), label) for s, label in zip(scores, y, strict=True)
        ]
    A = np.asarray(A, dtype=np.longdouble)
    W_dual = wide.T @ A / (lam * n)
    rows = zip(scores, A, y, strict=True)
    slack = [
        reference.sorted_loss(loss, s.astype(np.float64), label)
        - reference.minus_conjugate(loss, a.astype(np.float64), label)
        + a @ s
        for s, a, label in rows
    ]
    gap = np.mean(slack) + 0.5 * lam * np.sum((W - W_dual) ** 2)
    assert gap <= result.gap * (1.0 + 1e-9)
    assert result.gap - gap <= 2.0 * result.objective.rounding + 1e-6


@pytest.mark.parametrize("loss", [Softmax(), LDRKL(0.1), LDRKL(0.5), LDRKL(3.0)], ids=str)
@pytest.mark.parametrize("m", [2, 7, 900])
def test_gradients_by_vectors_belong_to_scores_that_are_hardly_off(loss, m) -> None:
    """T KL(p, p(s)), the slack of Fenchel and Young's inequality, is below the bound of such scores."""
    rng, n = np.random.default_rng(5), 300
    form, T = loss.form(m), loss.form(m).temperature
    scores = (rng.uniform(-1.0, 1.0, (n, m)) * 10.0 ** rng.uniform(-2.0, 2.0, (n, 1))).astype(np.float32)
    y, U = rng.integers(m, size=n).astype(np.int32), np.empty((n, m), np.float32)
    gradient_rows(form, scores, y, np.ones(n), (0.0, 0.0), U, np.zeros(4))
    own, unit = np.arange(m) == y[:, None], 2.0**-24
    raised = (scores.astype(np.longdouble) - (0.0 if loss == Softmax() else own)) / T
    raised -= raised.max(axis=1, keepdims=True)
    log_p = raised - np.log(np.exp(raised).sum(axis=1, keepdims=True))
    exact = np.exp(log_p)
    others = np.where(own, 0.0, exact).sum(axis=1)
    mass = U[own].astype(np.longdouble)
    assert (np.abs(mass - others) <= (2 * m + 300) * unit * others + 1e-30).all()
    p = np.where(own, 0.0, -U.astype(np.longdouble))
    p = np.where(own, exact, p * (others / p.sum(axis=1))[:, None])
    with np.errstate(divide="ignore", invalid="ignore"):
        slack = T * np.where(p > 0.0, p * (np.log(p) - log_p), 0.0).sum(axis=1)
    # The rounding of a score less a margin counts as one of its product.
    off = form.score_roundings * unit + 2.0 * unit * np.abs(scores).max(axis=1)
    assert (slack <= 0.5 * form.curved * off**2 + 1e-17).all()
    assert (slack > 0.0).any()


@pytest.mark.parametrize("seed", [0, 3, 9, 15])
@pytest.mark.parametrize("wants_duals", [False, True])
def test_lbfgs_reads_no_row_at_its_end_unless_for_duals(seed, wants_duals) -> None:
    """Also where the first good bounds are those of two rounds: a third one proves itself."""
    rng = np.random.default_rng(seed)
    n, d, m, lam = 300, 40, 5, 0.03
    y = rng.integers(m, size=n).astype(np.int32)
    X = (rng.standard_normal((m, d))[y] + 3.0 * rng.standard_normal((n, d))).astype(np.float32)
    with Requests() as executor:
        result = solve(
            X, y, Softmax(), lam, method="lbfgs", tol=8e-3, keep_duals=wants_duals, executor=executor
        )
        at_the_end = [each for each in executor.seen if isinstance(each, Certify | Evaluate | Rebuild)]
    assert result.status is Status.SOLVED
    assert bool(at_the_end) == wants_duals
    primal = reference.primal(X.astype(np.float64), y, Softmax(), lam, 0.0, result.W)
    assert result.primal == pytest.approx(primal, rel=1e-6)
    least = solve(X, y, Softmax(), lam, method="newton", tol=1e-9).primal
    assert result.dual <= least * (1.0 + 1e-6)
    assert primal - least <= result.gap


def test_a_callback_that_stops_at_a_good_gap_ends_a_run_that_is_solved() -> None:
    """Also where the run waits for its proof: the gap that the callback sees is good enough."""
    solved = 0
    for seed in (3, 9, 15):
        rng = np.random.default_rng(seed)
        y = rng.integers(5, size=300).astype(np.int32)
        X = (rng.standard_normal((5, 40))[y] + 3.0 * rng.standard_normal((300, 40))).astype(np.float32)
        stop = [lambda record, _: record.relative_gap > 8e-3]
        result = solve(X, y, Softmax(), 0.03, method="lbfgs", tol=8e-3, callbacks=stop)
        solved += result.status is Status.SOLVED
        assert result.relative_gap <= 8e-3
    assert solved == 3


def test_float64_tells_where_rounding_matters() -> None:
    rng = np.random.default_rng(2)
    y = rng.integers(3, size=90).astype(np.int32)
    X = (rng.standard_normal((3, 40))[y] + rng.standard_normal((90, 40))).astype(np.float32)
    result = solve(X, y, Softmax(), 0.05, method="lbfgs", tol=1e-8)
    assert result.status is Status.SOLVED
    assert result.objective.rounding == 0.0


@pytest.mark.parametrize("layout", LAYOUTS)
def test_squares_of_tiny_rows_count(layout) -> None:
    """In float32 they would be 0, and so would every bound of rounding."""
    X = np.full((4, 3), 1e-24, dtype=np.float32)
    with SerialExecutor() as executor:
        executor.bind(
            Problem(Softmax(), 4, 3, 2, lam=0.1), LAYOUTS[layout](X), np.arange(4) % 2, keep_duals=False
        )
        sums = executor.run(Certify(np.ones((3, 2)), 1.0))
    assert sums.row_sq == pytest.approx(12e-48, rel=1e-6, abs=0.0)


def test_the_best_weights_are_kept_where_another_point_has_the_best_dual() -> None:
    rng = np.random.default_rng(3)
    n, d, m, lam = 90, 8, 3, 0.05
    y = rng.integers(m, size=n).astype(np.int32)
    X = (rng.standard_normal((m, d))[y] + rng.standard_normal((n, d))).astype(np.float32)
    problem, optimum = Problem(Softmax(), n, d, m, lam), solve(X, y, Softmax(), lam, method="lbfgs", tol=1e-9)
    best = Best(optimum.primal, optimum.W, dual_point=FoundAt(0.5 * optimum.W))
    with SerialExecutor() as executor:
        executor.bind(problem, X, y, keep_duals=False)
        state = replace(SolverState.start(problem), best=best)
        final = certificate.final_values(problem, executor, state, 1e-3, duals_kept=False)
    assert final.primal == pytest.approx(optimum.primal, rel=1e-9)
    assert np.array_equal(final.W, optimum.W)


@pytest.mark.parametrize("ordinary", [True, False])
def test_joint_features_are_certified_by_float64_at_once(ordinary) -> None:
    # Ordinary ones by the products of the last round, whose rounding has a bound.
    rng = np.random.default_rng(4)
    n, d, m = 90, 8, 3
    y = rng.integers(m, size=n).astype(np.int32)
    X = (rng.standard_normal((m, d))[y] + rng.standard_normal((n, d))).astype(np.float32)
    classes = ClassEmbeddings(np.eye(m) if ordinary else rng.standard_normal((m, 2)))
    with Requests() as executor:
        result = solve_with_features(X, y, Softmax(), 0.05, classes, method="lbfgs", executor=executor)
    assert result.status is Status.SOLVED
    asked = executor.seen
    assert [each.exact for each in asked if isinstance(each, Certify)] == ([] if ordinary else [True])
    assert (result.objective.rounding > 0.0) == ordinary
