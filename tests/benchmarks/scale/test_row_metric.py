"""The benchmark of the metrics on few rows."""

from __future__ import annotations

import numpy as np

from tests.benchmarks.scale.row_metric import main, relu_rows


def test_the_metrics_save_passes(capsys) -> None:
    found = main(["--rows", "3000", "--d", "24", "--m", "40", "--public", "", "--C", "1"])
    assert len(found) == 12
    sums = {kind: sum(passes[kind] for passes in found) for kind in found[0]}
    assert sums["as it comes"] < sums["of all rows"] < sums["no metric"]
    assert capsys.readouterr().out.count("as it comes") == 12


def test_few_features_leave_rows_at_zero_and_numbers_finite() -> None:
    for unit in (True, False):
        X, _ = relu_rows(400, 8, 4, unit=unit, tail=False)
        assert np.isfinite(X).all()
