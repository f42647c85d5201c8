"""The benchmark of the metric on few rows."""

from __future__ import annotations

from tests.benchmarks.scale.row_metric import main


def test_the_metric_saves_passes(capsys) -> None:
    found = main(["--rows", "3000", "--d", "24", "--m", "40", "--public", "", "--C", "1"])
    assert len(found) == 12
    assert sum(with_it for _, with_it in found) < sum(without for without, _ in found)
    assert capsys.readouterr().out.count("CPU s with it") == 12
