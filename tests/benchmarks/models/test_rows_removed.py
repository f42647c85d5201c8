"""The benchmark of rows that are left out runs, on few rows."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.benchmarks.models import rows_removed


@pytest.mark.benchmarks
def test_the_answer_without_rows_is_that_of_a_fit_anew_in_fewer_passes(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    rows_removed.main(
        ["--quick", "--sets", "digits", "usps", "--C", "1", "--tol", "1e-3", "--data", str(tmp_path)]
    )
    lines = capsys.readouterr().out.splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:-2]]
    assert [row[:2] for row in rows] == [["digits", loss] for loss in rows_removed.LOSSES]
    for row in rows:
        assert float(row[5]) < float(row[4])
        assert sum(map(float, row[7:10])) == pytest.approx(float(row[5]), abs=0.07)
        assert row[10] == "" or 0.0 < float(row[11].rstrip("%")) <= float(row[10].rstrip("%")) <= 100.0
        assert float(row[12]) <= 1e-3  # both lie between the same optimum and 1e-3 above it
    shares = [int(row[6].rstrip("%")) for row in rows[:2]]
    assert lines[-2].startswith(f"hinges: {min(shares)}% to {max(shares)}% of a fit anew")
    assert lines[-1].startswith(f"softmax: {rows[2][6]} to {rows[2][6]} of a fit anew")
