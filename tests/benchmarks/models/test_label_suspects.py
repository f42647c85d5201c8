"""The benchmark of suspicious labels runs, on few rows."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.benchmarks.models import label_suspects


@pytest.mark.benchmarks
def test_it_prints_a_row_for_every_set_share_and_loss(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    label_suspects.main(
        ["--quick", "--sets", "digits", "usps", "--shares", "0.1", "--seeds", "2", "--data", str(tmp_path)]
    )
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("| set | flipped | loss | AUC | AUC of cleanlab |")
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]
    assert [row[:3] for row in rows] == [["digits", "10%", way] for way in label_suspects.WAYS]
    assert all(float(row[3]) > 0.9 for row in rows)
