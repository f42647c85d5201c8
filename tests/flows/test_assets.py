"""What flows leave among Prefect's assets: keys, lineage, and nothing that could fail a run."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
from prefect.assets import Asset
from prefect.context import AssetContext

from tests.flows.conftest import IN_PROCESS
from tests.pipeline.pictures import photographs
from tests.processes import until
from topline.flows import tasks
from topline.flows.reporting import Entry, LatestValues
from topline.flows.retraining import retrain
from topline.flows.tasks import asset_of
from topline.pipeline.options import ExtractConfig, PromotionRule, RetrainConfig, TrainConfig
from topline.pipeline.registry import Decision, Evidence, Weighing
from topline.storage.models import Standing

MATERIALIZED = "prefect.asset.materialization.succeeded"


def events_of(server: str, keys: Iterable[str]) -> dict[str, list[dict[str, Any]]]:
    """Asset events that the server has, by the keys of their assets."""
    body = {"filter": {"event": {"prefix": ["prefect.asset."]}, "resource": {"id": list(keys)}}, "limit": 50}
    found: dict[str, list[dict[str, Any]]] = {key: [] for key in keys}
    for event in httpx.post(f"{server}/events/filter", json=body, timeout=60).json()["events"]:
        found[event["resource"]["prefect.resource.id"]].append(event)
    return found


def materialized(server: str, *made: Asset) -> list[dict[str, Any]]:
    """The one materialization of each asset; events reach the server some time after the flow has ended."""

    def those() -> list[list[dict[str, Any]]]:
        found = events_of(server, [asset.key for asset in made]).values()
        materializations = [[one for one in events if one["event"] == MATERIALIZED] for events in found]
        return materializations if all(materializations) else []

    found = until(those, "each asset's materialization")
    assert [len(events) for events in found] == [1] * len(made)
    return [events[0] for events in found]


def declared(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Keys of the assets that are declared from now on, in place of telling Prefect."""
    keys: list[str] = []
    monkeypatch.setattr(tasks, "_materialized", lambda made, *_: keys.append(made.key))
    return keys


def made_of(event: dict[str, Any]) -> list[str]:
    return [one["prefect.resource.id"] for one in event["related"] if one["prefect.resource.role"] == "asset"]


@pytest.mark.prefect
def test_a_retraining_leaves_its_dataset_model_and_champion_with_their_lineage(
    prefect_server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    photographs(tmp_path / "photos", range(8))
    store = str(tmp_path / "my store")
    config = RetrainConfig(
        store=store,
        extract=ExtractConfig(images=str(tmp_path / "photos"), backbone="hog:size=24,cells=8"),
        train=TrainConfig(k=2, tol=1e-2),
        promote=PromotionRule(k=1),
    )
    result = retrain(config, IN_PROCESS)
    dataset, model = asset_of(store, "datasets", result.dataset), asset_of(store, "models", "m0001")
    champion = asset_of(store, "models", "champion")
    assert dataset.key == f"topline://{tmp_path}/my=20store/datasets/{result.dataset}"
    of_dataset, of_model, of_champion = materialized(prefect_server, dataset, model, champion)
    assert (made_of(of_dataset), made_of(of_model), made_of(of_champion)) == ([], [dataset.key], [model.key])
    assert of_dataset["payload"]["classes"] == len(list((tmp_path / "photos").iterdir()))
    assert of_model["payload"]["status"] == "SOLVED"
    assert of_champion["payload"]["model"] == result.model
    assert of_model["resource"]["prefect.resource.name"] == "m0001 of my store"
    again = declared(monkeypatch)
    assert retrain(config, IN_PROCESS).outcome == "unchanged"
    assert again == []


@pytest.mark.parametrize(
    ("store", "key"),
    [
        ("/data/nights", "topline:///data/nights/models/m1"),
        ("s3://bucket/nights", "topline://s3/bucket/nights/models/m1"),
        ("/data/100% [new] & 'old'", "topline:///data/100=25=20=5bnew=5d=20=26=20=27old=27/models/m1"),
        ("/data/a=20b", "topline:///data/a=3d20b/models/m1"),
    ],
)
def test_every_store_has_a_key_that_prefect_takes(store: str, key: str) -> None:
    assert asset_of(store, "models", "m1").key == key


def test_stores_with_long_paths_have_keys_of_their_own() -> None:
    stores = [f"/{'long/' * 200}{name}" for name in ("one", "two")]
    first, second = (asset_of(store, "datasets", "d1") for store in stores)
    assert first.key != second.key
    assert first.key.endswith("/datasets/d1")


def test_a_relative_path_names_the_same_asset_as_its_absolute_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert asset_of("nights", "models", "m1") == asset_of(str(tmp_path / "nights"), "models", "m1")


def weighed(*, promote: bool) -> Weighing:
    decision = Decision(promote, ("as the rule says",))
    return Weighing("/nights/models/m2", "/nights/models/m1", decision, Evidence(), Standing(champion="m2"))


def test_a_champion_that_is_kept_is_not_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    told = declared(monkeypatch)
    tasks.champion_chosen("/nights/models/m2", weighed(promote=False))
    assert told == []
    tasks.champion_chosen("/nights/models/m2", weighed(promote=True))
    assert told == ["topline:///nights/models/champion"]


def test_outside_of_a_task_nobody_is_told_and_nothing_fails() -> None:
    assert AssetContext.get() is None
    tasks.champion_chosen("/nights/models/m2", weighed(promote=True))


class Server:
    """Notes what is posted; fails while `down`, and waits at `gate` each time."""

    def __init__(self) -> None:
        self.got: list[float] = []
        self.down = False
        self.attempts = 0
        self.gate = threading.Event()
        self.gate.set()

    def __call__(self, new: Mapping[str, Entry]) -> None:
        self.attempts += 1
        self.gate.wait()
        if self.down:
            raise ConnectionError("the server is down")
        self.got += [entry.data for entry in new.values()]


def share(value: float) -> Entry:
    return Entry("progress", "share done", value)


def test_each_state_that_is_seen_is_posted_once_and_in_order() -> None:
    server = Server()
    values = LatestValues(server, interval=0.01)
    for value in (10, 20, 30):
        values.publish("share", share(value))
        until(lambda value=value: server.got and server.got[-1] == value)
    assert values.close(120.0)
    assert server.got == [10, 20, 30]


def test_publishing_does_not_wait_for_a_server_that_hangs_and_closing_gives_up_at_the_deadline(
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = Server()
    server.gate.clear()
    values = LatestValues(server, interval=0.01)
    values.publish("share", share(0))
    until(lambda: server.attempts == 1)
    # A single wait for the server would take for ever: its gate opens at the end of this test.
    for value in range(10_000):
        values.publish("share", share(value))
    assert server.attempts == 1
    begun = time.monotonic()
    assert not values.close(0.3)
    assert time.monotonic() - begun > 0.25
    assert "did not reach" in caplog.text
    server.gate.set()


def test_a_server_that_was_down_gets_the_last_state_when_it_is_back() -> None:
    server = Server()
    server.down = True
    values = LatestValues(server, interval=0.01)
    values.publish("share", share(10))
    until(lambda: server.attempts >= 3)
    values.publish("share", share(100))
    server.down = False
    assert values.close(120.0)
    assert server.got == [100]


def test_closing_tries_a_server_that_fails_again_until_the_deadline() -> None:
    """Each try takes ten seconds of a clock that nothing else moves, so that thirty of them fit."""
    now, server = [0.0], Server()
    server.down = True

    def failing(new: Mapping[str, Entry]) -> None:
        now[0] += 10.0
        server(new)

    values = LatestValues(failing, interval=0.01, clock=lambda: now[0])
    values.publish("share", share(10))
    assert not values.close(300.0)
    assert server.attempts >= 30
    assert server.got == []
