"""The report in a real browser: it opens without a network, complains of nothing and fits the window."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.pipeline.report.test_document import hand_made_report
from topline.pipeline.report import render_report

pytestmark = pytest.mark.browser

NAMES = ("google-chrome", "chromium", "chromium-browser")
# Nothing but what the page itself asks for may happen, and no host can be reached.
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage",
    "--host-resolver-rules=MAP * ~NOTFOUND", "--enable-logging=stderr", "--window-size=1280,800",
)  # fmt: skip


@pytest.fixture(scope="module")
def browser() -> str:
    found = next((path for path in map(shutil.which, NAMES) if path), None)
    if found is None:
        pytest.skip("no Chromium is installed: apt-get install chromium")
    return found


def open_page(browser: str, page: str, folder: Path) -> tuple[str, list[str]]:
    """Open a page; the document as the browser sees it, and what it wrote on its console."""
    file = folder / "page.html"
    file.write_text(page, encoding="utf-8")
    done = subprocess.run(
        [browser, *FLAGS, f"--user-data-dir={folder / 'profile'}", "--dump-dom", file.as_uri()],
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
    )
    return done.stdout, re.findall(r".*CONSOLE.*", done.stderr)


def test_report_opens_without_a_network_and_without_a_complaint(browser: str, tmp_path: Path) -> None:
    seen, console = open_page(browser, render_report(hand_made_report()), tmp_path)
    assert "Certified" in seen
    assert seen.count("<svg") == 10
    assert console == []


def test_a_page_that_loads_something_would_be_noticed(browser: str, tmp_path: Path) -> None:
    loading = '<img src="https://example.org/x.png"><script>alert(1)</script></body>'
    page = render_report(hand_made_report()).replace("</body>", loading)
    _, console = open_page(browser, page, tmp_path)
    assert len(console) >= 2
    assert any("img-src" in line for line in console)


def test_report_fits_a_window_of_1280_pixels(browser: str, tmp_path: Path) -> None:
    # The measuring script is the test's own, so the policy of the page has to let it run.
    measure = "<script>document.title = 'width ' + document.documentElement.scrollWidth</script></body>"
    page = render_report(hand_made_report()).replace("default-src 'none';", "script-src 'unsafe-inline';")
    seen, _ = open_page(browser, page.replace("</body>", measure), tmp_path)
    width = re.search(r"<title>width (\d+)</title>", seen)
    assert width is not None
    assert int(width[1]) <= 1280
