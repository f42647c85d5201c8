"""Images in tar shards of the WebDataset layout: key.jpg beside key.cls or key.json, read by offset.

Nothing is ever extracted to disk: a shard's headers are read once, images later, each at its offset.
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath

from topline.pipeline.errors import ImageRejectedError, InputError
from topline.pipeline.images.folders import lie_in_splits
from topline.pipeline.images.items import (
    IMAGE_SUFFIXES,
    ImageItem,
    ImageListing,
    Wanted,
    is_hidden,
    printable,
    resolve_inside,
    with_unique_ids,
)
from topline.pipeline.readers import SPLIT_NAMES, class_words, numbers_in

NO_LABEL = "the sample has no label: add key.cls, or key.json with a label"
LABEL_FIELDS = ("label", "class_name", "class", "cls")

# A label is a word or a small JSON object; anything larger is not read.
LABEL_BYTES = 1 << 20


def list_shards(root: Path, shards: list[Path], wanted: Wanted) -> ImageListing:
    """Return all samples of the tar files `shards` below `root`, in their order.

    The label is the text of key.cls, or the field "label" (class_name, class or cls) of key.json; where no
    sample has one it is the folder in the archive, if all are in some.  Shards in
    folders train/, val/ and test/ have these splits.  Members that lead out of the archive, links, devices,
    samples without image or label are listed with the reason why they are refused.
    """
    wanted.refuse_columns(root)
    splits = lie_in_splits(root, (shard.relative_to(root).as_posix() for shard in shards))
    items: list[ImageItem] = []
    ignored: list[str] = []
    labels: dict[str, object] = {}
    for shard in shards:
        relative = shard.relative_to(root)
        split = SPLIT_NAMES[relative.parts[0].lower()] if splits and len(relative.parts) > 1 else None
        reader = _Shard(root, relative.as_posix(), split, wanted)
        items.extend(reader.items())
        ignored.extend(reader.ignored)
        labels.update(reader.labels)
    folders = {item.path: PurePosixPath(item.path.removeprefix(item.location)).parent for item in items}
    if not labels and all(folders[item.path].name for item in items if item.error in ("", NO_LABEL)):
        items = [replace(item, error="") if item.error == NO_LABEL else item for item in items]
        labels = {
            item.path: str(folders[item.path])[1:] for item in items if wanted.labelled and not item.error
        }
    return ImageListing(root, "shards", with_unique_ids(_classed(root, items, labels)), tuple(ignored))


def _classed(root: Path, items: list[ImageItem], labels: Mapping[str, object]) -> list[ImageItem]:
    """Return images with the classes that the labels found beside them mean, by one rule for all of them."""
    texts = [label for label in labels.values() if isinstance(label, str)]
    # A text has no types, but beside numbers of JSON it is one where it looks like one.
    typed = dict(zip(texts, numbers_in(texts), strict=True))
    known = [typed[label] if isinstance(label, str) else label for label in labels.values()]
    words = dict(zip(labels, class_words(known, str(root)), strict=True))
    return [replace(item, label=words[item.path]) if item.path in words else item for item in items]


@dataclass
class _Sample:
    """Members of one key that have been met so far."""

    image: ImageItem | None = None
    label: object = None
    others: list[str] = field(default_factory=list)
    error: str = ""


class _Shard:
    """One tar file while its headers are read."""

    def __init__(self, root: Path, location: str, split: str | None, wanted: Wanted) -> None:
        self.ignored: list[str] = []
        #: What was found for a label beside each image, by its path.
        self.labels: dict[str, object] = {}
        self._root = root
        self._location = location
        self._split = split
        self._labelled, self._follow = wanted.labelled, wanted.follow_links

    def items(self) -> Iterator[ImageItem]:
        """Return samples in the archive's order; a shard that ends too early ends with a refused item."""
        try:
            path = resolve_inside(self._root, self._location, follow=self._follow)
        except ImageRejectedError as error:
            raise InputError(f"the shard {self._location} {error}") from error
        samples: dict[str, _Sample] = {}
        cut = ""
        try:
            with tarfile.open(path, "r:") as archive:
                stamp = path.stat().st_mtime_ns
                for member in archive:
                    yield from self._take(archive, member, stamp, samples)
        except tarfile.ReadError as error:
            if not samples:
                raise InputError(
                    f"{path} is not a tar archive ({error}): decompress it first if it is compressed"
                ) from error
            cut = str(error)
        except OSError as error:
            raise InputError(f"the shard {path} cannot be read: {error.strerror or error}") from error
        for key, sample in samples.items():
            yield from self._finished(key, sample)
        if cut:
            yield self._refused("(rest of the shard)", f"the shard is damaged or cut short: {cut}")

    def _take(
        self, archive: tarfile.TarFile, member: tarfile.TarInfo, stamp: int, samples: dict[str, _Sample]
    ) -> Iterator[ImageItem]:
        """Note a member; return what is refused at once."""
        path = PurePosixPath(member.name)
        if member.isdir():
            return
        if path.is_absolute() or ".." in path.parts:
            yield self._refused(member.name, "leads out of the archive, and is not followed")
        elif any(is_hidden(part) for part in path.parts):
            self.ignored.append(f"{self._location}/{printable(member.name)}")
        elif not member.isreg() or member.issparse():
            yield self._refused(member.name, "is a link, a device or a sparse file, and is not followed")
        else:
            stem, dot, suffix = path.name.partition(".")
            sample = samples.setdefault(str(path.parent / stem), _Sample())
            self._note(archive, member, dot + suffix.lower(), stamp, sample)

    def _note(
        self, archive: tarfile.TarFile, member: tarfile.TarInfo, suffix: str, stamp: int, sample: _Sample
    ) -> None:
        if suffix in IMAGE_SUFFIXES and sample.image is None:
            name = f"{printable(self._location)}/{printable(member.name)}"
            sample.image = ImageItem(
                name,
                name,
                self._location,
                split=self._split,
                size=member.size,
                stamp=stamp,
                offset=member.offset_data,
                follow=self._follow,
            )
        elif suffix in (".cls", ".json"):
            found = _label(archive, member, suffix)
            # key.cls takes precedence over key.json, whatever their order.
            if found is not None and (suffix == ".cls" or sample.label is None):
                sample.label = found
        else:
            sample.others.append(member.name)

    def _finished(self, key: str, sample: _Sample) -> Iterator[ImageItem]:
        item = sample.image
        if item is None:
            names = ", ".join(sample.others[:3]) or "a label alone"
            yield self._refused(key, f"the sample has no image, only {names}")
            return
        self.ignored.extend(f"{self._location}/{printable(name)}" for name in sample.others)
        if self._labelled and sample.label is None:
            yield replace(item, error=NO_LABEL)
        else:
            if self._labelled:
                self.labels[item.path] = sample.label
            yield item

    def _refused(self, name: str, error: str) -> ImageItem:
        path = f"{printable(self._location)}/{printable(name)}"
        return ImageItem(path, path, self._location, split=self._split, error=error)


def _label(archive: tarfile.TarFile, member: tarfile.TarInfo, suffix: str) -> object:
    """Return the label in key.cls or key.json as it is there; None where there is none."""
    file = archive.extractfile(member) if member.size <= LABEL_BYTES else None
    if file is None:
        return None
    text = file.read().decode("utf-8", "replace").strip()
    if suffix == ".cls":
        return text or None
    try:
        record = json.loads(text)
    except ValueError:
        return None
    if isinstance(record, dict):
        return next((record[name] for name in LABEL_FIELDS if record.get(name) is not None), None)
    return record
