"""The benchmark of whole sweeps runs at a small size; what it measures is read by people."""

from __future__ import annotations

import pytest

from tests.benchmarks.sweeps.shared_sweep import main


@pytest.mark.parametrize("shared", [[], ["--shared"]], ids=["in memory", "shared passes"])
def test_the_benchmark_runs(shared, capsys) -> None:
    sizes = ["--rows", "300", "--d", "64", "--m", "4", "--C", "0.1,1", "--k", "1", "--folds", "2"]
    found = main([*sizes, "--losses", "topk_hinge", "--one-by-one", *shared])
    assert 0 < found["passes"] < found["one_by_one"]
    assert found["fit"] > 0
    # The sweep's choice is one of two cells, whose accuracies 300 rows tell to 0.03.
    assert abs(found["lost"]) < 0.1
    assert "ratio" in capsys.readouterr().out
