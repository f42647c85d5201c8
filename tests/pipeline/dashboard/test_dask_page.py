"""The page in Dask's dashboard: what it shows of a history, and that a scheduler really serves it."""

from __future__ import annotations

import re
import socket
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.pipeline.dashboards import begun_run
from topline.pipeline.cluster import TOPIC, announce, open_cluster
from topline.pipeline.dashboard.dask_page import (
    HOSTS,
    PATH,
    answers_to,
    current_page,
    current_parts,
)
from topline.pipeline.options.train import ClusterConfig
from topline.storage.runs import read_history
from topline.storage.stores import open_store


class Scheduler:
    """As much of a scheduler as the page asks for."""

    def __init__(self, *announced: tuple[str, str]) -> None:
        self.events = tuple((0.0, {"store": store, "run": run}) for store, run in announced)

    def get_events(self, topic: str) -> tuple[tuple[float, Any], ...]:
        assert topic == TOPIC
        return self.events


def shown(scheduler: Scheduler) -> str:
    return current_page(scheduler, 0.0).html


def test_the_page_shows_the_run_that_was_announced_last(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store", create=True)
    story = begun_run(store)
    story.leave()
    scheduler = Scheduler(("elsewhere", "r0007"), (store.url, story.run))
    page = shown(scheduler)
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
    assert "No run has been announced" in shown(Scheduler())
    assert "cannot read" in shown(gone)
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
        assert client is not None
        port = re.search(r":(\d+)/status", client.dashboard_link)
        assert port is not None
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
