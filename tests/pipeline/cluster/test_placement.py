"""Budgets of workers as blocks change hands."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from topline import TopKHinge
from topline.pipeline.cluster.messages import Span
from topline.pipeline.cluster.placement import BlockPlacement, Bound
from topline.solvers.core.problem import Problem
from topline.solvers.operations import RunSpec


class Listening:
    """Workers that agree to everything; `placed` are the placements that they were given."""

    def __init__(self) -> None:
        self.placed: dict[str, SimpleNamespace] = {}

    def run(self, calls, **_):
        for call in calls:
            if call.function.__name__ == "place":
                self.placed[call.worker] = call.arguments[0]
        return {call.worker: [] for call in calls}


def test_who_takes_over_blocks_gets_no_larger_budgets_than_workers_had_at_the_begin() -> None:
    """Its memory has not grown with its rows."""
    spans = tuple(Span(i, 10 * i, 10 * i + 10) for i in range(4))
    X, y = np.ones((40, 3), dtype=np.float32), np.zeros(40, dtype=np.int32)
    problem = Problem(TopKHinge(1), n=40, d=3, m=4, lam=0.1)
    calls = Listening()
    places = BlockPlacement(calls, Bound(RunSpec(problem, X, y, None, True, 8000), spans, 4000, 60.0))
    places.begin({"a": spans[:2], "b": spans[2:]})
    assert [(p.cache_bytes, p.spec.dual_bytes) for p in calls.placed.values()] == [(2000, 4000)] * 2
    places.move({"a": spans}, ["a"], None, lambda: None)
    assert (calls.placed["a"].cache_bytes, calls.placed["a"].spec.dual_bytes) == (2000, 4000)
    places.move({"a": spans[:1], "b": spans[1:]}, ["a", "b"], None, lambda: None)
    assert (calls.placed["a"].cache_bytes, calls.placed["b"].cache_bytes) == (1000, 2000)
