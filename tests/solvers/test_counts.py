"""One of something is said in the singular, wherever people read it."""

from __future__ import annotations

import pytest

from topline.solvers.counts import how_many


@pytest.mark.parametrize(
    ("number", "what", "said"),
    [
        (1, "passes", "1 pass"),
        (1, "classes", "1 class"),
        (1, "val rows", "1 val row"),
        (1, "images", "1 image"),
        (0, "passes", "0 passes"),
        (21_000, "rounds", "21,000 rounds"),
    ],
)
def test_one_is_singular(number: int, what: str, said: str) -> None:
    assert how_many(number, what) == said


def test_what_is_shown_of_a_fraction_decides() -> None:
    assert how_many(1.0, "passes", ".5g") == "1 pass"
    assert how_many(1.5, "passes", ".5g") == "1.5 passes"
