"""A page as one file that needs no server, no script and no network."""

from __future__ import annotations

import time
from pathlib import Path

from topline.pipeline.dashboard.overview_page import overview_page
from topline.pipeline.dashboard.run_page import run_page
from topline.pipeline.dashboard.store_follower import StoreFollower
from topline.storage.stores import open_store


def write_page(store_url: str, run_id: str | None, path: Path) -> str:
    """Write the page of a run, or that of runs and models, and give where it lies.

    What is there is replaced in one step.
    """
    feed, now = StoreFollower(open_store(store_url)), time.time()
    if run_id is None:
        page = overview_page(feed.store.url, feed.overview(now), now)
    else:
        page = run_page(*feed.run(run_id), now)
    path = path.absolute()
    open_store(str(path.parent), create=True).write_bytes(path.name, page.html.encode())
    return str(path)
