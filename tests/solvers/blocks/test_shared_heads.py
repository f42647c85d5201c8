"""Heads over one block's rows: one pool of helping threads, the numbers of one thread, and room for A."""

from __future__ import annotations

import math
import threading

import numpy as np
import pytest

from topline import Problem, TopKHinge
from topline.solvers.blocks import ascent_tiles, extrapolation_bytes, most_open
from topline.solvers.blocks.duals import whole_bytes
from topline.solvers.blocks.shared.heads import HeadBlocks
from topline.solvers.core.heads import HeadCall, HeadRequests, HeadsProblem, PendingHeadSteps
from topline.solvers.core.requests import AscentRequest, PendingStep

#: As many classes and features as weights have that threads sweep tile by tile.
N, D, M, HEADS = 120, 2048, 40, 3


def first_helpers():
    """Return the first thread of every pool of helpers that is alive."""
    return {thread for thread in threading.enumerate() if thread.name == "topline-helper_0"}


def test_heads_share_one_pool_of_threads(monkeypatch) -> None:
    monkeypatch.setattr(ascent_tiles, "_SHARED", 1)
    random = np.random.default_rng(0)
    X, y = random.standard_normal((N, D), dtype=np.float32), (np.arange(N) % M).astype(np.int32)
    problem, before, sums = Problem(TopKHinge(3), N, D, M, 1.0 / N), first_helpers(), {}
    held = []
    for threads in (4, 1):
        blocks = HeadBlocks(0, 0, N, X, y, HeadsProblem(N, D, M, HEADS))
        # Threads end with who owns them.
        held.append(blocks)
        sums[threads] = []
        # A head that is swept alone has all threads.
        for head in range(HEADS):
            request = AscentRequest(round=1, W=np.zeros((D, M)), seed=head)
            parts = blocks.run(HeadRequests((HeadCall(head, problem, 0, request),)), threads).parts
            sums[threads].append(parts[head].product)
    assert len(first_helpers() - before) == 1
    assert np.abs(sums[1]).max(axis=(1, 2)).all()
    np.testing.assert_array_equal(sums[4], sums[1])


def swept_in_turn(dual_bytes, heads=HEADS, rounds=3):
    """Sweep one head after the other, several times; give the block of all and each head's change of W."""
    random = np.random.default_rng(1)
    X, y = random.standard_normal((N, D), dtype=np.float32), (np.arange(N) % M).astype(np.int32)
    problem = Problem(TopKHinge(3), N, D, M, 1.0 / N)
    blocks = HeadBlocks(0, 0, N, X, y, HeadsProblem(N, D, M, heads), dual_bytes=dual_bytes)
    W = {head: np.zeros((D, M)) for head in range(heads)}
    for round_ in range(rounds):
        for head in range(heads):
            step = PendingStep(round_ - 1, 1.0) if round_ else None
            request = AscentRequest(round=round_, W=W[head], pending_step=step, sweeps=2, seed=head)
            found = blocks.run(HeadRequests((HeadCall(head, problem, 0, request),))).parts[head]
            W[head] = W[head] + found.product / (problem.lam * N)
    return blocks, W


@pytest.mark.parametrize("room", [1, 2, HEADS])
def test_heads_that_are_swept_have_arrays_and_the_others_what_they_had(room) -> None:
    """Bit for bit what heads without a budget come to: opened, packed and opened again."""
    # A quarter of the budget is for those that wait.
    budget = math.ceil((whole_bytes(N, M) + extrapolation_bytes((N + D) * M)) * room / 0.75)
    assert most_open(budget, N, D, M) == room
    free, expected = swept_in_turn(None)
    some, found = swept_in_turn(budget)
    for head in range(HEADS):
        np.testing.assert_array_equal(found[head], expected[head])
    last = PendingHeadSteps({head: PendingStep(2, 1.0) for head in range(HEADS)})
    there, rows = some.duals(last), free.duals(last)
    for head in range(HEADS):
        np.testing.assert_array_equal(there[head][2], rows[head][2])
        assert rows[head][2].any()


def test_a_block_that_takes_over_goes_on_with_the_arrays_and_the_room() -> None:
    """As a worker does with the blocks that it keeps when others are placed anew."""
    each = whole_bytes(N, M) + extrapolation_bytes((N + D) * M)
    before, _ = swept_in_turn(math.ceil(each / 0.75), rounds=1)
    steps = PendingHeadSteps({head: PendingStep(0, 1.0) for head in range(HEADS)})
    rows = {head: part[2].copy() for head, part in before.duals(steps).items()}
    random = np.random.default_rng(1)
    X, y = random.standard_normal((N, D), dtype=np.float32), (np.arange(N) % M).astype(np.int32)
    after = HeadBlocks(0, 0, N, X, y, HeadsProblem(N, D, M, HEADS), dual_bytes=math.ceil(each / 0.75))
    after.take_duals(before)
    for head, part in after.duals(None).items():
        np.testing.assert_array_equal(part[2], rows[head])
    opened = after._open
    assert opened is not None
    # One array was open and is; whoever is swept next takes its place.
    assert list(opened._open) == [HEADS - 1]
    problem = Problem(TopKHinge(3), N, D, M, 1.0 / N)
    after.run(HeadRequests((HeadCall(0, problem, 0, AscentRequest(round=1, W=np.zeros((D, M)))),)))
    assert list(opened._open) == [0]


def test_without_room_for_one_array_heads_are_swept_packed() -> None:
    assert most_open(1000, N, D, M) == 0
    _, found = swept_in_turn(1000, rounds=1)
    assert all(W.any() for W in found.values())


def test_heads_that_ended_leave_their_room_to_others() -> None:
    each = whole_bytes(N, M) + extrapolation_bytes((N + D) * M)
    blocks, _ = swept_in_turn(math.ceil(each / 0.75), rounds=1)
    opened = blocks._open
    assert opened is not None
    assert list(opened._open) == [HEADS - 1]
    left = opened.packed._left
    assert left < int(0.25 * math.ceil(each / 0.75))
    blocks.run(HeadRequests((), ended=tuple(range(HEADS))))
    assert not opened._open
    assert opened.packed._left == int(0.25 * math.ceil(each / 0.75))
