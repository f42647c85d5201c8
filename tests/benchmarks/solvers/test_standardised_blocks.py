"""The benchmark of blocks runs, on few rows."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.benchmarks.solvers import standardised_blocks


@pytest.mark.benchmarks
def test_it_prints_a_row_for_every_set_and_C(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    standardised_blocks.main(
        ["--rows", "400", "--blocks", "1", "4", "--C", "1", "10", "--data", str(tmp_path)]
    )
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "| set, C | blocks 1 | blocks 4 |"
    assert len(lines) == 2 + 2 * len(standardised_blocks.DRAWN)
    assert ">" not in "".join(lines[2:])
