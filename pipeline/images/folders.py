"""Images in folders: a folder a class, optionally under train/, val/ and test/."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path, PurePosixPath

from topline.pipeline.errors import InputError
from topline.pipeline.images.items import (
    ImageItem,
    ImageListing,
    Wanted,
    is_hidden,
    is_other,
    printable,
    with_file_stats,
)
from topline.pipeline.readers import SPLIT_NAMES, text_of

logger = logging.getLogger(__name__)


def list_folder(root: Path, wanted: Wanted) -> ImageListing:
    """Return all images below `root`, by path.

    The class is the path of an image's folder below `root` (below root/train and so on if the folders in
    `root` are such splits), or of the folder that this lies in where it is a group.  If all images lie
    directly in `root` it is the one class.  Hidden files, other files by their suffix, and stores are left
    out; links that are not followed and what is no regular file are listed with the reason of the refusal.
    """
    labelled = wanted.labelled
    found = sorted(_walk(root, "", wanted.follow_links), key=lambda entry: entry[0].split("/"))
    ignored = tuple(printable(path) for path, error in found if error is None)
    entries = [(path, error) for path, error in found if error is not None]
    splits = labelled and lie_in_splits(root, (path for path, _ in entries))
    if entries:
        wanted.refuse_columns(root)
    items = []
    for path, error in entries:
        item = ImageItem(printable(path), printable(path), path, error=error, follow=wanted.follow_links)
        if not error:
            item = with_file_stats(root, item)
        items.append(_labelled(item, splits=splits, grouped=wanted.groups_from_folder) if labelled else item)
    if labelled and not any(item.label for item in items):
        items = [replace(item, label=printable(root.name) or "images") for item in items]
    elif labelled:
        lost = "lies in no class's folder: move it into one"
        items = [item if item.label or item.error else replace(item, error=lost) for item in items]
    return ImageListing(root, "folder", tuple(items), ignored)


def lie_in_splits(root: Path, paths: Iterable[str]) -> bool:
    """Return whether files lie in train and maybe val or test of `root`; `InputError` if also beside them."""
    parts = [PurePosixPath(path).parts for path in paths]
    meant = {part[0]: SPLIT_NAMES.get(part[0].lower()) for part in parts if len(part) > 1}
    splits = {name for name, split in meant.items() if split}
    others = sorted(meant.keys() - splits)
    if "train" not in meant.values():
        return False
    if others and len(splits) > 1 and splits.intersection(part[0] for part in parts if len(part) > 2):
        raise InputError(
            f"{printable(str(root))} has the folders {', '.join(sorted(splits))} of splits, and beside them"
            f" {', '.join(map(printable, others[:3]))} with images: move these elsewhere, or name one folder"
        )
    return not others


def _labelled(item: ImageItem, *, splits: bool, grouped: bool) -> ImageItem:
    folder = PurePosixPath(item.path).parent
    split = group = None
    if splits and folder.parts:
        split = SPLIT_NAMES[folder.parts[0].lower()]
        folder = PurePosixPath(*folder.parts[1:])
    if grouped and len(folder.parts) > 1:
        group, folder = str(folder), folder.parent
    return replace(item, split=split, label=text_of(folder) if folder.parts else None, group=group)


def _walk(root: Path, folder: str, follow: bool) -> Iterator[tuple[str, str | None]]:
    """Paths below `root`, with "" for an image, the reason of a refusal, or None to leave it out."""
    for entry in _entries(root / folder, may_be_gone=bool(folder)):
        path = f"{folder}/{entry.name}" if folder else entry.name
        place, hidden = Path(entry.path), is_hidden(entry.name)
        # What is hidden may be closed to us; a link to itself is no folder to a `Path`, and raises elsewhere.
        is_folder = not hidden and (place.is_dir() if entry.is_symlink() else entry.is_dir())
        linked = is_folder and entry.is_symlink()
        # The chunks of a store have no suffix, and would pass for images.
        is_store = is_folder and (place / "commits" / "datasets").is_dir()
        if hidden or (is_store and (follow or not linked)) or (not is_folder and is_other(entry.name)):
            yield path, None
        elif linked and not follow:
            yield path, "is a link to a folder, which is not followed (--follow-links follows it)"
        elif linked and (root / folder).resolve().is_relative_to(place.resolve()):
            yield path, "is a link to a folder that it lies in, which is not followed"
        elif is_folder:
            yield from _walk(root, path, follow)
        else:
            yield path, ""


def _entries(folder: Path, *, may_be_gone: bool = False) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as found:
            return list(found)
    except OSError as error:
        if may_be_gone and isinstance(error, FileNotFoundError):
            # Somebody renamed or deleted it since its own folder was read.
            logger.warning("%s is gone, and is left out", printable(str(folder)))
            return []
        raise InputError(f"the folder {printable(str(folder))} cannot be read: {error.strerror}") from error
