"""The benchmark of auto's regret runs; what it measures is read by people."""

from __future__ import annotations

import numpy as np
import pytest

from tests.benchmarks.solvers.regret import AUTO, Outcome, drawn, main


def test_the_benchmark_runs(capsys) -> None:
    regrets = main(["--seed", "1", "--problems", "2", "--rows", "300", "--turns", "1", "--tol", "0.1"])
    assert len(regrets) == 2
    assert min(regrets) > 0
    assert f"worst {max(regrets):.2f}" in capsys.readouterr().out


def test_a_problem_follows_from_its_seed_and_number() -> None:
    one, again, other = drawn(3, 4, 500), drawn(3, 4, 500), drawn(4, 4, 500)
    np.testing.assert_array_equal(one.X, again.X)
    assert (one.C, one.loss) == (again.C, again.loss)
    assert one.C != other.C


@pytest.mark.parametrize(
    ("seconds", "regret"),
    [
        ({AUTO: 3.0, "lbfgs": 2.0, "dual_ascent": 4.0}, 1.5),
        ({AUTO: 1.0, "lbfgs": 2.0}, 0.5),
        ({"lbfgs": 2.0}, np.inf),
        ({AUTO: 1.0}, 1.0),
    ],
)
def test_the_regret_is_over_the_best_that_ended(seconds, regret) -> None:
    assert Outcome(seconds, "").regret == regret
