"""The benchmark of a pass runs; what it measures is read by people."""

from __future__ import annotations

from tests.benchmarks.solvers.pass_cost import main, measure


def test_the_benchmark_runs() -> None:
    for threads in (1, 2):
        found = measure(300, 16, 4, 1.0, rounds=2, threads=threads)
        assert sorted(found) == list(range(1, threads + 1))
        for figures in found.values():
            columns = (figures.ascent, figures.evaluate, figures.scores, figures.product)
            assert all(len(column) == 2 and min(column) > 0 for column in columns)


def test_it_says_whether_the_limit_holds(capsys) -> None:
    sizes = ["--n", "200", "--d", "8", "--m", "3", "--rounds", "1"]
    assert main([*sizes, "--limit", "1e9"]) == 0
    assert main([*sizes, "--limit", "0"]) == 1
    assert "a pass of ascent over" in capsys.readouterr().out
