"""What monitoring reads of a dashboard: `/metrics` in Prometheus' own parser, `/health`, damaged records."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.pipeline.dashboard.test_dashboard import answer
from tests.pipeline.dashboards import hand_made_store
from topline.storage.models import list_models, load_model, published_models, read_standing
from topline.storage.stores import Store, open_store


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
    assert answer(full, "/health").json() == {"status": "ok", "damaged": {}}


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
