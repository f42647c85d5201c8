"""The dashboard's server: a few fixed addresses, reading only, on this machine alone unless asked.

    /                       runs and models
    /api/parts              its parts, as HTML
    /runs/r0001             a run, followed while it lives
    /api/runs/r0001         the same in numbers
    /api/runs/r0001/parts   its parts, as HTML

Everything else is not there.
"""

from __future__ import annotations

import hashlib
import ipaddress
import json
import logging
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

from topline.pipeline.dashboard.overview_page import overview_page, overview_parts
from topline.pipeline.dashboard.pages import LATER, SOON, Live, Page, message_page
from topline.pipeline.dashboard.run_page import run_page, run_parts
from topline.pipeline.dashboard.run_status import numbers
from topline.pipeline.dashboard.store_follower import StoreFollower
from topline.pipeline.errors import ConfigError
from topline.pipeline.telemetry.run_view import RunView
from topline.storage.errors import NotFoundError, StorageError
from topline.storage.stores import Store

logger = logging.getLogger(__name__)

PORT = 8788
# A client that says nothing for so long is hung up on.
REQUEST_SECONDS = 30.0

GUARDS = MappingProxyType(
    {
        "X-Content-Type-Options": "nosniff",
        "X-Frame-Options": "DENY",
        "Referrer-Policy": "no-referrer",
        "Cross-Origin-Resource-Policy": "same-origin",
        # A page asks again whether it is the newest, and is sent only where it is not.
        "Cache-Control": "private, no-cache",
    }
)


@dataclass(frozen=True)
class Answer:
    """What a request is answered."""

    status: int
    kind: str
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)


class Site:
    """Answers requests for what a store holds; threads may share it."""

    def __init__(self, store: Store, now: Callable[[], float] = time.time) -> None:
        self._feed = StoreFollower(store)
        self._now = now
        self._routes: list[tuple[re.Pattern[str], Callable[..., Answer]]] = [
            (re.compile(r"/"), self._overview),
            (re.compile(r"/api/parts"), self._overview_parts),
            (re.compile(r"/runs/(r\d{4,9})"), self._run),
            (re.compile(r"/api/runs/(r\d{4,9})"), self._numbers),
            (re.compile(r"/api/runs/(r\d{4,9})/parts"), self._parts),
        ]

    def answer(self, path: str) -> Answer:
        """Answer a GET; what is not one of the fixed addresses is not there, whatever lies in the store."""
        api = path.startswith("/api/")
        for pattern, respond in self._routes:
            if (found := pattern.fullmatch(path)) is not None:
                try:
                    return respond(*found.groups())
                except NotFoundError as error:
                    return _refusal(404, str(error), path, api=api)
                except StorageError as error:
                    return _refusal(503, str(error), path, api=api)
        return _refusal(404, "There is no such page.", path, api=api)

    def _overview(self) -> Answer:
        now, live = self._now(), Live("api/parts", LATER)
        seen = self._feed.overview(now)
        return _html(200, overview_page(self._feed.store.url, seen, now, live=live, root=""))

    def _overview_parts(self) -> Answer:
        now = self._now()
        return _json({"again": LATER, "parts": overview_parts(self._feed.overview(now), now, "")})

    def _run(self, run_id: str) -> Answer:
        record, run = self._feed.run(run_id)
        live = Live(f"../api/runs/{run_id}/parts", _again(run))
        return _html(200, run_page(record, run, self._now(), live=live, root="../"))

    def _numbers(self, run_id: str) -> Answer:
        return _json(numbers(self._feed.run(run_id)[1], self._now()))

    def _parts(self, run_id: str) -> Answer:
        run = self._feed.run(run_id)[1]
        return _json({"again": _again(run), "parts": run_parts(run, self._now())})


def check_host(host: str, *, allow_remote: bool) -> None:
    """Refuse an address that other machines reach, unless that was asked for; `ConfigError`."""
    if not allow_remote and not _is_loopback(host):
        raise ConfigError(
            f"--host {host} lets everybody who reaches this machine read runs and models, without a password"
            " and unencrypted: leave it out and use ssh -L, or add --allow-remote"
        )


@contextmanager
def serving(
    store: Store, *, host: str = "127.0.0.1", port: int = PORT, allow_remote: bool = False
) -> Iterator[str]:
    """Serve the pages of a store from threads of this process, and yield their address.

    Port 0 takes a free one.  `ConfigError` for an address that other machines reach, unless `allow_remote`,
    and for a port that is taken.
    """
    check_host(host, allow_remote=allow_remote)
    site = Site(store)

    class Handler(_Handler):
        def respond(self, path: str) -> Answer:
            if not allow_remote and not _is_loopback(urlsplit(f"//{self.headers.get('Host', '')}").hostname):
                # A name that leads here from a page elsewhere (DNS rebinding) is not ours.
                return _refusal(403, "This dashboard answers to localhost alone.", path, api=True)
            return site.answer(path)

    class Server(_IPv6Server if ":" in host else ThreadingHTTPServer):  # type: ignore[misc]
        daemon_threads = True

    try:
        server = Server((host, port), Handler)
    except OSError as error:
        raise ConfigError(
            f"the dashboard cannot listen at {host} port {port} ({error.strerror or error}):"
            " give another --port, or 0 for a free one"
        ) from error
    thread = threading.Thread(target=server.serve_forever, args=(0.1,), name="topline-dashboard", daemon=True)
    thread.start()
    try:
        shown = f"[{host}]" if ":" in host else host
        yield f"http://{shown}:{server.server_address[1]}/"
    finally:
        server.shutdown()
        server.server_close()


class _IPv6Server(ThreadingHTTPServer):
    import socket as _socket

    address_family = _socket.AF_INET6


class _Handler(BaseHTTPRequestHandler):
    """Reads a request, writes the answer with its guards; only GET and HEAD exist."""

    # One answer a connection: none stays open beyond the server's end.
    protocol_version = "HTTP/1.0"
    server_version, sys_version = "topline", ""
    timeout = REQUEST_SECONDS

    def respond(self, path: str) -> Answer:
        raise NotImplementedError

    def do_GET(self) -> None:
        self._send(with_body=True)

    def do_HEAD(self) -> None:
        self._send(with_body=False)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name is the base class's
        logger.debug(format, *args)

    def _send(self, *, with_body: bool) -> None:
        path = urlsplit(self.path).path
        try:
            answer = self.respond(path)
        except Exception:
            logger.exception("the dashboard failed to answer %s", path)
            answer = _refusal(500, "The dashboard failed; its log says why.", path, api=True)
        tag = f'"{hashlib.sha256(answer.body).hexdigest()[:32]}"'
        unchanged = answer.status == 200 and self.headers.get("If-None-Match") == tag
        self.send_response(304 if unchanged else answer.status)
        for name, value in {**GUARDS, **answer.headers, "ETag": tag}.items():
            self.send_header(name, value)
        if not unchanged:
            self.send_header("Content-Type", answer.kind)
            self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        if with_body and not unchanged:
            self.wfile.write(answer.body)


def _again(run: RunView) -> int:
    return SOON if run.stage in ("running", "publishing", "waiting") else LATER


def _html(status: int, page: Page) -> Answer:
    policy = {"Content-Security-Policy": f"{page.policy}; frame-ancestors 'none'"}
    return Answer(status, "text/html; charset=utf-8", page.html.encode(), policy)


def _json(value: Mapping[str, Any], status: int = 200) -> Answer:
    body = json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    return Answer(status, "application/json", body, {"Content-Security-Policy": "default-src 'none'"})


def _refusal(status: int, text: str, path: str, *, api: bool) -> Answer:
    if api:
        return _json({"error": text}, status)
    root = "../" * max(path.count("/") - 1, 0) or "./"
    return _html(status, message_page("Not here" if status == 404 else "Cannot be read", text, root))


def _is_loopback(host: str | None) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host or "").is_loopback
    except ValueError:
        return False
