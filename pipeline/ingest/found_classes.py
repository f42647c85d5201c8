"""The classes of a listing of images, in a line for people: whether these are the classes that they meant."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate

from topline.pipeline.images import ImageListing, sorted_names
from topline.solvers.counts import how_many

# Characters of a line's names; the first ones are shown however long they are.
_ROOM, _LEAST = 110, 3


def classes_found(listing: ImageListing) -> str:
    """Return how many classes there are, and their names with numbers of images, of many the first ones.

    A word follows where all lie in one folder, which was probably meant.
    """
    counts = Counter(item.label for item in listing.items if item.label is not None and not item.error)
    names = sorted_names(counts)
    found = f"{how_many(len(names), 'classes')} found: "
    found += _some([f"{name} {counts[name]:,}" for name in names])
    shared = _shared_folder(names)
    return f"{found}; all lie in {shared}/, which --images can name for shorter names" if shared else found


def names_line(names: Sequence[str]) -> str:
    """Return the number of classes and their names, of many the first ones."""
    return f"{len(names):,}: {_some(names)}"


def _some(words: Sequence[str]) -> str:
    """Return words with commas between them, and how many are left out of a line."""
    ends = list(accumulate(len(word) + 2 for word in words))
    shown = max(_LEAST, bisect_right(ends, _ROOM))
    more = len(words) - shown
    return ", ".join(words[:shown]) + (f" and {more:,} more" if more > 0 else "")


def _shared_folder(names: Sequence[str]) -> str:
    """Return the folder that every class lies in, "" where there is none."""
    folders = {name.partition("/")[0] if "/" in name else "" for name in names}
    return folders.pop() if len(folders) == 1 else ""
