"""Where images come from, and are read again: folders of classes, tables and shards, told apart by a look."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

from topline.pipeline.errors import InputError
from topline.pipeline.images.decoding import Pixels, decode
from topline.pipeline.images.items import (
    ARCHIVE_SUFFIXES,
    IMAGE_SUFFIXES,
    ImageItem,
    ImageListing,
    Wanted,
    list_folder,
    printable,
    with_file_stats,
)
from topline.pipeline.images.tables import list_pictures, list_shards, list_table, picture_column
from topline.pipeline.options import ImageLimits
from topline.pipeline.readers import TABLE_SUFFIXES, all_parts, local_path, parts_of


def list_images(images: str, wanted: Wanted = Wanted()) -> ImageListing:  # noqa: B008 - a value
    """Return all images that `images` names, in a fixed order; `InputError` where there are none.

    It is a folder (with a folder a class, tar shards, or Parquet files of images), a table (.csv, .tsv,
    .parquet), a tar shard or a pattern of shards or Parquet files; without labels also a single image.
    """
    path = local_path(images)
    if path.is_dir():
        root = path.resolve()
        listing = list_folder(root, wanted)
        for suffix in (".tar", ".parquet") if not listing.items else ():
            found = sorted(file for file in root.rglob(f"*{suffix}") if file.is_file())
            if found and not listing.items:
                listing = _held(root, all_parts(path, found), wanted)
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
    members = _Members(listing.root, wanted.follow_links)

    def member(item: ImageItem) -> ImageItem:
        there = None if wanted.labelled and item.label is None else members.of(item.path).get(item.path)
        if there is None:
            return item
        kept = {name: getattr(item, name) for name in ("sample_id", "label", "split", "group", "weight")}
        return replace(there, **kept)

    return replace(listing, items=tuple(map(member, listing.items)))


class _Members:
    """The images inside tar shards and Parquet files below a root, each of which is listed once."""

    def __init__(self, root: Path, follow: bool) -> None:
        self._root, self._wanted = root, Wanted(labelled=False, follow_links=follow)
        self._listed: dict[Path, dict[str, ImageItem]] = {}

    def of(self, path: str) -> Mapping[str, ImageItem]:
        """Return the images in the shard or file that a path leads into, by their ids; none for a file."""
        parents = (self._root / parent for parent in PurePosixPath(path).parents)
        held = (one for one in parents if one.suffix.lower() in (".tar", ".parquet") and one.is_file())
        holder = next(held, None)
        if holder is None:
            return {}
        if holder not in self._listed:
            items = _held(self._root, [holder], self._wanted).items
            self._listed[holder] = {item.sample_id: item for item in items}
        return self._listed[holder]


def _matching(path: Path) -> list[Path]:
    """Return the tar shards or Parquet files that a pattern names, whatever else it matches."""
    found = parts_of(path, (".tar", ".parquet"), only=True)
    if not found:
        raise InputError(f"{printable(str(path))} is not there: name a folder, a table or tar shards")
    return [file.parent.resolve() / file.name for file in found]


class SourceImages:
    """Reads images by the rows of a manifest; `features` is the dataset's specification of its features."""

    def __init__(self, features: Mapping[str, Any]) -> None:
        self._root = None if features.get("images") is None else Path(features["images"])
        self._limits = ImageLimits(**features.get("limits", {}))
        self._follow = bool(features.get("follow_links"))
        self._members = _Members(self._root or Path(), self._follow)

    def __call__(self, entry: Mapping[str, Any]) -> Pixels:
        """Return pixels (h, w, 3); `InputError` if the image moved, `ImageRejectedError` if it is broken."""
        if self._root is None:
            raise InputError("the features were imported, so there are no images")
        # Where an image begins within its shard is not in the manifest.
        known, name, path = self._members.of(entry["path"]), entry["sample_id"], entry["path"]
        # A table may name a member twice, and a shard may hold two of one name.
        item = known.get(name) or known.get(path)
        if known and item is None:
            raise InputError(f"{path} is not where it was")
        item = item or ImageItem(name, path, path, follow=self._follow)
        return decode(item.read(self._root, self._limits.max_bytes), self._limits)
