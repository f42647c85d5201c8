"""The benchmark of sweeps runs, and on a few digits the sweep is within its bar."""

from __future__ import annotations

from tests.benchmarks.sweeps.sweep_cost import main


def test_digits_are_swept_in_fewer_passes_to_a_neighbour_of_the_best_C(capsys) -> None:
    found = main(["--quick"])["digits"]
    assert found["sweep"] < 0.7 * found["exhaustive"]
    assert found["apart"] <= 1
    assert len(capsys.readouterr().out.splitlines()) == 1 + 4 + 3
