from __future__ import annotations

from tests.benchmarks.solvers import every_method
from topline.solvers.methods import METHODS


def test_the_table_has_a_line_for_every_method(capsys) -> None:
    every_method.main(["--rows", "60", "--passes", "4"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 + len(METHODS)
    for method, line in zip(METHODS, lines[2:], strict=True):
        assert line.startswith(f"| `{method}` |")
        assert ("refused" in line) == (method == "lbfgs" or method.endswith("_columns"))
