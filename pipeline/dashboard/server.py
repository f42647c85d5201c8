"""The dashboard's server: a few fixed paths, reading only, on this machine alone unless asked.

Pages have their changing parts as HTML below /api, and a run its numbers there.  Any other path is 404,
whatever the store holds.
"""

from __future__ import annotations

import errno
import hashlib
import ipaddress
import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from topline.pipeline.dashboard.models import report_path, sweep_parts
from topline.pipeline.dashboard.overview import numbers
from topline.pipeline.dashboard.pages import (
    model_page,
    models_page,
    overview_page,
    overview_parts,
    run_page,
    run_parts,
    runs_page,
    sweep_page,
)
from topline.pipeline.dashboard.store_follower import StoreFollower, health, metrics_text
from topline.pipeline.errors import ConfigError
from topline.pipeline.options import DASHBOARD_PORT
from topline.pipeline.pages import Live, Page, message_page
from topline.pipeline.telemetry import RunView
from topline.storage.errors import NotFoundError, StorageError
from topline.storage.stores import Store

# Seconds between refreshes of a live page, by how soon something may change.
SOON, LATER = 2, 10
# Seconds for a pending answer when the server ends.
LAST_SECONDS = 1

# A report is a file of the store: it may run its own script, but reach nothing on this server.
REPORT_POLICY = (
    "sandbox allow-scripts allow-downloads; default-src 'none'; style-src 'unsafe-inline'; img-src data:;"
    " script-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)

SECURITY_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    # A browser revalidates a page, and gets it only if it has changed.
    "Cache-Control": "private, no-cache",
}


@contextmanager
def serve_dashboard(
    store: Store, *, host: str = "127.0.0.1", port: int | None = None, allow_remote: bool = False
) -> Iterator[str]:
    """Serve the pages of a store from a thread of this process, and yield their URL.

    The default port is 8788, or a free one if that is taken; port 0 takes a free one.  Raises `ConfigError`
    for an address that other machines can reach, unless `allow_remote`, and for a given port that is taken.
    """
    if not allow_remote and not _is_loopback(host):
        raise ConfigError(
            f"--host {host} lets everybody who reaches this machine read runs and models, without a password"
            " and unencrypted: leave it out and use ssh -L, or add --allow-remote"
        )
    listening = _listen(host, port)
    options = uvicorn.Config(
        application(store, allow_remote=allow_remote),
        log_config=None,
        access_log=False,
        lifespan="off",
        ws="none",
        server_header=False,
        timeout_graceful_shutdown=LAST_SECONDS,
    )
    server = uvicorn.Server(options)
    thread = threading.Thread(target=server.run, args=([listening],), name="topline-dashboard", daemon=True)
    with listening:
        thread.start()
        try:
            shown = f"[{host}]" if ":" in host else host
            yield f"http://{shown}:{listening.getsockname()[1]}/"
        finally:
            server.should_exit = True
            thread.join()


def _listen(host: str, port: int | None) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    wanted = DASHBOARD_PORT if port is None else port
    try:
        return socket.create_server((host, wanted), family=family)
    except OSError as error:
        if port is None and error.errno == errno.EADDRINUSE:
            return _listen(host, 0)
        raise ConfigError(
            f"the dashboard cannot listen at {host} port {wanted} ({error.strerror or error}):"
            " give another --port, or 0 for a free one"
        ) from error


def application(
    store: Store, *, allow_remote: bool = False, now: Callable[[], float] = time.time
) -> Starlette:
    """Return the ASGI application of a store; `now` is the time in seconds since 1970."""
    made = Starlette(
        routes=[
            Route(path, answer) for path, answer in _Answers(StoreFollower(store), now).by_path().items()
        ],
        middleware=[] if allow_remote else [Middleware(_LocalHostOnly)],
        exception_handlers=dict.fromkeys((HTTPException, StorageError, Exception), _refuse),
    )
    made.router.redirect_slashes = False
    return made


class _Answers:
    """The handlers of all paths."""

    def __init__(self, follower: StoreFollower, now: Callable[[], float]) -> None:
        self._follower, self._now = follower, now

    def by_path(self) -> dict[str, Callable[[Request], Response]]:
        """Return the handler of each path."""
        return {
            "/": self._overview,
            "/api/parts": self._parts_of_overview,
            "/models/{model}": self._model,
            "/models/{model}/report": self._report_of_model,
            "/models/{model}/compare/{other}": self._two_models,
            "/runs/{run}": self._run,
            "/runs/{run}/compare/{other}": self._two_runs,
            "/api/runs/{run}": self._numbers_of_run,
            "/api/runs/{run}/parts": self._parts_of_run,
            "/sweeps/{sweep}": self._sweep,
            "/api/sweeps/{sweep}/parts": self._parts_of_sweep,
            "/metrics": self._metrics,
            "/health": lambda request: _json(request, health(self._follower.overview(self._now()))),
        }

    def _overview(self, request: Request) -> Response:
        seen, live = self._follower.overview(self._now()), Live("api/parts", LATER)
        return _html(request, overview_page(self._follower.store.url, seen, self._now(), live=live, root=""))

    def _parts_of_overview(self, request: Request) -> Response:
        return _parts(request, LATER, overview_parts(self._follower.overview(self._now()), self._now(), ""))

    def _run(self, request: Request) -> Response:
        record, view = self._follower.run(_id(request, "run"))
        live = Live(f"../api/runs/{record.id}/parts", _again(view))
        others = [line.id for line in self._follower.overview(self._now()).runs]
        return _html(request, run_page(record, view, self._now(), live=live, root="../", others=others))

    def _parts_of_run(self, request: Request) -> Response:
        view = self._follower.run(_id(request, "run"))[1]
        return _parts(request, _again(view), run_parts(view, self._now()))

    def _numbers_of_run(self, request: Request) -> Response:
        return _json(request, numbers(self._follower.run(_id(request, "run"))[1], self._now()))

    def _two_runs(self, request: Request) -> Response:
        runs = [self._follower.run(_id(request, "run", name)) for name in ("run", "other")]
        return _html(request, runs_page(runs, self._now(), "../../../"))

    def _model(self, request: Request) -> Response:
        return _html(request, model_page(self._follower.model(_id(request, "model")), self._now(), "../"))

    def _two_models(self, request: Request) -> Response:
        found = self._follower.pair(_id(request, "model"), _id(request, "model", "other"))
        runs = self._follower.known_runs([seen.record.run for seen in (found.first, found.second)])
        return _html(request, models_page(found, runs, "../../../"))

    def _report_of_model(self, request: Request) -> Response:
        content = self._follower.store.read_bytes(report_path(_id(request, "model")))
        return _answer(request, 200, "text/html; charset=utf-8", content, REPORT_POLICY)

    def _sweep(self, request: Request) -> Response:
        record, answers = self._follower.sweep(_id(request, "sweep"))
        live = Live(f"../api/sweeps/{record.id}/parts", LATER if record.outcome else SOON)
        return _html(request, sweep_page(record, answers, self._now(), live=live, root="../"))

    def _parts_of_sweep(self, request: Request) -> Response:
        record, answers = self._follower.sweep(_id(request, "sweep"))
        return _parts(request, LATER if record.outcome else SOON, sweep_parts(record, answers))

    def _metrics(self, request: Request) -> Response:
        seen, store = self._follower.overview(self._now()), self._follower.store
        text = metrics_text(seen, self._now(), store.free_bytes(), store.used_bytes())
        return _answer(request, 200, "text/plain; version=0.0.4; charset=utf-8", text, "default-src 'none'")


_LOCAL_ONLY = (
    "This dashboard answers to localhost alone: --allow-remote lets other names and machines read it."
)


class _LocalHostOnly:
    """Refuses requests to foreign host names (DNS rebinding)."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope)
        if _is_loopback(_host_name(request.headers.get("Host", ""))):
            await self.app(scope, receive, send)
            return
        refusal = _json(request, {"error": _LOCAL_ONLY}, 403)
        await refusal(scope, receive, send)


def _refuse(request: Request, error: Exception) -> Response:
    """Answer a missing, unreadable or failed request in the requested format."""
    if isinstance(error, HTTPException):
        status, text = error.status_code, "There is no such page."
        text = text if status == 404 else error.detail
    elif isinstance(error, StorageError):
        status, text = 404 if isinstance(error, NotFoundError) else 503, str(error)
    else:
        status, text = 500, "The dashboard failed; its log says why."
    path = request.url.path
    if path.startswith("/api/") or path in ("/metrics", "/health"):
        refusal = _json(request, {"error": text}, status)
    else:
        root = "../" * max(path.count("/") - 1, 0) or "./"
        title = "Not here" if status == 404 else "Cannot be read"
        refusal = _html(request, message_page(title, text, root), status)
    refusal.headers.update(getattr(error, "headers", None) or {})
    return refusal


def _html(request: Request, page: Page, status: int = 200) -> Response:
    policy = f"{page.policy}; frame-ancestors 'none'"
    return _answer(request, status, "text/html; charset=utf-8", page.html.encode(), policy)


def _json(request: Request, value: Mapping[str, Any], status: int = 200) -> Response:
    body = json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    return _answer(request, status, "application/json", body, "default-src 'none'")


def _parts(request: Request, again: int, made: Mapping[str, Any]) -> Response:
    return _json(request, {"again": again, "parts": made})


def _answer(request: Request, status: int, kind: str, body: bytes, policy: str) -> Response:
    """Return a response with security headers, without a body if the browser has it already."""
    tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
    headers = {**SECURITY_HEADERS, "Content-Security-Policy": policy, "ETag": tag}
    if status == 200 and request.headers.get("If-None-Match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(body, status, headers, kind)


def _id(request: Request, kind: str, name: str = "") -> str:
    """Return the id of a run, model or sweep in the path; a malformed one does not exist."""
    found = str(request.path_params[name or kind])
    if re.fullmatch(rf"{kind[0]}\d{{4,9}}", found) is None:
        raise HTTPException(404)
    return found


def _again(run: RunView) -> int:
    return SOON if run.stage in ("running", "publishing", "waiting") else LATER


def _host_name(address: str) -> str | None:
    try:
        return urlsplit(f"//{address}").hostname
    except ValueError:
        return None


def _is_loopback(host: str | None) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host or "").is_loopback
    except ValueError:
        return False
