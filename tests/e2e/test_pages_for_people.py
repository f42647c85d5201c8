"""Pages in a browser: on a phone, in the dark, by keyboard, without network, live while a run goes on."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tests.e2e.browser import Tab
from tests.e2e.legibility import assert_for_everybody, assert_readable, downloaded, walk_by_keyboard
from tests.pipeline.dashboards import NASTY, begun_run, decided, finished_run, hand_made_store, published
from tests.pipeline.pictures import write_classes
from tests.pipeline.report.test_document import hand_made_report
from tests.pipeline.small_data import small_dataset
from topline.pipeline.cluster import announce, open_cluster
from topline.pipeline.dashboard import pages, serve_dashboard
from topline.pipeline.dashboard.dask_page import PATH
from topline.pipeline.ingest import Edits, extract
from topline.pipeline.inspection import inspect_model, suggest_rows
from topline.pipeline.options import (
    ClusterConfig,
    ExtractConfig,
    InspectConfig,
    PredictConfig,
    SuggestConfig,
    TrainConfig,
)
from topline.pipeline.prediction.files import table_schema, write_page
from topline.pipeline.report import render_report
from topline.pipeline.sweep import SweepCell, SweepResult
from topline.pipeline.sweep.result import render
from topline.pipeline.training import train
from topline.storage.runs import create_run, finish_run, read_history
from topline.storage.served_schedule import ServedSchedule, note_schedule
from topline.storage.stores import Store, open_store

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def fifty(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Fifty models, of which every seventh became champion."""
    store = hand_made_store(tmp_path_factory.mktemp("fifty") / "store")
    draws, parent = np.random.default_rng(0), "m0004"
    for number in range(46):
        run = finished_run(store, f"models/m{number + 5:04d}") if number % 6 == 0 else None
        parent = published(store, 0.88 + 0.004 * float(draws.normal()), run, parents=(parent,))
        when = f"2026-11-{1 + number // 2:02d}T02:00:05+00:00"
        why = "top-3 +0.4% on 2,000 rows that neither was trained on, interval +0.1% to +0.7%; certified"
        decided(store, "keep" if number % 7 else "promote", parent, why, when)
    return store


def report_at(folder: Path) -> str:
    file = folder / "report.html"
    file.write_text(render_report(hand_made_report()), encoding="utf-8")
    return file.as_uri()


def test_the_report(tab: Tab, tmp_path: Path) -> None:
    assert_for_everybody(tab, report_at(tmp_path), tmp_path, "report")
    tab.ask("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    assert tab.ask("document.documentElement.scrollWidth") <= 390
    assert tab.complaints == []


def test_the_report_by_keyboard(tab: Tab, tmp_path: Path) -> None:
    tab.open(report_at(tmp_path))
    seen = walk_by_keyboard(tab)
    assert seen[0]["text"] == "Skip to the content"
    assert {"alike together", "top-1", "The certificate in numbers"} <= {at["text"].strip() for at in seen}
    tab.open(report_at(tmp_path))
    tab.press("Tab")
    tab.press("Enter")
    assert tab.ask("document.activeElement.id") == "content"
    # A head sorts the rows below it, and once more the other way round.
    classes = (
        "[...document.querySelectorAll('[data-table=classes] tbody tr')].map((row) => row.cells[0].innerText)"
    )
    tab.ask("document.querySelector('[data-table=classes] th button').focus()")
    tab.press("Enter")
    first = tab.ask(classes)
    tab.press("Enter")
    assert tab.ask(classes) == first[::-1]
    assert tab.ask("document.querySelector('[data-table=classes] th').ariaSort") == "descending"


def test_the_confusion_matrix_is_sorted(tab: Tab, tmp_path: Path) -> None:
    tab.open(report_at(tmp_path))
    rows = "[...document.querySelectorAll('.matrix tbody tr')]"
    cells = f"{rows}.map((row) => [...row.cells].map((one) => one.innerText))"
    before = tab.ask(cells)
    tab.ask("[...document.querySelectorAll('.orders button')][2].focus()")
    assert tab.ask("document.activeElement.innerText") == "worst first"
    tab.press("Enter")
    after = tab.ask(cells)
    assert [row[0] for row in before] != [row[0] for row in after]
    names = [row[0] for row in after]
    # Rows and columns move together: the counts of each pair of classes are what they were.
    counts = {(a[0], b[0]): a[1 + j] for a in before for j, b in enumerate(before)}
    assert {(a[0], names[j]): a[1 + j] for a in after for j in range(len(names))} == counts
    assert names[0] == "calculator"


@pytest.mark.parametrize(("m", "fits"), [(15, True), (40, False)])
def test_a_confusion_matrix_on_a_phone(tab: Tab, tmp_path: Path, m: int, fits: bool) -> None:
    data = hand_made_report()
    counts = (30 * np.eye(m, dtype=int) + np.eye(m, k=1, dtype=int)).tolist()
    names = tuple(f"class with a name {j}" for j in range(m))
    evaluation = {**(data.record.evaluation or {}), "confusion": counts}
    page = tmp_path / "report.html"
    record = replace(data.record, class_names=names, evaluation=evaluation)
    page.write_text(render_report(replace(data, record=record)), encoding="utf-8")
    tab.open(page.as_uri(), width=390)
    assert tab.ask("document.documentElement.scrollWidth") <= 390
    box = "document.querySelector('.matrix').closest('.scroll')"
    assert tab.ask(f"{box}.scrollWidth <= {box}.clientWidth") == fits
    tab.ask(f"{box}.scrollTo(300, 300)")
    # What a cell is of stays in sight: names to the left.
    cell = "document.querySelector('.matrix CELL')"
    place = f"{cell}.getBoundingClientRect().SIDE - {box}.getBoundingClientRect().SIDE"
    left = tab.ask(place.replace("SIDE", "left").replace("CELL", "tbody tr:last-child th"))
    assert 0 <= left < 2
    tab.shoot(tmp_path / "matrix.png")


def test_tables_are_downloaded(tab: Tab, tmp_path: Path, fifty: Store) -> None:
    tab.open(report_at(tmp_path))
    text = downloaded(tab, "a[download='classes.csv']", tmp_path / "report")
    assert text.splitlines()[0] == "class,rows,top-1,top-2,top-3,top-5,top-10,top-1 at least,top-1 at most"
    assert NASTY.replace('"', '""') in text
    page = (tmp_path / "report.html").read_bytes()
    fifty.write_bytes("reports/m0050.html", page)
    with serve_dashboard(fifty, port=0) as url:
        # A served report is in a sandbox, and still sorts and downloads.
        tab.open(f"{url}models/m0050/report")
        assert tab.ask("document.querySelectorAll('th button').length") > 0
        assert downloaded(tab, "a[download='classes.csv']", tmp_path / "served") == text
        assert tab.ask("fetch('../../api/parts').then(() => 'came', () => 'refused')") == "refused"
        tab.open(url)
        assert len(downloaded(tab, "a[download='models.csv']", tmp_path / "models").splitlines()) == 51
    tab.open("about:blank")
    tab.complaints.clear()


def test_without_a_script_all_is_there(tab: Tab, tmp_path: Path) -> None:
    tab.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        tab.open(report_at(tmp_path))
        assert tab.ask("document.querySelectorAll('button').length") == 0
        said = tab.text("body")
        for expected in ("Certified", "Most confident mistakes", "Would more images help?", "rank 2"):
            assert expected in said
        assert tab.ask("document.querySelectorAll('.matrix tbody tr').length") == 4
    finally:
        tab.call("Emulation.setScriptExecutionDisabled", value=False)


def test_fifty_models(tab: Tab, tmp_path: Path, fifty: Store) -> None:
    with serve_dashboard(fifty, port=0) as url:
        pages = {
            "overview": url, "model": f"{url}models/m0048", "models": f"{url}models/m0048/compare/m0047",
            "runs": f"{url}runs/r0001/compare/r0002", "run": f"{url}runs/r0001",
        }  # fmt: skip
        for name, page in pages.items():
            assert_for_everybody(tab, page, tmp_path, name)
        # What was recorded of both stands beside its name on a phone, without scrolling sideways.
        tab.open(pages["models"], width=390)
        last = "document.querySelector('[data-table=recorded] th:last-child').getBoundingClientRect().right"
        assert tab.ask(last) <= 390
        tab.open(url)
        walk_by_keyboard(tab)
        tab.follow("document.querySelector('[data-part=models] a[href]').click()")
        tab.until("document.title.startsWith('Model m0050')")
        tab.follow("document.querySelector('#others a[href*=compare]').click()")
        tab.until("document.title.startsWith('m0050 and m0049')")
        tab.open("about:blank")
    assert tab.complaints == []


def test_a_sorted_table_stays_sorted_while_its_page_lives(tab: Tab, fifty: Store) -> None:
    with serve_dashboard(fifty, port=0) as url:
        tab.open(url)
        first = "document.querySelector('[data-table=models] tbody tr').cells[0].innerText"
        tab.ask("document.querySelector('[data-table=models] th button').click()")
        assert tab.ask(first) == "m0001"
        tab.ask("document.querySelector('[data-table=models] th button').focus()")
        published(fifty, 0.9)
        tab.ask("document.dispatchEvent(new Event('visibilitychange'))")
        rows = "document.querySelectorAll('[data-table=models] tbody tr').length"
        tab.until(f"document.dispatchEvent(new Event('visibilitychange')) && {rows} > 50")
        assert tab.ask(first) == "m0001"
        assert tab.ask("document.activeElement.innerText") == "model"
        tab.open("about:blank")
    tab.complaints.clear()


def test_predictions(tab: Tab, tmp_path: Path) -> None:
    schema = table_schema("path", sets=True)
    rows = {
        "path": ["mug/1.png", f"{NASTY}.png"], "label": ["mug", None], "split": ["test", None],
        "classes": [["mug", NASTY], ["calculator", "mug"]], "scores": [[1.0, 0.2], [0.4, 0.3]],
        "probabilities": [[0.9, 0.1], [0.6, 0.4]], "set": [["mug"], []], "set_size": [1, 0],
        "prediction": ["mug", "calculator"], "probability": [0.9, 0.6], "error": [None, None],
    }  # fmt: skip
    table = pa.table(rows, schema=schema)
    page = tmp_path / "predictions.html"
    config = PredictConfig(images="photos", coverage=0.95)
    grey = np.full((60, 80, 3), 120, np.uint8)
    write_page(page, config, "m0001", "images of photos", [table], lambda *_: grey)
    assert_for_everybody(tab, page.as_uri(), tmp_path, "predictions")
    assert downloaded(tab, "a[download='predictions.csv']", tmp_path / "csv").count("calculator | mug") == 1
    assert tab.complaints == []


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """A model of drawings, of which one lies among those of another class, and the folder of all."""
    folder = tmp_path_factory.mktemp("drawn")
    images = write_classes(folder / "images", 3, 10, names=["flat", "steep", "steeper-than-the-others"])
    (images / "flat" / "009.png").replace(images / "steep" / "wrong.png")
    here, store = ClusterConfig(workers=0), str(folder / "store")
    extract(ExtractConfig(images=str(images), store=store, backbone="hog:size=32"), here)
    return train(TrainConfig(store=store, loss="max_hinge"), here).model, images


def test_labels_that_look_wrong(tab: Tab, tmp_path: Path, drawn: tuple[str, Path]) -> None:
    page = tmp_path / "suspects.html"
    found = inspect_model(drawn[0], InspectConfig(page=page, max_passes=0))
    assert found.suspects[0].sample_id == "steep/wrong.png"
    assert_for_everybody(tab, page.as_uri(), tmp_path, "suspects")
    tab.open(page.as_uri())
    seen = {at["text"].strip() for at in walk_by_keyboard(tab)}
    assert seen >= {"Skip to the content", "class", "A It is flat", "X Leave out", "Download corrections"}
    assert tab.text(".card").startswith("steep/wrong.png")
    assert tab.ask("document.querySelectorAll('.card > img').length") == found.disputed
    text = downloaded(tab, "a[download='labels-in-dispute.csv']", tmp_path / "csv")
    assert text.splitlines()[1].startswith("steep/wrong.png,steep,flat,")
    assert tab.complaints == []


def test_labels_are_corrected_by_keyboard_and_kept_by_the_browser(
    tab: Tab, tmp_path: Path, drawn: tuple[str, Path]
) -> None:
    page = tmp_path / "suspects.html"
    inspect_model(drawn[0], InspectConfig(page=page, max_passes=0))
    tab.open(page.as_uri())
    decided = "document.querySelector('.card[data-id=\"steep/wrong.png\"]').dataset.decided"
    for key, words in (("a", "now flat"), ("u", ""), ("x", "left out"), ("u", ""), ("k", "kept"), ("u", "")):
        tab.press(key)
        assert tab.ask(decided) == words
        tab.ask("document.querySelector('.card[data-id=\"steep/wrong.png\"]').click()")
    tab.press("c")
    assert tab.ask("document.activeElement.id") == "choice"
    tab.call("Input.insertText", text="no such class")
    tab.press("Enter")
    assert "There is no class no such class" in tab.text("#desk [role=status]")
    tab.ask("document.activeElement.value = ''")
    tab.call("Input.insertText", text="steeper-than-the-others")
    tab.press("Enter")
    tab.open(page.as_uri())
    assert tab.ask(decided) == "now steeper-than-the-others"
    text = downloaded(tab, "a[download='corrections.csv']", tmp_path / "csv")
    file = tmp_path / "corrections.csv"
    file.write_text(text, encoding="utf-8")
    edits = Edits.read(None, file)
    assert edits.labels == {"steep/wrong.png": "steeper-than-the-others"}
    tab.press("u")
    tab.ask("document.querySelector('.card[data-id=\"steep/wrong.png\"]').click()")
    tab.press("x")
    file.write_text(downloaded(tab, "a[download='corrections.csv']", tmp_path / "more"), encoding="utf-8")
    assert Edits.read(None, file).without == {"steep/wrong.png"}
    assert tab.complaints == []


def test_rows_to_label_are_labelled_on_their_page(tab: Tab, tmp_path: Path, drawn: tuple[str, Path]) -> None:
    new = write_classes(tmp_path / "new", 3, 4)
    page = tmp_path / "label.html"
    found = suggest_rows(drawn[0], SuggestConfig(images=str(new), page=page), 5)
    assert_for_everybody(tab, page.as_uri(), tmp_path, "label")
    tab.open(page.as_uri())
    assert tab.ask("document.querySelectorAll('.card > img').length") == 5
    tab.press("a")
    text = downloaded(tab, "a[download='labels.csv']", tmp_path / "csv")
    first = found.suggested[0]
    assert text.splitlines() == ["path,label", f'"{first.name}","{first.prediction}"']
    assert tab.complaints == []


def test_a_sweep(tab: Tab, tmp_path: Path) -> None:
    page = tmp_path / "sweep.html"
    page.write_text(render(made_by_hand()), encoding="utf-8")
    assert_for_everybody(tab, page.as_uri(), tmp_path, "sweep")
    assert "edge of the grid" in tab.text("body")
    assert "/a <store>" in tab.text("body")
    assert tab.complaints == []


ABOUT_BLANK = "about:blank"


def last_gap(store: Store, run: str) -> str:
    rounds = [record for record in read_history(store, run) if "round" in record]
    return f"{min(record['relative_gap'] for record in rounds):.2e}"


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
    page = pages.write_page(str(folder), done.run, tmp_path / "run.html")
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
        announce(client, store.url, story.run)
        port = re.search(r":(\d+)/status", client.dashboard_link)
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


def test_a_page_that_loads_something_would_be_noticed(tab: Tab, tmp_path: Path) -> None:
    loading = '<img src="https://example.org/x.png"><script>alert(1)</script></body>'
    page = render_report(hand_made_report()).replace("</body>", loading)
    complaints = tab.open_page(page, tmp_path)
    assert len(complaints) >= 2
    assert any("img-src" in text for text in complaints)


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
