"""A page as one file that needs no server, no script and no network."""

from __future__ import annotations

import time
from pathlib import Path

from pipeline.dashboard.pages import run_page
from pipeline.run_view import view_run
from storage.runs import read_run, run_names
from storage.stores import open_store


def write_page(store_url: str, run_id: str | None, path: Path) -> str:
    """Write the page of a run to `path`, replacing in one step what is there, and give where it lies."""
    store = open_store(store_url)
    if run_id is None:
        run_id = run_names(store)[-1]
    page = run_page(read_run(store, run_id), view_run(store, run_id), time.time())
    path = path.absolute()
    open_store(str(path.parent), create=True).write_bytes(path.name, page.html.encode())
    return str(path)
