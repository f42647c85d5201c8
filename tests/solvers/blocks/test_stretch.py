"""How far W is to be stretched for the loss to vanish, against bisection on the loss itself."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.reference import losses as reference
from tests.solvers.problems import loss_name
from topline import (
    MaxHinge,
    SerialExecutor,
    Softmax,
    Status,
    StructuredHinge,
    ThreadExecutor,
    TopKHinge,
    TopKOthersHinge,
    UsunierHinge,
    WeightedTopKHinge,
    linear,
    solve,
)
from topline.solvers.blocks.vertices import can_vanish, least_stretch, slack_of
from topline.solvers.core.answers import Scratch
from topline.solvers.core.problem import Problem
from topline.solvers.losses import OneVsAll
from topline.solvers.operations import Evaluate, FindVertices

N, M = 40, 7
TREE = np.abs(np.subtract.outer(np.arange(M), np.arange(M))) / 3.0
HINGES = [
    MaxHinge(), TopKHinge(3), TopKHinge(M), TopKOthersHinge(3), UsunierHinge(3), WeightedTopKHinge(linear(4)),
    StructuredHinge(TREE), OneVsAll("hinge"),
]  # fmt: skip


def told_apart(random, rows: int = N):
    """Scores whose own class is ahead of the others, by little of some, and their labels."""
    y = random.integers(M, size=rows).astype(np.int32)
    scores = random.standard_normal((rows, M))
    scores[np.arange(rows), y] = scores.max(axis=1) + 10.0 ** random.uniform(-2, 1, rows)
    # Own classes are above 0 and all others below, for one-vs-all.
    return scores - 0.5 * np.sort(scores, axis=1)[:, -2:].sum(axis=1, keepdims=True), y


def stretch(loss, scores, y, weights=None, least=0.0):
    """Give the stretch of scores that are exact."""
    weights = np.ones(len(y)) if weights is None else weights
    exact = np.zeros(len(y)), np.zeros(scores.shape[1])
    return least_stretch(loss.form(scores.shape[1]), scores, y, weights, exact, least)


def vanishing(loss, scores, y) -> float:
    """Find the least factor at which the loss is 0 by bisection."""
    low, high = 0.0, 1e6
    for _ in range(120):
        c = 0.5 * (low + high)
        low, high = (low, c) if reference.sorted_loss(loss, c * scores, y) <= 0.0 else (c, high)
    return high


@pytest.mark.parametrize("loss", HINGES, ids=loss_name)
def test_the_stretch_is_the_least_at_which_no_row_has_a_loss(loss) -> None:
    random = np.random.default_rng(1)
    scores, y = told_apart(random)
    assert can_vanish(loss.form(M))
    expected = [vanishing(loss, row, label) for row, label in zip(scores, y, strict=True)]
    found = [stretch(loss, scores[i : i + 1], y[i : i + 1]) for i in range(N)]
    assert found == pytest.approx(expected, rel=1e-9)
    assert stretch(loss, scores, y) == pytest.approx(max(expected), rel=1e-9)
    assert stretch(loss, scores, y, least=1e9) == 1e9
    # A row that counts for nothing asks for nothing.
    weights = np.ones(N)
    weights[int(np.argmax(expected))] = 0.0
    assert stretch(loss, scores, y, weights) < max(expected)


@pytest.mark.parametrize("loss", HINGES, ids=loss_name)
def test_a_row_that_is_behind_cannot_be_stretched(loss) -> None:
    scores, y = told_apart(np.random.default_rng(2))
    scores[3, y[3]] = scores[3].min() - 1.0
    assert stretch(loss, scores, y) == np.inf


@pytest.mark.parametrize("loss", HINGES, ids=loss_name)
@pytest.mark.parametrize("own", [False, True])
def test_scores_that_are_no_numbers_cannot_be_stretched(loss, own) -> None:
    scores, y = told_apart(np.random.default_rng(2))
    scores[3, y[3] if own else (y[3] + 1) % M] = np.nan
    assert stretch(loss, scores, y) == np.inf


def test_many_ranks_are_stretched_as_few_are() -> None:
    random = np.random.default_rng(4)
    y = random.integers(60, size=20).astype(np.int32)
    scores = random.standard_normal((20, 60))
    scores[np.arange(20), y] = scores.max(axis=1) + 0.1
    for k in (16, 17, 60):
        expected = max(vanishing(TopKHinge(k), row, label) for row, label in zip(scores, y, strict=True))
        assert stretch(TopKHinge(k), scores, y) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("loss", [MaxHinge(), TopKHinge(3), OneVsAll("hinge")], ids=loss_name)
def test_rounding_of_sums_that_cancel_leaves_no_loss(loss) -> None:
    """Scores of some 1 are sums of terms of some 200, of which float32 knows less."""
    fooled = 0
    for seed in range(10):
        random = np.random.default_rng(seed)
        scores, y = told_apart(random)
        scores += np.where(np.arange(M) == y[:, None], 1.0, -1.0)
        X = np.hstack([random.standard_normal((N, 400)), np.eye(N)]).astype(np.float32)
        W = 200.0 * random.standard_normal((400, M))
        # The last columns put the sums right in float64.
        W = np.vstack([W, scores - X[:, :400].astype(np.float64) @ W]).astype(np.float32)
        rounded, exact = X @ W, X.astype(np.float64) @ W.astype(np.float64)
        slack = slack_of(X, W)
        assert (np.abs(rounded - exact) <= np.outer(*slack)).all()
        c = least_stretch(loss.form(M), rounded, y, np.ones(N), slack, 0.0)
        assert np.isfinite(c)
        assert all(
            reference.sorted_loss(loss, c * row, label) == 0.0 for row, label in zip(exact, y, strict=True)
        )
        # As if nothing were rounded, a row is left with a loss.
        c = stretch(loss, rounded.astype(np.float64), y)
        fooled += any(
            reference.sorted_loss(loss, c * row, label) > 0.0 for row, label in zip(exact, y, strict=True)
        )
    assert fooled > 0


def test_losses_that_never_vanish_or_have_no_ranks_are_left_alone() -> None:
    assert not can_vanish(Softmax().form(M))
    assert not can_vanish(OneVsAll("logistic").form(M))


@pytest.mark.parametrize("loss", [MaxHinge(), TopKHinge(3), UsunierHinge(2)], ids=loss_name)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_passes_do_not_grow_with_c_where_classes_can_be_told_apart(loss, dtype) -> None:
    random = np.random.default_rng(5)
    y = np.arange(200) % M
    X = (np.maximum(random.standard_normal((M, 60))[y] + 0.3 * random.standard_normal((200, 60)), 0)).astype(
        dtype
    )
    passes = []
    for C in (1e3, 1e7, 1e11):
        result = solve(X, y, loss, lam=1.0 / (C * len(y)), tol=1e-3)
        assert result.status is Status.SOLVED
        scores = X.astype(np.float64) @ result.W
        losses = [reference.sorted_loss(loss, row, label) for row, label in zip(scores, y, strict=True)]
        primal = 0.5 * result.problem.lam * np.sum(result.W**2) + np.mean(losses)
        assert result.primal == pytest.approx(primal, rel=1e-9)
        assert result.dual <= result.primal
        passes.append(result.passes)
    assert max(passes) <= 1.5 * min(passes)


@pytest.mark.parametrize("smoothing", [0.0, 0.5])
def test_blocks_and_weights_stretch_alike(smoothing) -> None:
    """The largest stretch of all blocks counts, whatever the rows count; P is that of the W that is given."""
    random = np.random.default_rng(6)
    y = np.arange(120) % M
    X = np.maximum(random.standard_normal((M, 40))[y] + 0.3 * random.standard_normal((120, 40)), 0.0)
    weights = random.uniform(0.2, 3.0, 120)
    weights[::7] = 0.0
    lam = 1.0 / (1e3 * len(y))
    found = []
    for bounds in ([0, 120], [0, 50, 120]):
        with ThreadExecutor(2, bounds=bounds) as executor:
            result = solve(
                X, y, TopKHinge(2), lam, smoothing, "dual_ascent", sample_weight=weights, tol=1e-2,
                max_passes=400, executor=executor,
            )  # fmt: skip
        primal = reference.primal(X, y, TopKHinge(2), lam, smoothing, result.W, weights=weights)
        assert result.primal == pytest.approx(primal, rel=1e-8)
        found.append(result)
    assert max(one.dual for one in found) <= min(one.primal for one in found)
    assert min(one.primal for one in found) > 0.0


ROWS, FEATURES, CLASSES = 300, 20, 7


@pytest.mark.parametrize("kind", [FindVertices, Evaluate])
def test_no_product_is_taken_at_zero(kind, monkeypatch) -> None:
    random = np.random.default_rng(0)
    problem, X, y = (
        Problem(Softmax(), ROWS, FEATURES, CLASSES, 0.1),
        random.normal(size=(ROWS, FEATURES)),
        np.arange(ROWS) % CLASSES,
    )
    taken = []
    multiply = Scratch.scores_of

    def watched(scratch, tile, W):
        taken.extend([] if W is None else [W])
        return multiply(scratch, tile, W)

    monkeypatch.setattr(Scratch, "scores_of", watched)
    with SerialExecutor(blocks=2) as executor:
        executor.bind(problem, X, y, keep_duals=False)
        for W in (np.zeros((FEATURES, CLASSES)), np.full((FEATURES, CLASSES), 1e-9)):
            request = kind(0, W, envelope=True) if kind is FindVertices else kind(W)
            stats = executor.run(request)
            assert stats.loss == pytest.approx(ROWS * math.log(CLASSES))
            assert bool(taken) is bool(W.any())
            if kind is FindVertices:
                gradient = X.T @ (np.eye(CLASSES)[y] - 1.0 / CLASSES)
                np.testing.assert_allclose(stats.product, gradient, rtol=1e-6, atol=1e-6)
