"""The benchmark of first answers on the digits; all sets with -m slow."""

from __future__ import annotations

import pytest

from tests.benchmarks.datasets import DATA_DIR
from tests.benchmarks.models.first_answer import main


def test_the_first_answer_on_digits_is_within_the_bar(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--quick", "--sets", "digits"]) == 0
    assert "all within the bar" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.skipif(not DATA_DIR.is_dir(), reason=f"no public data sets: put them at {DATA_DIR}")
def test_first_answers_are_within_the_bar() -> None:
    assert main([]) == 0
