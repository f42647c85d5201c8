"""The benchmark of wide kernels runs at a small size; what it measures is read by people."""

from __future__ import annotations

import pytest

from tests.benchmarks.kernels.wide_kernels import main

pytestmark = pytest.mark.benchmarks


def test_the_benchmark_runs(capsys: pytest.CaptureFixture[str]) -> None:
    found = main(["--sets", "digits", "--rows", "1200", "--C", "4", "--rank", "50"])
    assert max(gap for _, gap, _, _ in found) <= 1e-3
    assert len(found) == 4
    assert "from 50 columns" in capsys.readouterr().out
