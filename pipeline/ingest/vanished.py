"""Images that were there when they were listed, and are not when they are read."""

from __future__ import annotations

import logging

from topline.pipeline.images import ImageListing

logger = logging.getLogger(__name__)

LISTINGS = 3
"""So often images are listed, while folders are renamed or deleted under an extraction."""
_NAMED = 3


def vanished(listing: ImageListing) -> list[str]:
    """Return the listed images whose files are gone by now, and say so.

    Those that were refused from the start do not count, and members of an archive go with it alone.
    """
    gone = [
        item.path
        for item in listing.items
        if not item.error and listing.kind != "shards" and not (listing.root / item.location).exists()
    ]
    if gone:
        logger.warning(
            "%d of %d images are gone since they were listed (%s first of all): they are listed again",
            len(gone),
            len(listing.items),
            ", ".join(gone[:_NAMED]),
        )
    return gone
