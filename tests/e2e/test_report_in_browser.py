"""The report in a real browser: it opens without a network, complains of nothing and fits the window."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.browser import Tab
from tests.pipeline.report.test_document import hand_made_report
from topline.pipeline.report import render_report

pytestmark = pytest.mark.browser


def test_report_opens_without_a_network_and_without_a_complaint(tab: Tab, tmp_path: Path) -> None:
    complaints = tab.open_page(render_report(hand_made_report()), tmp_path)
    assert "Certified" in tab.text("body")
    assert tab.ask("document.querySelectorAll('svg').length") == 11
    assert complaints == []


def test_a_page_that_loads_something_would_be_noticed(tab: Tab, tmp_path: Path) -> None:
    loading = '<img src="https://example.org/x.png"><script>alert(1)</script></body>'
    page = render_report(hand_made_report()).replace("</body>", loading)
    complaints = tab.open_page(page, tmp_path)
    assert len(complaints) >= 2
    assert any("img-src" in text for text in complaints)


def test_report_fits_a_window_of_1280_pixels(tab: Tab, tmp_path: Path) -> None:
    tab.open_page(render_report(hand_made_report()), tmp_path)
    assert tab.ask("document.documentElement.scrollWidth") <= 1280
