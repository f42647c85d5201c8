"""The benchmark of Dask's overhead runs; what it measures is read by people."""

from __future__ import annotations

import pytest

from tests.benchmarks.scale.dask_overhead import main


@pytest.mark.cluster
def test_both_methods_are_timed_on_plain_processes_and_on_dask(capsys) -> None:
    sizes = ["--n", "400", "--d", "32", "--m", "6", "--passes", "6", "--repeats", "1"]
    assert main([*sizes, "--limit", "1e9"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == ["fw", "dual_ascent"]
    assert all("plain" in line and "dask over plain" in line for line in lines)
