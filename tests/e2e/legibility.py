"""What a page must be for everybody: contrast, focus, words that stay whole, no scrolling sideways."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.e2e.browser import Tab

WIDTHS = (1280, 390)
# Least contrast of text with what is behind it, as WCAG asks of AA.
READABLE = 4.5

# Every text that is drawn, in HTML and in SVG, with its contrast against what is behind it.
CONTRASTS = """
(() => {
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = 1;
  const pen = canvas.getContext("2d", {willReadFrequently: true});
  const rgba = (colour) => {
    pen.clearRect(0, 0, 1, 1);
    pen.fillStyle = colour;
    pen.fillRect(0, 0, 1, 1);
    return [...pen.getImageData(0, 0, 1, 1).data].map((value) => value / 255);
  };
  const over = ([r, g, b, a], [R, G, B]) => [r * a + R * (1 - a), g * a + G * (1 - a), b * a + B * (1 - a)];
  const light = (colour) => {
    const [r, g, b] = colour.map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (element) => {
    const layers = [];
    for (let at = element; at; at = at.parentElement) layers.push(rgba(getComputedStyle(at).backgroundColor));
    return layers.reverse().reduce((below, layer) => over(layer, below), [1, 1, 1]);
  };
  const found = [], walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement, text = walker.currentNode.textContent.trim();
    if (!text || element.closest("script, title, style") || !element.checkVisibility()) continue;
    const svg = element.closest("svg"), style = getComputedStyle(element);
    let back = behind(svg ? svg.parentElement : element);
    const bar = element.closest(".reign")?.querySelector("rect");
    if (bar) {
      const [r, g, b] = rgba(getComputedStyle(bar).fill);
      back = over([r, g, b, Number(getComputedStyle(bar).fillOpacity)], back);
    }
    const [a, b] = [light(over(rgba(svg ? style.fill : style.color), back)), light(back)];
    found.push([(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), text.slice(0, 60)]);
  }
  return found.sort((x, y) => x[0] - y[0]).slice(0, 5);
})()
"""

# Cells whose words are broken into pieces: several lines of fewer than four letters each on average.  Heads
# of a matrix stand upright.
BROKEN_WORDS = """
[...document.querySelectorAll("td, th:not(.matrix thead th)")].map((cell) => {
  const tops = new Set(), words = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
  while (words.nextNode()) {
    const range = document.createRange();
    range.selectNodeContents(words.currentNode);
    for (const line of range.getClientRects()) tops.add(Math.round(line.top));
  }
  const lines = tops.size;
  return [cell.innerText.trim(), lines];
}).filter(([text, lines]) => lines > 2 && text.length / lines < 4)
"""

# Tiles by the row in which they stand.
TILE_ROWS = """
[...document.querySelectorAll(".tilegrid")].map((grid) => {
  const rows = {};
  for (const tile of grid.children) rows[tile.offsetTop] = (rows[tile.offsetTop] || 0) + 1;
  return Object.values(rows);
})
"""

FOCUS = """
(() => {
  const at = document.activeElement, style = getComputedStyle(at), box = at.getBoundingClientRect();
  if (at === document.body) return null;
  return {
    what: at.tagName.toLowerCase(), text: (at.innerText || at.getAttribute("aria-label") || "").slice(0, 60),
    name: (at.innerText || "").trim() || at.getAttribute("aria-label") || "",
    outline: style.outlineStyle === "none" ? 0 : parseFloat(style.outlineWidth),
    seen: box.bottom > 0 && box.top < innerHeight && box.width > 0,
  };
})()
"""

REACHABLE = """
[...document.querySelectorAll("a[href], button, summary, [tabindex='0']")]
  .filter((one) => one.checkVisibility()).length
"""


def assert_for_everybody(tab: Tab, url: str, folder: Path, name: str) -> None:
    """Open a page wide and narrow, light and dark; screenshots stay in `folder`."""
    for width in WIDTHS:
        for dark in (False, True):
            tab.open(url, dark=dark, width=width, height=844)
            scheme = "dark" if dark else "light"
            tab.shoot(folder / f"{name}_{width}_{scheme}.png", whole=True)
            where = f"{name} at {width} px, {scheme}"
            assert_readable(tab, width, where)
            broken = tab.ask(BROKEN_WORDS)
            assert broken == [], (where, broken)
            _assert_no_lone_tile(tab.ask(TILE_ROWS), where)
    assert tab.ask("[...document.images].every((one) => one.alt)")
    # Every table is offered as CSV; those of cards, in one file of all.
    assert tab.ask("document.querySelector('main table:not(.box:has(.csv) table, .card table)')") is None


def assert_readable(tab: Tab, width: int = WIDTHS[0], where: str = "") -> None:
    """Text that stands out and fits, a name for every picture, and a heading for every section."""
    assert tab.ask("document.documentElement.scrollWidth") <= width, where
    worst = tab.ask(CONTRASTS)
    assert worst, where
    assert worst[0][0] >= READABLE, (where, worst)
    assert tab.ask("[...document.querySelectorAll('svg')].every((one) => one.getAttribute('aria-label'))"), (
        where
    )
    headed = "[...document.querySelectorAll('main section[id]')].every((one) => one.querySelector('h2'))"
    assert tab.ask(headed), where


def _assert_no_lone_tile(grids: list[list[int]], where: str) -> None:
    for rows in grids:
        # On a phone the first of an odd number of tiles takes the whole of its row.
        assert len(rows) == 1 or rows[-1] > 1, (where, rows)


def walk_by_keyboard(tab: Tab) -> list[dict[str, Any]]:
    """Press Tab through the page and return what had the focus; each must be seen, and seen to have it."""
    tab.ask("document.activeElement.blur(); window.scrollTo(0, 0)")
    reachable, seen = tab.ask(REACHABLE), []
    for _ in range(reachable):
        tab.press("Tab")
        at = tab.ask(FOCUS)
        assert at is not None, (len(seen), reachable, seen[-1:])
        assert at["outline"] >= 2, at
        assert at["seen"], at
        assert at["name"], at
        seen.append(at)
    return seen


def downloaded(tab: Tab, selector: str, folder: Path) -> str:
    """Click a link that downloads, and return what came."""
    folder.mkdir()
    tab.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(folder))
    name = tab.ask(f"document.querySelector({json.dumps(selector)}).download")
    tab.ask(f"document.querySelector({json.dumps(selector)}).click()")
    file = folder / name
    for _ in range(400):
        if file.exists():
            return file.read_text(encoding="utf-8")
        tab.ask("new Promise((done) => setTimeout(done, 50))")
    raise AssertionError(f"{name} never came")
