"""Wsabie's draws against their distribution, its steps by hand, and what it learns."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from tests.reproduce.baselines import fit_wsabie
from tests.reproduce.baselines.wsabie import draw_violator, rank_weight, shortened
from topline import InvalidProblemError, NonFiniteError


def harmonic(r):
    return sum(1.0 / (i + 1) for i in range(r))


def drawn(scores, y, recent=(), seed=0, times=4000):
    state = np.array([seed + 12345], dtype=np.uint64)
    memory = len(recent)
    held = np.array([*recent, -1], dtype=np.int64)
    return [draw_violator(np.asarray(scores, dtype=float), y, held, memory, state) for _ in range(times)]


def test_draws_have_the_distribution_of_sampling_until_a_violation() -> None:
    """Of 5 others 2 violate: N is geometric with chance 2/5, cut at 5 draws."""
    scores = [0.5, 0.0, -3.0, 0.9, -2.0, -4.0]
    found = drawn(scores, 1)
    others = np.array([j for j, _ in found])
    counts = np.array([n for j, n in found if j >= 0])
    assert set(others) == {0, 3, -1}
    chance = [0.4 * 0.6**n for n in range(5)]
    seen = np.bincount(counts, minlength=6)[1:] / len(found)
    # 4,000 draws: five standard deviations of a share of 0.4 are 0.039.
    np.testing.assert_allclose(seen, chance, atol=0.04)
    assert np.mean(others == -1) == pytest.approx(0.6**5, abs=0.03)
    assert np.mean(others == 0) == pytest.approx(np.mean(others == 3), abs=0.05)


def test_the_weight_estimates_the_rank_of_the_label() -> None:
    for m in (2, 7, 26):
        for n in range(1, m):
            assert rank_weight(m, n) == pytest.approx(harmonic((m - 1) // n))


def test_the_last_violators_are_not_drawn_again() -> None:
    found = drawn([0.5, 0.0, -3.0, 0.9, -2.0, -4.0], 1, recent=[3])
    assert {j for j, _ in found} == {0, -1}
    assert {j for j, _ in drawn([0.5, 0.0, -3.0, 0.9, -2.0, -4.0], 1, recent=[3, 0], times=50)} == {-1}


def test_long_rows_are_shortened_and_others_are_not() -> None:
    rows = np.array([[3.0, 4.0], [0.3, 0.4]])
    np.testing.assert_allclose(shortened(rows, 1.0), [[0.6, 0.8], [0.3, 0.4]])


def test_one_example_takes_the_steps_of_adagrad() -> None:
    """m = 2: the other class is drawn at once, its weight is L(1) = 1; a first step is `step` each."""
    x, label = np.array([[2.0, -1.0], [0.0, 0.0]]), [0, 1]
    before = fit_wsabie(x, label, dimension=3, step=1e-12, epochs=1, radius=50.0)
    after = fit_wsabie(x, label, dimension=3, step=0.01, epochs=1, radius=50.0)
    z = x[0] @ before.U
    scores = z @ before.V
    assert scores[1] > scores[0] - 1.0
    # The zero example violates as well and has no gradient in z = 0.
    np.testing.assert_allclose(after.V[:, 0] - before.V[:, 0], 0.01 * np.sign(z), atol=1e-6)
    np.testing.assert_allclose(after.V[:, 1] - before.V[:, 1], -0.01 * np.sign(z), atol=1e-6)
    gradient = np.outer(x[0], before.V[:, 1] - before.V[:, 0])
    np.testing.assert_allclose(after.U - before.U, -0.01 * np.sign(gradient), atol=1e-6)


@pytest.mark.parametrize(("memory", "least"), [(0, 0.9), (2, 0.6)])
def test_it_separates_clouds_and_keeps_to_its_ball(memory, least) -> None:
    """Of 5 other classes the last 2 violators are skipped: that leaves out what would help most."""
    rng = np.random.default_rng(0)
    y = np.arange(300) % 6
    X = 4.0 * rng.normal(size=(6, 5))[y] + rng.normal(size=(300, 5))
    found = fit_wsabie(X, y + 10, dimension=4, memory=memory, radius=2.0, epochs=40)
    assert np.mean(found.classes[found.scores(X).argmax(axis=1)] == y + 10) > least
    assert found.violated[-1] < found.violated[0]
    assert np.linalg.norm(found.U, axis=1).max() <= 2.0 + 1e-9
    assert np.linalg.norm(found.V, axis=0).max() <= 2.0 + 1e-9
    np.testing.assert_allclose(found.scores(sparse.csr_array(X)), X @ found.W, atol=1e-9)
    again = fit_wsabie(X, y + 10, dimension=4, memory=memory, radius=2.0, epochs=40)
    np.testing.assert_array_equal(again.W, found.W)


def test_what_it_refuses() -> None:
    X, y = np.eye(4), np.array([0, 1, 2, 0])
    with pytest.raises(InvalidProblemError, match="memory is 2 of 3 classes; give 0 to 1"):
        fit_wsabie(X, y, dimension=2, memory=2)
    for wrong in ({"memory": -1}, {"memory": 1.5}, {"seed": "a"}, {"seed": -1}):
        with pytest.raises(InvalidProblemError, match=f"{next(iter(wrong))} is .*; give"):
            fit_wsabie(X, y, dimension=2, **wrong)
    for nothing in (None, np.nan):
        with pytest.raises(InvalidProblemError, match="row 3 has no label: drop such rows"):
            fit_wsabie(X, [0, 1, 2, nothing], dimension=2)
    with pytest.raises(NonFiniteError, match="squares of the gradients overflowed; scale the features"):
        fit_wsabie(1e200 * X, y, dimension=2)
    with pytest.raises(InvalidProblemError, match="at least two classes"):
        fit_wsabie(X, np.zeros(4), dimension=2)
    with pytest.raises(InvalidProblemError, match=r"give X\.toarray"):
        fit_wsabie(sparse.csr_array(X), y, dimension=2)
