"""Images that were there when they were listed, and are not when they are read."""

from __future__ import annotations

import logging
import os

from topline.pipeline.images import ImageItem, ImageListing

logger = logging.getLogger(__name__)

LISTINGS = 3
"""So often images are listed, while folders are renamed or deleted under an extraction."""
_NAMED = 3


def vanished(listing: ImageListing) -> list[str]:
    """Return the listed images whose files are gone by now, and say so.

    What a folder shows was there, even if it was gone before its size was read.  What a table names and was
    refused from the start does not count, and members of an archive go with it alone.
    """
    gone = [item.path for item in listing.items if _is_gone(listing, item)]
    if gone:
        logger.warning(
            "%d of %d images are gone since they were listed (the first: %s): they are listed again",
            len(gone),
            len(listing.items),
            ", ".join(gone[:_NAMED]),
        )
    return gone


def _is_gone(listing: ImageListing, item: ImageItem) -> bool:
    place = listing.root / item.location
    if item.error:
        # A link to nothing is refused too, and is there.
        return listing.kind == "folder" and not os.path.lexists(place)
    return listing.kind != "shards" and not place.exists()
