"""The images that a dataset was made of, read again where they lie."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topline.pipeline.errors import InputError
from topline.pipeline.images.decoding import decode
from topline.pipeline.images.sources import ImageItem, list_images
from topline.pipeline.options.ingest import ImageLimits


class SourceImages:
    """Reads images by the rows of a manifest; `features` is the dataset's specification of its features."""

    def __init__(self, features: Mapping[str, Any]) -> None:
        self._root = features.get("images")
        self._source = features.get("source")
        self._limits = ImageLimits(**features.get("limits", {}))

    def __call__(self, entry: Mapping[str, Any]) -> NDArray[np.uint8]:
        """Pixels (h, w, 3) of the image in a row of the manifest.

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
