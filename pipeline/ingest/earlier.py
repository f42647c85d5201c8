"""What an earlier version of a dataset is good for: features of known images, the order of rows, changes."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, lru_cache
from itertools import accumulate
from pathlib import PurePosixPath
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from topline.pipeline.images import ImageItem, ImageListing
from topline.pipeline.ingest.editing import EDITED
from topline.storage.arrays import ChunkPlan
from topline.storage.datasets import Dataset, list_datasets
from topline.storage.errors import IntegrityError, NotFoundError
from topline.storage.stores import Store, open_store

logger = logging.getLogger(__name__)

# What must be the same for features to be the same; the rest of the specification says how rows are split.
SAME = ("kind", "backbone", "limits")

_NONE, _LAST = b"", b"\xff" * 32


def _digests(digests: Sequence[str | None]) -> NDArray[Any]:
    """Return SHA-256 in hexadecimal as bytes (n,), `_NONE` for None."""
    return np.array([bytes.fromhex(digest or "") for digest in digests], dtype="S32")


class KnownImages:
    """Images that `dataset` has features of; pickles as its address, and is read once in each process."""

    def __init__(self, dataset: Dataset) -> None:
        self.dataset = dataset

    def __reduce__(self) -> tuple[object, ...]:
        return _reopened, (self.dataset.store.url, self.dataset.info.id)

    def rows_of(self, digests: Sequence[str | None]) -> NDArray[np.int64]:
        """Return for each SHA-256 the row with that content, -1 where there is none."""
        contents, rows = self._contents
        asked = _digests(digests)
        places = np.searchsorted(contents, asked)
        # Behind the last digest stands one that is not asked for.
        return np.where((contents[places] == asked) & (asked != _NONE), rows[places], -1)

    def sizes(self, rows: Sequence[int]) -> list[tuple[int | None, int | None]]:
        """Return width and height of the images in some rows."""
        found = self._manifest.take(pa.array(rows, pa.int64()))
        return list(zip(found["width"].to_pylist(), found["height"].to_pylist(), strict=True))

    @cached_property
    def _manifest(self) -> pa.Table:
        return self.dataset.manifest().select(["sha256", "status", "width", "height"])

    @cached_property
    def _contents(self) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Digests in ascending order, and their rows."""
        table = self._manifest
        good = pc.and_(pc.is_valid(table["sha256"]), pc.not_equal(table["status"], "rejected"))
        rows = np.flatnonzero(good.to_numpy())
        contents = _digests(table["sha256"].take(pa.array(rows)).to_pylist())
        order = np.argsort(contents, kind="stable")
        return np.append(contents[order], _LAST), np.append(rows[order], -1)


def known_images(store: Store, features: Mapping[str, Any], dtype: str) -> KnownImages | None:
    """Return the newest dataset of a store whose features were made like `features`; None without one."""
    alike = [
        info
        for info in reversed(list_datasets(store))
        if all(info.features.get(name) == features[name] for name in SAME)
        and (info.layout, info.dtype) == ("dense", dtype)
    ]
    if not alike:
        return None
    # A version that edits made has not all rows as the images have them.  Edits add none: where the version
    # before has fewer, what was edited is gone.
    whole = next((info for info in alike if not info.key.startswith(EDITED)), alike[0])
    info = whole if whole.n_rows >= alike[0].n_rows else alike[0]
    try:
        return KnownImages(Dataset(store, info))
    except (IntegrityError, NotFoundError) as error:
        logger.warning("features of %s are not used again: %s", info.id, error)
        return None


@lru_cache(maxsize=2)
def _reopened(url: str, dataset: str) -> KnownImages:
    return KnownImages(Dataset.open(open_store(url), dataset))


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

    They are in their own order, cut by `plan`, where more than half of them are new or units should grow.
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
    pieces = [*filter(None, units), *(new[at : at + most] for at in range(0, len(new), most))]
    # Units at the end join while one has no more rows than those behind it, and all fit into one.
    while len(pieces) > 1 and len(pieces[-2]) <= min(len(pieces[-1]), most - len(pieces[-1])):
        pieces = [*pieces[:-2], pieces[-2] + pieces[-1]]
    followed = ChunkPlan(len(listing.items), base.info.chunk_rows, most)
    ordered = tuple(item for piece in pieces for item in piece)
    cuts = tuple(accumulate((len(piece) for piece in pieces), initial=0))
    return RowOrder(replace(listing, items=ordered), followed, cuts, base.info.id)


def _in_units_of(base: Dataset, items: Sequence[ImageItem]) -> tuple[list[list[ImageItem]], list[ImageItem]]:
    """Return the images of each unit of `base`, moved ones by name and size, and those that are new."""
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


@dataclass(frozen=True)
class Changes:
    """Images of a listing by path, against the version before; `described` had contents without features."""

    seen: int
    new: int
    changed: int
    gone: int
    described: int
    rejected: int

    def to_dict(self) -> dict[str, int]:
        """Return plain values for JSON."""
        return asdict(self)

    @property
    def any(self) -> bool:
        """Whether anything has changed."""
        return bool(self.new or self.changed or self.gone)


def changes_between(before: pa.Table | None, now: pa.Table) -> Changes:
    """Return what the manifests of two versions differ in; without one before, everything is new."""
    names = ["path", "sha256", "class_name", "status"]
    rows = now.select(names).to_pylist()
    earlier = [] if before is None else before.select(names).to_pylist()
    then, images = (
        {row["path"]: (row["sha256"], row["class_name"]) for row in one} for one in (earlier, rows)
    )
    known = {row["sha256"] for row in earlier if row["status"] != "rejected"}
    good = [row for row in rows if row["status"] != "rejected"]
    return Changes(
        seen=len(rows),
        new=len(images.keys() - then.keys()),
        changed=sum(images[path] != then[path] for path in images.keys() & then.keys()),
        gone=len(then.keys() - images.keys()),
        described=sum(row["sha256"] not in known for row in good),
        rejected=len(rows) - len(good),
    )
