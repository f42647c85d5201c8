"""Where images come from: a folder of classes, a table, or tar shards, told apart by looking.

The images that a dataset was made of are read again from the same places.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

from topline.pipeline.errors import InputError
from topline.pipeline.images.decoding import Pixels, decode
from topline.pipeline.images.folders import list_folder
from topline.pipeline.images.items import (
    ARCHIVE_SUFFIXES,
    IMAGE_SUFFIXES,
    ImageItem,
    ImageListing,
    Wanted,
    printable,
    with_file_stats,
)
from topline.pipeline.images.shards import list_shards
from topline.pipeline.images.tables import list_pictures, list_table, picture_column
from topline.pipeline.options import ImageLimits
from topline.pipeline.readers import TABLE_SUFFIXES, local_path, parts_of


def list_images(images: str, wanted: Wanted = Wanted()) -> ImageListing:  # noqa: B008 - a value
    """Return all images that `images` names, in a fixed order.

    It is a folder (with a folder a class, tar shards, or Parquet files of images), a table (.csv,
    .tsv, .parquet), a tar shard or a pattern of shards or Parquet files (shard-*.tar); without labels also a
    single image.  Raises `InputError` for anything else, and where no image is found.
    """
    path = local_path(images)
    if path.is_dir():
        listing = list_folder(path.resolve(), wanted)
        root = path.resolve()
        for suffix in (".tar", ".parquet") if not listing.items else ():
            found = sorted(file for file in root.rglob(f"*{suffix}") if file.is_file())
            if found and not listing.items:
                listing = _held(root, found, wanted)
    elif path.is_file():
        listing = _file(path.parent.resolve() / path.name, wanted)
    else:
        files = _matching(path)
        listing = _held(Path(os.path.commonpath([file.parent for file in files])), files, wanted)
    if not listing.items:
        left_out = f" ({len(listing.ignored):,} other files are there)" if listing.ignored else ""
        raise InputError(
            f"{printable(images)} has no images{left_out}: name a folder with a folder for each class"
        )
    if wanted.groups_from_folder and not any(item.group for item in listing.items):
        raise InputError(
            f"{printable(images)} has no folders of groups: with --groups-from folder each lies within a"
            " class's, as photos/cat/burst1/1.jpg"
        )
    return listing


def check_images_exist(images: str) -> None:
    """Raise `InputError` where nothing is at the place that `images` names, without listing what is there."""
    path = local_path(images)
    if not path.exists():
        _matching(path)


def _held(root: Path, files: list[Path], wanted: Wanted) -> ImageListing:
    """Return the images inside tar shards or Parquet files."""
    if files[0].suffix.lower() == ".tar":
        return list_shards(root, files, wanted)
    held = [file for file in files if picture_column(file) is not None]
    if len(held) < len(files):
        alone = min(set(files).difference(held))
        raise InputError(
            f"{printable(str(alone))} has no column of images (bytes and path): several Parquet files have"
            " images inside, and one alone may name paths"
        )
    return list_pictures(root, files, wanted)


def _file(path: Path, wanted: Wanted) -> ImageListing:
    suffix = path.suffix.lower()
    if suffix == ".tar" or (suffix == ".parquet" and picture_column(path) is not None):
        return _held(path.parent, [path], wanted)
    if suffix in TABLE_SUFFIXES:
        return _with_members(list_table(path, wanted), wanted)
    if suffix in ARCHIVE_SUFFIXES:
        raise InputError(f"{printable(str(path))} is an archive that is not read as it is: unpack it first")
    if suffix in IMAGE_SUFFIXES and not wanted.labelled:
        name = printable(path.name)
        item = ImageItem(name, name, path.name, follow=wanted.follow_links)
        return ImageListing(path.parent, "folder", (with_file_stats(path.parent, item),))
    raise InputError(
        f"{printable(str(path))} is not a folder, a table ({', '.join(TABLE_SUFFIXES)}) or a tar shard"
    )


def _with_members(listing: ImageListing, wanted: Wanted) -> ImageListing:
    """Return a table's images; those with paths such as new.tar/1.png lie in tar shards or Parquet files."""
    holders = [_holder(listing.root, item.path) for item in listing.items]
    inside = Wanted(labelled=False, follow_links=wanted.follow_links)
    found = {
        one.sample_id: one
        for holder in sorted({holder for holder in holders if holder is not None})
        for one in _held(listing.root, [holder], inside).items
    }

    def member(item: ImageItem) -> ImageItem:
        there = found.get(item.path)
        if there is None or (wanted.labelled and item.label is None):
            return item
        told = replace(there, label=item.label, split=item.split, group=item.group, weight=item.weight)
        return replace(told, sample_id=item.sample_id)

    return replace(listing, items=tuple(map(member, listing.items)))


def _holder(root: Path, path: str) -> Path | None:
    """Return the tar shard or Parquet file that holds the image of a path below `root`, None for a file."""
    parents = (root / parent for parent in PurePosixPath(path).parents)
    return next(
        (one for one in parents if one.suffix.lower() in (".tar", ".parquet") and one.is_file()), None
    )


def _matching(path: Path) -> list[Path]:
    """Return the tar shards or Parquet files that a pattern names, whatever else it matches."""
    found = parts_of(path, (".tar", ".parquet"), only=True)
    if not found:
        raise InputError(f"{printable(str(path))} is not there: name a folder, a table or tar shards")
    return [file.parent.resolve() / file.name for file in found]


class SourceImages:
    """Reads images by the rows of a manifest; `features` is the dataset's specification of its features."""

    def __init__(self, features: Mapping[str, Any]) -> None:
        self._root = features.get("images")
        self._members: dict[Path, dict[str, ImageItem]] = {}
        self._limits = ImageLimits(**features.get("limits", {}))
        self._follow = bool(features.get("follow_links"))

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
        holder = _holder(Path(str(self._root)), entry["path"])
        if holder is None:
            return ImageItem(entry["sample_id"], entry["path"], entry["path"], follow=self._follow)
        # Where an image begins within its shard is not in the manifest.
        if holder not in self._members:
            held = _held(Path(str(self._root)), [holder], Wanted(labelled=False, follow_links=self._follow))
            self._members[holder] = {item.sample_id: item for item in held.items}
        # A table may name a member twice, and a shard may hold two of one name.
        known = self._members[holder]
        found = known.get(entry["sample_id"]) or known.get(entry["path"])
        if found is None:
            raise InputError(f"{entry['path']} is not where it was")
        return found
