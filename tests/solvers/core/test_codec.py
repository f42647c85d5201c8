"""What a run remembers or sends comes back as it was, in this process or another."""

from __future__ import annotations

import pickle
import subprocess
import sys
from dataclasses import dataclass, fields, is_dataclass
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from tests.solvers.problems import EVERY_LOSS, M, examples, stored
from topline import (
    InvalidProblemError,
    MaxHinge,
    OneVsAll,
    SerialExecutor,
    Softmax,
    ThreadExecutor,
    TopKClassifier,
    TopKHinge,
    TruncatedTopKEntropy,
    solve,
)
from topline.solvers.core import codec
from topline.solvers.core.problem import Problem
from topline.solvers.core.state import (
    IterationRecord,
    Objective,
    SolverState,
    ThinnedHistory,
    Traffic,
    WorkerActivity,
)
from topline.solvers.executors import resident_bytes
from topline.solvers.methods import METHODS
from topline.solvers.run import loop
from topline.solvers.run.task import ON_BLOCKS

NUMBERS = arrays(np.float64, st.sampled_from([(), (3,), (2, 3), (0, 2)]), elements=st.floats())


def values_of(kind: Any) -> st.SearchStrategy[Any]:
    """Return values of an annotated type; what may be any memory is one of every class that is stored."""
    if isinstance(kind, UnionType):
        return st.one_of(*map(values_of, get_args(kind)))
    if get_origin(kind) is tuple:
        return st.lists(values_of(get_args(kind)[0]), max_size=3).map(tuple)
    if get_origin(kind) is np.ndarray:
        return NUMBERS
    if kind is object:
        return st.none() | st.sampled_from(KINDS).flatmap(values_of)
    if is_dataclass(kind):
        hints = get_type_hints(kind)
        return st.builds(kind, **{field.name: values_of(hints[field.name]) for field in fields(kind)})
    return {int: st.integers(), float: st.floats(), bool: st.booleans(), str: st.text()}.get(kind, st.none())


#: By name, as they come in the order in which modules are imported.
CLASSES = [codec.CLASSES[name] for name in sorted(codec.CLASSES)]
KINDS = [kind for kind in CLASSES if object not in get_type_hints(kind).values()]


def same(found: Any, expected: Any) -> bool:
    """Return whether two values are of one class and hold the same bits."""
    if type(found) is not type(expected):
        return False
    if isinstance(expected, np.ndarray):
        return found.dtype == expected.dtype and found.tobytes() == expected.tobytes()
    if isinstance(expected, tuple):
        return len(found) == len(expected) and all(map(same, found, expected))
    if is_dataclass(expected):
        return all(same(getattr(found, one.name), getattr(expected, one.name)) for one in fields(expected))
    return found == expected or found != found != expected != expected


@given(values_of(SolverState))
def test_any_state_comes_back_as_it_was(state) -> None:
    assert same(stored(state), state)


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
@settings(max_examples=15)  # what an array may hold is drawn above
@given(data=st.data())
def test_what_every_method_remembers_comes_back_as_it_was(kind, data) -> None:
    value = data.draw(values_of(kind))
    assert same(stored(value), value)


def test_an_array_that_is_held_twice_is_stored_once() -> None:
    state = SolverState.at(np.ones((2, 3)))
    state = SolverState(state.point, best=state.best.with_primal(1.0, state.W))
    assert list(codec.encoded(state)[1]) == ["state.point.W"]
    assert same(stored(state), state)


@dataclass
class Stranger:
    """Nobody may store it."""

    number: int = 1


def test_what_another_version_stored_is_refused_by_name_and_a_new_field_takes_its_default() -> None:
    plain, found = codec.encoded(SolverState.at(np.ones((2, 3))))
    with pytest.raises(InvalidProblemError, match=r"such values of Shoe, .* start anew"):
        codec.decoded({**plain, "memory": {"is": "Shoe", "size": 43}}, found)
    with pytest.raises(InvalidProblemError, match=r"laces of SolverState, .* start anew"):
        codec.decoded({**plain, "laces": 2}, found)
    with pytest.raises(InvalidProblemError, match=r"lacks point of SolverState, .* start anew"):
        codec.decoded({"is": "SolverState"}, found)
    del plain["passes"]
    assert codec.decoded(plain, found).passes == 0
    with pytest.raises(TypeError, match=r"state\.memory is a Stranger"):
        codec.encoded(SolverState(SolverState.at(np.ones((2, 3))).point, memory=Stranger()))


LOSSES = {
    "lbfgs": [Softmax(), OneVsAll("logistic"), TruncatedTopKEntropy(2)],
    "newton": [Softmax(), TopKHinge(2)],
}
RUNS = [(name, loss, 0.0, None) for name in METHODS for loss in LOSSES.get(name, [TopKHinge(2)])]
#: With smoothing these keep dual variables.
RUNS += [(name, TopKHinge(2), 0.5, None) for name in ("fw", "fw_open_loop", "projected_gradient")]
RUNS += [(name, TopKHinge(2), 0.0, "rbf") for name in ON_BLOCKS]
#: Methods whose memory, or whose clock, is not all in the state: they go on to the optimum, by other bits.
OTHER_BITS = {"auto", "newton", "fw_away_columns", "fw_pairwise_columns"}


@pytest.mark.parametrize(("method", "loss", "smoothing", "kernel"), RUNS)
@pytest.mark.parametrize(("blocks", "dtype"), [(1, np.float64), (3, np.float32)])
def test_a_run_goes_on_from_what_a_checkpoint_gives_back_to_the_same_bits(
    method, loss, smoothing, kernel, blocks, dtype, monkeypatch
) -> None:
    """W is built anew from A on either side of where it stopped."""
    monkeypatch.setitem(ON_BLOCKS, method, 0)
    monkeypatch.setattr(loop, "REBUILD_EVERY", 10)
    X, y = examples(n=40)
    X = X.astype(dtype)
    has_duals, states = METHODS[method].needs_duals(loss.form(M), smoothing) or kernel is not None, []

    def run(state=None, duals=None):
        with SerialExecutor(blocks=blocks) as executor:

            def note(_, state):
                A = [rows.copy() for _, _, rows in executor.duals(state.pending_step)] if has_duals else []
                states.append((state, [(0, len(y), np.concatenate(A))] if A else None))

            return solve(
                X, y, loss, 1e-3, smoothing, method, kernel=kernel, m=M, tol=1e-12, max_passes=30,
                state=state, duals=duals, executor=executor, callbacks=[note] if state is None else [],
            )  # fmt: skip

    whole = run()
    for state, duals in (states[0], states[(len(states) - 1) // 2]):
        rest, again = run(state, duals), run(stored(state), duals)
        assert (again.passes, again.primal) == (rest.passes, rest.primal)
        np.testing.assert_array_equal(again.W, rest.W)
        if kernel is None and method not in OTHER_BITS:
            assert rest.passes == whole.passes
            np.testing.assert_array_equal(rest.W, whole.W)
        if not loss.form(M).convex:
            continue
        assert again.dual == rest.dual
        assert rest.dual <= whole.primal * (1 + 1e-9)
        assert whole.dual <= rest.primal * (1 + 1e-9)


READ = """
import pickle, sys
problems, result, model = pickle.load(sys.stdin.buffer)
assert all(problem.form.convex in (True, False) for problem in problems)
print(len(problems), result.status.value, model.predict(result.W.T[:1]).shape)
"""


def test_problems_results_and_models_are_read_by_another_process() -> None:
    problems = [Problem(loss, 10, 3, M, 0.1) for loss in EVERY_LOSS]
    # Compiled functions are made here, and are not for others.
    assert all(problem.form is problem.form for problem in problems)
    X, y = np.eye(3).repeat(4, axis=0), np.arange(3).repeat(4)
    sent = problems, solve(X, y, Softmax(), 0.1), TopKClassifier(loss="softmax").fit(X, y)
    read = subprocess.run(
        [sys.executable, "-c", READ], input=pickle.dumps(sent), capture_output=True, check=False
    )
    assert read.returncode == 0, read.stderr.decode()
    assert read.stdout.decode().split() == [str(len(problems)), "solved", "(1,)"]


RNG = np.random.default_rng(0)
X = RNG.standard_normal((300, 12)).astype(np.float32)
Y = RNG.integers(0, 4, 300)


def record_of(number: int) -> IterationRecord:
    return IterationRecord(number, number + 1, 0.0, Objective(1.0, 0.0), 1.0, 1.0)


def test_differences_of_counters_and_levels_of_now() -> None:
    before = Traffic(10, 20, 30, 900, (WorkerActivity("a", 5, 1.5, 100), WorkerActivity("b", 5, 9.0, 100)))
    # b was restarted and its counter with it; c is new.
    now = Traffic(
        15, 20, 31, 800,
        (WorkerActivity("a", 4, 2.0, 110), WorkerActivity("b", 3, 0.25, 90), WorkerActivity("c", 3, 0.5, 80)),
    )  # fmt: skip
    assert now.since(before) == Traffic(
        5, 0, 1, 800,
        (WorkerActivity("a", 4, 0.5, 110), WorkerActivity("b", 3, 0.25, 90), WorkerActivity("c", 3, 0.5, 80)),
    )  # fmt: skip


@pytest.mark.parametrize("make", [SerialExecutor, lambda: ThreadExecutor(2, blocks=6)])
def test_every_round_says_who_worked_and_for_how_long(make) -> None:
    with make() as executor:
        result = solve(X, Y, MaxHinge(), 0.01, method="fw", max_passes=12, tol=1e-9, executor=executor)
    assert len(result.history) == 12
    for record in result.history:
        assert sum(worker.rows for worker in record.activity) == len(X)
        busy = sum(worker.seconds_busy for worker in record.activity)
        assert busy >= record.seconds_products + record.seconds_kernels > 0.0
        assert record.workers == executor.workers
        assert 10 << 20 < record.memory_bytes < 100 << 30
        assert record.bytes_sent == record.bytes_received == record.bytes_read == 0
    # What was counted in one round is not counted in the next again.
    assert sum(w.seconds_busy for r in result.history for w in r.activity) <= 2 * result.seconds


def test_bytes_that_are_read_from_a_file(tmp_path) -> None:
    path = tmp_path / "x.npy"
    np.save(path, X.astype(np.float16))
    mapped = np.load(path, mmap_mode="r")
    result = solve(mapped, Y, MaxHinge(), 0.01, method="fw", max_passes=4, tol=1e-9)
    assert [record.bytes_read for record in result.history] == [2 * X.size] * 4


def test_resident_memory_follows_what_is_held() -> None:
    before = resident_bytes()
    held = np.ones(8 << 20)
    during = resident_bytes()
    assert 60 << 20 < during - before < 80 << 20
    del held
    assert resident_bytes() < during - (50 << 20)


@pytest.mark.parametrize("rounds", [1, 8, 9, 100, 1001])
def test_an_endless_run_keeps_an_even_choice_of_its_rounds(rounds: int) -> None:
    kept: ThinnedHistory[IterationRecord] = ThinnedHistory(8)
    for number in range(rounds):
        kept.add(record_of(number))
    numbers = [record.round for record in kept.records()]
    assert numbers[0] == 0
    assert numbers[-1] == rounds - 1
    assert len(numbers) <= 9
    if rounds <= 8:
        assert numbers == list(range(rounds))
    else:
        steps = np.diff(numbers[:-1])
        assert (steps == steps[0]).all()
        assert len(numbers) > 4


def test_no_rounds_are_kept_of_none() -> None:
    assert ThinnedHistory[int]().records() == ()
