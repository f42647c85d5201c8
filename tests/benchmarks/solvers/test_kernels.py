"""The benchmark of exact kernels runs at a small size; what it measures is read by people."""

from __future__ import annotations

import pytest

from tests.benchmarks.solvers.kernels import main

pytestmark = pytest.mark.benchmarks


def test_the_benchmark_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (cost,) = main(["--quick"])
    assert cost.certified
    assert (cost.n, cost.gap <= 1e-2) == (400, True)
    # Python and NumPy alone; rows of one block are trained on by the coordinator itself.
    assert 50e6 < cost.coordinator_bytes <= cost.all_bytes
    assert "synthetic, max hinge" in capsys.readouterr().out
