"""The dashboard: what its pages say of histories made by hand, and what its server refuses."""

from __future__ import annotations

import asyncio
import http.client
import json
import math
import re
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from email.message import Message
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest
from httpx import ASGITransport, AsyncClient, Response

from tests.pipeline.dashboards import NASTY, begun_run, hand_made_store, record_of, view_of
from topline.pipeline.cli import main
from topline.pipeline.dashboard import overview, serve_dashboard, server, store_follower, write_page
from topline.pipeline.dashboard.overview import is_silent, numbers, tiles, verdict
from topline.pipeline.dashboard.pages import busy_shares, run_parts
from topline.pipeline.dashboard.server import application
from topline.pipeline.dashboard.store_follower import StoreFollower
from topline.pipeline.errors import ConfigError
from topline.pipeline.jobs import LEASE
from topline.pipeline.telemetry import WorkerTimeline, view_run
from topline.storage.errors import NotFoundError
from topline.storage.runs import create_run, finish_run, read_history
from topline.storage.runs.history import history_path
from topline.storage.served_schedule import ServedSchedule, note_schedule
from topline.storage.stores import Store, held_lease, open_store
from topline.storage.verification import verify_store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(tmp_path / "store", create=True)


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return hand_made_store(tmp_path_factory.mktemp("dashboard") / "store")


def answer(store: Store, path: str, at: float | None = None) -> Response:
    """Return what the dashboard answers, at a time in seconds since 1970 (default: now)."""

    async def get() -> Response:
        transport = ASGITransport(application(store, now=time.time if at is None else lambda: at))
        async with AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.get(path)

    return asyncio.run(get())


def shown(parts: object) -> str:
    return re.sub(r"<[^>]*>", " ", str(parts))


def test_a_run_is_told_from_its_beginning_to_its_end(store: Store) -> None:
    run = create_run(store, {"tol": 1e-3})
    assert verdict(view_run(store, run), 0.0) == ("", "Not begun")
    assert "No round has finished yet" in run_parts(view_run(store, run), 0.0)["charts"]
    story = begun_run(store, 40)
    view = view_run(store, story.run)
    told = {tile.label: tile for tile in tiles(view)}
    last = [record for record in read_history(store, story.run) if "round" in record][-1]
    assert told["relative gap"].figure == f"{last['relative_gap']:.2e}"
    assert told["rounds"].figure == "40"
    # The gap falls by a tenth a round of 0.1 s, and has log(gap / tol) / log(1 / 0.9) rounds to go.
    expected = 0.1 * math.log(last["relative_gap"] / 1e-3) / -math.log(0.9)
    assert numbers(view, 0.0)["left"]["seconds"] == pytest.approx(expected, rel=0.15)
    assert verdict(view, story.at + 1.0) == ("", "Running")
    assert verdict(view, story.at + 3600.0) == ("bad", "Silent")
    story.end("no room is left")
    assert verdict(view_run(store, story.run), story.at) == ("fair", "Stopped")
    finish_run(store, story.run, {"status": "solved"})
    assert verdict(view_run(store, story.run), story.at + 1e6) == ("good", "Solved")


def test_long_rounds_are_no_silence() -> None:
    slow = view_of({**record_of(number).to_dict(), "at": 600.0 * number} for number in range(5))
    assert not is_silent(slow, 4 * 600.0 + 1800.0)
    assert is_silent(slow, 4 * 600.0 + 100_000.0)


def test_numbers_are_those_of_the_history(store: Store) -> None:
    story = begun_run(store)
    story.leave()
    found = json.loads(json.dumps(numbers(view_run(store, story.run), story.at), allow_nan=False))
    last = [record for record in read_history(store, story.run) if "round" in record][-1]
    assert {name: found["last"][name] for name in ("primal", "dual", "relative_gap", "step", "active")} == {
        name: last[name] for name in ("primal", "dual", "relative_gap", "step", "active")
    }
    assert [(worker["name"], worker["here"]) for worker in found["workers"]] == [
        ("tcp://a", True), ("tcp://b", False),
    ]  # fmt: skip
    assert [event["kind"] for event in found["events"]] == ["begin", "loss", "worker-lost", "checkpoint"]


def test_busy_seconds_are_spread_over_time() -> None:
    timeline = WorkerTimeline("a", 1, 1, True, 3.0, np.asarray([102.0, 104.0]), np.asarray([2.0, 1.0]))
    np.testing.assert_allclose(
        busy_shares(timeline, 100.0, np.asarray([0.0, 1.0, 2.0, 3.0, 4.0, 5.0])), [1, 1, 0.5, 0.5, np.nan]
    )


def test_what_users_wrote_is_escaped(full: Store) -> None:
    follower = StoreFollower(full)
    for path in ("/", "/runs/r0001"):
        page = answer(full, path).text
        assert NASTY not in page
        assert "&lt;script&gt;alert" in page
        assert not re.search(r"\son\w+=|\sstyle=|(src|href)=\"(?!#|data:|\.\./|runs/|models/)", page)
    assert follower.run("r0001")[0].id == "r0001"


def test_the_page_of_models_tells_champions_and_decisions(full: Store) -> None:
    seen = StoreFollower(full).overview(time.time())
    told = {tile.label: tile.figure for tile in seen.tiles}
    assert told["champion"] == "m0002"
    assert told["top-3 accuracy"] == "94.0%"
    assert told["certified gap"] == "8.50e-04"
    assert told["last run"] == "Solved"
    assert [reign.model for reign in seen.reigns] == ["m0001", "m0002", "m0004", "m0002"]
    assert [(line["id"], line["stage"], line["reigned"]) for line in seen.models] == [
        ("m0004", "archived", True), ("m0003", "candidate", False),
        ("m0002", "champion", True), ("m0001", "archived", True),
    ]  # fmt: skip
    parts = json.loads(answer(full, "/api/parts").content)["parts"]
    assert parts["versions"].count('class="ring"') == 3 * len(seen.metrics)
    assert "top-3 fell by 8.0%" in shown(parts["decisions"])
    assert 'href="runs/r0003"' in parts["runs"]


def test_tables_say_where_they_leave_out_and_the_champion_is_always_there(
    full: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overview, "MODELS_SHOWN", 1)
    monkeypatch.setattr(overview, "DECISIONS_SHOWN", 3)
    monkeypatch.setattr(store_follower, "RUNS_SHOWN", 2)
    seen = StoreFollower(full).overview(time.time())
    assert [line["id"] for line in seen.models] == ["m0004", "m0002"]
    parts = json.loads(answer(full, "/api/parts").content)["parts"]
    assert "2 of 4, the newest and the champion; topline models list shows all." in parts["models"]
    assert "2 of 3, the newest; the page of a model leads to its run." in parts["runs"]
    assert "3 of 5, the newest; the page of a model has its own." in parts["decisions"]
    assert "\ntopline_champion_certified 1.0\n" in answer(full, "/metrics").text


def test_the_schedule_and_what_came_of_it(tmp_path: Path) -> None:
    store = hand_made_store(tmp_path / "store")
    moment = datetime(2026, 3, 27, 12, tzinfo=UTC)
    note_schedule(store, ServedSchedule("0 2 * * *", "Europe/Berlin").beating(moment.isoformat()))
    with held_lease(store, LEASE, "a flow"):
        now = moment.timestamp()
        told = {tile.label: tile for tile in StoreFollower(store).overview(now).tiles}
    assert told["schedule"].figure == "0 2 * * *"
    assert told["schedule"].note.startswith("next 2026-03-28 02:00, Europe/Berlin")
    assert (told["last challenger"].figure, told["last challenger"].note[:5]) == ("promoted", "m0004")
    assert told["retraining"].note.startswith("by a flow")
    assert "retraining" not in {tile.label for tile in StoreFollower(store).overview(time.time()).tiles}
    assert all("schedule.json" not in finding.path for finding in verify_store(store))


def test_a_store_with_nothing_in_it_is_shown(store: Store) -> None:
    page = answer(store, "/")
    assert page.status_code == 200
    assert b"The store holds no model yet" in page.content


def test_a_damaged_run_is_named_and_the_others_are_shown(tmp_path: Path) -> None:
    store = hand_made_store(tmp_path / "store")
    lines = store.read_bytes(history_path("r0002")).splitlines(keepends=True)
    store.write_bytes(history_path("r0002"), b"".join([lines[0], b"no JSON\n", *lines[1:]]))
    outcome = store.read_bytes("runs/r0001/outcome.json")
    store.write_bytes("runs/r0001/outcome.json", outcome.replace(b"solved", b"Solved"))
    words = {line.id: line.words for line in StoreFollower(store).overview(time.time()).runs}
    # Of a run that has ended the page of all runs reads the outcome, and the run's own page the history.
    assert words == {"r0003": "Solved", "r0002": "Solved", "r0001": "Damaged"}
    page = answer(store, "/runs/r0002")
    assert (page.status_code, b"line 2 of" in page.content) == (503, True)


def test_a_long_run_stays_light(store: Store) -> None:
    run = create_run(store, {"tol": 1e-9})
    rounds = 40_000
    line = json.dumps({**record_of(0).to_dict(), "activity": None, "round": "%d", "relative_gap": "%r"})
    form = line.replace('"%d"', "%d").replace('"%r"', "%r")
    lines = [form % (number, 1.0 / (1 + number)) for number in range(rounds)]
    store.write_bytes(history_path(run), "\n".join([*lines, ""]).encode())
    page, news = answer(store, f"/runs/{run}"), answer(store, f"/api/runs/{run}")
    assert len(page.content) < 1_000_000
    assert len(news.content) < 20_000
    assert json.loads(news.content)["rounds"] == rounds
    assert f"{1 / rounds:.2e}" in page.text


class Client:
    """Says exactly what it is told, and follows nothing."""

    def __init__(self, url: str) -> None:
        self.address = urlsplit(url).netloc

    def ask(self, path: str, method: str = "GET", **headers: str) -> tuple[int, Message, bytes]:
        connection = http.client.HTTPConnection(self.address, timeout=30)
        connection.putrequest(method, path, skip_host="Host" in headers)
        for name, value in headers.items():
            connection.putheader(name.replace("_", "-"), value)
        connection.endheaders()
        said = connection.getresponse()
        found = said.status, said.headers, said.read()
        connection.close()
        return found


@pytest.fixture(scope="module")
def client(full: Store) -> Iterator[Client]:
    with serve_dashboard(full, port=0) as url:
        yield Client(url)


@pytest.mark.parametrize(
    "path",
    [
        "/runs/r9999", "/api/runs/r9999", "/api/runs/r9999/parts", "/runs/../models/m0001/model.json",
        "/runs/r0001/history.jsonl", "/runs/r0001/..", "/runs/%2e%2e", "//etc/passwd", "/../../etc/passwd",
        "/runs/r0001%00", "/runs/", "/models/m9999", "/models/", "/models/champion", "/models/m9999/report",
        "/models/m0001/model.json", "/models/m0001/compare/r0001", "/runs/r0001/compare/m0001",
        "/api/runs/r0001/../r0002",
    ],
)  # fmt: skip
def test_what_is_not_a_page_is_not_there(client: Client, path: str) -> None:
    status, headers, body = client.ask(path)
    assert status == 404
    assert b"relative_gap" not in body
    assert b"root:" not in body
    assert headers["X-Content-Type-Options"] == "nosniff"


def test_the_server_reads_only_and_answers_to_this_machine_alone(client: Client) -> None:
    status, headers, _ = client.ask("/", "POST")
    assert (status, set(headers["Allow"].split(", "))) == (405, {"GET", "HEAD"})
    assert client.ask("/", "HEAD")[2] == b""
    status, _, body = client.ask("/api/runs/r0001", Host="attacker.example")
    assert status == 403
    assert b"rounds" not in body
    assert client.ask("/api/runs/r0001", Host="localhost:1")[0] == 200


def test_a_page_is_sent_once(client: Client) -> None:
    status, headers, body = client.ask("/api/runs/r0002")
    assert (status, bool(body)) == (200, True)
    assert client.ask("/api/runs/r0002", If_None_Match=headers["ETag"])[::2] == (304, b"")


def test_scripts_run_only_as_they_were_shipped(client: Client) -> None:
    _, headers, body = client.ask("/runs/r0001")
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert body.count(b"<script") == 1
    assert "frame-ancestors 'none'" in policy


def test_other_machines_are_let_in_only_on_request(store: Store) -> None:
    with pytest.raises(ConfigError, match="--allow-remote"), serve_dashboard(store, host="0.0.0.0", port=0):
        pass
    with serve_dashboard(store, port=0) as url:
        taken = urlsplit(url).port or 0
        with pytest.raises(ConfigError, match="--port"), serve_dashboard(store, port=taken):
            pass
    with serve_dashboard(store, host="0.0.0.0", port=0, allow_remote=True) as url:
        port = urlsplit(url).port
        assert Client(f"http://127.0.0.1:{port}/").ask("/", Host="elsewhere.example")[0] == 200


def test_without_a_port_two_dashboards_get_one_each(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    with serve_dashboard(store, port=0) as one:
        monkeypatch.setattr(server, "DASHBOARD_PORT", urlsplit(one).port)
        with serve_dashboard(store) as other:
            assert other != one
            assert Client(other).ask("/")[0] == 200
    with serve_dashboard(store) as url:
        assert url == one


def test_many_viewers_read_a_history_once(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    story = begun_run(store)
    story.leave()
    reads: list[str] = []
    before = type(store).read_range

    def counted(self: Store, path: str, start: int, length: int) -> bytes:
        reads.append(path)
        return before(self, path, start, length)

    monkeypatch.setattr(type(store), "read_range", counted)
    follower = StoreFollower(store, clock=lambda: 0.0)
    follower.run(story.run)
    once = len(reads)
    viewers = [threading.Thread(target=follower.run, args=(story.run,)) for _ in range(8)]
    for viewer in viewers:
        viewer.start()
    for viewer in viewers:
        viewer.join()
    assert len(reads) == once


def test_a_file_needs_no_server(full: Store, tmp_path: Path) -> None:
    for run in (None, "r0001"):
        page = Path(write_page(full.url, run, tmp_path / "new" / "page.html")).read_text(encoding="utf-8")
        assert page.count("<script") == 1
        assert "fetch(" not in page
        assert "http" not in re.sub(r"http-equiv", "", page)
        assert "connect-src" not in page
    with pytest.raises(NotFoundError, match="r0077"):
        write_page(full.url, "r0077", tmp_path / "page.html")


def test_the_command_writes_a_page(full: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.html"
    with pytest.raises(SystemExit) as ended:
        main(["dashboard", f"{full.url}/runs/r0002", "--out", str(page), "--json"])
    assert ended.value.code == 0
    assert json.loads(capsys.readouterr().out)["page"] == str(page)
    assert "<title>Run r0002" in page.read_text(encoding="utf-8")
    with pytest.raises(SystemExit) as ended:
        main(["dashboard", "--store", full.url, "--host", "192.0.2.1"])
    assert ended.value.code == 2
    assert "--allow-remote" in capsys.readouterr().err
