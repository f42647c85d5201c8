"""The dashboard: what its pages say of runs, models and sweeps, and what its server refuses."""

from __future__ import annotations

import asyncio
import http.client
import json
import math
import re
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime
from email.message import Message
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest
from httpx import ASGITransport, AsyncClient, Response

from tests.pipeline.conftest import Topline
from tests.pipeline.dashboards import NASTY, begun_run, hand_made_store, record_of, view_of
from tests.pipeline.small_data import make_features, small_dataset, write_dataset
from topline.pipeline.cluster import TOPIC, announce, open_cluster
from topline.pipeline.dashboard import overview, serve_dashboard, server, store_follower, write_page
from topline.pipeline.dashboard.dask_page import HOSTS, PATH, answers_to, current_page, current_parts
from topline.pipeline.dashboard.models import cells_seen, sweep_parts
from topline.pipeline.dashboard.overview import is_silent, numbers, tiles, verdict
from topline.pipeline.dashboard.pages import TALL, busy_shares, run_parts, versions_chart
from topline.pipeline.dashboard.server import application
from topline.pipeline.dashboard.store_follower import StoreFollower
from topline.pipeline.errors import ConfigError
from topline.pipeline.evaluation import METRICS
from topline.pipeline.evaluation.measurement import evaluate
from topline.pipeline.evaluation.metrics import top_k_accuracy
from topline.pipeline.jobs import LEASE
from topline.pipeline.options import ClusterConfig, SweepConfig, TrainConfig
from topline.pipeline.registry import measure
from topline.pipeline.sweep import sweep
from topline.pipeline.telemetry import WorkerTimeline, view_run
from topline.pipeline.training import train
from topline.storage.errors import NotFoundError
from topline.storage.runs import (
    add_answer,
    create_run,
    create_sweep,
    finish_run,
    list_sweeps,
    read_answers,
    read_history,
    read_sweep,
)
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


def test_the_command_writes_a_page(full: Store, tmp_path: Path, topline: Topline) -> None:
    page = tmp_path / "page.html"
    assert topline.printed("dashboard", f"{full.url}/runs/r0002", "--out", page)["page"] == str(page)
    assert "<title>Run r0002" in page.read_text(encoding="utf-8")
    ran = topline("dashboard", "--store", full.url, "--host", "192.0.2.1")
    assert (ran.code, "--allow-remote" in ran.err) == (2, True)


class Scheduler:
    """As much of a scheduler as the page asks for."""

    def __init__(self, *announced: tuple[str, str]) -> None:
        self.events = tuple((0.0, {"store": store, "run": run}) for store, run in announced)

    def get_events(self, topic: str) -> tuple[tuple[float, Any], ...]:
        assert topic == TOPIC
        return self.events


def text_of_page(scheduler: Scheduler) -> str:
    return current_page(scheduler, 0.0).html


def test_the_page_shows_the_run_that_was_announced_last(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store", create=True)
    story = begun_run(store)
    story.leave()
    scheduler = Scheduler(("elsewhere", "r0007"), (store.url, story.run))
    page = text_of_page(scheduler)
    gap = min(record["relative_gap"] for record in read_history(store, story.run) if "round" in record)
    assert f"{gap:.2e}" in page
    assert "blocks lost" in page
    assert f'data-source="topline/parts?run={story.run}"' in page
    assert f"{gap:.2e}" in current_parts(scheduler, story.run, 0.0)["parts"]["tiles"]


def test_an_open_page_follows_the_next_run(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store", create=True)
    story = begun_run(store)
    story.leave()
    announced = Scheduler((store.url, story.run))
    assert current_parts(announced, "", 0.0)["reload"]
    assert current_parts(announced, "r0007", 0.0)["reload"]
    assert not current_parts(Scheduler(), "", 0.0)["reload"]


def test_without_a_run_and_without_the_store_it_says_so(tmp_path: Path) -> None:
    gone = Scheduler((str(tmp_path / "gone"), "r0001"))
    assert "No run has been announced" in text_of_page(Scheduler())
    assert "cannot read" in text_of_page(gone)
    assert current_parts(gone, "r0001", 0.0)["parts"] == {}


def test_it_answers_to_whom_it_belongs(monkeypatch: pytest.MonkeyPatch) -> None:
    for host in ("localhost", "127.0.0.1", "::1", "10.0.0.7", socket.gethostname()):
        assert answers_to(host)
    assert not answers_to("evil.example")
    assert not answers_to("")
    monkeypatch.setenv(HOSTS, "scheduler cluster.example")
    assert answers_to("Cluster.example")
    assert not answers_to("evil.example")


@pytest.mark.cluster
def test_a_cluster_of_ours_serves_the_page_and_knows_the_run() -> None:
    with open_cluster(ClusterConfig(workers=1, dashboard=True), data_bytes=1) as client:
        port = re.search(r":(\d+)/status", client.dashboard_link)
        for path in (PATH, f"{PATH}/parts"):
            with urllib.request.urlopen(f"http://127.0.0.1:{port[1]}/{path}", timeout=60) as answer:
                assert answer.status == 200
            foreign = urllib.request.Request(
                f"http://127.0.0.1:{port[1]}/{path}", headers={"Host": "evil.example"}
            )
            with pytest.raises(urllib.error.HTTPError, match="403") as refused:
                urllib.request.urlopen(foreign, timeout=60)
            refused.value.close()
        announce(client, "memory://nowhere/at-all", "r0042")
        asked = client.run_on_scheduler(lambda dask_scheduler: dask_scheduler.get_events(TOPIC))
        assert asked[-1][1] == {"store": "memory://nowhere/at-all", "run": "r0042"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return hand_made_store(tmp_path_factory.mktemp("models") / "store")


def test_a_model_has_a_page(folder: Store) -> None:
    page = answer(folder, "/models/m0003")
    assert page.status_code == 200
    said = shown(page.text)
    assert "top-3 fell by 8.0%" in said
    assert "topline export" in said
    assert 'href="../runs/r0003"' in page.text
    assert 'href="../models/m0003/compare/m0001"' in page.text
    assert "Not written yet" in said
    assert answer(folder, "/models/m0003/report").status_code == 404
    assert NASTY not in page.text


def test_a_report_is_served_where_it_can_reach_nothing(tmp_path: Path) -> None:
    store = hand_made_store(tmp_path / "store")
    store.write_bytes("reports/m0001.html", b"<p>the report</p>")
    page = answer(store, "/models/m0001/report")
    assert page.content == b"<p>the report</p>"
    policy = page.headers["Content-Security-Policy"]
    assert policy.startswith("sandbox ")
    assert "allow-same-origin" not in policy
    assert 'href="../models/m0001/report"' in answer(store, "/models/m0001").text


def test_two_models_are_compared_as_recorded_where_their_rows_are_gone(folder: Store) -> None:
    said = shown(answer(folder, "/models/m0002/compare/m0001").text)
    assert "which is not in" in said
    assert "88.00%" in said
    assert "85.00%" in said
    assert answer(folder, "/models/m0002/compare/m0099").status_code == 404


def test_two_models_are_compared_on_the_same_rows(tmp_path: Path) -> None:
    small_dataset(tmp_path / "store", n=300, m=4)
    here, urls = ClusterConfig(workers=0), []
    for C in (0.001, 1.0):
        urls.append(train(TrainConfig(store=str(tmp_path / "store"), k=2, C=C, tol=0.01), here).model)
        evaluate(urls[-1])
    store = open_store(tmp_path / "store")
    page = answer(store, "/models/m0002/compare/m0001").text
    evidence = measure(urls[1], urls[0], drift=False)
    for pair in evidence.compared:
        assert f"{pair.gain:+.2%}" in page
        assert f"{pair.p_value:.2g}" in page
    assert "<td>C</td>" in page
    assert "<svg" in page


def test_a_comparison_says_which_model_was_not_evaluated(tmp_path: Path) -> None:
    small_dataset(tmp_path / "store", n=300, m=4)
    config = TrainConfig(store=str(tmp_path / "store"), k=2, tol=0.01)
    evaluate(train(config, ClusterConfig(workers=0)).model)
    train(config, ClusterConfig(workers=0))
    said = shown(answer(open_store(tmp_path / "store"), "/models/m0002/compare/m0001").text)
    assert re.search(r"measured on\s+not evaluated yet\s+\d+ test rows of d0001", said)
    assert "Not evaluated yet: m0002." in said


def test_two_runs_are_compared(folder: Store) -> None:
    page = answer(folder, "/runs/r0001/compare/r0002").text
    assert page.count("<svg") == 3
    assert "Every setting is the same." in page
    assert 'href="../runs/r0001/compare/r0002"' in answer(folder, "/runs/r0001").text
    assert answer(folder, "/runs/r0001/compare/r9999").status_code == 404


def test_a_small_difference_does_not_look_like_a_cliff() -> None:
    metric = METRICS["top-1"]
    lines = [
        {
            "id": f"m{i}",
            "stage": "",
            "reigned": False,
            "dataset": "d",
            "metrics": {"top-1": 0.901 + 0.001 * i},
        }
        for i in range(3)
    ]
    drawn = str(versions_chart(lines, [metric]))
    heights = [float(y) for y in re.findall(r'class="dot" cx="[\d.]+" cy="([\d.]+)"', drawn)]
    assert max(heights) - min(heights) < 0.05 * TALL


def test_every_metric_has_a_line_and_its_name_however_many_there_are() -> None:
    metrics = [top_k_accuracy(k) for k in range(1, 13)]
    shares = {metric.name: 0.5 for metric in metrics}
    model = {"id": "m0001", "stage": "", "reigned": False, "dataset": "d", "metrics": shares}
    drawn = str(versions_chart([model], metrics))
    keys = re.findall(r'class="key s(\d+)"><i></i>([^<]*)<', drawn)
    assert keys == [(str(number), metric.column) for number, metric in enumerate(metrics, start=1)]
    assert re.findall(r'<g class="s(\d+)">', drawn) == [number for number, _ in keys]


def test_a_model_is_written_to_a_file_that_leads_nowhere(folder: Store, tmp_path: Path) -> None:
    page = Path(write_page(folder.url, "m0003", tmp_path / "m.html")).read_text(encoding="utf-8")
    assert not re.search(r"href=\"(?!#|data:)", page)
    with pytest.raises(NotFoundError, match="m0099"):
        write_page(folder.url, "m0099", tmp_path / "m.html")


def begun_sweep(store: Store) -> str:
    config = SweepConfig(store=store.url, C=(0.1, 1.0), loss=("topk_hinge", "softmax"), k=(2,), folds=2)
    return create_sweep(store, config.model_dump(mode="json"), "d0001", "0" * 64)


def told(round_, path, fold, *cells):
    return {
        "round": round_, "path": path, "fold": fold,
        "cells": [
            {"C": C, "fold": fold, "rows": 100, "hits": hits, "relative_gap": gap, "passes": passes}
            for C, hits, gap, passes in cells
        ],
    }  # fmt: skip


def test_each_head_has_a_curve_and_a_row_that_grow_with_the_answers(store: Store) -> None:
    name = begun_sweep(store)
    page = answer(store, f"/sweeps/{name}")
    assert page.status_code == 200
    assert "No round has finished yet" in page.text
    add_answer(store, name, 0, told(0, 0, 0, (0.1, 60, 0.1, 4), (1.0, 80, 0.09, 6)))
    add_answer(store, name, 1, told(0, 1, 0, (0.1, 50, None, 4)))
    add_answer(store, name, 2, told(1, 0, 1, (1.0, 90, 0.2, 5)))
    seen = cells_seen(read_sweep(store, name), read_answers(store, name))
    assert list(seen) == ["topk_hinge k=2", "softmax"]
    first, second = seen["topk_hinge k=2"]
    assert (first.C, first.passes, first.accuracy, first.curve) == (0.1, 4, 0.6, [(4, 0.1)])
    # Hits of both folds count, and the larger gap.
    assert (second.passes, second.accuracy, second.curve) == (11, 0.85, [(6, 0.09), (11, 0.2)])
    assert seen["softmax"][0].curve == []
    parts = answer(store, f"/api/sweeps/{name}/parts").json()
    assert parts["again"] == 2
    assert parts["parts"]["charts"].count("<svg") == 4 - 1  # a path whose numbers overflowed has no gaps
    text = re.sub(r"\s+", " ", shown(parts["parts"]["tiles"]))
    assert "best C so far 1 85.0%, topk_hinge k=2" in text
    assert "1 of 2" in shown(parts["parts"]["cells"])


def test_sweeps_are_listed_and_what_is_none_is_not_there(store: Store, tmp_path: Path) -> None:
    assert "The store holds no sweep yet" in answer(store, "/").text
    name = begun_sweep(store)
    assert f'href="sweeps/{name}"' in answer(store, "/").text
    for path in ("/sweeps/s9999", "/sweeps/r0001", "/sweeps/s00x1", "/api/sweeps/s9999/parts"):
        assert answer(store, path).status_code == 404
    page = write_page(store.url, name, tmp_path / "page.html")
    assert "This file is complete in itself" in Path(page).read_text(encoding="utf-8")


def test_a_sweep_that_ran_is_shown_with_its_own_numbers(store: Store, tmp_path: Path, topline) -> None:
    X, y = make_features(120, 6, 3)
    write_dataset(store, X, y, np.zeros(len(y), dtype=np.int8))
    config = SweepConfig(store=store.url, C=(0.1, 1.0), k=(1,), folds=2)
    result = sweep(config, ClusterConfig(workers=0))
    (record,) = list_sweeps(store)
    (cells,) = cells_seen(record, read_answers(store, record.id)).values()
    assert [(cell.C, cell.passes) for cell in cells] == [(one.C, one.passes) for one in result.cells]
    for cell, one in zip(cells, result.cells, strict=True):
        assert cell.accuracy == pytest.approx(one.mean)
        assert cell.gap == one.relative_gap
    assert "Finished" in sweep_parts(record, read_answers(store, record.id))["verdict"]
    out = tmp_path / "page.html"
    assert topline("dashboard", f"{store.url}/sweeps/{record.id}", "--out", out).code == 0
    assert f"Sweep {record.id}" in out.read_text(encoding="utf-8")


def test_the_name_in_an_answer_goes_before_its_number(store: Store) -> None:
    """Where the data decides k two losses can become one, and those after it have other numbers."""
    name = begun_sweep(store)
    add_answer(store, name, 0, {**told(0, 0, 0, (0.1, 60, 0.1, 4)), "name": "softmax"})
    assert list(cells_seen(read_sweep(store, name), read_answers(store, name))) == ["softmax"]
