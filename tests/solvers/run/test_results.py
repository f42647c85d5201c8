"""What a result says of itself."""

from __future__ import annotations

from tests.solvers.problems import M, examples
from topline import TopKHinge, solve


def test_a_result_is_printed_without_its_arrays() -> None:
    X, y = examples(n=40)
    printed = repr(solve(X, y, TopKHinge(2), 1e-2, keep_duals=True, m=M))
    assert len(printed) < 600
    assert "array(" not in printed
    assert "status=<Status.SOLVED" in printed
