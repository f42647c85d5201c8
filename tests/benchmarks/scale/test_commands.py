"""The benchmark of smooth losses on sparse rows runs at a small size."""

from __future__ import annotations

import pytest

from tests.benchmarks.scale.sparse_commands import main

pytestmark = pytest.mark.benchmarks


def test_the_benchmark_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (found,) = main(["--quick", "--repeats", "1", "--workers", "0"])
    assert found.method == "dual_ascent"
    assert found.passes["solve"] == found.passes["auto"]
    assert found.cpu["auto"] > 0.0
    assert "softmax, C = 1" in capsys.readouterr().out
