"""What an extraction makes of a listing: classes in words, a backbone if none is named, what has vanished."""

from __future__ import annotations

import logging
import os
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import accumulate

from topline.pipeline.backbones import Backbone, backbone_of_spec, default_backbone, make_backbone
from topline.pipeline.errors import ConfigError
from topline.pipeline.images import ImageItem, ImageListing, sorted_names
from topline.pipeline.options import ExtractConfig
from topline.solvers.counts import how_many
from topline.storage.datasets import list_datasets
from topline.storage.stores import Store

logger = logging.getLogger(__name__)

LISTINGS = 3
"""So often images are listed, while folders are renamed or deleted under an extraction."""
_NAMED = 3
# Characters of a line's names; the first ones are shown however long they are.
_ROOM, _LEAST = 110, 3


def classes_found(listing: ImageListing) -> str:
    """Return how many classes there are, and their names with numbers of images, of many the first ones.

    A word follows where all lie in one folder, which was probably meant, and where one lies in another.
    """
    counts = Counter(item.label for item in listing.items if item.label is not None and not item.error)
    names = sorted_names(counts)
    found = f"{how_many(len(names), 'classes')} found: "
    found += _some([f"{name} {counts[name]:,}" for name in names])
    shared = _shared_folder(names)
    if shared:
        return f"{found}; all lie in {shared}/, which --images can name for shorter names"
    nested = next((name for name in names if "/" in name and listing.kind == "folder"), None)
    return found if nested is None else f"{found}; folders within folders are classes, such as {nested}"


def names_line(names: Sequence[str]) -> str:
    """Return the number of classes and their names, of many the first ones."""
    return f"{len(names):,}: {_some(names)}"


def _some(words: Sequence[str]) -> str:
    """Return words with commas between them, and how many are left out of a line."""
    ends = list(accumulate(len(word) + 2 for word in words))
    shown = max(_LEAST, bisect_right(ends, _ROOM))
    more = len(words) - shown
    return ", ".join(words[:shown]) + (f" and {more:,} more" if more > 0 else "")


def _shared_folder(names: Sequence[str]) -> str:
    """Return the folder that every class lies in, "" where there is none."""
    folders = {name.partition("/")[0] if "/" in name else "" for name in names}
    return folders.pop() if len(folders) == 1 else ""


def unnamed_backbone(config: ExtractConfig, listing: ImageListing, store: Store, *, follow: bool) -> Backbone:
    """Return the backbone that images get where nobody names one; says which, and why."""
    chosen = sorted(config.preprocessing()) + ["checkpoint"] * (config.checkpoint is not None)
    if chosen:
        flag = "--" + chosen[0].replace("_", "-")
        raise ConfigError(f"{flag} is about a network that is not named: name it with --backbone")
    specs = [info.features.get("backbone") for info in list_datasets(store) if follow]
    stored = next((spec for spec in reversed(specs) if isinstance(spec, Mapping)), None)
    if stored is not None:
        return backbone_of_spec(stored)
    choice = default_backbone(listing, config.limits)
    logger.info("backbone: %s, as %s; --backbone names another", choice.name, choice.reason)
    return make_backbone(config.model_copy(update={"backbone": choice.name}))


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
