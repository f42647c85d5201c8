"""L-BFGS on a loss that is a sum over the classes: every class takes steps of its own."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from sklearn.datasets import load_digits

from tests.solvers.problems import M, examples
from topline import OneVsAll, SerialExecutor, Status, solve
from topline.solvers.core.answers import BlockStats
from topline.solvers.core.problem import Problem
from topline.solvers.core.state import SolverState
from topline.solvers.losses.label_sets import LabelSets
from topline.solvers.methods.base import Measurement
from topline.solvers.methods.line_search import Bracket
from topline.solvers.methods.quasi_newton.best_parts import BEST, VALUES, with_best
from topline.solvers.methods.quasi_newton.class_metric import CLASSES
from topline.solvers.methods.quasi_newton.class_turns import TURNS, with_asked, with_renewed
from topline.solvers.methods.quasi_newton.pairs import Pairs
from topline.solvers.methods.quasi_newton.parts import Lines, Parts
from topline.solvers.methods.quasi_newton.row_metric import MOMENTS
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
    memory = {name: np.array(array) for name, array in together.to_memory().items()}
    together, g = Pairs.of(memory, APART), random.standard_normal((d, m))
    expected = np.concatenate([pairs.times(g[:, [j]]) for j, pairs in enumerate(alone)], axis=1)
    np.testing.assert_allclose(together.times(g), expected, rtol=1e-10)
    without = together.of_parts(np.array([True, False, True]))
    expected[:, 1] = g[:, 1]
    np.testing.assert_allclose(without.times(g), expected, rtol=1e-10)
    assert without.known.tolist() == [True, False, True]


def test_the_best_point_is_put_together_class_by_class() -> None:
    W, V = np.zeros((2, 3)), np.ones((2, 3))
    first = with_best({}, W, np.array([1.0, 1.0, 1.0]), np.array([4.0, 4.0, 4.0]))
    both = first | with_best(first, V, np.array([0.5, 2.0, 1.0]), np.array([9.0, 1.0, 1.0]))
    np.testing.assert_array_equal(both[BEST], [[1.0, 0.0, 1.0]] * 2)
    np.testing.assert_array_equal(both[VALUES][:2], [[0.5, 1.0, 1.0], [9.0, 4.0, 1.0]])
    assert with_best(both, W, np.array([0.6, 3.0, 1.0]), np.array([1.0, 0.0, 2.0])) == {}


def test_lines_keep_what_rests_and_what_was_lost() -> None:
    lines = Lines.start(np.ones(3), np.array([-1.0, -2.0, 0.0]), np.array([1.0, 0.5, 1.0]))
    assert lines.steps.tolist() == [1.0, 0.5, 1.0]
    rest, lost = np.array([False, True, True]), np.array([False, True, False])
    again = Lines.of(lines.at_rest(rest, lost).to_array())
    assert (again.slopes == 0.0).tolist() == [False, True, True]
    assert again.trials.tolist() == [0, 1, 0]
    np.testing.assert_array_equal(again.brackets[0].to_array(), Bracket.start(1.0, -1.0, 1.0).to_array())


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
    memory = {
        MOMENTS: 2.0 * np.eye(d),
        TURNS: np.array([[10.0, 10.0, 10.0], [0.5, 0.2, 0.5]]),
        VALUES: np.array([np.ones(m), steepness, np.ones(m)]),
    }

    def asked(passes, off=(True, True, True)):
        state = SolverState(round=9, W=np.zeros((d, m)), passes=passes, memory=memory)
        measured = Measurement(1.0, 0.8, "true", state, BlockStats(), passes=1, tol=1e-3)
        found = with_asked(problem, memory, measured, np.array(off)).get(CLASSES[2])
        return None if found is None else np.isfinite(found).tolist(), found

    # One costs (0.1 d + 2 d^2 / n) / m, .93 of a pass, and two are not done.
    assert asked(11)[0] is None
    which, least = asked(12)
    assert which == [True, True, False]
    assert least[0] * np.trace(memory[MOMENTS]) == pytest.approx(problem.lam)
    assert asked(11, (False, True, False))[0] == [False, True, False]


def test_a_class_that_tries_another_step_waits_for_its_own() -> None:
    X, y = examples(n=80)
    d = X.shape[1]
    problem, executor = Problem(LOSS, 80, d, M, 1e-2), SerialExecutor()
    executor.bind(problem, X, y, keep_duals=False)
    W, least = np.random.default_rng(3).standard_normal((d, M)), np.full(M, 1e-9)
    stats = executor.run(FindVertices(9, W, envelope=True, least_openness=least))
    old = np.stack([np.eye(d)] * M)
    memory = {
        MOMENTS: X.T @ X / 80, TURNS: np.ones((2, M)), VALUES: np.ones((3, M)),
        CLASSES[0]: old, CLASSES[2]: least,
    }  # fmt: skip
    state = SolverState(round=9, W=W, passes=30, memory=memory)
    measured = Measurement(1.0, 0.5, "true", state, stats, passes=1, tol=1e-3)
    off = np.arange(M) < 2
    known, renewed = with_renewed(problem, memory, measured, off, ~off)
    assert renewed.tolist() == off.tolist()
    assert np.isfinite(known[CLASSES[2]]).tolist() == (~off).tolist()
    assert known[TURNS][0].tolist() == np.where(off, 30.0, 1.0).tolist()
    np.testing.assert_array_equal(known[CLASSES[0]][2:], old[2:])
    p = 1.0 / (1.0 + np.exp(-(X @ W)))
    for j in range(2):
        H = (X * (p * (1.0 - p))[:, [j]]).T @ X / 80 + problem.lam * np.eye(d)
        np.testing.assert_allclose(known[CLASSES[0]][j] @ H, np.eye(d), atol=1e-9)
    np.testing.assert_array_equal(memory[CLASSES[0]], np.stack([np.eye(d)] * M), "a state stays as it is")


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
        memory = {name: np.array(array, order="C") for name, array in state.memory.items()}
        rest = solve(X, y, LOSS, 1e-4 / len(y), max_passes=70, state=replace(state, memory=memory), **options)
        assert rest.passes == whole.passes
        np.testing.assert_array_equal(rest.W, whole.W)


def test_a_state_of_one_line_for_all_classes_begins_anew_from_its_point() -> None:
    X, y = examples(n=100)
    W = 0.1 * np.random.default_rng(4).standard_normal((X.shape[1], M))
    memory = {
        "base": W, "gradient": W, "direction": W, "step_0": W, "change_0": W, "best": W,
        "curvatures": np.ones(1), "best_values": np.ones(3), "line": Bracket.start(1.0, -1.0, 1.0).to_array(),
    }  # fmt: skip
    options = {"method": "lbfgs", "tol": 1e-6, "m": M}
    old = solve(X, y, LOSS, 0.01, state=SolverState(round=7, W=W, passes=7, memory=memory), **options)
    new = solve(X, y, LOSS, 0.01, state=SolverState(round=7, W=W, passes=7), **options)
    assert old.status is Status.SOLVED
    np.testing.assert_array_equal(old.W, new.W)
