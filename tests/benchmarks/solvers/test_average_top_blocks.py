"""The benchmark of the average top-k risk runs, and its runs agree."""

from __future__ import annotations

import pytest

from tests.benchmarks.solvers.average_top_blocks import BLOCKS, main


def test_the_small_problem_has_one_objective(capsys) -> None:
    results = main(["--quick", "--C", "0.02", "--tol", "1e-3"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(BLOCKS) + 2
    for result in results:
        assert result.relative_gap <= 1e-3
        assert result.primal == pytest.approx(results[0].primal, rel=1e-3)
