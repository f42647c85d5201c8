"""The benchmark of sweeps from a store runs at a small size; what it measures is read by people."""

from __future__ import annotations

import pytest

from tests.benchmarks.sweeps.stored_sweep import main

pytestmark = pytest.mark.benchmarks

SIZES = ["--rows", "600", "--d", "32", "--m", "4", "--C", "0.1,1", "--k", "1", "--folds", "2"]


def test_a_sweep_and_a_fit_are_measured_as_users_run_them(tmp_path, capsys) -> None:
    found = main([*SIZES, "--folder", str(tmp_path), "--losses", "topk_hinge", "--workers", "0"])
    assert found["passes"] > 0 < found["fit"]
    assert found["cpu"] > 0.0 < found["fit_cpu"]
    assert 1 << 26 < found["peak"] < 4 << 30
    assert "ratio" in capsys.readouterr().out
