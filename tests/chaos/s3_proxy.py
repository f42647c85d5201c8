"""What a network does to requests of a bucket: a proxy that delays, cuts, refuses and replays them.

Each request is drawn a fault, or none, by a seed and its number.  `lost` and `late error` do what was asked
and say something else; `twice` does it again and gives the second answer; `replay` keeps a copy and does it
once more when other requests have gone by, as a router does that had it in a queue.
"""

from __future__ import annotations

import http.client
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self
from urllib.parse import urlsplit

#: How much later a delayed request is passed on, and after how many others a copy comes again.
DELAY, LATER = 0.05, 8
FAULTS = ("delay", "cut", "lost", "500", "503", "late error", "twice", "replay")
_ERROR = b'<?xml version="1.0" encoding="UTF-8"?><Error><Code>%s</Code><Message>-</Message></Error>'
_CODES = {"500": (500, b"InternalError"), "503": (503, b"SlowDown"), "late error": (500, b"InternalError")}
#: Headers that belong to one connection and not to the request.
_OWN = {"connection", "keep-alive", "transfer-encoding", "content-length", "expect"}


@dataclass(frozen=True)
class Request:
    """What one request asks for."""

    verb: str
    path: str
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True)
class Answer:
    """What came back."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes


class S3Proxy:
    """Passes requests on to the server `to`; of every `one_in` of them about one meets one of `faults`.

    With `puts_if_absent` exactly those do that put a name if there is none, each name's first one.
    """

    def __init__(
        self,
        to: str,
        *,
        seed: int = 0,
        one_in: int = 5,
        faults: tuple[str, ...] = FAULTS,
        puts_if_absent: bool = False,
    ) -> None:
        self._to = urlsplit(to).netloc
        self._puts_if_absent = puts_if_absent
        self._put: set[str] = set()
        self._random = random.Random(f"s3 {seed}")
        self._faults, self._one_in = faults, one_in
        self._lock = threading.Lock()
        self._copies: list[tuple[int, Request]] = []
        self._quiet = False
        self.requests = 0
        self.met: Counter[str] = Counter()
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_one_request(self) -> None:
                with suppress(ConnectionError):
                    super().handle_one_request()

            def do_GET(self) -> None:
                proxy.handle(self)

            do_PUT = do_POST = do_DELETE = do_HEAD = do_GET

            def log_message(self, *args: object) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """Have no faults meanwhile; copies that are on their way come first."""
        with self._lock:
            copies, self._copies = [copy for _, copy in self._copies], []
        for copy in copies:
            self._done(copy)
        self._quiet = True
        try:
            yield
        finally:
            self._quiet = False

    def handle(self, handler: BaseHTTPRequestHandler) -> None:
        """Answer a request, or do to it what was drawn."""
        request = Request(handler.command, handler.path, dict(handler.headers), _body(handler))
        fault, copies = self._drawn(request)
        for copy in copies:
            self._done(copy)
        if fault == "delay":
            time.sleep(DELAY)
        if fault == "cut":
            handler.close_connection = True
            return
        answer = None
        if fault not in ("500", "503"):
            answer = self._done(request)
        if fault == "twice":
            answer = self._done(request)
        if fault == "lost":
            handler.close_connection = True
            return
        if fault in _CODES:
            status, code = _CODES[fault]
            answer = Answer(status, (("Content-Type", "application/xml"),), _ERROR % code)
        if answer is not None:
            _give(handler, request, answer)

    def _drawn(self, request: Request) -> tuple[str, list[Request]]:
        """Return the fault of a request, and the copies whose time has come."""
        with self._lock:
            self.requests += 1
            due = [copy for at, copy in self._copies if at <= self.requests]
            self._copies = [(at, copy) for at, copy in self._copies if at > self.requests]
            fault = ""
            if not self._quiet and self._is_drawn(request):
                fault = self._random.choice(self._faults)
                self.met[fault] += 1
            if fault == "replay":
                self._copies.append((self.requests + self._random.randrange(1, LATER), request))
        return fault, due

    def _is_drawn(self, request: Request) -> bool:
        if not self._puts_if_absent:
            return self._random.randrange(self._one_in) == 0
        conditional = any(name.lower() == "if-none-match" for name in request.headers)
        if request.verb != "PUT" or not conditional or request.path in self._put:
            return False
        self._put.add(request.path)
        return True

    def _done(self, request: Request) -> Answer:
        """Do what a request asks for, and return the answer."""
        connection = http.client.HTTPConnection(self._to, timeout=60)
        try:
            headers = {name: value for name, value in request.headers.items() if name.lower() not in _OWN}
            headers["Content-Length"] = str(len(request.body))
            connection.request(request.verb, request.path, request.body, headers)
            answer = connection.getresponse()
            kept = [(name, value) for name, value in answer.getheaders() if name.lower() not in _OWN]
            length = answer.getheader("Content-Length")
            if request.verb == "HEAD" and length is not None:
                kept.append(("Content-Length", length))
            return Answer(answer.status, tuple(kept), answer.read())
        finally:
            connection.close()


def _body(handler: BaseHTTPRequestHandler) -> bytes:
    """Read what a request brings."""
    if "chunked" not in handler.headers.get("Transfer-Encoding", ""):
        return handler.rfile.read(int(handler.headers.get("Content-Length", 0)))
    parts = []
    while size := int(handler.rfile.readline().split(b";")[0], 16):
        parts.append(handler.rfile.read(size))
        handler.rfile.readline()
    while handler.rfile.readline().strip():
        continue
    return b"".join(parts)


def _give(handler: BaseHTTPRequestHandler, request: Request, answer: Answer) -> None:
    handler.send_response_only(answer.status)
    for name, value in answer.headers:
        handler.send_header(name, value)
    if request.verb != "HEAD":
        handler.send_header("Content-Length", str(len(answer.body)))
    handler.end_headers()
    if request.verb != "HEAD":
        handler.wfile.write(answer.body)
