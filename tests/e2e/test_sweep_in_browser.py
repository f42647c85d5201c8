"""The page of a sweep in a real browser: it opens without a network and complains of nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.e2e.browser import Tab
from topline.pipeline.sweep import SweepCell, SweepResult
from topline.pipeline.sweep.result import render

pytestmark = pytest.mark.browser


def made_by_hand() -> SweepResult:
    """Two losses and three C, one cell of them out."""
    cell = SweepCell(
        loss="topk_hinge", k=5, smoothing=0.0, C=1.0, mean=0.9, error=0.01, low=0.5, high=0.99,
        relative_gap=1e-3, passes=70, seconds=1.5, rounds=2, state="finished", why="settled",
    )  # fmt: skip
    out = replace(cell, C=10.0, mean=0.8, state="pruned", why="race: behind the best")
    smooth = replace(cell, loss="softmax", k=None, C=0.1, mean=0.85)
    return SweepResult(
        "s0001", "/a <store>", "d0001", 900, 12, 26, 5, 5, "top-5", "race", 1e-3,
        (replace(cell, C=0.1, mean=0.7), cell, out, smooth), cell, cell, True, 280, 6.0, 3.0,
    )  # fmt: skip


def test_the_page_of_a_sweep_opens_without_a_complaint(tab: Tab, tmp_path: Path) -> None:
    complaints = tab.open_page(render(made_by_hand()), tmp_path)
    assert tab.ask("document.querySelectorAll('svg').length") == 2
    assert "edge of the grid" in tab.text("body")
    assert "/a <store>" in tab.text("body")
    assert complaints == []
