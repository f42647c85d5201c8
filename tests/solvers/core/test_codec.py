"""Whatever a run remembers comes back from named arrays and plain JSON as it was."""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from tests.solvers.problems import M, examples, stored
from topline import InvalidProblemError, OneVsAll, SerialExecutor, Softmax, TopKHinge, solve
from topline.solvers.core import codec
from topline.solvers.core.state import SolverState
from topline.solvers.methods import METHODS
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


KINDS = [kind for kind in codec.CLASSES.values() if object not in get_type_hints(kind).values()]


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


@pytest.mark.parametrize("kind", codec.CLASSES.values(), ids=lambda kind: kind.__name__)
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
    "lbfgs": [Softmax(), OneVsAll("logistic")],
    "newton": [Softmax(), TopKHinge(2)],
}
RUNS = [(name, loss, None) for name in METHODS for loss in LOSSES.get(name, [TopKHinge(2)])]
#: Methods whose memory, or whose clock, is not all in the state: they go on to the optimum, by other bits.
OTHER_BITS = {"auto", "newton", "fw_away_columns", "fw_pairwise_columns"}


@pytest.mark.parametrize(
    ("method", "loss", "kernel"), RUNS + [(name, TopKHinge(2), "rbf") for name in ON_BLOCKS]
)
@pytest.mark.parametrize("blocks", [1, 3])
def test_a_run_goes_on_from_what_a_checkpoint_gives_back_to_the_same_bits(
    method, loss, kernel, blocks, monkeypatch
) -> None:
    monkeypatch.setitem(ON_BLOCKS, method, 0)
    X, y = examples(n=40)
    has_duals, states = METHODS[method].needs_duals(loss.form(M), 0.0) or kernel is not None, []

    def run(state=None, duals=None):
        with SerialExecutor(blocks=blocks) as executor:

            def note(_, state):
                A = [rows.copy() for _, _, rows in executor.duals(state.pending_step)] if has_duals else []
                states.append((state, [(0, len(y), np.concatenate(A))] if A else None))

            return solve(
                X, y, loss, 1e-3, method=method, kernel=kernel, m=M, tol=1e-12, max_passes=30, state=state,
                duals=duals, executor=executor, callbacks=[note] if state is None else [],
            )  # fmt: skip

    whole = run()
    for state, duals in states[: len(states) - 1 : 7]:
        rest, again = run(state, duals), run(stored(state), duals)
        assert (again.passes, again.primal, again.dual) == (rest.passes, rest.primal, rest.dual)
        np.testing.assert_array_equal(again.W, rest.W)
        if kernel is None and method not in OTHER_BITS:
            assert rest.passes == whole.passes
            np.testing.assert_array_equal(rest.W, whole.W)
        assert rest.dual <= whole.primal * (1 + 1e-9)
        assert whole.dual <= rest.primal * (1 + 1e-9)
