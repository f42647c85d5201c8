"""The benchmark of many classes runs at a small size; what it measures is read by people."""

from __future__ import annotations

from pathlib import Path

from tests.benchmarks.scale.many_classes import main


def test_every_number_of_classes_gets_a_certified_line(tmp_path: Path, capsys) -> None:
    sizes = ["--rows", "240", "--d", "16", "--m", "4", "8", "--memory-limit", ""]
    found = main(["--folder", str(tmp_path / "store"), *sizes])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[-2:]] == ["4", "8"]
    for training in found:
        assert training.result["certificate"]["valid"]
        assert training.result["relative_gap"] <= 1e-2
        assert training.pss > 50e6  # Python and NumPy alone
