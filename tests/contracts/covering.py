"""Few combinations in which every pair of values occurs that occurs in all of them: covering arrays."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from heapq import heapify, heapreplace
from itertools import combinations
from typing import TypeVar

T = TypeVar("T")


def covering_array(
    items: Sequence[T],
    values: Callable[[T], tuple[Hashable, ...]],
    strength: int = 2,
    beside: Sequence[T] = (),
) -> list[T]:
    """Return items, greedily chosen, with every pair of `values` that any two positions of any item have.

    What items `beside` them have need not be there again.

    The values of an item are as many for all items.  A defect that shows for one value, or for two that
    meet, shows in the items returned; one that takes three values may not.  A `strength` other than 2 is that
    of the covering array: with 1 every value is there.
    """

    def meetings(item: T) -> set[tuple[tuple[int, Hashable], ...]]:
        return set(combinations(enumerate(values(item)), strength))

    pairs = [meetings(item) for item in items]
    missing = set().union(*pairs).difference(*map(meetings, beside))
    # An item never brings more than when it was last looked at.
    queue = [(-len(found), number) for number, found in enumerate(pairs)]
    heapify(queue)
    chosen = []
    while missing:
        number = queue[0][1]
        looked_at = (-len(pairs[number] & missing), number)
        if looked_at == queue[0]:
            chosen.append(items[number])
            missing -= pairs[number]
        else:
            heapreplace(queue, looked_at)
    return chosen
