"""Heads over one block's rows: one pool of helping threads for all of them, and the numbers of one thread."""

from __future__ import annotations

import threading

import numpy as np

from topline import Problem, TopKHinge
from topline.solvers.blocks import ascent_tiles
from topline.solvers.blocks.shared.heads import HeadBlocks
from topline.solvers.core.heads import HeadCall, HeadRequests, HeadsProblem
from topline.solvers.core.requests import AscentRequest

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
