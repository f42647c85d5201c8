"""What a result says of itself."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.solvers.problems import M, examples
from topline import RBFKernel, TopKHinge, TruncatedTopKEntropy, solve


@pytest.mark.parametrize(
    ("loss", "options", "reached"),
    [
        (TopKHinge(2), {"keep_duals": True}, r"relative gap \d\.\de-\d\d, primal 0\.\d+, dual 0\.\d+"),
        (TopKHinge(2), {"kernel": RBFKernel(0.5)}, r"relative gap \d\.\de-\d\d, primal 0\.\d+, dual 0\.\d+"),
        (TruncatedTopKEntropy(2), {}, r"gradient at \d\.\de-\d\d of its first size, primal 0\.\d+"),
    ],
)
def test_a_result_is_printed_in_one_short_line(loss: Any, options: dict[str, Any], reached: str) -> None:
    X, y = examples(n=40)
    result = solve(X, y, loss, 1e-2, m=M, **options)
    printed = repr(result)
    name = type(result).__name__
    pattern = rf"{name}\(solved: {reached}; \d+ passes, \d+\.\d s, [^;]+; W \(\d+, {M}\)\)"
    assert re.fullmatch(pattern, printed.replace("\n", " | ")), printed
    assert len(printed) < 160
