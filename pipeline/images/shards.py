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
from topline.pipeline.images.tables import beside, classed
from topline.pipeline.readers import SPLIT_NAMES, numbers_in

#: Fields of key.json that may have the label; that of key.cls has no name, and precedence.
LABEL_FIELDS = ("", "label", "class_name", "class", "cls")
# A label is a word or a small JSON object; anything larger is not read.
LABEL_BYTES = 1 << 20


@dataclass
class _Sample:
    """Members of one key that have been met so far, and what is written beside its image."""

    image: ImageItem | None = None
    facts: dict[str, object] = field(default_factory=dict)
    others: list[str] = field(default_factory=list)


def list_shards(root: Path, shards: list[Path], wanted: Wanted) -> ImageListing:
    """Return all samples of the tar files `shards` below `root`, in their order.

    The label is the text of key.cls, or the field "label" (class_name, class or cls) of key.json; where no
    sample has one it is the folder in the archive, if all are in some.  Groups and weights are fields of
    key.json.  Shards in folders train/, val/ and test/ have these splits.  Members that lead out of the
    archive, links, devices, samples without image or label are listed with the reason why they are refused.
    """
    splits = lie_in_splits(root, (shard.relative_to(root).as_posix() for shard in shards))
    found: list[tuple[ImageItem, Mapping[str, object]]] = []
    ignored: list[str] = []
    for shard in shards:
        place = shard.relative_to(root)
        split = SPLIT_NAMES[place.parts[0].lower()] if splits and len(place.parts) > 1 else None
        blank = ImageItem("", "", place.as_posix(), split=split, follow=wanted.follow_links)
        try:
            resolve_inside(root, blank.location, follow=blank.follow)
        except ImageRejectedError as error:
            raise InputError(f"the shard {blank.location} {error}") from error
        found += _samples(root, blank, ignored)
    items = [item for item, _ in found]
    labels = [next((facts[name] for name in LABEL_FIELDS if name in facts), None) for _, facts in found]
    if wanted.labelled:
        folders = [PurePosixPath(item.path.removeprefix(item.location)).parent for item in items]
        good = [folder for folder, item in zip(folders, items, strict=True) if not item.error]
        if not any(label is not None for label in labels) and all(folder.name for folder in good):
            labels = [str(folder)[1:] for folder in folders]
        else:
            # A text has no types, but beside numbers of JSON it is one where it looks like one.
            typed = iter(numbers_in([label for label in labels if isinstance(label, str)]))
            labels = [next(typed) if isinstance(label, str) else label for label in labels]
        missing = "the sample has no label: add key.cls, or key.json with a label"
        items = classed(items, labels, str(root), missing)
    names = sorted({name for _, facts in found for name in facts if name})
    items = beside(items, root, wanted, names, lambda name: [facts.get(name) for _, facts in found])
    return ImageListing(root, "shards", with_unique_ids(items), tuple(ignored))


def _samples(
    root: Path, shard: ImageItem, ignored: list[str]
) -> Iterator[tuple[ImageItem, Mapping[str, object]]]:
    """Yield the samples of a tar file in its order; one that ends too early ends with a refused item."""

    def refused(name: str, error: str) -> tuple[ImageItem, Mapping[str, object]]:
        path = f"{printable(shard.location)}/{printable(name)}"
        return replace(shard, sample_id=path, path=path, error=error), {}

    path = root / shard.location
    samples: dict[str, _Sample] = {}
    cut = ""
    try:
        with tarfile.open(path, "r:") as archive:
            shard = replace(shard, stamp=path.stat().st_mtime_ns)
            for member in archive:
                wrong = _refusal(member)
                if wrong:
                    yield refused(member.name, f"{wrong}, and is not followed")
                elif any(map(is_hidden, PurePosixPath(member.name).parts)):
                    ignored.append(f"{shard.location}/{printable(member.name)}")
                elif not member.isdir():
                    _note(archive, member, shard, samples)
    except tarfile.ReadError as error:
        if not samples:
            raise InputError(
                f"{path} is not a tar archive ({error}): decompress it first if it is compressed"
            ) from error
        cut = str(error)
    except OSError as error:
        raise InputError(f"the shard {path} cannot be read: {error.strerror or error}") from error
    for key, sample in samples.items():
        if sample.image is None:
            names = ", ".join(sample.others[:3]) or "a label alone"
            yield refused(key, f"the sample has no image, only {names}")
        else:
            ignored.extend(f"{shard.location}/{printable(name)}" for name in sample.others)
            yield sample.image, sample.facts
    if cut:
        yield refused("(rest of the shard)", f"the shard is damaged or cut short: {cut}")


def _refusal(member: tarfile.TarInfo) -> str:
    """Return why a member cannot be read, "" where it can."""
    path = PurePosixPath(member.name)
    if member.isdir():
        return ""
    if path.is_absolute() or ".." in path.parts:
        return "leads out of the archive"
    hidden = any(map(is_hidden, path.parts))
    return (
        "" if hidden or (member.isreg() and not member.issparse()) else "is a link, a device or a sparse file"
    )


def _note(
    archive: tarfile.TarFile, member: tarfile.TarInfo, shard: ImageItem, samples: dict[str, _Sample]
) -> None:
    """Take a member into the sample of its key."""
    path = PurePosixPath(member.name)
    stem, dot, suffix = path.name.partition(".")
    sample, suffix = samples.setdefault(str(path.parent / stem), _Sample()), dot + suffix.lower()
    if suffix in IMAGE_SUFFIXES and sample.image is None:
        name = f"{printable(shard.location)}/{printable(member.name)}"
        there = replace(shard, size=member.size, offset=member.offset_data)
        sample.image = replace(there, sample_id=name, path=name)
    elif suffix in (".cls", ".json"):
        file = archive.extractfile(member) if member.size <= LABEL_BYTES else None
        text = "" if file is None else file.read().decode("utf-8", "replace").strip()
        sample.facts |= _record(text) if suffix == ".json" else {"": text} if text else {}
    else:
        sample.others.append(member.name)


def _record(text: str) -> dict[str, object]:
    """Return the fields of key.json; nothing where it is none."""
    try:
        record = json.loads(text)
    except ValueError:
        return {}
    fields = record if isinstance(record, dict) else {"label": record}
    return {name: value for name, value in fields.items() if value is not None}
