"""The benchmark of ImageNet's size runs at a small one; what it measures is read by people."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.benchmarks.scale.imagenet_size import main
from tests.benchmarks.scale.imagenet_store import imagenet_store
from topline.storage.datasets import list_datasets

SIZES = ["--rows", "600", "--d", "32", "--m", "6", "--makers", "1", "--workers", "1"]


def test_the_benchmark_runs(tmp_path: Path, capsys) -> None:
    folder = tmp_path / "store"
    options = ["--folder", str(folder), "--bare-seconds", "0.01", "--read-bytes", "0"]
    (found,) = main([*options, *SIZES, "--passes", "2", "--memory-limit", ""])
    assert found["certificate"]["valid"]
    assert (found["n"], found["m"], found["passes"]) == (600, 6, 2)
    assert found["pass_seconds"] > 0
    assert found["pss"] > 50e6  # Python and NumPy alone
    assert "passes an hour" in capsys.readouterr().out
    dataset = imagenet_store(folder, 600, 32, 6)
    assert len(list_datasets(dataset.store)) == 1  # the same one, found again
    assert np.bincount(dataset.labels()).tolist() == [100] * 6
    X = dataset.rows(0, 600)
    assert X.dtype == np.float16
    assert 0.4 < np.mean(X == 0) < 0.8
