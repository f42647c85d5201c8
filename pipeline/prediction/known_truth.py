"""What is known of an image before it is predicted: its label, and whether the model has seen it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from topline.pipeline.errors import InputError
from topline.pipeline.images import ImageItem, ImageListing
from topline.pipeline.ingest import ImageRow
from topline.pipeline.rows import StoredModel


@dataclass(frozen=True)
class KnownTruth:
    """Labels by table or folder, splits by the content that the model's dataset holds.

    A folder is a label where the model has a class of its name; `folder` is the name of the folder that was
    listed, `classes` are the model's, and `splits` maps the SHA-256 of an image to its split.
    """

    folder: str
    classes: frozenset[str]
    splits: Mapping[str, str]

    @classmethod
    def of(cls, stored: StoredModel, listing: ImageListing) -> KnownTruth:
        """Return what the model's dataset and the listing tell; no splits where the dataset is gone."""
        classes = frozenset(stored.model.record.class_names)
        try:
            manifest = stored.dataset().manifest().select(["sha256", "split"])
        except InputError:
            return cls(listing.root.name, classes, {})
        pairs = zip(manifest["sha256"].to_pylist(), manifest["split"].to_pylist(), strict=True)
        splits = {digest: split for digest, split in pairs if digest and split != "rejected"}
        return cls(listing.root.name, classes, splits)

    def label(self, item: ImageItem) -> str | None:
        """Return the label that a table gives an image, or the class that its folder is named after."""
        if item.label is not None:
            return item.label
        parts = PurePosixPath(item.path).parent.parts
        # Classes are folders below the listed one, or below train/ and so on in it; or it is one itself.
        names = ("/".join(parts), "/".join(parts[1:]), "" if parts else self.folder)
        return next((name for name in names if name in self.classes), None)

    def split(self, row: ImageRow) -> str | None:
        """Return the split of an image with the same content in the model's dataset, None for a new one."""
        return self.splits.get(row.sha256 or "")
