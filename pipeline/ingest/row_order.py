"""The order of a version's rows: that of the version before, so that what has not changed is stored once.

Rows of images that are still there stay in their places and in their units; a unit that loses a row is stored
anew without it, and new rows are a unit behind the others.  Units at the end are joined like the digits of a
counter: a unit is stored anew together with those behind it as soon as these have as many rows, so that n
versions of one image each write each row about log(n) times and leave few units.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import PurePosixPath

from topline.pipeline.images import ImageItem, ImageListing
from topline.storage.arrays import ChunkPlan
from topline.storage.datasets import Dataset
from topline.storage.errors import IntegrityError

logger = logging.getLogger(__name__)

# Units of another size are worth cutting all rows anew: every row is then written once more.
_GROWTH = 4


@dataclass(frozen=True)
class RowOrder:
    """Images in the order of their rows, the plan of these, the cuts of the units, and whose order it is."""

    listing: ImageListing
    plan: ChunkPlan
    cuts: tuple[int, ...]
    base: str | None = None


def row_order(listing: ImageListing, plan: ChunkPlan, base: Dataset | None) -> RowOrder:
    """Return the rows of `listing` in the order of `base` as far as it has them.

    In their own order, cut by `plan`, without a base, where more than half of the rows are not in it, and
    where there are so many by now that units should be larger.
    """
    own = RowOrder(listing, plan, tuple(plan.unit_bounds()))
    if base is None or plan.shard_rows >= _GROWTH * base.info.shard_rows:
        return own
    try:
        units, new = _in_units_of(base, listing.items)
    except IntegrityError as error:
        logger.warning("rows are ordered anew: %s", error)
        return own
    if 2 * len(new) > len(listing.items):
        return own
    most = base.info.shard_rows
    pieces = [unit for unit in units if unit]
    pieces += [new[start : start + most] for start in range(0, len(new), most)]
    pieces = _joined(pieces, most)
    followed = ChunkPlan(len(listing.items), base.info.chunk_rows, most)
    ordered = tuple(item for piece in pieces for item in piece)
    cuts = tuple(accumulate((len(piece) for piece in pieces), initial=0))
    return RowOrder(replace(listing, items=ordered), followed, cuts, base.info.id)


def _in_units_of(base: Dataset, items: Sequence[ImageItem]) -> tuple[list[list[ImageItem]], list[ImageItem]]:
    """Return the images of each unit of `base` that are still there, and the others.

    An image that moved to another folder is known by its name and size, so that a class may be renamed.
    """
    table = base.manifest().select(["sample_id", "path", "size"]).to_pylist()
    by_id = {item.sample_id: item for item in items}
    held = [by_id.pop(row["sample_id"], None) for row in table]
    moved: dict[tuple[str, int | None], list[ImageItem]] = {}
    for item in reversed(by_id.values()):
        moved.setdefault((PurePosixPath(item.path).name, item.size), []).append(item)
    for place, row in enumerate(table):
        if held[place] is None and row["path"] and row["size"] is not None:
            same = moved.get((PurePosixPath(row["path"]).name, row["size"]))
            if same:
                held[place] = same.pop()
                del by_id[held[place].sample_id]  # type: ignore[union-attr]
    units = [[item for item in held[slice(*unit.rows)] if item is not None] for unit in base.units]
    return units, list(by_id.values())


def _joined(pieces: list[list[ImageItem]], most: int) -> list[list[ImageItem]]:
    """Join the units at the end while one has no more rows than those behind it, and all fit into one."""
    pieces = [list(piece) for piece in pieces]
    while (
        len(pieces) > 1 and len(pieces[-2]) <= len(pieces[-1]) and len(pieces[-2]) + len(pieces[-1]) <= most
    ):
        last = pieces.pop()
        pieces[-1] += last
    return pieces
