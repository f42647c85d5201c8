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


def test_the_choice_is_compared_with_that_of_all_cells_one_by_one(tmp_path, capsys) -> None:
    words = ["--folder", str(tmp_path), "--losses", "topk_hinge", "--workers", "0", "--exhaustive", "300"]
    found = main([*SIZES, *words])
    # One of two cells, whose accuracies 300 rows tell to 0.03.
    assert 0 <= found["lost"] < 0.1
    assert found["apart"] in (0, 1)
    assert found["one_by_one"] > 0 < found["passes"]
    assert "one by one" in capsys.readouterr().out
