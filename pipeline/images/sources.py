"""Where images come from: a folder of classes, a table, or tar shards, told apart by looking."""

from __future__ import annotations

import glob
from pathlib import Path

from topline.pipeline.errors import InputError
from topline.pipeline.images.folders import list_folder
from topline.pipeline.images.items import IMAGE_SUFFIXES, ImageItem, ImageListing, display, located
from topline.pipeline.images.shards import list_shards
from topline.pipeline.images.tables import TABLE_SUFFIXES, list_table

__all__ = ["ImageItem", "ImageListing", "list_images"]


def list_images(images: str, *, labelled: bool = True) -> ImageListing:
    """All images that `images` names, in a fixed order.

    It is a folder (with a folder a class, or with tar shards), a table (.csv, .tsv, .parquet), a tar shard or
    a pattern of them (shard-*.tar); without `labelled` also a single image.  Raises `InputError` for
    anything else, and where no image is found.
    """
    if "://" in images:
        raise InputError(f"{images}: images are read from this machine's disks: copy or mount them first")
    path = Path(images).expanduser().absolute()
    if path.is_dir():
        listing = _folder(path.resolve(), labelled=labelled)
    elif path.is_file():
        listing = _file(path, labelled=labelled)
    else:
        listing = _pattern(path, labelled=labelled)
    if not listing.items:
        left_out = f" ({len(listing.ignored):,} other files are there)" if listing.ignored else ""
        raise InputError(
            f"{display(images)} has no images{left_out}: name a folder with a folder for each class"
        )
    return listing


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
    if suffix in (".zip", ".gz", ".tgz", ".bz2", ".xz", ".zst", ".7z", ".rar"):
        raise InputError(f"{display(str(path))} is an archive that is not read as it is: unpack it first")
    if suffix in IMAGE_SUFFIXES and not labelled:
        name = display(path.name)
        root = path.parent.resolve()
        return ImageListing(root, "folder", (located(root, ImageItem(name, name, path.name)),))
    raise InputError(
        f"{display(str(path))} is neither a folder nor a table ({', '.join(TABLE_SUFFIXES)}) nor a tar shard"
    )


def _pattern(path: Path, *, labelled: bool) -> ImageListing:
    shards = sorted(Path(found) for found in glob.glob(str(path)) if found.endswith(".tar"))  # noqa: PTH207
    if not shards:
        raise InputError(f"{display(str(path))} is not there: name a folder, a table or tar shards")
    root = path.parent.resolve()
    return list_shards(root, [root / shard.name for shard in shards], labelled=labelled)
