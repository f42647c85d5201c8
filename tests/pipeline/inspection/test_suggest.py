"""`topline suggest`: uncertain rows, spread over what they look like, without those that are known."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path

import numpy as np
import pyarrow.csv as csv
import pytest

from tests.pipeline.small_data import write_dataset
from topline.pipeline.errors import ConfigError, InputError
from topline.pipeline.ingest import import_features
from topline.pipeline.inspection.suggest import spread, suggest_rows
from topline.pipeline.options import ClusterConfig, ImportConfig, SuggestConfig, TrainConfig
from topline.pipeline.training import train
from topline.storage.stores import open_store

CENTRES = np.array([[4.0, 0.0, 0.0, 1.0], [0.0, 4.0, 0.0, 1.0], [0.0, 0.0, 4.0, 1.0]])


def rows_of(weights: list[list[float]], noise: float, rng: np.random.Generator) -> np.ndarray:
    X = np.array(weights) @ CENTRES
    return (X + noise * rng.normal(size=X.shape)).astype(np.float32)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder, rng = tmp_path_factory.mktemp("suggested") / "store", np.random.default_rng(0)
    y = np.arange(60, dtype=np.int32) % 3
    write_dataset(
        open_store(folder, create=True), rows_of(np.eye(3)[y].tolist(), 0.1, rng), y, np.zeros(60, np.int8)
    )
    return train(TrainConfig(store=str(folder), loss="softmax"), ClusterConfig(workers=0)).model


def test_rows_between_classes_come_first_one_of_each_kind(model: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    sure, kinds = np.eye(3)[np.arange(60) % 3].tolist(), [[0.5, 0.5, 0.0], [0.0, 0.5, 0.5], [0.5, 0.0, 0.5]]
    np.save(tmp_path / "new.npy", rows_of([*sure, *(kind for kind in kinds for _ in range(4))], 0.01, rng))
    table = tmp_path / "label.csv"
    found = suggest_rows(model, SuggestConfig(features=str(tmp_path / "new.npy"), output=table), 3)
    assert (found.rows, found.known, len(found.suggested)) == (72, 0, 3)
    pairs = [{one.prediction, one.second} for one in found.suggested]
    assert all(pairs.count(pair) == 1 for pair in pairs)
    leads = [one.lead for one in found.suggested]
    assert leads == sorted(leads)
    written = csv.read_csv(table).to_pylist()
    assert [row["sample_id"] for row in written] == [one.name for one in found.suggested]
    assert {row["label"] for row in written} <= {None, ""}


def test_rows_of_the_dataset_are_left_out(model: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    known = rows_of(np.eye(3)[np.arange(60) % 3].tolist(), 0.1, rng)
    np.save(tmp_path / "new.npy", np.vstack([known, rows_of([[0.5, 0.5, 0.0]], 0.01, rng)]))
    found = suggest_rows(model, SuggestConfig(features=str(tmp_path / "new.npy")), 50)
    assert (found.known, len(found.suggested)) == (60, 1)
    np.save(tmp_path / "old.npy", known)
    with pytest.raises(InputError, match="none of the 60 rows is left to label"):
        suggest_rows(model, SuggestConfig(features=str(tmp_path / "old.npy")))
    with pytest.raises(ConfigError, match="two things"):
        suggest_rows(model, SuggestConfig(features="a.npy", images="b"))


def test_a_split_in_the_file_makes_no_row_known_and_of_copies_one_is_suggested(
    model: str, tmp_path: Path
) -> None:
    X = np.repeat(rows_of([[0.5, 0.5, 0.0], [0.0, 0.5, 0.5]], 0.01, np.random.default_rng(2)), 10, axis=0)
    np.savez(tmp_path / "new.npz", features=X, split=np.full(len(X), "test"))
    found = suggest_rows(model, SuggestConfig(features=str(tmp_path / "new.npz")), 5)
    assert found.known == 0
    assert [one.stands_for for one in found.suggested] == [10, 10]


def test_names_that_a_spreadsheet_would_run_are_harmless_on_the_page(tmp_path: Path) -> None:
    page, table = tmp_path / "label.html", tmp_path / "label.csv"
    names = np.array(["=cmd()", '"><script>alert(1)</script>', "cat"])
    X, y = rows_of(np.eye(3)[np.arange(60) % 3].tolist(), 0.1, np.random.default_rng(0)), np.arange(60) % 3
    np.savez(tmp_path / "all.npz", features=X, labels=names[y])
    store = str(tmp_path / "store")
    import_features(ImportConfig(features=str(tmp_path / "all.npz"), store=store))
    named = train(TrainConfig(store=store, loss="softmax"), ClusterConfig(workers=0)).model
    np.save(tmp_path / "new.npy", rows_of([[0.5, 0.5, 0.0]], 0.01, np.random.default_rng(2)))
    suggest_rows(named, SuggestConfig(features=str(tmp_path / "new.npy"), page=page, output=table))
    text = page.read_text(encoding="utf-8")
    (listed,) = re.findall(r'data-names="([^"]*)"', text)
    assert json.loads(html.unescape(listed)) == sorted(names)
    assert "<script>alert" not in text
    assert "=cmd()" not in table.read_text(encoding="utf-8").replace("'=cmd()", "")


def test_every_cluster_gives_its_least_certain_row() -> None:
    X = np.repeat(np.eye(4), 5, axis=0) + 1e-3 * np.random.default_rng(0).normal(size=(20, 4))
    order = np.random.default_rng(1).permutation(20)
    chosen, sizes = spread(X[order], np.linspace(0.0, 1.0, 20), 4)
    kinds = order[chosen] // 5
    assert sorted(kinds.tolist()) == [0, 1, 2, 3]
    assert sizes.tolist() == [5, 5, 5, 5]
    for kind, place in zip(kinds, chosen, strict=True):
        assert place == np.flatnonzero(order // 5 == kind)[0]
    assert spread(X, np.linspace(0.0, 1.0, 20), 30)[0].tolist() == list(range(20))
