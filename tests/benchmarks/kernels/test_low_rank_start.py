"""The benchmark of low-rank starts runs at a small size; what it measures is read by people."""

from __future__ import annotations

import pytest

from tests.benchmarks.kernels.low_rank_start import main

pytestmark = pytest.mark.benchmarks


def test_the_benchmark_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (found,) = main(["--sets", "synthetic", "--rows", "1200", "--C", "4", "--landmarks", "50"])
    assert min(found) > 0.0
    assert "from 50 landmarks" in capsys.readouterr().out
