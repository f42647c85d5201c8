"""The benchmark of the metrics on few rows."""

from __future__ import annotations

from tests.benchmarks.scale.row_metric import main


def test_the_metrics_save_passes(capsys) -> None:
    found = main(["--rows", "3000", "--d", "24", "--m", "40", "--public", "", "--C", "1"])
    assert len(found) == 12
    sums = {kind: sum(passes[kind] for passes in found) for kind in found[0]}
    assert sums["as it comes"] < sums["of all rows"] < sums["no metric"]
    assert capsys.readouterr().out.count("as it comes") == 12
