"""Heads over one block's rows: one pool of helping threads, the numbers of one thread, and room for A."""

from __future__ import annotations

import math
import threading

import numpy as np
import pytest

from topline import TopKHinge
from topline.solvers.blocks import extrapolation_bytes
from topline.solvers.blocks.ascent import shared_tiles
from topline.solvers.blocks.block import array_bytes
from topline.solvers.core.dual_points import PendingStep
from topline.solvers.core.problem import Problem
from topline.solvers.operations import (
    Ascend,
    AskHeads,
    CountHits,
    Evaluate,
    Head,
    RowBlock,
    RunSpec,
    most_open,
)

#: As many classes and features as weights have that threads sweep tile by tile.
N, D, M, HEADS = 120, 2048, 40, 3
PROBLEM = Problem(TopKHinge(3), N, D, M, 1.0 / N)


def first_helpers():
    """Return the first thread of every pool of helpers that is alive."""
    return {thread for thread in threading.enumerate() if thread.name == "topline-helper_0"}


def test_heads_share_one_pool_of_threads(monkeypatch) -> None:
    monkeypatch.setattr(shared_tiles, "_SHARED", 1)
    random = np.random.default_rng(0)
    X, y = random.standard_normal((N, D), dtype=np.float32), (np.arange(N) % M).astype(np.int32)
    before, sums = first_helpers(), {}
    held = []
    for threads in (4, 1):
        blocks = RowBlock(RunSpec(PROBLEM, X, y, np.ones((N, 1))), 0, 0, N)
        # Threads end with who owns them.
        held.append(blocks)
        sums[threads] = []
        # A head that is swept alone has all threads.
        for head in range(HEADS):
            request = Ascend(round=1, W=np.zeros((D, M)), seed=head)
            parts = blocks.run(AskHeads(((Head(head, PROBLEM), request),)), threads).parts
            sums[threads].append(parts[head].product)
    assert len(first_helpers() - before) == 1
    assert np.abs(sums[1]).max(axis=(1, 2)).all()
    np.testing.assert_array_equal(sums[4], sums[1])


def swept_in_turn(dual_bytes, heads=HEADS, rounds=3):
    """Sweep one head after the other, several times; give the block of all and each head's change of W."""
    random = np.random.default_rng(1)
    X, y = random.standard_normal((N, D), dtype=np.float32), (np.arange(N) % M).astype(np.int32)
    blocks = RowBlock(RunSpec(PROBLEM, X, y, np.ones((N, 1)), dual_bytes=dual_bytes), 0, 0, N)
    W = {head: np.zeros((D, M)) for head in range(heads)}
    for round_ in range(rounds):
        for head in range(heads):
            step = PendingStep(round_ - 1, 1.0) if round_ else None
            request = Ascend(round=round_, W=W[head], pending_step=step, sweeps=2, seed=head)
            found = blocks.run(AskHeads(((Head(head, PROBLEM), request),))).parts[head]
            W[head] = W[head] + found.product / (PROBLEM.lam * N)
    return blocks, W


@pytest.mark.parametrize("room", [1, 2, HEADS])
def test_heads_that_are_swept_have_arrays_and_the_others_what_they_had(room) -> None:
    """Bit for bit what heads without a budget come to: opened, packed and opened again."""
    budget = budget_of(room)
    assert most_open(budget, N, D, M) == room
    free, expected = swept_in_turn(None)
    some, found = swept_in_turn(budget)
    for head in range(HEADS):
        np.testing.assert_array_equal(found[head], expected[head])
    last = {head: PendingStep(2, 1.0) for head in range(HEADS)}
    there, rows = some.dual_rows(last), free.dual_rows(last)
    for head in range(HEADS):
        np.testing.assert_array_equal(there[head][1], rows[head][1])
        assert rows[head][1].any()


def budget_of(arrays):
    """Return a budget that holds so many arrays of dual variables beside what one sweep remembers."""
    # An eighth of the budget is for those that wait.
    return math.ceil((array_bytes(N, M, 4) * arrays + extrapolation_bytes((N + D) * M)) / 0.875)


def test_a_block_that_takes_over_goes_on_with_the_arrays_and_the_room() -> None:
    """As a worker does with the blocks that it keeps when others are placed anew."""
    before, _ = swept_in_turn(budget_of(1), rounds=1)
    steps = {head: PendingStep(0, 1.0) for head in range(HEADS)}
    rows = {head: part[1].copy() for head, part in before.dual_rows(steps).items()}
    after, _ = swept_in_turn(budget_of(1), heads=0)
    after.take_duals(before)
    for head, part in after.dual_rows(None).items():
        np.testing.assert_array_equal(part[1], rows[head])
    opened = after._open
    assert opened is not None
    # One array was open and is; whoever is swept next takes its place.
    assert list(opened._open) == [HEADS - 1]
    after.run(AskHeads(((Head(0, PROBLEM), Ascend(round=1, W=np.zeros((D, M)))),)))
    assert list(opened._open) == [0]


def test_a_step_is_finished_for_the_heads_that_a_block_has() -> None:
    (blocks, _), (others, _) = (swept_in_turn(None, rounds=1) for _ in range(2))
    steps = {head: PendingStep(0, 0.5) for head in range(HEADS + 1)}
    blocks.finish_step(steps)
    for head, part in others.dual_rows(steps).items():
        assert part[1].any()
        np.testing.assert_array_equal(blocks.dual_rows()[head][1], part[1])


def test_without_room_for_one_array_heads_are_swept_packed() -> None:
    assert most_open(1000, N, D, M) == 0
    _, found = swept_in_turn(1000, rounds=1)
    assert all(W.any() for W in found.values())


def test_heads_that_ended_leave_their_room_to_others() -> None:
    blocks, _ = swept_in_turn(budget_of(1), rounds=1)
    opened = blocks._open
    assert opened is not None
    assert list(opened._open) == [HEADS - 1]
    assert opened.packed._left < int(0.125 * budget_of(1))
    blocks.run(AskHeads((), ended=tuple(range(HEADS))))
    assert not opened._open
    assert opened.packed._left == int(0.125 * budget_of(1))


def swept_together(dual_bytes, exact):
    """Sweep all heads in one request, some of them in float64; give the block of all and their changes."""
    random = np.random.default_rng(1)
    X, y = random.standard_normal((N, D), dtype=np.float32), (np.arange(N) % M).astype(np.int32)
    blocks = RowBlock(RunSpec(PROBLEM, X, y, np.ones((N, 1)), dual_bytes=dual_bytes), 0, 0, N)
    requests = [
        Ascend(round=0, W=np.zeros((D, M)), sweeps=2, seed=head, exact=head in exact) for head in range(HEADS)
    ]
    calls = tuple((Head(head, PROBLEM), request) for head, request in enumerate(requests))
    return blocks, blocks.run(AskHeads(calls)).parts


@pytest.mark.parametrize("exact", [(), (1,), (0, 2)])
def test_heads_that_do_not_all_fit_are_swept_in_turn_as_arrays(exact) -> None:
    """Float64 takes the room of two: nobody is swept packed, which comes to other numbers."""
    _, expected = swept_together(None, exact)
    _, found = swept_together(budget_of(2), exact)
    for head in range(HEADS):
        np.testing.assert_array_equal(found[head].product, expected[head].product)


def test_what_heads_ask_at_the_same_time_they_get_as_alone() -> None:
    """A sweep, values and hits of rows in memory go on at the same time, on any number of threads."""
    random = np.random.default_rng(2)
    X, y = random.standard_normal((N, D), dtype=np.float32), (np.arange(N) % M).astype(np.int32)
    weights = np.ones((N, 1))
    weights[::5] = 0.0
    W = random.standard_normal((D, M))
    calls = (
        (Head(0, PROBLEM), Ascend(round=0, W=np.zeros((D, M)), sweeps=2)),
        (Head(1, PROBLEM), Evaluate(W)),
        (Head(2, PROBLEM), Evaluate(2.0 * W)),
        (Head(3, PROBLEM), CountHits(W, 1, 0.1)),
        (Head(4, PROBLEM), CountHits(2.0 * W, 1, 0.1)),
    )

    def asked(calls, threads):
        blocks = RowBlock(RunSpec(PROBLEM, X, y, weights), 0, 0, N)
        return blocks.run(AskHeads(calls), threads).parts

    alone = {head.number: asked(((head, one),), 1)[head.number] for head, one in calls}
    for threads in (1, 2, 4):
        found = asked(calls, threads)
        np.testing.assert_array_equal(found[0].product, alone[0].product)
        assert [found[head].count for head in (3, 4)] == [alone[head].count for head in (3, 4)]
        for head in (1, 2):
            assert found[head].loss == pytest.approx(alone[head].loss, rel=1e-12)
