"""Sweeps take several threads where these were faster when tried."""

from __future__ import annotations

import pytest

from topline.solvers.blocks.ascent.shared_tiles import _RETRY, ThreadChoice
from topline.solvers.crew import Helpers


@pytest.mark.parametrize(("two", "one", "taken"), [(1.0, 1.6, 2), (1.6, 1.0, 1)])
def test_both_are_tried_and_the_faster_is_taken(two: float, one: float, taken: int) -> None:
    choice, seconds, chosen = ThreadChoice(), {2: two, 1: one}, []
    for _ in range(3 + _RETRY):
        chosen.append(choice.of(2))
        choice.note(chosen[-1], seconds[chosen[-1]])
    again = chosen.index(3 - taken, 2)
    assert chosen[:2] == [2, 1]
    assert chosen[2:again] == [taken] * (again - 2)
    assert _RETRY <= again <= _RETRY + 2


def test_one_thread_is_all_there_is() -> None:
    assert ThreadChoice().of(1) == 1


def test_threads_are_begun_once_for_as_many_as_are_asked_for() -> None:
    helpers = Helpers()
    two = helpers.pool(2)
    assert helpers.pool(1) is helpers.pool(2) is two
    three = helpers.pool(3)
    assert three is not two
    assert list(three.map(abs, [-1, -2])) == [1, 2]
    three.shutdown()
