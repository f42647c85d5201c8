"""The benchmarks of blocks and of random problems run, on few rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import issparse

from tests.benchmarks.solvers import random_problems, standardised_blocks
from tests.benchmarks.solvers.random_problems import KINDS, drawn
from tests.reference import losses as reference


@pytest.mark.benchmarks
def test_it_prints_a_row_for_every_set_and_C(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    standardised_blocks.main(
        ["--rows", "400", "--blocks", "1", "4", "--C", "1", "10", "--data", str(tmp_path)]
    )
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "| set, C | blocks 1 | blocks 4 |"
    assert len(lines) == 2 + 2 * len(standardised_blocks.DRAWN)
    assert ">" not in "".join(lines[2:])


@pytest.mark.benchmarks
def test_it_prints_a_row_a_problem_and_the_counts(capsys: pytest.CaptureFixture[str]) -> None:
    random_problems.main(["--problems", "2", "--tol", "0.3"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("| number | kind | n x d, m |")
    assert all(" SOLVED " in line and "!" not in line for line in lines[2:4])
    assert lines[-1].startswith("| all | 2 | 2 |")


@pytest.mark.benchmarks
def test_every_kind_and_loss_is_drawn_and_its_primal_value_is_that_of_the_reference() -> None:
    seen = set()
    for number in range(40):
        problem = drawn(0, number)
        seen |= {problem.kind, problem.loss.name}
        W = np.random.default_rng(number).standard_normal((problem.X.shape[1], problem.m))
        X = problem.X.toarray() if issparse(problem.X) else problem.X
        few = slice(0, max(problem.m, 20))
        some = random_problems.Drawn(problem.kind, problem.X[few], problem.y[few], problem.loss, problem.C)
        expected = reference.primal(X[few], some.y, some.loss, some.lam, 0.0, W)
        assert some.primal(W)[0] == pytest.approx(expected, rel=1e-9)
    assert seen >= {*KINDS, "max_hinge", "topk_hinge", "softmax", "structured_hinge", "one_vs_all_hinge"}
    assert drawn(0, 3).C == drawn(0, 3).C != drawn(1, 3).C
