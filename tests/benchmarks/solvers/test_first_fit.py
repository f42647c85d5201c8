"""The benchmark of first fits runs."""

from __future__ import annotations

import pytest

from tests.benchmarks.solvers import first_fit


def test_a_fit_is_timed_with_nothing_compiled(capfd: pytest.CaptureFixture[str]) -> None:
    assert first_fit.main(["truncated_topk_entropy", "--limit", "1e9"]) == 0
    said = capfd.readouterr()
    assert said.out.startswith("truncated_topk_entropy   first fit ")
    assert said.err.count("compiling inner loops") == 1
