"""A store that earlier code wrote (`make_store.py`) is read, checked, shown and worked on."""

from __future__ import annotations

import tarfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from topline.pipeline.certification import certify
from topline.pipeline.dashboard import write_page
from topline.pipeline.evaluation.measurement import evaluate
from topline.pipeline.ingest.editing import Edits, edited_dataset
from topline.pipeline.options import ClusterConfig, SweepConfig, TrainConfig
from topline.pipeline.registry import compare
from topline.pipeline.report import write_report
from topline.pipeline.sweep import sweep
from topline.pipeline.training import train
from topline.storage.datasets import Dataset
from topline.storage.models import load_model, read_standing
from topline.storage.records import plain
from topline.storage.retention import RetentionPolicy, prune
from topline.storage.stores import open_store
from topline.storage.verification import verify_store

# What version 0.1.0 wrote has datasets of format 1, which share nothing.
PACKED = sorted(Path(__file__).parent.glob("store-*.tar.gz"))
# What is taken anew each time.
TIMES = {"seconds", "created"}


@pytest.fixture(params=PACKED, ids=lambda path: path.name.removesuffix(".tar.gz"))
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    """The old store at the place to which its records refer."""
    with tarfile.open(request.param) as packed:
        packed.extractall(tmp_path, filter="data")
    monkeypatch.chdir(tmp_path)
    return "store"


def same(found: dict[str, Any], stored: dict[str, Any]) -> None:
    """Every stored field is there with its value, but for rounding and times; others may have been added."""
    for name, value in stored.items():
        if isinstance(value, dict):
            same(found[name], value)
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            assert len(found[name]) == len(value), name
            for one, other in zip(found[name], value, strict=True):
                same(one, other)
        elif name not in TIMES:
            is_number = isinstance(value, float)
            assert found[name] == (pytest.approx(value, rel=1e-6, abs=1e-9) if is_number else value), name


def test_nothing_is_wrong_with_it(store: str) -> None:
    assert verify_store(open_store(store)) == []


@pytest.mark.parametrize("model", ["m0001", "m0002", "m0003"])
def test_certificates_are_recomputed_as_they_are_stored(store: str, model: str) -> None:
    url = f"{store}/models/{model}"
    stored = load_model(url).record.certificate
    assert stored["certified"]
    found = certify(url).to_dict()
    assert found.pop("from") == ("A" if found["rests_on"] == "A" else "W alone")  # said since 0.2
    assert set(found) == set(stored)
    same(found, stored)


@pytest.mark.parametrize("model", ["m0001", "m0002"])
def test_evaluations_are_the_same(store: str, model: str) -> None:
    url = f"{store}/models/{model}"
    stored = load_model(url).record.evaluation
    assert stored is not None
    same(plain(evaluate(url).to_dict()), stored)


def test_the_registry_knows_its_champion_and_compares(store: str) -> None:
    standing = read_standing(open_store(store))
    assert standing.champion == "m0002"
    assert [entry.action for entry in standing.of("m0001")] == ["promote"]
    found = compare(f"{store}/models/m0001", f"{store}/models/m0002")
    assert {paired.rows for paired in found.evidence.compared} == {12}


def test_its_pages_are_drawn(store: str, tmp_path: Path) -> None:
    for run in (None, "r0001"):
        write_page(store, run, tmp_path / "page.html")
        assert "r0001" in (tmp_path / "page.html").read_text()
    assert "Recomputed in float64" in Path(write_report(f"{store}/models/m0002")).read_text()


def test_work_continues_in_it(store: str) -> None:
    """A run is resumed, training starts from an old model, and a sweep's answers are read."""
    cluster = ClusterConfig(workers=0)
    config = TrainConfig(store=store, resume="r0004", max_passes=2000)
    resumed = train(config, cluster)
    assert (resumed.run, resumed.status) == ("r0004", "solved")
    assert resumed.certificate.certified
    again = TrainConfig(
        store=store, loss="topk_hinge", k=2, C=1, transforms=("standardize",), start_from="m0001"
    )
    assert train(again, cluster).passes <= 4
    assert sweep(SweepConfig(store=store, resume="s0001"), cluster).best.C == 1.0


def test_an_edited_version_is_made_and_pruning_costs_nothing_that_is_needed(store: str) -> None:
    opened = open_store(store)
    dataset = Dataset.open(opened)
    out, *kept = dataset.sample_ids()
    info = edited_dataset(dataset, Edits(frozenset({out}), {}))
    assert Dataset(opened, info).sample_ids() == kept
    policy = RetentionPolicy(keep=1, days=0)
    removed = prune(opened, policy, datetime.now(UTC) + timedelta(days=1), "a test")
    assert removed.bytes > 0
    assert verify_store(opened) == []
    assert certify(f"{store}/models/m0002").certified
