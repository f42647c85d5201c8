"""The dashboard in a real browser: live while a run goes on, after it, in light and in dark, by keyboard.

The screenshots stay in the tests' output folder (pytest's --basetemp).
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.e2e.browser import Tab
from tests.pipeline.dashboards import NASTY, begun_run, hand_made_store
from tests.pipeline.small_data import small_dataset
from topline.pipeline.cluster import announce, open_cluster
from topline.pipeline.dashboard import serve_dashboard, write_page
from topline.pipeline.dashboard.dask_page import PATH
from topline.pipeline.options.train import ClusterConfig, TrainConfig
from topline.pipeline.training import train
from topline.storage.runs import create_run, finish_run, read_history
from topline.storage.served_schedule import ServedSchedule, note_schedule
from topline.storage.stores import Store, open_store

pytestmark = pytest.mark.browser

ABOUT_BLANK = "about:blank"
# Least contrast of text with what is behind it, as WCAG asks of AA.
READABLE = 4.5

CONTRAST = """
(() => {
  const light = (colour) => {
    const [r, g, b] = colour.match(/[0-9.]+/g).slice(0, 3).map(Number).map((value) => {
      const share = value / 255;
      return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const colour = getComputedStyle(at).backgroundColor;
      if (!/, 0\\)$/.test(colour)) return colour;
    }
    return "rgb(255, 255, 255)";
  };
  let least = Infinity;
  const texts = ".label, .figure, .badge, td, th, h1, h2, .sub, figcaption";
  for (const element of document.querySelectorAll(texts)) {
    const [a, b] = [light(getComputedStyle(element).color), light(behind(element))];
    least = Math.min(least, (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05));
  }
  return least;
})()
"""


def last_gap(store: Store, run: str) -> str:
    rounds = [record for record in read_history(store, run) if "round" in record]
    return f"{min(record['relative_gap'] for record in rounds):.2e}"


def assert_readable(tab: Tab) -> None:
    assert tab.ask("document.documentElement.scrollWidth") <= 1280
    assert tab.ask(CONTRAST) >= READABLE
    # A picture has a name, and a heading of every section is there for who jumps from one to the next.
    assert tab.ask("[...document.querySelectorAll('svg')].every((one) => one.getAttribute('aria-label'))")
    assert tab.ask(
        "[...document.querySelectorAll('main section[id]')].every((one) => one.querySelector('h2'))"
    )


def test_a_run_is_followed_while_it_lives(tab: Tab, tmp_path: Path) -> None:
    store = open_store(tmp_path / "store", create=True)
    story = begun_run(store, 30)
    with serve_dashboard(store, port=0) as url:
        tab.open(f"{url}runs/{story.run}")
        assert last_gap(store, story.run) in tab.text("[data-part=tiles]")
        assert tab.text("[data-part=verdict]") == "Running"
        assert tab.ask("document.querySelectorAll('svg').length") == 10
        tab.shoot(tmp_path / "run_light.png")
        assert_readable(tab)
        story.rounds(30, 45, names="a")
        story.event("rebalance", workers=[], reason="a worker joined")
        gap = last_gap(store, story.run)
        tab.until(f"document.querySelector('[data-part=tiles]').innerText.includes('{gap}')")
        tab.until("document.querySelector('[data-part=events]').innerText.includes('blocks moved')")
        assert tab.text("[data-part=events]").count(NASTY) == 1
        tab.open(f"{url}runs/{story.run}", dark=True)
        tab.shoot(tmp_path / "run_dark.png")
        assert_readable(tab)
        story.end()
        finish_run(store, story.run, {"status": "solved"})
        tab.until("document.querySelector('[data-part=verdict]').innerText === 'Solved'")
    # The server is gone, and the page says so instead of looking alive; it looks at once when it is shown.
    tab.ask("document.dispatchEvent(new Event('visibilitychange'))")
    tab.until("!document.getElementById('trouble').hidden")
    assert [text for text in tab.complaints if "ERR_CONNECTION" not in text] == []
    tab.complaints.clear()


def test_the_keyboard_reaches_everything(tab: Tab, tmp_path: Path) -> None:
    store = open_store(tmp_path / "store", create=True)
    story = begun_run(store)
    story.leave()
    with serve_dashboard(store, port=0) as url:
        tab.open(f"{url}runs/{story.run}")
        tab.press("Tab")
        assert tab.ask("document.activeElement.className") == "skip"
        tab.ask("document.getElementById('pause').focus()")
        tab.press("Enter")
        assert tab.ask("document.getElementById('pause').getAttribute('aria-pressed')") == "true"
        tab.ask("document.querySelector('summary').focus()")
        tab.press("Enter")
        assert "relative gap" in tab.text("[data-part=rounds]")
        tab.open(ABOUT_BLANK)


def test_models_and_their_champions(tab: Tab, tmp_path: Path) -> None:
    store = hand_made_store(tmp_path / "store")
    with serve_dashboard(store, port=0) as url:
        for scheme in ("light", "dark"):
            tab.open(url, dark=scheme == "dark")
            assert "m0002" in tab.text("[data-part=tiles]")
            assert "94.0%" in tab.text("[data-part=tiles]")
            tab.shoot(tmp_path / f"models_{scheme}.png")
            tab.shoot(tmp_path / f"models_{scheme}_whole.png", whole=True)
            assert_readable(tab)
        tab.follow("document.querySelector('[data-part=runs] a').click()")
        tab.until("document.title.startsWith('Run r0003')")
        tab.open(ABOUT_BLANK)
    assert tab.complaints == []


def test_a_schedule_that_nobody_serves_any_more(tab: Tab, tmp_path: Path) -> None:
    store = hand_made_store(tmp_path / "store")
    note_schedule(store, ServedSchedule("6h", "UTC", process="host:7").beating("2026-03-01T02:00:00+00:00"))
    with serve_dashboard(store, port=0) as url:
        for scheme in ("light", "dark"):
            tab.open(url, dark=scheme == "dark")
            assert "dead: no heartbeat for" in tab.text("main")
            tab.shoot(tmp_path / f"dead_schedule_{scheme}.png", whole=True)
            assert_readable(tab)
        tab.open(ABOUT_BLANK)
    assert tab.complaints == []


def test_a_real_run_is_the_same_afterwards_and_without_a_server(tab: Tab, tmp_path: Path) -> None:
    folder = tmp_path / "store"
    small_dataset(folder)
    done = train(TrainConfig(store=str(folder), k=2, tol=1e-2), ClusterConfig(workers=0))
    page = write_page(str(folder), done.run, tmp_path / "run.html")
    tab.open(Path(page).as_uri())
    assert last_gap(open_store(folder), done.run) in tab.text("[data-part=tiles]")
    assert tab.text("[data-part=verdict]") == "Solved"
    tab.shoot(tmp_path / "run_afterwards.png")
    assert_readable(tab)
    assert not tab.ask("document.scripts[0].text.includes('fetch(')")
    assert tab.complaints == []


@pytest.mark.cluster
def test_the_page_in_dasks_dashboard(tab: Tab, tmp_path: Path) -> None:
    store = open_store(tmp_path / "store", create=True)
    story = begun_run(store)
    with open_cluster(ClusterConfig(workers=1, dashboard=True), data_bytes=1) as client:
        assert client is not None
        announce(client, store.url, story.run)
        port = re.search(r":(\d+)/status", client.dashboard_link)
        assert port is not None
        tab.open(f"http://127.0.0.1:{port[1]}/{PATH}")
        assert last_gap(store, story.run) in tab.text("[data-part=tiles]")
        story.rounds(30, 40, names="a")
        gap = last_gap(store, story.run)
        tab.until(f"document.querySelector('[data-part=tiles]').innerText.includes('{gap}')")
        tab.shoot(tmp_path / "dask.png")
        assert tab.text("[data-part=events]").count(NASTY) == 1
        tab.open(ABOUT_BLANK)
    story.leave()
    assert tab.complaints == []


def test_a_page_before_the_first_round(tab: Tab, tmp_path: Path) -> None:
    store = open_store(tmp_path / "store", create=True)
    run = create_run(store, {"tol": 1e-3, "loss": NASTY})
    with serve_dashboard(store, port=0) as url:
        tab.open(f"{url}runs/{run}")
        assert "No round has finished yet" in tab.text("[data-part=charts]")
        tab.open(ABOUT_BLANK)
    assert tab.complaints == []
