"""At W = 0, where every run begins, scores are known without a product."""

from __future__ import annotations

import math

import numpy as np
import pytest

from topline import SerialExecutor, Softmax
from topline.solvers.core.answers import Scratch
from topline.solvers.core.problem import Problem
from topline.solvers.operations import Evaluate, FindVertices

N, D, M = 300, 20, 7


@pytest.mark.parametrize("kind", [FindVertices, Evaluate])
def test_no_product_is_taken_at_zero(kind, monkeypatch) -> None:
    random = np.random.default_rng(0)
    problem, X, y = Problem(Softmax(), N, D, M, 0.1), random.normal(size=(N, D)), np.arange(N) % M
    taken = []
    multiply = Scratch.scores_of

    def watched(scratch, tile, W):
        taken.extend([] if W is None else [W])
        return multiply(scratch, tile, W)

    monkeypatch.setattr(Scratch, "scores_of", watched)
    with SerialExecutor(blocks=2) as executor:
        executor.bind(problem, X, y, keep_duals=False)
        for W in (np.zeros((D, M)), np.full((D, M), 1e-9)):
            request = kind(0, W, envelope=True) if kind is FindVertices else kind(W)
            stats = executor.run(request)
            assert stats.loss == pytest.approx(N * math.log(M))
            assert bool(taken) is bool(W.any())
            if kind is FindVertices:
                gradient = X.T @ (np.eye(M)[y] - 1.0 / M)
                np.testing.assert_allclose(stats.product, gradient, rtol=1e-6, atol=1e-6)
