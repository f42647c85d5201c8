"""What monitoring reads of a dashboard: `/metrics` in Prometheus' own parser, `/health`, damaged records."""

from __future__ import annotations

import re
import shutil
import time
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import dask
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.pipeline.dashboard.test_dashboard import answer
from tests.pipeline.dashboards import begun_run, hand_made_store
from topline.pipeline.cluster.tls import make_tls_files
from topline.pipeline.dashboard import store_status
from topline.pipeline.dashboard.store_follower import StoreFollower, metrics_text
from topline.storage.models import (
    DecisionRecord,
    list_models,
    load_model,
    published_models,
    read_standing,
    record_decision,
)
from topline.storage.runs import create_run, finish_run
from topline.storage.served_schedule import ServedSchedule, note_schedule
from topline.storage.stores import Store, held_lease, open_store, sealed

ALERTS = Path(__file__).resolve().parents[3] / "deploy" / "alerts.yaml"
RULES = yaml.safe_load(ALERTS.read_text())["groups"][0]["rules"]


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return hand_made_store(tmp_path_factory.mktemp("monitored") / "store")


def samples(store: Store) -> dict[str, float]:
    """Every sample by its name and labels, which Prometheus' parser must understand."""
    found = answer(store, "/metrics")
    assert found.status_code == 200
    assert found.headers["content-type"].startswith("text/plain; version=0.0.4")
    return {
        " ".join([sample.name, *sample.labels.values()]): sample.value
        for family in text_string_to_metric_families(found.text)
        for sample in family.samples
    }


def test_a_store_in_numbers(full: Store) -> None:
    said = samples(full)
    assert said["topline_models"] == len(list_models(full))
    assert said["topline_damaged_models"] == 0
    champion = read_standing(full).champion
    assert champion is not None
    record = load_model(f"{full.url}/models/{champion}").record
    assert said["topline_champion_relative_gap"] == (record.certificate or {})["relative_gap"]
    assert said["topline_champion_certified"] == 1
    assert said["topline_champion_accuracy top-1"] == (record.evaluation or {})["topk"]["1"]
    assert said["topline_champion_age_seconds"] > 0
    assert sum(value for name, value in said.items() if name.startswith("topline_runs ")) > 0
    assert said["topline_free_bytes"] == pytest.approx(full.free_bytes(), rel=0.2)
    assert said["topline_store_bytes"] == sum(full.size(path) for path in full.walk())
    assert said["topline_retraining"] == 0
    assert answer(full, "/health").json() == {"status": "ok", "damaged": {}, "schedule": None}


def test_a_retraining_under_way_is_a_gauge(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store", create=True)
    with held_lease(store, "retrain", "a test"):
        assert samples(store)["topline_retraining"] == 1


def test_a_retraining_that_was_killed_is_not_shown_at_work(tmp_path: Path) -> None:
    """Its lease in a bucket is there until somebody else wants it."""
    store = open_store(tmp_path / "store", create=True)
    with held_lease(store, "retrain", "a test"):
        now = time.time()
        seen = {at: StoreFollower(store).overview(at) for at in (now, now + 60.0)}
        tiles = [next(tile for tile in one.tiles if tile.label == "retraining") for one in seen.values()]
        assert [tile.figure for tile in tiles] == ["under way", "not heard of"]
        assert "not heard of since 20" in tiles[1].note
        gauges = [b"topline_retraining 1.0", b"topline_retraining 0.0"]
        assert all(
            line in metrics_text(one, at, None, None)
            for line, (at, one) in zip(gauges, seen.items(), strict=True)
        )


def test_an_empty_store_has_no_champion(tmp_path: Path) -> None:
    said = samples(open_store(tmp_path / "store", create=True))
    assert said["topline_models"] == 0
    assert not [name for name in said if "champion" in name or "last" in name]


def test_a_damaged_model_costs_its_own_row(full: Store, tmp_path: Path) -> None:
    shutil.copytree(full.url, tmp_path / "store")
    store = open_store(str(tmp_path / "store"))
    first, second = published_models(store)[:2]
    store.write_bytes(f"models/{second}/00000001.json", store.read_bytes(f"models/{first}/00000001.json"))
    page = answer(store, "/")
    assert page.status_code == 200
    assert f"{second} cannot be read" in page.text
    assert samples(store)["topline_damaged_models"] == 1
    found = answer(store, "/health").json()
    assert found["status"] == "degraded"
    assert "not its own" in found["damaged"][second]


def test_a_log_that_cannot_be_read_is_said_in_words(full: Store, tmp_path: Path) -> None:
    shutil.copytree(full.url, tmp_path / "store")
    store = open_store(str(tmp_path / "store"))
    store.delete(f"commits/registry/{read_standing(store).seq:08d}.json")
    for path in ("/metrics", "/health"):
        found = answer(store, path)
        assert found.status_code == 503
        assert "is missing from the commit log" in found.json()["error"]


def test_a_schedule_falls_due_next_at_the_time_of_its_cron(full: Store, tmp_path: Path) -> None:
    shutil.copytree(full.url, tmp_path / "store")
    store = open_store(str(tmp_path / "store"))
    note_schedule(store, ServedSchedule("6h", "UTC").beating(datetime.now(UTC).isoformat()))
    assert 0 < samples(store)["topline_schedule_next_seconds"] <= 6 * 3600
    begun = datetime(2026, 3, 1, 2, tzinfo=UTC)
    note_schedule(store, ServedSchedule("6h", "UTC").beating(begun.isoformat()))
    found = store_status(store, begun.timestamp() + 60)
    assert found.lines["schedule"].startswith("6h (next 2026-03-01 06:00, UTC, served since")
    assert "topline_schedule_next_seconds" not in samples(store), "it is dead by now"


def test_a_schedule_that_was_made_up_costs_its_own_line(full: Store, tmp_path: Path, topline) -> None:
    shutil.copytree(full.url, tmp_path / "store")
    store = open_store(str(tmp_path / "store"))
    for crafted in (
        ServedSchedule("6h", "UTC", since="now"),
        ServedSchedule("6h", "UTC"),
        ServedSchedule("6h", "UTC", since="2026-03-01T02:00:00"),
        ServedSchedule("6h", "UTC", since=["2026"]),
    ):
        note_schedule(store, crafted)
        found = answer(store, "/health").json()
        assert (found["status"], list(found["damaged"])) == ("degraded", ["schedule.json"])
        assert answer(store, "/").status_code == answer(store, "/metrics").status_code == 200
        assert topline("status", store.url).code == 1
    store.write_bytes("schedule.json", b'{"a":' + b"[" * 100_000)
    assert answer(store, "/health").json()["status"] == "degraded"


def test_drift_at_the_newest_decision_is_a_gauge(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store", create=True)
    evidence = {"drift": {"features": 0.31, "classes": 0.02}}
    entry = DecisionRecord("promote", "m0001", "the first", "a test", evidence)
    record_decision(store, read_standing(store), entry)
    said = samples(store)
    assert (said["topline_feature_drift"], said["topline_class_drift"]) == (0.31, 0.02)


def test_the_alert_rules_are_about_what_is_measured(
    full: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(full.url, tmp_path / "store")
    store = open_store(str(tmp_path / "store"))
    when = "2026-03-01T02:00:00+00:00"
    note_schedule(store, ServedSchedule("0 2 * * 0", "UTC").beating(when).after(when))
    images = {"seen": 50, "new": 4, "changed": 0, "gone": 246, "rejected": 6}
    evidence = {"drift": {"features": 0.31, "classes": 0.02}, "images": images}
    standing = read_standing(store)
    record_decision(store, standing, DecisionRecord("keep", "m0003", "worse", "a test", evidence))
    story = begun_run(store)
    story.event("store-retried", requests=12)
    story.end()
    made = make_tls_files(tmp_path / "certs", days=20).folder
    tls = {"distributed.comm.tls.ca-file": str(made / "ca.pem")}
    with dask.config.set(tls):
        said = samples(store)
    known = {name.split(" ")[0] for name in said}
    asked = [name for rule in RULES for name in re.findall(r"topline_\w+", rule["expr"])]
    assert len(asked) >= len(RULES) - 1
    assert [name for name in asked if name not in known] == []
    assert {name: said[f"topline_images {name}"] for name in images} == images
    assert said["topline_schedule_interval_seconds"] == 7 * 86400
    assert (said["topline_last_run_events worker-lost"], said["topline_last_run_events store-retried"]) == (
        1,
        12,
    )
    assert 18.9 < said["topline_tls_days_left"] < 20
    assert said[f"topline_info {version('topline')}"] == 1


def test_a_run_that_fell_silent_is_the_one_to_resume(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "store"), create=True)
    story = begun_run(store)
    assert store_status(store, story.at + 1.0).unfinished is None
    assert store_status(store, story.at + 3600.0).unfinished == story.run
    story.end()
    finish_run(store, story.run, {"status": "solved"})
    assert store_status(store, story.at + 3600.0).unfinished is None


def test_the_last_run_is_the_one_that_was_last_at_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which may be an old one that was resumed."""
    store = open_store(str(tmp_path / "store"), create=True)
    for moment, run in (("01:00", None), ("02:00", None), ("03:00", "r0001")):
        monkeypatch.setattr(sealed, "now", lambda at=moment: f"2026-03-01T{at}:00+00:00")
        finish_run(store, run or create_run(store, {}), {"status": "max_passes"})
    assert "r0001" in store_status(store).lines["last run"]
    assert store_status(store).unfinished is None
