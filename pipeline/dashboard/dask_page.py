"""The page /topline of the current run, beside Dask's own pages on a scheduler's dashboard port.

It reads only the run's history in the store, and shows an ended run as long as the scheduler lives;
afterwards use `topline dashboard`.  The clusters that topline starts have it; your own scheduler gets it by

    dask scheduler --preload topline.pipeline.dashboard.dask_page

and must reach the store by the same URL as the job.  It answers only to localhost, numeric addresses, the
name of its machine and the names in TOPLINE_DASHBOARD_HOSTS, which prevents DNS rebinding.
"""

from __future__ import annotations

import asyncio
import functools
import ipaddress
import os
import socket
import time
from typing import Any
from urllib.parse import urlsplit

import dask
from distributed.http.utils import RequestHandler

from topline.pipeline.cluster import TOPIC
from topline.pipeline.dashboard.pages import run_page, run_parts
from topline.pipeline.dashboard.store_follower import StoreFollower
from topline.pipeline.pages import Live, Page, message_page
from topline.storage.errors import StorageError
from topline.storage.stores import open_store

PATH = "topline"
#: Names, separated by blanks, by which other machines reach a scheduler's pages.
HOSTS = "TOPLINE_DASHBOARD_HOSTS"
ROUTES = "distributed.scheduler.http.routes"
# Seconds between refreshes of an open page.
AGAIN = 2


def current_page(scheduler: Any, now: float) -> Page:
    """Return the page of the run announced last, or one that says that there is none."""
    announced = last_announced(scheduler)
    if announced is None:
        return _message("", "No run has been announced to this scheduler.")
    store_url, run_id = announced
    try:
        record, run = _follower(store_url).run(run_id)
    except StorageError as error:
        return _message(run_id, f"The scheduler cannot read the run's history: {error}")
    return run_page(record, run, now, live=_live(run_id))


def current_parts(scheduler: Any, shown: str, now: float) -> dict[str, Any]:
    """Return the parts of an open page of the run `shown`, or that it must be reloaded."""
    announced = last_announced(scheduler)
    if announced is None or announced[1] != shown:
        return {"again": AGAIN, "parts": {}, "reload": announced is not None}
    try:
        return {"again": AGAIN, "parts": run_parts(_follower(announced[0]).run(shown)[1], now)}
    except StorageError:
        return {"again": AGAIN, "parts": {}}


def last_announced(scheduler: Any) -> tuple[str, str] | None:
    """Return the store URL and run id of the newest announcement, or None."""
    events = scheduler.get_events(TOPIC)
    if not events:
        return None
    said = events[-1][1]
    return str(said["store"]), str(said["run"])


def answers_to(host: str) -> bool:
    """Return whether a request to this host name (without port) is meant for this machine."""
    named = {"localhost", socket.gethostname(), socket.getfqdn(), *os.environ.get(HOSTS, "").split()}
    if host.lower() in {name.lower() for name in named}:
        return True
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


class _Guarded(RequestHandler):
    """Refuses requests to foreign host names."""

    def prepare(self) -> None:
        host = urlsplit(f"//{self.request.host}").hostname or ""
        if not answers_to(host):
            self.set_status(403)
            self.finish(f"This page does not answer to {host}: name it in {HOSTS}.")


class _Page(_Guarded):
    """Answers with the page; a thread reads it, since this is the scheduler's own loop."""

    async def get(self) -> None:
        page = await asyncio.to_thread(current_page, self.server, time.time())
        self.set_header("Content-Security-Policy", page.policy)
        self.finish(page.html)


class _Parts(_Guarded):
    """Answers with the changing parts, as JSON."""

    async def get(self) -> None:
        shown = self.get_query_argument("run", "")
        self.finish(await asyncio.to_thread(current_parts, self.server, shown, time.time()))


def _live(run_id: str) -> Live:
    return Live(f"{PATH}/parts?run={run_id}", AGAIN)


def _message(run_id: str, text: str) -> Page:
    return message_page("Topline run", text, None, _live(run_id))


@functools.lru_cache(maxsize=4)
def _follower(store_url: str) -> StoreFollower:
    return StoreFollower(open_store(store_url))


#: Routes that Dask serves for the modules named in its configuration.
routes: list[tuple[str, type, dict[str, Any]]] = [(PATH, _Page, {}), (f"{PATH}/parts", _Parts, {})]
# A scheduler imports its preloads before it reads which modules have routes.
if __name__ not in (known := dask.config.get(ROUTES)):
    dask.config.set({ROUTES: [*known, __name__]})
