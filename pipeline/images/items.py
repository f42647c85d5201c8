"""Images as a listing names them, in folders of classes, and how one is read: never outside its folder.

Above the folders of the classes there may be train/, val/ and test/.
"""

from __future__ import annotations

import hashlib
import logging
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path, PurePosixPath

import pyarrow as pa
import pyarrow.parquet as pq

from topline.pipeline.errors import ImageRejectedError, InputError
from topline.pipeline.readers import SPLIT_NAMES, text_of
from topline.storage.records import canonical_json

_IMAGES = (
    ".jpg .jpeg .jpe .jfif .png .gif .bmp .dib .tif .tiff .webp .ppm .pgm .pbm .pnm .jp2 .j2k .tga .ico .pcx"
    " .avif .heic .heif"
)
IMAGE_SUFFIXES = frozenset(_IMAGES.split())

# Suffixes of files that are not images.  Anything else, with an unknown suffix or none, is tried as an image.
_OTHERS = (
    ".txt .tsv .csv .json .jsonl .xml .yaml .yml .toml .ini .cfg .md .rst .html .htm .log .py .ipynb .sh .m"
    " .npy .npz .mat .parquet .arrow .h5 .hdf5 .pkl .pt .pth .onnx .safetensors .pdf .doc .docx .xls .xlsx"
    " .tar .idx .db .sqlite .lnk .url .mp4 .avi .mov .wav .mp3 .license .sha256 .md5"
)
ARCHIVE_SUFFIXES = frozenset([".zip", ".gz", ".bz2", ".xz", ".zst", ".7z", ".rar", ".tgz"])
OTHER_SUFFIXES = ARCHIVE_SUFFIXES.union(_OTHERS.split())
OTHER_STEMS = frozenset(
    {"license", "licence", "copying", "notice", "readme", "authors", "changelog", "makefile"}
)


@dataclass(frozen=True)
class Wanted:
    """What is to be listed of images: labels, what links lead to, columns of a table, folders as groups."""

    labelled: bool = True
    follow_links: bool = False
    groups: str | None = None
    weights: str | None = None
    groups_from_folder: bool = False

    def refuse_columns(self, place: object) -> None:
        """Raise `InputError` where a column is wanted of a place that is no table."""
        for flag, name in (("groups", self.groups), ("sample-weight", self.weights)):
            if name is not None:
                raise InputError(
                    f"--{flag} {name} names a column of a table, and {printable(str(place))} is no table:"
                    " write one with the columns path, label and this one"
                    + (", or give --groups-from folder" if flag == "groups" else "")
                )


@dataclass(frozen=True)
class ImageItem:
    """One image, or one entry that is refused without being read (then `error` says why).

    `path` is for people and the manifest, `location` the same as the file system has it; both are relative to
    the listing's root.  `offset` is the place in a tar shard, or the row in a Parquet file, where `run` says
    with which others and in which column it is read.  Path, size and `stamp`, the time of change, stand for
    the content until it has been read.  Links lead out of the root where they are to `follow`.
    """

    sample_id: str
    path: str
    location: str = ""
    label: str | None = None
    split: str | None = None
    size: int = 0
    stamp: int = 0
    offset: int | None = None
    error: str = ""
    run: str = ""
    follow: bool = False
    group: str | None = None
    weight: float | None = None

    def read(self, root: Path, max_bytes: int) -> bytes:
        """Return the image's bytes; `ImageRejectedError` where it is refused, too large or cannot be read."""
        if self.error:
            raise ImageRejectedError(self.error)
        if self.size > max_bytes:
            raise ImageRejectedError(f"the file has {self.size:,} bytes, more than {max_bytes:,}")
        try:
            path = resolve_inside(root, self.location, follow=self.follow)
            if self.run:
                return _embedded(path, self.offset or 0, self.run, self.stamp)
            with path.open("rb") as file:
                if self.offset is None:
                    return file.read(max_bytes + 1)
                file.seek(self.offset)
                data = file.read(self.size)
        except OSError as error:
            raise ImageRejectedError(f"cannot be read: {error.strerror or error}") from error
        if len(data) < self.size:
            raise ImageRejectedError(
                f"its shard is cut short: {len(data):,} of {self.size:,} bytes are there"
            )
        return data


@dataclass(frozen=True)
class ImageListing:
    """All images of a folder, table or set of shards in a fixed order; `ignored` was left out by rule."""

    root: Path
    kind: str
    items: tuple[ImageItem, ...]
    ignored: tuple[str, ...] = ()

    def shuffled(self) -> ImageListing:
        """Return the images mixed, always alike: training converges faster on runs of rows of all classes."""

        def drawn(item: ImageItem) -> tuple[bytes, bytes, str]:
            # What is unpacked together stays together.
            names = (item.run.encode(), item.sample_id.encode("utf-8", "surrogateescape"))
            run, own = (hashlib.blake2b(name, digest_size=8).digest() for name in names)
            return run, own, item.path

        return replace(self, items=tuple(sorted(self.items, key=drawn)))

    def digest(self) -> str:
        """Return the SHA-256 of root and items: equal while no file is added, removed or changed."""
        total = hashlib.sha256(canonical_json([printable(str(self.root)), self.kind]))
        for item in self.items:
            values = (item.path, item.label, item.split, item.size, item.stamp, item.offset, item.error)
            known = tuple(value for value in (item.group, item.weight) if value is not None)
            total.update(canonical_json((*values, *known)))
        return total.hexdigest()


def sorted_names(labels: Iterable[str]) -> tuple[str, ...]:
    """Return the different labels by value where all are whole numbers, by code point otherwise."""
    names = set(labels)
    try:
        return tuple(sorted(names, key=lambda name: (int(name), name)))
    except ValueError:
        return tuple(sorted(names))


def printable(name: str) -> str:
    r"""Return `name` with bytes that are not UTF-8 written as \xff: Arrow and JSON hold only text."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def is_hidden(name: str) -> bool:
    """Return whether a file or folder is left out by rule: dot files, and what macOS adds to archives."""
    return name.startswith(".") or name == "__MACOSX"


def is_other(name: str) -> bool:
    """Return whether a file is left out by rule because its name says that it is not an image."""
    path = Path(name.lower())
    if path.suffix in IMAGE_SUFFIXES:
        return False
    return path.suffix in OTHER_SUFFIXES or path.stem in OTHER_STEMS


def resolve_inside(root: Path, path: str, *, follow: bool = False) -> Path:
    """Return the file at `path`, links followed; `ImageRejectedError` unless it is within `root`.

    Where links are to `follow`, they may lead to any file, and paths alone must stay within `root`.
    """
    try:
        found = (root / path).resolve()
        place, within = (Path(os.path.normpath(root / path)), root) if follow else (found, root.resolve())
        mode = found.stat().st_mode if (inside := place.is_relative_to(within)) else 0
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ImageRejectedError("there is no such file") from error
    except (OSError, RuntimeError, ValueError) as error:
        raise ImageRejectedError(f"cannot be read: {getattr(error, 'strerror', None) or error}") from error
    if not inside:
        advice = " (--follow-links allows links)" * (not follow)
        raise ImageRejectedError(f"leads out of {printable(str(root))}, and is not followed{advice}")
    if not stat.S_ISREG(mode):
        raise ImageRejectedError("is not a regular file")
    return found


@lru_cache(maxsize=2)
def _pictures(path: Path, run: str, stamp: int) -> tuple[int, pa.Array]:  # noqa: ARG001 - another file has another stamp
    """Return the first row of a group of rows, and the bytes of their images."""
    _, group, column = run.rsplit(" ", 2)
    with pq.ParquetFile(path) as file:
        first = sum(file.metadata.row_group(place).num_rows for place in range(int(group)))
        pictures = file.read_row_group(int(group), columns=[f"{column}.bytes"])[column]
    return first, pictures.combine_chunks().field("bytes")


def _embedded(path: Path, row: int, run: str, stamp: int) -> bytes:
    """Return the bytes of the image in a row of a Parquet file."""
    try:
        first, pictures = _pictures(path, run, stamp)
    except (pa.ArrowException, IndexError, KeyError) as error:
        raise ImageRejectedError(f"cannot be read: {error}") from error
    found = pictures[row - first].as_py()
    if found is None:
        raise ImageRejectedError("its row has no image")
    return bytes(found)


def with_file_stats(root: Path, item: ImageItem) -> ImageItem:
    """Return `item` with size and time of its file, or with the reason why it is refused."""
    try:
        facts = resolve_inside(root, item.location, follow=item.follow).stat()
    except ImageRejectedError as error:
        return replace(item, error=str(error))
    return replace(item, size=facts.st_size, stamp=facts.st_mtime_ns)


def with_unique_ids(items: Sequence[ImageItem]) -> tuple[ImageItem, ...]:
    """Return items with ids that differ: the second one of the same id gets "#2" behind it."""
    seen: dict[str, int] = {}
    result = []
    for item in items:
        count = seen[item.sample_id] = seen.get(item.sample_id, 0) + 1
        result.append(item if count == 1 else replace(item, sample_id=f"{item.sample_id}#{count}"))
    return tuple(result)


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
