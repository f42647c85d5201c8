"""Few combinations in which every pair of values occurs that occurs in all of them: covering arrays."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from itertools import combinations
from typing import TypeVar

T = TypeVar("T")


def covering_array(
    items: Sequence[T], values: Callable[[T], tuple[Hashable, ...]], strength: int = 2
) -> list[T]:
    """Return items, greedily chosen, with every pair of `values` that any two positions of any item have.

    The values of an item are as many for all items.  A defect that shows for one value, or for two that
    meet, shows in the items returned; one that takes three values may not.  A `strength` other than 2 is that
    of the covering array: with 1 every value is there.
    """
    pairs = [set(combinations(enumerate(values(item)), strength)) for item in items]
    missing = set().union(*pairs)
    chosen = []
    while missing:
        best = max(range(len(items)), key=lambda number: len(pairs[number] & missing))
        chosen.append(items[best])
        missing -= pairs[best]
    return chosen
