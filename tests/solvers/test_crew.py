"""Threads that work on one tile together: the numbers of one thread, and nobody waits for a busy pool."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields

import numpy as np
import pytest

from topline import MaxHinge, Softmax, TopKHinge
from topline.solvers import crew as crew_module
from topline.solvers.blocks.block import Block, RunSpec
from topline.solvers.core.problem import Problem
from topline.solvers.crew import ALONE, Crew, columns_of
from topline.solvers.operations import (
    Certify,
    Evaluate,
    FindEnvelopes,
    FindSlope,
    FindVertices,
    MultiplyCurvature,
    Rebuild,
)

ROWS, COLUMNS, CLASSES = 700, 600, 120


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch) -> None:
    """Cut products and rows of this size, which take too little time to be cut."""
    monkeypatch.setattr(crew_module, "_LEAST_PRODUCT", 1 << 22)
    monkeypatch.setattr(crew_module, "_LEAST_ROWS", 1 << 14)


def arrays(dtype: type = np.float32) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    X = random.standard_normal((ROWS, COLUMNS)).astype(dtype)
    return X, random.standard_normal((COLUMNS, CLASSES)).astype(dtype)


@pytest.mark.parametrize(("m", "multiplications"), [(1, 1), (120, 1 << 40), (1000, 1 << 30), (37, 1 << 40)])
def test_pieces_cover_all_columns_once(m, multiplications) -> None:
    pieces = columns_of(m, multiplications)
    assert [piece.start for piece in pieces[1:]] == [piece.stop for piece in pieces[:-1]]
    assert (pieces[0].start, pieces[-1].stop) == (0, m)
    assert all(piece.stop > piece.start for piece in pieces)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_products_are_those_of_one_thread_and_of_numpy(dtype) -> None:
    X, W = arrays(dtype)
    assert len(columns_of(CLASSES, ROWS * W.size)) > 1
    results = []
    with ThreadPoolExecutor(4) as pool:
        for crew in (ALONE, Crew(2, pool), Crew(5, pool)):
            scores, product = np.empty((ROWS, CLASSES), dtype), np.ones((CLASSES, COLUMNS))
            crew.multiply(X, W, scores)
            crew.add_product(scores, X, product)
            results.append((scores, product))
    # Of sums of 600 and 700 terms of size 1 and 25.
    rounding = np.finfo(dtype).eps * COLUMNS
    np.testing.assert_allclose(results[0][0], X.astype(np.float64) @ W, atol=rounding)
    np.testing.assert_allclose(results[0][1], 1.0 + results[0][0].T @ X, atol=25 * rounding)
    for scores, product in results[1:]:
        assert np.array_equal(scores, results[0][0])
        assert np.array_equal(product, results[0][1])


def test_sums_of_rows_are_added_in_their_order() -> None:
    values = np.random.default_rng(1).standard_normal((4096, 64)) * np.logspace(-8, 8, 4096)[:, None]

    pieces: set[int] = set()

    def work(rows: slice, sums: np.ndarray) -> None:
        pieces.add(rows.start)
        for row in values[rows]:
            sums += row

    found = []
    with ThreadPoolExecutor(4) as pool:
        for crew in (ALONE, Crew(5, pool)):
            sums = np.zeros(64)
            crew.add_rows(work, len(values), 64, sums)
            found.append(sums)
    assert len(pieces) > 1
    assert np.array_equal(*found)
    np.testing.assert_allclose(found[0], values.sum(axis=0), rtol=1e-12)


def test_one_that_asks_waits_for_no_busy_helper() -> None:
    done: list[int] = []
    blocked = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(blocked.wait)
        # The only helper never begins: this would not return if anybody waited for it.
        Crew(2, pool).each(lambda piece: done.append(piece.start), [slice(i, i + 1) for i in range(9)])
        blocked.set()
    assert done == list(range(9))


@pytest.mark.parametrize("broken", [0, 5])
def test_what_fails_in_a_piece_is_raised(broken) -> None:
    def work(piece: slice) -> None:
        if piece.start == broken:
            raise ZeroDivisionError(f"piece {piece.start}")

    with ThreadPoolExecutor(3) as pool, pytest.raises(ZeroDivisionError, match=f"piece {broken}"):
        Crew(4, pool).each(work, [slice(i, i + 1) for i in range(6)])


@pytest.mark.parametrize(("loss", "smoothing"), [(TopKHinge(5), 0.0), (MaxHinge(), 0.5), (Softmax(), 0.0)])
def test_a_block_gives_the_same_sums_on_any_number_of_threads(loss, smoothing) -> None:
    X, W = arrays()
    y = np.arange(ROWS, dtype=np.int32) % CLASSES
    problem = Problem(loss, ROWS, COLUMNS, CLASSES, 1e-3, smoothing)
    V = 1e-3 * np.roll(W, 1, axis=0).astype(np.float64)
    W = 1e-2 * W.astype(np.float64)
    point = {"round": 0, "W": W, "sigma": 0.0 if problem.form.smooth else 1.0}
    requests = [
        Evaluate(W),
        FindVertices(0, W),
        FindEnvelopes(**point),
        MultiplyCurvature(**point, V=V),
        FindSlope(**point, V=V, step=0.5),
    ]
    if problem.form.smooth or smoothing > 0:
        requests += [FindVertices(0, W, envelope=True), Certify(W, 1.0), Rebuild()]
    found = []
    for threads in (1, 2, 4):
        block = Block(RunSpec(problem, X, y, keep_duals=True))
        found.append([request.answer(block, Crew(threads)) for request in requests])
    for others in found[1:]:
        for stats, first in zip(others, found[0], strict=True):
            for field in fields(stats):
                if not field.name.startswith("seconds"):
                    here, there = getattr(stats, field.name), getattr(first, field.name)
                    assert np.array_equal(np.asarray(here), np.asarray(there)), field.name
