"""The benchmark of shared passes runs at a small size; what it measures is read by people."""

from __future__ import annotations

from tests.benchmarks.sweeps.sweep_size import main


def test_the_benchmark_runs(tmp_path, capsys) -> None:
    sizes = ["--rows", "600", "--d", "32", "--m", "40", "--makers", "1"]
    found = main(["--folder", str(tmp_path / "store"), *sizes])
    # Two passes of eight heads each, and as many more as their final values take.
    assert 16 <= found["passes"] <= 32
    assert 0 < found["peak"] < 6 << 30
    assert "8 heads" in capsys.readouterr().out
