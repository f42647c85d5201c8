"""Where predictions of a dataset are kept: in its store, or for as long as they are shown."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from topline.storage.stores import Store, open_store

logger = logging.getLogger(__name__)


@contextmanager
def kept_in(store: Store, *, shown: bool) -> Iterator[Store]:
    """Yield the store that takes the predictions: `store`, or memory where nobody may write there.

    Only what is also `shown`, in a file, is worth predicting without keeping it.
    """
    if not shown or store.is_writable():
        yield store
        return
    logger.warning("%s is read-only: predictions go to the output alone, and are made here", store.url)
    memory = open_store(f"memory://topline-{uuid.uuid4().hex}", create=True)
    try:
        yield memory
    finally:
        for name in memory.list():
            memory.delete_tree(name)
