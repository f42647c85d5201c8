"""The benchmarks of commands beside the library run at a small size."""

from __future__ import annotations

import pytest

from tests.benchmarks.scale import dense_commands, sparse_commands

pytestmark = pytest.mark.benchmarks


def test_that_of_smooth_losses_on_sparse_rows_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (found,) = sparse_commands.main(["--quick", "--repeats", "1", "--workers", "0"])
    assert found.method == "dual_ascent"
    assert found.passes["solve"] == found.passes["auto"]
    assert found.cpu["auto"] > 0.0
    assert "softmax, C = 1" in capsys.readouterr().out


def test_that_of_dense_rows_runs(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["--rows", "300", "--d", "40", "--m", "5"]
    (found,) = dense_commands.main([*sizes, "--repeats", "1", "--workers", "0"])
    assert found.passes == found.solve_passes
    assert found.command > found.train + found.certify
    assert "| 0 |" in capsys.readouterr().out
