"""Where images come from: a folder of classes, a table, or tar shards, told apart by looking.

The images that a dataset was made of are read again from the same places.
"""

from __future__ import annotations

import glob
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from topline.pipeline.errors import InputError
from topline.pipeline.images.decoding import Pixels, decode
from topline.pipeline.images.folders import list_folder
from topline.pipeline.images.items import (
    ARCHIVE_SUFFIXES,
    IMAGE_SUFFIXES,
    ImageItem,
    ImageListing,
    printable,
    with_file_stats,
)
from topline.pipeline.images.shards import list_shards
from topline.pipeline.images.tables import TABLE_SUFFIXES, list_table
from topline.pipeline.options import ImageLimits


def list_images(images: str, *, labelled: bool = True) -> ImageListing:
    """Return all images that `images` names, in a fixed order.

    It is a folder (with a folder a class, or with tar shards), a table (.csv, .tsv, .parquet), a tar shard or
    a pattern of them (shard-*.tar); without `labelled` also a single image.  Raises `InputError` for
    anything else, and where no image is found.
    """
    path = _place(images)
    if path.is_dir():
        listing = _folder(path.resolve(), labelled=labelled)
    elif path.is_file():
        listing = _file(path, labelled=labelled)
    else:
        root = path.parent.resolve()
        listing = list_shards(root, [root / shard.name for shard in _shards(path)], labelled=labelled)
    if not listing.items:
        left_out = f" ({len(listing.ignored):,} other files are there)" if listing.ignored else ""
        raise InputError(
            f"{printable(images)} has no images{left_out}: name a folder with a folder for each class"
        )
    return listing


def check_images_exist(images: str) -> None:
    """Raise `InputError` where nothing is at the place that `images` names, without listing what is there."""
    path = _place(images)
    if not path.exists():
        _shards(path)


def _place(images: str) -> Path:
    if "://" in images:
        raise InputError(f"{images}: images are read from this machine's disks: copy or mount them first")
    return Path(images).expanduser().absolute()


def _folder(root: Path, *, labelled: bool) -> ImageListing:
    listing = list_folder(root, labelled=labelled)
    if not listing.items:
        shards = sorted(path for path in root.rglob("*.tar") if path.is_file())
        if shards:
            return list_shards(root, shards, labelled=labelled)
    return listing


def _file(path: Path, *, labelled: bool) -> ImageListing:
    suffix = path.suffix.lower()
    if suffix in TABLE_SUFFIXES:
        return list_table(path.parent.resolve() / path.name, labelled=labelled)
    if suffix == ".tar":
        return list_shards(path.parent.resolve(), [path.parent.resolve() / path.name], labelled=labelled)
    if suffix in ARCHIVE_SUFFIXES:
        raise InputError(f"{printable(str(path))} is an archive that is not read as it is: unpack it first")
    if suffix in IMAGE_SUFFIXES and not labelled:
        name = printable(path.name)
        root = path.parent.resolve()
        return ImageListing(root, "folder", (with_file_stats(root, ImageItem(name, name, path.name)),))
    raise InputError(
        f"{printable(str(path))} is not a folder, a table ({', '.join(TABLE_SUFFIXES)}) or a tar shard"
    )


def _shards(path: Path) -> list[Path]:
    shards = sorted(Path(found) for found in glob.glob(str(path)) if found.endswith(".tar"))  # noqa: PTH207
    if not shards:
        raise InputError(f"{printable(str(path))} is not there: name a folder, a table or tar shards")
    return shards


class SourceImages:
    """Reads images by the rows of a manifest; `features` is the dataset's specification of its features."""

    def __init__(self, features: Mapping[str, Any]) -> None:
        self._root = features.get("images")
        self._source = features.get("source")
        self._limits = ImageLimits(**features.get("limits", {}))

    def __call__(self, entry: Mapping[str, Any]) -> Pixels:
        """Return pixels (h, w, 3) of the image in a row of the manifest.

        Raises `InputError` if the images are not where they were, `ImageRejectedError` if this one cannot be
        read any more.
        """
        if self._root is None:
            raise InputError("the features were imported, so there are no images")
        data = self._item(entry).read(Path(self._root), self._limits.max_bytes)
        return decode(data, self._limits)

    def _item(self, entry: Mapping[str, Any]) -> ImageItem:
        if self._source == "shards":
            # Where an image begins within its shard is not in the manifest.
            found = self._members.get(entry["sample_id"])
            if found is None:
                raise InputError(f"{entry['path']} is not where it was")
            return found
        return ImageItem(entry["sample_id"], entry["path"], entry["path"])

    @cached_property
    def _members(self) -> dict[str, ImageItem]:
        return {item.sample_id: item for item in list_images(str(self._root)).items}
