"""Headless Chromium, driven over its DevTools socket: pages as a person sees them, in light and in dark."""

from __future__ import annotations

import base64
import itertools
import json
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from websockets.sync.client import connect

from tests.processes import until

NAMES = ("google-chrome", "chromium", "chromium-browser")
# Nothing but what the page itself asks for may happen, and no other host can be reached.
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage",
    "--disable-extensions", "--hide-scrollbars", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
    "--remote-debugging-port=0",
)  # fmt: skip

WAIT = 240.0


def find_browser() -> str | None:
    return next((path for path in map(shutil.which, NAMES) if path), None)


class Navigated(Exception):
    """The page left while it was asked: another one is on its way."""


class Tab:
    """One page: what it shows, and what it complained of."""

    def __init__(self, socket: Any) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self.complaints: list[str] = []
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        number = next(self._numbers)
        self._socket.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while True:
            said = json.loads(self._socket.recv(timeout=WAIT))
            if said.get("id") == number:
                if "navigated" in said.get("error", {}).get("message", ""):
                    raise Navigated(said["error"])
                assert "error" not in said, said["error"]
                return said["result"]
            self._note(said)

    def open(self, url: str, *, dark: bool = False, width: int = 1280, height: int = 800) -> None:
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        self.call("Page.navigate", url=url)
        self.until("document.readyState === 'complete'")

    def open_page(self, page: str, folder: Path) -> list[str]:
        """Open a page that is written into `folder`; returns what the browser complains of."""
        file = folder / "page.html"
        file.write_text(page, encoding="utf-8")
        self.complaints.clear()
        self.open(file.as_uri())
        return self.complaints

    def ask(self, script: str) -> Any:
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def follow(self, script: str) -> None:
        """Run a script that leaves the page; it may be gone before it answers."""
        with suppress(Navigated):
            self.ask(script)

    def until(self, script: str) -> None:
        """Ask until it is so; a page that leaves in the middle of a question is asked again."""
        until(lambda: self._holds(script), script, WAIT, pause=0.05)

    def _holds(self, script: str) -> bool:
        try:
            return bool(self.ask(script))
        except Navigated:
            return False

    def text(self, selector: str) -> str:
        return str(self.ask(f"document.querySelector({json.dumps(selector)}).innerText"))

    def press(self, key: str) -> None:
        code, text = {"Tab": (9, ""), "Enter": (13, "\r")}.get(key, (ord(key[0].upper()), key))
        for kind in ("keyDown", "keyUp"):
            self.call(
                "Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code,
                **({"text": text} if text and kind == "keyDown" else {}),
            )  # fmt: skip

    def shoot(self, path: Path, *, whole: bool = False) -> None:
        taken = self.call("Page.captureScreenshot", captureBeyondViewport=whole, **self._clip(whole))
        path.write_bytes(base64.b64decode(taken["data"]))

    def _clip(self, whole: bool) -> dict[str, Any]:
        if not whole:
            return {}
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        return {"clip": {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}}

    def _note(self, said: dict[str, Any]) -> None:
        method, facts = said.get("method"), said.get("params", {})
        if method == "Runtime.consoleAPICalled":
            self.complaints.append(" ".join(str(each.get("value")) for each in facts["args"]))
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(str(facts["exceptionDetails"]))
        elif method == "Log.entryAdded":
            self.complaints.append(facts["entry"]["text"])


@contextmanager
def browsing(binary: str, folder: Path) -> Iterator[Tab]:
    """Start a browser with its own profile in `folder` and give its one tab."""
    profile = folder / "profile"
    process = subprocess.Popen(
        [binary, *FLAGS, f"--user-data-dir={profile}", "about:blank"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        with connect(_tab_address(profile), max_size=None, open_timeout=WAIT) as socket:
            yield Tab(socket)
    finally:
        process.kill()
        process.wait(WAIT)


def _tab_address(profile: Path) -> str:
    file = profile / "DevToolsActivePort"
    until(lambda: file.exists() and file.stat().st_size, "the browser's port", WAIT)
    port = file.read_text().splitlines()[0]

    def pages() -> list[str]:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/json/list", timeout=WAIT) as answer:
            return [each["webSocketDebuggerUrl"] for each in json.load(answer) if each["type"] == "page"]

    return until(pages, "a page of the browser", WAIT)[0]
