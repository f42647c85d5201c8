"""Benchmarks of sweeps run at a small size; what they measure is read by people."""

from __future__ import annotations

import pytest

from tests.benchmarks.sweeps import same_choice, shared_sweep, stored_sweep, sweep_cost, sweep_size


@pytest.mark.benchmarks
def test_a_choice_is_held_against_that_of_all_cells_one_by_one(tmp_path, capsys) -> None:
    sizes = ["--rows", "300", "--d", "16", "--m", "4", "--k", "1", "--folds", "2"]
    words = [*sizes, "--unseen", "400", "--samples", "1", "--folder", str(tmp_path)]
    (found,) = same_choice.main([*words, "--C", "1e-3,1", "--losses", "topk_hinge"])
    assert set(found) == {same_choice.SWEEP, same_choice.COARSE, same_choice.EXACT}
    # A C of 1e-3 learns next to nothing of these rows: every search tells it from one of 1.
    assert {one.cell.C for one in found.values()} == {1.0}
    assert found[same_choice.EXACT].behind == found[same_choice.SWEEP].behind == 0.0
    # One of four classes by chance.
    assert found[same_choice.SWEEP].unseen > 0.28
    assert found[same_choice.EXACT].passes > found[same_choice.COARSE].passes > 0
    assert "sweep: the same cell 1 of 1 times" in capsys.readouterr().out


@pytest.mark.parametrize("shared", [[], ["--shared"]], ids=["in memory", "shared passes"])
def test_shared_sweep_runs(shared, capsys) -> None:
    sizes = ["--rows", "300", "--d", "64", "--m", "4", "--C", "0.1,1", "--k", "1", "--folds", "2"]
    found = shared_sweep.main([*sizes, "--losses", "topk_hinge", "--one-by-one", *shared])
    assert 0 < found["passes"] < found["one_by_one"]
    assert found["fit"] > 0
    # The sweep's choice is one of two cells, whose accuracies 300 rows tell to 0.03.
    assert abs(found["lost"]) < 0.1
    assert "ratio" in capsys.readouterr().out


@pytest.mark.benchmarks
def test_a_sweep_and_a_fit_are_measured_as_users_run_them(tmp_path, capsys) -> None:
    sizes = ["--rows", "600", "--d", "32", "--m", "4", "--C", "0.1,1", "--k", "1", "--folds", "2"]
    found = stored_sweep.main([*sizes, "--folder", str(tmp_path), "--losses", "topk_hinge", "--workers", "0"])
    assert found["passes"] > 0 < found["fit"]
    assert found["cpu"] > 0.0 < found["fit_cpu"]
    assert 1 << 26 < found["peak"] < 4 << 30
    assert "ratio" in capsys.readouterr().out


def test_digits_are_swept_in_fewer_passes_to_a_neighbour_of_the_best_C(capsys) -> None:
    found = sweep_cost.main(["--quick"])["digits"]
    assert found["sweep"] < 0.7 * found["exhaustive"]
    assert found["apart"] <= 1
    assert len(capsys.readouterr().out.splitlines()) == 1 + 4 + 3


def test_sweep_size_runs(tmp_path, capsys) -> None:
    sizes = ["--rows", "600", "--d", "32", "--m", "40", "--makers", "1"]
    found = sweep_size.main(["--folder", str(tmp_path / "store"), *sizes])
    # Two passes of eight heads each, and as many more as their final values take.
    assert 16 <= found["passes"] <= 32
    assert 0 < found["peak"] < 6 << 30
    assert "8 heads" in capsys.readouterr().out
