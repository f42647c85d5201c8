"""The benchmark of memory limits on little data; what it measures is read by people."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.benchmarks.scale.memory_limits import main

pytestmark = pytest.mark.benchmarks


def test_it_measures_what_ran_and_what_was_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--folder", str(tmp_path), "--times", "0.01", "--ways", "fw"]
    (ran,) = main([*options, "--limits", "900MiB"])
    assert ran.kept
    assert not ran.refused
    assert ran.status in (0, 3)
    assert min(ran.pss, ran.rss) > 100 << 20
    (refused,) = main([*options, "--limits", "200MiB"])
    assert refused.refused
    assert "give --memory-limit" in capsys.readouterr().out
