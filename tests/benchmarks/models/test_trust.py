"""The benchmark of probabilities and sets: the digits by default, all data over 200 splits with -m slow."""

from __future__ import annotations

import pytest

from tests.benchmarks.datasets import DATA_DIR
from tests.benchmarks.models.trust import main


def test_the_digits_are_within_the_bar(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--quick", "--splits", "100"]) == 0
    assert "all within the bar" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.skipif(not DATA_DIR.is_dir(), reason=f"no public data sets: put them at {DATA_DIR}")
def test_all_data_are_within_the_bar(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--splits", "200"]) == 0
    assert "all within the bar" in capsys.readouterr().out
