"""A store that `topline serve` keeps fresh from photographs, and a webhook of this machine that is told."""

from __future__ import annotations

import html
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

OPTIONS = (
    "--workers", "0", "--backbone", "hog:size=24,cells=8", "--k", "2", "--tol", "1e-3",
    "--most-feature-drift", "10", "--prune", "--keep", "5", "--days", "0.003",
)  # fmt: skip
END_SECONDS = 120.0

PAGE = """<!DOCTYPE html><html lang="en"><title>A webhook</title><style>
body { font: 16px/1.5 sans-serif; margin: 2rem }
pre { background: #eee; padding: 1rem; white-space: pre-wrap }
</style><h1>What the webhook has received</h1>"""


@dataclass
class ServedStore:
    """A folder of photographs, a store that is served from it, and what the webhook was told."""

    folder: Path
    every: str = "20s"
    options: tuple[str, ...] = ()
    told: list[dict[str, str]] = field(default_factory=list, kw_only=True)

    def __post_init__(self) -> None:
        self.photos, self.store = self.folder / "photos", self.folder / "store"
        self.prefect, self.log = self.folder / "prefect", self.folder / "events.jsonl"

    @contextmanager
    def hook(self) -> Iterator[str]:
        """Receive what is told, and show it to who opens the address."""
        told = self.told

        class Hook(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                told.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                self.send_response(200)
                self.end_headers()

            def do_GET(self) -> None:
                shown = (html.escape(json.dumps(one, indent=2, ensure_ascii=False)) for one in told)
                self.send_response(200)
                self.send_header("Content-Type", "text/html; charset=utf-8")
                self.end_headers()
                self.wfile.write("".join([PAGE, *(f"<pre>{one}</pre>" for one in shown)]).encode())

            def log_message(self, *args: object) -> None:
                """Say nothing."""

        with ThreadingHTTPServer(("127.0.0.1", 0), Hook) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            yield f"http://127.0.0.1:{server.server_port}/hook"
            server.shutdown()

    @contextmanager
    def served(self, address: str) -> Iterator[subprocess.Popen[bytes]]:
        """Serve the schedule until the block ends."""
        environ = {**os.environ, "PREFECT_HOME": str(self.prefect), "HOME": str(self.folder)}
        environ.pop("PREFECT_API_URL", None)
        words = [sys.executable, "-m", "topline", "serve", "--every", self.every, "--json"]
        words += ["--notify", address, "--images", str(self.photos), "--store", str(self.store)]
        with self.log.open("wb") as out, (self.folder / "serve.err").open("wb") as errors:
            process = subprocess.Popen(
                [*words, *OPTIONS, *self.options],
                stdout=out,
                stderr=errors,
                env=environ,
                start_new_session=True,
            )
            try:
                self.wait_for("serving", 400.0)
                yield process
            finally:
                process.send_signal(signal.SIGINT)
                with suppress(subprocess.TimeoutExpired):
                    process.wait(END_SECONDS)
                process.kill()
                process.wait()

    def wait_for(self, event: str, seconds: float) -> dict[str, Any]:
        """Wait for the first line of this kind and return it."""
        deadline = time.monotonic() + seconds
        while not self.events(event):
            if time.monotonic() > deadline:
                raise SystemExit(f"no {event}: {(self.folder / 'serve.err').read_text()[-2000:]}")
            time.sleep(0.5)
        return self.events(event)[0]

    def events(self, kind: str = "") -> list[dict[str, Any]]:
        """Return the lines that `serve` wrote so far."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        found = [json.loads(line) for line in lines if line.endswith("}")]
        # The last line is the command's own result, which is no event.
        return [line for line in found if "event" in line and kind in ("", line["event"])]
