"""L-BFGS on a loss that is a sum over the classes: every class takes steps of its own."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.datasets import load_digits

from tests.solvers.problems import M, examples, stored
from topline import OneVsAll, SerialExecutor, Status, solve
from topline.solvers.core.answers import LossAnswer
from topline.solvers.core.objective import Objective
from topline.solvers.core.problem import Problem
from topline.solvers.core.state import Point, SolverState
from topline.solvers.losses.label_sets import LabelSets
from topline.solvers.methods.base import Measurement
from topline.solvers.methods.line_search import Bracket
from topline.solvers.methods.quasi_newton.memory import (
    BestParts,
    ClassBlocks,
    LbfgsMemory,
    Lines,
    Pairs,
    Parts,
    RowMoments,
    Turns,
)
from topline.solvers.methods.quasi_newton.metrics import with_renewed, with_turns
from topline.solvers.operations import FindVertices

LOSS, APART = OneVsAll("logistic"), Parts(apart=True)


def digits():
    """Counts of pixels, and a column for the bias."""
    X, y = load_digits(return_X_y=True)
    return np.c_[X, np.ones(len(y))].astype(np.float32), y


# ---------------------------------------------------------------- what the blocks sum


@pytest.mark.parametrize("blocks", [1, 3])
@pytest.mark.parametrize("sets", [False, True])
def test_every_class_has_its_loss(blocks, sets) -> None:
    X, y = examples(n=60)
    random = np.random.default_rng(1)
    weights, W = random.uniform(0.0, 2.0, len(y)), random.standard_normal((X.shape[1], M))
    label_sets = LabelSets.from_lists([[0], [1, 2], [], [0, 3]], M)[0] if sets else None
    y = y % 4 if sets else y
    problem = Problem(LOSS, len(y), X.shape[1], M, 1e-2, label_sets=label_sets)
    own = problem.form.own_rows(y)
    executor = SerialExecutor(blocks=blocks)
    executor.bind(problem, X, y, keep_duals=False, weights=weights)
    stats = executor.run(FindVertices(0, W, envelope=True))
    expected = weights @ np.logaddexp(0.0, np.where(own, -1.0, 1.0) * (X @ W))
    np.testing.assert_allclose(stats.class_losses, expected, rtol=1e-12)
    assert stats.loss == pytest.approx(expected.sum(), rel=1e-12)


def test_a_row_of_no_numbers_leaves_no_class_a_loss() -> None:
    """Its u is 0 in every class, so that no P_j and gradient belong together."""
    X, y = examples(n=20)
    W = np.zeros((X.shape[1], M))
    W[0, 0] = np.inf
    executor = SerialExecutor()
    executor.bind(Problem(LOSS, 20, X.shape[1], M, 1e-2), X, y, keep_duals=False)
    assert np.isnan(executor.run(FindVertices(0, W, envelope=True)).class_losses).all()


# ---------------------------------------------------------------- the parts


def test_pairs_of_classes_are_those_of_each_class() -> None:
    """Also where a class did not step with the others, and where one lets go of its steps."""
    random = np.random.default_rng(2)
    d, m = 5, 3
    together, alone = Pairs(parts=APART), [Pairs() for _ in range(m)]
    for stepped in ([1, 1, 1], [1, 0, 1], [0, 1, 1], [1, 0, 0]):
        steps = random.standard_normal((d, m)) * stepped
        changes = steps * random.uniform(0.5, 2.0, m) + 0.1 * steps[::-1]
        together = together.with_pair(steps, changes, 10)
        alone = [pairs.with_pair(steps[:, [j]], changes[:, [j]], 10) for j, pairs in enumerate(alone)]
    g = random.standard_normal((d, m))
    expected = np.concatenate([pairs.times(g[:, [j]]) for j, pairs in enumerate(alone)], axis=1)
    np.testing.assert_allclose(together.times(g), expected, rtol=1e-10)
    without = together.of_parts(np.array([True, False, True]))
    expected[:, 1] = g[:, 1]
    np.testing.assert_allclose(without.times(g), expected, rtol=1e-10)
    assert without.known.tolist() == [True, False, True]


def test_the_best_point_is_put_together_class_by_class() -> None:
    W, V = np.zeros((2, 3)), np.ones((2, 3))
    first = BestParts(W, np.ones(3), np.full(3, 4.0), np.ones(3))
    both = first.with_point(V, np.array([0.5, 2.0, 1.0]), np.array([9.0, 1.0, 1.0]))
    np.testing.assert_array_equal(both.W, [[1.0, 0.0, 1.0]] * 2)
    np.testing.assert_array_equal(both.values, [0.5, 1.0, 1.0])
    np.testing.assert_array_equal(both.steepness, [9.0, 4.0, 1.0])
    assert both.with_point(W, np.array([0.6, 3.0, 1.0]), np.array([1.0, 0.0, 2.0])) is both


def test_lines_keep_what_rests_and_what_was_lost() -> None:
    lines = Lines.start(np.ones(3), np.array([-1.0, -2.0, 0.0]), np.array([1.0, 0.5, 1.0]))
    assert lines.steps.tolist() == [1.0, 0.5, 1.0]
    rest, lost = np.array([False, True, True]), np.array([False, True, False])
    again = lines.at_rest(rest, lost)
    assert (again.slopes == 0.0).tolist() == [False, True, True]
    assert again.trials.tolist() == [0, 1, 0]
    assert str(again.brackets[0]) == str(Bracket.start(1.0, -1.0, 1.0))


def test_a_step_that_is_much_too_long_is_shortened_by_the_tangents() -> None:
    """Along log cosh, which is linear at both ends, a secant halves."""

    def at(t):
        return np.logaddexp(60.0 * t - 2.0, 2.0 - 60.0 * t), 60.0 * np.tanh(60.0 * t - 2.0)

    trials = {}
    for count in (1, 2):
        lines = Lines.start(*(np.full(count, number) for number in at(0.0)), np.ones(count))
        while not (taken := lines.accept(*at(lines.steps))).all():
            lines = lines.after(*at(lines.steps), taken)
        trials[count] = lines.trials.tolist()
    assert trials == {1: [4], 2: [2, 2]}


# ---------------------------------------------------------------- the metric of each class


def test_classes_take_turns_and_those_that_are_done_have_none() -> None:
    n, d, m = 1_000, 20, 3
    problem = Problem(LOSS, n, d, m, 1e-3)
    steepness = 2.0 * problem.lam * np.array([1e-1, 1e-1, 1e-6])
    W, C = np.zeros((d, m)), 2.0 * np.eye(d)
    memory = LbfgsMemory(
        best=BestParts(W, np.ones(m), steepness, np.ones(m)),
        rows=RowMoments(moments=C),
        classes=ClassBlocks(turns=Turns(np.full(m, 10.0), np.array([0.5, 0.2, 0.5]))),
    )

    def asked(passes, off=(True, True, True)):
        state = SolverState(Point(9, W), passes=passes, memory=memory)
        measured = Measurement(Objective(1.0, 0.8), state, LossAnswer(), passes=1, tol=1e-3)
        found = with_turns(problem, memory, measured, np.array(off)).asked
        return None if found is None else np.isfinite(found).tolist(), found

    # One costs (0.1 d + 2 d^2 / n) / m, .93 of a pass, and two are not done.
    assert asked(11)[0] is None
    which, least = asked(12)
    assert which == [True, True, False]
    assert least[0] * np.trace(C) == pytest.approx(problem.lam)
    assert asked(11, (False, True, False))[0] == [False, True, False]


def test_a_class_that_tries_another_step_waits_for_its_own() -> None:
    X, y = examples(n=80)
    d = X.shape[1]
    problem, executor = Problem(LOSS, 80, d, M, 1e-2), SerialExecutor()
    executor.bind(problem, X, y, keep_duals=False)
    W, least = np.random.default_rng(3).standard_normal((d, M)), np.full(M, 1e-9)
    stats = executor.run(FindVertices(9, W, envelope=True, least_openness=least))
    old = np.stack([np.eye(d)] * M)
    ones = np.ones(M)
    memory = LbfgsMemory(
        best=BestParts(W, ones, ones, ones),
        rows=RowMoments(moments=X.T @ X / 80),
        classes=ClassBlocks(old, asked=least, turns=Turns(ones, ones)),
    )
    state = SolverState(Point(9, W), passes=30, memory=memory)
    measured = Measurement(Objective(1.0, 0.5), state, stats, passes=1, tol=1e-3)
    off = np.arange(M) < 2
    known, renewed = with_renewed(problem, memory, measured, off, ~off)
    assert renewed.tolist() == off.tolist()
    assert np.isfinite(known.asked).tolist() == (~off).tolist()
    assert known.turns.passes.tolist() == np.where(off, 30.0, 1.0).tolist()
    np.testing.assert_array_equal(known.inverses[2:], old[2:])
    p = 1.0 / (1.0 + np.exp(-(X @ W)))
    for j in range(2):
        H = (X * (p * (1.0 - p))[:, [j]]).T @ X / 80 + problem.lam * np.eye(d)
        np.testing.assert_allclose(known.inverses[j] @ H, np.eye(d), atol=1e-9)
    np.testing.assert_array_equal(old, np.stack([np.eye(d)] * M), "a state stays as it is")


# ---------------------------------------------------------------- runs


@pytest.mark.parametrize(("C", "most"), [(1.0, 35), (100.0, 70), (1e4, 130), (1e6, 250)])
def test_no_class_waits_for_the_slowest(C, most) -> None:
    """As one problem it takes 43 and 212 passes, and no 2,000 are enough from C = 1e4 on."""
    X, y = digits()
    result = solve(X, y, LOSS, 1.0 / (len(y) * C), method="lbfgs", tol=1e-3, max_passes=most)
    assert result.status is Status.SOLVED


def test_several_blocks_take_as_many_passes() -> None:
    X, y = digits()
    one, many = (
        solve(X, y, LOSS, 0.1 / len(y), method="lbfgs", executor=SerialExecutor(blocks=blocks))
        for blocks in (1, 7)
    )
    assert abs(one.passes - many.passes) <= 0.25 * one.passes
    assert one.primal == pytest.approx(many.primal, rel=1e-3)


def test_a_run_goes_on_to_the_same_bits() -> None:
    """From arrays laid out as a checkpoint gives them back: amid line searches, at rest, in float64."""
    X, y = digits()
    options = {"method": "lbfgs", "tol": 1e-12}
    states = []
    whole = solve(
        X, y, LOSS, 1e-4 / len(y), max_passes=70, callbacks=[lambda _, state: states.append(state)], **options
    )
    assert states[-1].exact
    assert not states[20].exact
    for state in states[:-1:6]:
        rest = solve(X, y, LOSS, 1e-4 / len(y), max_passes=70, state=stored(state), **options)
        assert rest.passes == whole.passes
        np.testing.assert_array_equal(rest.W, whole.W)
