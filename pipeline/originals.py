"""The images that a dataset was made of, read again where they lie."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import InputError
from pipeline.images import decode
from pipeline.ingest_config import ImageLimits
from pipeline.sources import ImageItem, ImageListing, list_images


class Originals:
    """Finds images by the rows of a manifest; `features` are the dataset's specification of its features."""

    def __init__(self, features: Mapping[str, Any], limits: ImageLimits | None = None) -> None:
        self._images = features.get("images")
        self._limits = limits or ImageLimits()

    @cached_property
    def _listing(self) -> ImageListing:
        if not self._images:
            raise InputError("the features were imported, so there are no images")
        return list_images(str(self._images))

    @cached_property
    def _items(self) -> dict[str, ImageItem]:
        return {item.sample_id: item for item in self._listing.items}

    def __call__(self, entry: Mapping[str, object]) -> NDArray[np.uint8]:
        """Pixels (h, w, 3) of the image in a row of the manifest.

        Raises `InputError` if the images are not where they were, `ImageRejectedError` if this one cannot be
        read any more.
        """
        item = self._items.get(str(entry["sample_id"]))
        if item is None:
            raise InputError(f"{entry['path']} is not where it was")
        return decode(item.read(self._listing.root, self._limits.max_bytes), self._limits)
