"""The benchmark of the column updates runs, and what it times solves the problems that it names."""

from __future__ import annotations

import numpy as np

from tests.benchmarks.solvers.column_updates import forms, measure, simplex_by_sorting, table, top5_by_qp
from topline.solvers.losses.rows import column_updates


def test_the_benchmark_runs() -> None:
    rows = list(measure(sizes=(5, 12), seconds=0.0))
    assert [row.m for row in rows] == [5, 12]
    assert all(min(*row.kernels.values(), row.sorting, row.general) > 0 for row in rows)
    assert "max hinge / sorting" in table(rows)


def test_the_qp_peer_solves_the_same_problem() -> None:
    q = np.random.default_rng(1).standard_normal((6, 9))
    for i, own in enumerate([0, 8, 3, 3, 1, 5]):
        alpha = column_updates(forms(9)["top-5"], q[i : i + 1], np.array([own]), 1.0)[0]
        beta, _ = top5_by_qp(q[i], own)
        np.testing.assert_allclose(np.delete(beta, own), -np.delete(alpha, own), atol=1e-4)


def test_the_sorting_peer_projects_on_the_simplex() -> None:
    q = np.random.default_rng(0).standard_normal((20, 7))
    x = simplex_by_sorting(q)
    np.testing.assert_allclose(x.sum(axis=1), 1.0, rtol=1e-14)
    # Optimal: no vertex of the simplex lies further along q - x than x itself.
    np.testing.assert_allclose((q - x).max(axis=1), ((q - x) * x).sum(axis=1), atol=1e-13)
