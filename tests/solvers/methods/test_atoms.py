"""Frank-Wolfe variants over whole-matrix atoms, against values and optima from outside the solvers."""

from __future__ import annotations

import numpy as np
import pytest

from tests.reference import losses as reference
from tests.reference.qp import minimise_qp
from tests.solvers.problems import M, examples
from topline import MaxHinge, Softmax, Status, TopKHinge, UnsupportedCombinationError, solve
from topline.solvers.methods import METHODS, atoms
from topline.solvers.methods.atoms import Atoms, AwaySteps, PairwiseSteps, maximise_on_simplex, rise_between

VARIANTS = ["fw_away", "fw_pairwise", "fw_fully_corrective"]


def run(X, y, loss, lam_n, smoothing=0.0, method="fw_fully_corrective", **options):
    options = {"tol": 1e-9, "max_passes": 40, "m": M, **options}
    return solve(X, y, loss, lam_n / len(y), smoothing, method, **options)


def dual_rows(X, y, loss, smoothing, W):
    """Give U at the scores of W."""
    scores = np.asarray(X, dtype=np.float64) @ W
    return np.array(
        [reference.gradient(loss, s, label, smoothing) for s, label in zip(scores, y, strict=True)]
    )


@pytest.mark.parametrize("lam_n", [1e-3, 1.0, 1e3])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_fully_corrective_steps_close_the_gap_to_rounding(lam_n, dtype) -> None:
    """Far below what float32 products can tell: the rounds go over to float64 by themselves."""
    X, y = examples()
    result = run(X.astype(dtype), y, TopKHinge(3), lam_n, tol=1e-11, max_passes=400)
    assert result.status is Status.SOLVED
    primal = reference.primal(X.astype(dtype), y, TopKHinge(3), lam_n / len(y), 0.0, result.W)
    assert result.primal == pytest.approx(primal, rel=1e-12)
    assert result.passes <= 300


def test_far_fewer_passes_than_plain_steps() -> None:
    """Mathematics, 1b: after 200 passes plain steps stand at 1e-2."""
    X, y = examples(n=80, d=6, m=6)
    plain = run(X, y, TopKHinge(3), 1.0, method="fw", max_passes=200, m=6)
    best = run(X, y, TopKHinge(3), 1.0, tol=1e-9, max_passes=200, m=6)
    assert plain.relative_gap > 1e-2
    assert best.status is Status.SOLVED


@pytest.mark.parametrize("method", VARIANTS)
@pytest.mark.parametrize(("loss", "smoothing"), [(TopKHinge(2), 0.0), (TopKHinge(2), 0.5), (Softmax(), 0.0)])
class TestAnswersThatDoNotDependOnHowItRuns:
    def test_a_state_of_plain_frank_wolfe_is_an_atom(self, loss, smoothing, method) -> None:
        X, y = examples()
        plain = run(X, y, loss, 2.0, smoothing, "fw", max_passes=10)
        result = run(X, y, loss, 2.0, smoothing, method, max_passes=12, state=plain.state)
        assert result.history[0].dual == pytest.approx(plain.dual, rel=1e-9)
        assert plain.dual < result.dual <= result.primal


def test_the_room_for_atoms_is_bounded() -> None:
    assert atoms.most_atoms(4, 5) == 1024
    assert 300 < atoms.most_atoms(1024, 100) < 350
    assert atoms.most_atoms(10**6, 10**4) == 4


def filled(weights, seed=0, lam=0.3):
    """Atoms with random contents, and their W as one matrix (T, d m)."""
    random = np.random.default_rng(seed)
    W = random.standard_normal((len(weights), 3, 4))
    flat = W.reshape(len(weights), -1)
    return Atoms(W, random.standard_normal(len(weights)), np.array(weights), lam * flat @ flat.T)


def consistent(group, lam=0.3):
    flat = group.W.reshape(len(group), -1)
    np.testing.assert_allclose(group.gram, lam * flat @ flat.T, rtol=1e-12, atol=1e-12)
    assert group.weights.sum() == pytest.approx(1.0)
    assert len(group.conjugate_means) == len(group.W) == len(group.weights)


class TestTheSetOfAtoms:
    def test_an_atom_that_is_there_is_not_taken_twice(self) -> None:
        group = filled([0.5, 0.25, 0.25])
        same, place = group.with_atom(0.3, group.W[1].copy(), float(group.conjugate_means[1]))
        assert same is group
        assert place == 1
        other, place = group.with_atom(0.3, group.W[1].copy(), float(group.conjugate_means[1]) + 1.0)
        assert (len(other), place) == (4, 3)

    def test_a_full_set_merges_its_lightest_and_keeps_its_point(self, monkeypatch) -> None:
        monkeypatch.setattr(atoms, "_MOST", 4)
        group = filled([0.35, 0.1, 0.3, 0.2, 0.05])
        fewer = group.weighted(group.weights, idle=2)
        consistent(fewer)
        np.testing.assert_allclose(fewer.weights, [0.35, 0.15, 0.3, 0.2])
        np.testing.assert_allclose(fewer.point()[0], group.point()[0], rtol=1e-13, atol=1e-14)
        assert fewer.point()[1] == pytest.approx(group.point()[1])
        np.testing.assert_allclose(fewer.W[1], (0.1 * group.W[1] + 0.05 * group.W[4]) / 0.15)

    def test_an_idle_atom_goes_before_any_is_merged(self, monkeypatch) -> None:
        monkeypatch.setattr(atoms, "_MOST", 4)
        group = filled([0.4, 0.0, 0.6, 0.0, 0.0])
        fewer = group.weighted(group.weights, idle=3)
        np.testing.assert_array_equal(fewer.W, group.W[[0, 2, 3, 4]])
        consistent(fewer)

    def test_atoms_out_of_use_are_dropped_but_for_the_newest(self) -> None:
        group = filled([0.2] * 5)
        weights = np.array([0.0, 0.5, 0.0, 0.5, 0.0])
        np.testing.assert_array_equal(group.weighted(weights).W, group.W[[1, 3]])
        np.testing.assert_array_equal(group.weighted(weights, idle=2).W, group.W[[1, 2, 3, 4]])
        consistent(group.weighted(weights, idle=1))

    def test_the_gradient_is_that_of_the_dual(self) -> None:
        group = filled([0.2, 0.3, 0.5])

        def dual(weights):
            W = np.tensordot(weights, group.W, axes=1)
            return weights @ group.conjugate_means - 0.15 * np.sum(W**2)

        for t in range(3):
            up, down = group.weights.copy(), group.weights.copy()
            up[t] += 1e-4
            down[t] -= 1e-4
            assert group.gradient()[t] == pytest.approx((dual(up) - dual(down)) / 2e-4, rel=1e-8)


@pytest.mark.parametrize("seed", range(6))
def test_each_step_is_the_best_on_its_segment(seed) -> None:
    """Away steps and pairwise steps, against a search along the line that they are defined on."""
    group = filled([0.4, 0.35, 0.25, 0.0], seed)
    gradient, w = group.gradient(), group.weights
    newest, worst = 3, int(np.argmin(gradient[:3]))
    to, away = np.eye(4)[newest] - w, w - np.eye(4)[worst]
    pair = np.eye(4)[newest] - np.eye(4)[worst]
    chosen = (to, 1.0) if gradient @ to >= gradient @ away else (away, w[worst] / (1 - w[worst]))

    def dual(weights):
        return weights @ group.conjugate_means - 0.5 * weights @ group.gram @ weights

    for rule, (direction, longest) in ((AwaySteps(), chosen), (PairwiseSteps(), (pair, w[worst]))):
        weights, step = rule.reweigh(group, newest)
        values = [dual(w + g * direction) for g in np.linspace(0.0, longest, 2001)]
        np.testing.assert_allclose(weights, w + step * direction, atol=1e-15)
        assert weights.min() >= 0
        assert dual(weights) >= max(values) - 1e-15
        if step == longest and direction is not to:
            assert weights[worst] == 0.0


def test_atoms_are_those_of_the_definition() -> None:
    """conjugate_u and the product of the first vertices, from the gradients of the losses."""
    X, y = examples()
    lam = 2.0 / len(y)
    for loss, smoothing in ((TopKHinge(2), 0.0), (MaxHinge(), 0.5), (Softmax(), 0.0)):
        result = run(X, y, loss, 2.0, smoothing, "fw_pairwise", max_passes=2)
        found = result.state.memory.atoms
        W, b = found.W, found.conjugate_means
        U = dual_rows(X, y, loss, smoothing, np.zeros_like(result.W))
        places = [t for t in range(len(b)) if np.allclose(W[t], reference.weights_of(X, lam, U), atol=1e-12)]
        values = [
            reference.minus_conjugate(loss, u, k) - smoothing * (u @ u) / 2 for u, k in zip(U, y, strict=True)
        ]
        assert len(places) == 1
        assert b[places[0]] == pytest.approx(np.mean(values), rel=1e-12)


def test_dual_variables_are_refused_for_they_are_never_known() -> None:
    X, y = examples()
    for method in VARIANTS:
        with pytest.raises(UnsupportedCombinationError, match=f"{method} .*keep_duals"):
            run(X, y, MaxHinge(), 1.0, method=method, keep_duals=True)
        assert not METHODS[method].needs_duals(MaxHinge().form(3), 0.5)


def test_a_run_that_asks_for_too_much_ends_at_rounding() -> None:
    X, y = examples()
    result = run(X, y, MaxHinge(), 5.0, tol=1e-14, max_passes=2000)
    assert result.status in {Status.NO_PROGRESS, Status.SOLVED}
    assert abs(result.relative_gap) < 1e-13


def value(gram, linear, w):
    return linear @ w - 0.5 * w @ gram @ w


def problem(random, count, dimension, scale=1.0, pull=1.0):
    """Give a Gram matrix of `count` points, singular where they are more than the dimension, and a slope."""
    points = scale * random.standard_normal((count, dimension))
    return points @ points.T, pull * random.standard_normal(count)


def start_of(random, count):
    """Give a point of the simplex with zeros."""
    weights = random.random(count) * (random.random(count) < 0.5)
    weights[random.integers(count)] += 0.1
    return weights / weights.sum()


def shortfall(gram, linear, w):
    """Give the Frank-Wolfe gap at w, which bounds what is missing, over the size of the numbers."""
    gradient = linear - gram @ w
    return (gradient.max() - w @ gradient) / (np.abs(linear).max() + np.abs(gram).max())


@pytest.mark.parametrize("dimension", [1, 3, 8, 20])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_the_optimum_of_a_general_solver(dimension, scale) -> None:
    random = np.random.default_rng(dimension)
    for count in (2, 5, 12, 30):
        gram, linear = problem(random, count, dimension, scale)
        ours = maximise_on_simplex(gram, linear, start_of(random, count))
        size = max(np.abs(gram).max(), np.abs(linear).max())
        theirs = minimise_qp(
            gram / size, -linear / size, -np.eye(count), np.zeros(count), np.ones((1, count)), np.ones(1)
        )
        assert ours.min() >= 0
        assert ours.sum() == pytest.approx(1.0, abs=1e-14)
        assert value(gram, linear, ours) == pytest.approx(value(gram, linear, theirs), abs=1e-8 * size)
        assert value(gram, linear, ours) >= value(gram, linear, np.maximum(theirs, 0.0)) - 1e-8 * size


@pytest.mark.parametrize("case", ["twins", "between", "flat", "one place", "no slope", "one atom"])
def test_degenerate_atoms_are_solved_to_rounding(case) -> None:
    random = np.random.default_rng(11)
    for count in (4, 9, 40):
        points, linear = random.standard_normal((count, 6)), random.standard_normal(count)
        match case:
            case "twins":
                points[1], linear[1] = points[0], linear[0]
                points[3] = points[2]
            case "between":
                points[3], linear[3] = 0.5 * (points[0] + points[1]), 0.5 * (linear[0] + linear[1])
            case "flat":
                points[:, 1:] = 0.0
            case "one place":
                points[:] = points[0]
            case "no slope":
                linear[:] = 0.0
            case _:
                points, linear = points[:1], linear[:1]
        gram = points @ points.T
        for _ in range(5):
            w = maximise_on_simplex(gram, linear, start_of(random, len(linear)))
            assert shortfall(gram, linear, w) < 1e-14


def test_the_answer_is_never_below_the_start() -> None:
    """Also where rounding is larger than what is left to gain."""
    random = np.random.default_rng(2)
    for scale in (1e-8, 1.0, 1e8):
        for _ in range(30):
            gram, linear = problem(random, 12, 4, scale, pull=1e-6)
            start = start_of(random, 12)
            first = maximise_on_simplex(gram, linear, start)
            again = maximise_on_simplex(gram, linear, first)
            rounding = 1e-16 * np.abs(gram).max()
            assert rise_between(gram, linear, start, first) >= -rounding
            assert rise_between(gram, linear, first, again) >= -rounding


def test_the_rise_has_digits_that_the_objective_has_not() -> None:
    gram, linear = np.array([[2.0, 1.0], [1.0, 2.0]]), np.array([1e8, 1e8 + 1e-7])
    before, after = np.array([0.5, 0.5]), np.array([0.5 - 2**-40, 0.5 + 2**-40])
    slope = linear[1] - linear[0]
    assert rise_between(gram, linear, before, after) == pytest.approx(slope * 2**-40 - 2**-80, rel=1e-9)
