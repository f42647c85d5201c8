"""The page in Dask's dashboard: what it shows of a history, and that a scheduler really serves it."""

from __future__ import annotations

import asyncio
import re
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bokeh.document import Document
from bokeh.models import ColumnDataSource
from bokeh.models.widgets import PreText

from tests.pipeline.dashboards import begun_run
from topline.pipeline.cluster.connection import open_cluster
from topline.pipeline.cluster.run_events import TOPIC, announce
from topline.pipeline.dashboard.dask_page import PATHS, run_document
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


def shown(scheduler: Scheduler) -> Document:
    """The document after its first look."""
    document = Document()
    run_document(scheduler, {}, document)
    first = next(back for back in document.session_callbacks if type(back).__name__ == "NextTickCallback")
    asyncio.run(first.callback())
    return document


def texts(document: Document) -> str:
    return "\n".join(widget.text for widget in document.select({"type": PreText}))


def test_the_page_draws_the_history(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store", create=True)
    story = begun_run(store)
    story.leave()
    document = shown(Scheduler(("elsewhere", "r0007"), (store.url, story.run)))
    rounds = [record for record in read_history(store, story.run) if "round" in record]
    source = next(s for s in document.select({"type": ColumnDataSource}) if "best_gap" in s.data)
    for name in ("seconds", "primal", "dual", "relative_gap", "step", "active"):
        np.testing.assert_allclose(source.data[name], [record[name] for record in rounds])
    busy = next(s for s in document.select({"type": ColumnDataSource}) if "share" in s.data)
    assert list(busy.data["worker"]) == ["tcp://a"]
    assert f"{rounds[-1]['relative_gap']:.2e}" in texts(document)
    assert "blocks lost" in texts(document)


def test_without_a_run_and_without_the_store_it_says_so(tmp_path: Path) -> None:
    assert "No run has been announced" in texts(shown(Scheduler()))
    assert "cannot read" in texts(shown(Scheduler((str(tmp_path / "gone"), "r0001"))))


@pytest.mark.cluster
def test_a_cluster_of_ours_serves_the_page_and_knows_the_run() -> None:
    with open_cluster(ClusterConfig(workers=1), data_bytes=1) as client:
        assert client is not None
        port = re.search(r":(\d+)/status", client.dashboard_link)
        assert port is not None
        for path in PATHS:
            with urllib.request.urlopen(f"http://127.0.0.1:{port[1]}{path}", timeout=60) as answer:
                page = answer.read().decode()
            assert answer.status == 200
            # Everything that the page loads comes from the scheduler itself.
            assert not re.findall(r"(?:src|href)=\"(?:https?:)?//", page)
        announce(client, "memory://nowhere/at-all", "r0042")
        asked = client.run_on_scheduler(lambda dask_scheduler: dask_scheduler.get_events(TOPIC))
        assert asked[-1][1] == {"store": "memory://nowhere/at-all", "run": "r0042"}
