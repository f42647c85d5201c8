"""`topline inspect` and `topline suggest` on stored models: verdicts as tables, rows worth a label."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.csv as csv
import pyarrow.parquet as pq
import pytest
from scipy.special import logit
from sklearn.metrics import roc_auc_score

from tests.pipeline.small_data import make_features, make_split, write_dataset
from topline import MaxHinge, solve
from topline.pipeline.errors import ConfigError, InputError
from topline.pipeline.ingest import import_features
from topline.pipeline.inspection import inspect_model
from topline.pipeline.inspection.suggest import spread, suggest_rows
from topline.pipeline.options import ClusterConfig, ImportConfig, InspectConfig, SuggestConfig, TrainConfig
from topline.pipeline.rows import StoredModel
from topline.pipeline.training import settings_of_model, train
from topline.solvers.inspection import leave_one_out, second_opinion
from topline.storage.models import load_model
from topline.storage.stores import open_store

HERE = ClusterConfig(workers=0)
N, M = 160, 4
FLIPPED = [3, 40, 77, 120]


def make_store(folder: Path) -> None:
    rng = np.random.default_rng(0)
    labels = np.arange(N, dtype=np.int32) % M
    X = (np.eye(M)[labels] @ rng.normal(size=(M, 6)) * 2.0 + 0.5 * rng.normal(size=(N, 6))).astype(np.float32)
    labels[FLIPPED] = (labels[FLIPPED] + 1) % M
    split = make_split(N)
    labels[150], split[150] = -1, 3
    write_dataset(open_store(folder, create=True), X, labels, split, m=M)


def trained(folder: Path, **options: Any) -> str:
    return train(TrainConfig(store=str(folder), **{"loss": "max_hinge", **options}), HERE).model


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inspected") / "store"
    make_store(folder)
    return folder


@pytest.mark.parametrize("suffix", ["parquet", "csv"])
def test_the_table_has_every_label_and_the_disputed_ones_first(
    store: Path, tmp_path: Path, suffix: str
) -> None:
    url, output = trained(store), tmp_path / f"suspects.{suffix}"
    found = inspect_model(url, InspectConfig(output=output, max_passes=5000, second_opinion=False))
    table = (csv.read_csv if suffix == "csv" else pq.read_table)(output).to_pylist()
    assert list(table[0]) == [
        "sample_id", "label", "suggested", "suspicion", "loo_margin", "decided", "split", "likeness",
    ]  # fmt: skip
    assert {row["split"] for row in table} == {"train", "val", "test"}
    assert len({row["sample_id"] for row in table}) == len(table) == N - 1
    assert {row["sample_id"] for row in table[:4]} == {f"row{i:06d}" for i in FLIPPED}
    assert all(row["label"] != row["suggested"] for row in table)
    margins = [row["loo_margin"] for row in table]
    assert margins == sorted(margins)
    assert all((row["decided"] == "right") == (row["loo_margin"] > 0) for row in table)
    assert found.right + found.wrong + found.open == found.rows
    assert (found.open, found.rows + found.others) == (0, N - 1)
    assert [one.sample_id for one in found.suspects] == [row["sample_id"] for row in table[: found.disputed]]


def test_a_softmax_ranks_the_labels_of_a_hinge_and_leaves_its_verdicts(store: Path, tmp_path: Path) -> None:
    url, ranked, alone = trained(store), tmp_path / "ranked.parquet", tmp_path / "alone.parquet"
    found = inspect_model(url, InspectConfig(output=ranked, max_passes=5000))
    without = inspect_model(url, InspectConfig(output=alone, max_passes=5000, second_opinion=False))
    assert (found.second_opinion, without.second_opinion) == (True, False)
    assert (found.right, found.wrong, found.open) == (without.right, without.wrong, without.open)
    table, other = (pq.read_table(path).to_pylist() for path in (ranked, alone))
    verdicts = {row["sample_id"]: (row["loo_margin"], row["decided"]) for row in other}
    assert {row["sample_id"]: (row["loo_margin"], row["decided"]) for row in table} == verdicts
    suspicion = {row["sample_id"]: row["suspicion"] for row in table}
    assert list(suspicion.values()) == sorted(suspicion.values(), reverse=True)
    assert found.disputed == sum(value > 0.5 for value in suspicion.values())
    stored = StoredModel.open(url)
    rows, ids = stored.rows("train"), stored.dataset().sample_ids()
    X = np.asarray(rows[0 : len(rows)]).copy()
    hinge = solve(X, rows.labels(), MaxHinge(), stored.model.record.lam)
    opinion = second_opinion(X, rows.labels(), hinge)
    mine = np.array([suspicion[ids[row]] for row in rows.indices.tolist()])
    # Both softmaxes end at a gap of 1e-3, from two solutions of the same hinge.
    by_hinge = {row["sample_id"]: row["suspicion"] for row in other}
    own = np.array([by_hinge[ids[row]] for row in rows.indices.tolist()])
    np.testing.assert_allclose(mine, 0.5 * (own + opinion.suspicion()), atol=0.02)
    held_out = {row["sample_id"] for row in table} - {ids[row] for row in rows.indices.tolist()}
    # It would be the same for all if the softmax had the hinge's margins on another scale.
    scales = np.array([logit(suspicion[name]) / verdicts[name][0] for name in held_out])
    assert np.ptp(scales) > 0.1 * np.abs(scales).mean()


@pytest.mark.parametrize(("options", "asks"), [
    ({"loss": "softmax", "C": 3.0}, False), ({"loss": "softmax", "C": 1.0}, True),
    ({"loss": "one_vs_all_logistic"}, False), ({"smoothing": 0.5}, True),
])  # fmt: skip
def test_hinges_and_a_softmax_with_another_C_have_a_second_opinion(
    store: Path, options: dict[str, Any], asks: bool
) -> None:
    """Rows have unit norm and a constant feature: the C of the second opinion is 3."""
    url = trained(store, k=None, tol=0.01, **options)
    assert inspect_model(url, InspectConfig(max_passes=0)).second_opinion == asks
    assert not inspect_model(url, InspectConfig(max_passes=0, second_opinion=False)).second_opinion


@pytest.mark.parametrize("similar", [False, True], ids=["any", "similar"])
def test_a_second_opinion_ranks_planted_labels_as_well_as_the_hinge(tmp_path: Path, *, similar: bool) -> None:
    """Ten rows of each of 68 classes in pairs; a tenth has any other label, or that of its pair."""
    rng = np.random.default_rng(0)
    truth = np.repeat(np.arange(68), 10)
    centres = rng.normal(size=(34, 40)).repeat(2, axis=0) + 0.7 * rng.normal(size=(68, 40))
    X = (centres[truth] + 0.5 * rng.normal(size=(680, 40))).astype(np.float32)
    wrong = np.isin(np.arange(680), rng.permutation(680)[:68])
    other = truth ^ 1 if similar else (truth + rng.integers(1, 68, 680)) % 68
    labels = np.where(wrong, other, truth).astype(np.int32)
    write_dataset(open_store(tmp_path / "store", create=True), X, labels, np.zeros(680, np.int8), m=68)
    url, found = trained(tmp_path / "store", C=1.0, tol=1e-3), {}
    for asked in (True, False):
        output = tmp_path / f"{asked}.parquet"
        inspect_model(url, InspectConfig(output=output, second_opinion=asked, max_passes=0))
        ranked = [int(row["sample_id"][3:]) for row in pq.read_table(output).to_pylist()]
        found[asked] = roc_auc_score(wrong[ranked], -np.arange(680))
    assert found[True] >= 0.95
    assert found[True] >= found[False] - 0.005


def test_training_rows_are_judged_as_the_solvers_judge_them(store: Path, tmp_path: Path) -> None:
    url, output = trained(store, class_weight="balanced"), tmp_path / "rows.parquet"
    inspect_model(url, InspectConfig(output=output, max_passes=5000))
    rows = {row["sample_id"]: row for row in pq.read_table(output).to_pylist()}
    stored = StoredModel.open(url)
    train_rows = stored.rows("train")
    X, y = np.asarray(train_rows[0 : len(train_rows)]).copy(), train_rows.labels()
    weights = np.asarray(stored.model.record.class_weights)[y]
    result = solve(X, y, MaxHinge(), stored.model.record.lam, sample_weight=weights, tol=1e-7)
    found = leave_one_out(X, y, result, sample_weight=weights, max_passes=5000)
    ids = stored.dataset().sample_ids()
    table = [rows[ids[row]] for row in train_rows.indices.tolist()]
    assert [row["decided"] for row in table] == found.decided.tolist()
    # Both are estimates within their bounds where the sign is proven early.
    margins = np.array([row["loo_margin"] for row in table])
    assert (found.low - 0.2 <= margins).all()
    assert (margins <= found.high + 0.2).all()


def test_the_page_shows_what_is_in_dispute_and_near_duplicates(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    rng = np.random.default_rng(0)
    labels = np.arange(N, dtype=np.int32) % M
    X = (np.eye(M)[labels] @ rng.normal(size=(M, 6)) * 2.0 + 0.5 * rng.normal(size=(N, 6))).astype(np.float32)
    X[1], X[30] = X[0], 2.0 * X[10]
    split = np.zeros(N, dtype=np.int8)
    split[30] = 2
    write_dataset(open_store(folder, create=True), X, labels, split, m=M)
    page = tmp_path / "pages" / "suspects.html"
    found = inspect_model(trained(folder), InspectConfig(page=page, max_passes=0))
    assert found.duplicates is not None
    assert {(one.first, one.second) for one in found.duplicates} == {
        ("row000000", "row000001"), ("row000010", "row000030")
    }  # fmt: skip
    assert {one.sample_id for one in found.suspects} & {"row000000", "row000001"}
    text = page.read_text()
    assert text.count('<article class="card"') == found.disputed + len(found.off_topic or ())
    assert "row000030" in text
    assert "no picture" in text
    assert text.count("<li>") == 3 * (found.disputed + len(found.off_topic or ()))
    assert sum(found.disputed_by_split.values()) == found.disputed


def test_rows_like_no_class_and_classes_of_few_rows_are_named(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    labels = np.arange(N, dtype=np.int32) % M
    centres = rng.normal(size=(M, 40))
    X = (centres[labels] + 0.3 * rng.normal(size=(N, 40))).astype(np.float32)
    strange, rare = [17, 90], np.flatnonzero(labels == M - 1)
    # Noise, and a class whose rows lie among those of the others, learnt by heart.
    X[rare] = centres[rng.integers(M - 1, size=len(rare))] + 0.6 * rng.normal(size=(len(rare), 40))
    X[strange] = 4.0 * rng.normal(size=(2, 40))
    write_dataset(open_store(tmp_path / "store", create=True), X, labels, np.zeros(N, np.int8), m=M)
    url = trained(tmp_path / "store", C=10.0)
    found = inspect_model(url, InspectConfig(page=tmp_path / "page.html", max_passes=0))
    assert found.classes[0].name == f"class {M - 1}"
    assert found.classes[0].held_out > found.classes[0].least > found.classes[0].seen
    assert found.off_topic is not None
    far = {one.sample_id for one in found.off_topic}
    assert {f"row{i:06d}" for i in strange} <= far <= {f"row{i:06d}" for i in [*strange, *rare]}
    assert found.loo_estimate is not None
    assert found.loo_interval is not None
    assert found.loo_interval[0] < found.loo_estimate < found.loo_interval[1]
    without = inspect_model(url, InspectConfig(max_passes=0, folds=0))
    assert (without.loo_estimate, without.loo_interval, without.classes) == (None, None, ())
    # Where all of them are one group, a fold without them has not seen the class: its margins say nothing.
    named = {name: tmp_path / f"{name}.npy" for name in ("features", "labels", "groups")}
    groups = np.where(labels == M - 1, N, np.arange(N))
    for place, values in zip(named.values(), (X, labels, groups), strict=True):
        np.save(place, values)
    files = {name: str(place) for name, place in named.items()}
    import_features(ImportConfig(**files, store=str(tmp_path / "one"), test_share=0.0))
    found = inspect_model(trained(tmp_path / "one", C=10.0), InspectConfig(max_passes=0))
    assert f"{M - 1}" not in {one.name for one in found.classes}
    assert not {one.sample_id for one in found.suspects} & {f"row{i:09d}" for i in rare}


@pytest.mark.parametrize("folds", [0, 3])
def test_the_only_row_of_a_class_is_not_in_dispute(tmp_path: Path, folds: int) -> None:
    X, labels = make_features(N, 6, M)
    labels[labels == 0], labels[5] = 1, 0
    write_dataset(open_store(tmp_path / "store", create=True), X, labels, np.zeros(N, np.int8), m=M)
    output = tmp_path / "table.parquet"
    found = inspect_model(trained(tmp_path / "store"), InspectConfig(output=output, folds=folds))
    assert found.disputed > 0
    assert "row000005" not in {one.sample_id for one in found.suspects}
    suspicion = {row["sample_id"]: row["suspicion"] for row in pq.read_table(output).to_pylist()}
    assert suspicion["row000005"] == 0.5


def test_a_smooth_loss_needs_no_stored_duals(store: Path) -> None:
    found = inspect_model(trained(store, loss="softmax", k=None), InspectConfig(max_passes=3000, shown=3))
    assert found.open == 0
    assert len(found.suspects) == 3
    assert set(found.boundary) == {f"class {code}" for code in range(M)}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"keep_duals": False}, "--keep-duals"), ({"kernel": "rbf"}, "nystroem"),
        ({"average_top": 20.0, "tol": 0.5}, "--average-top"),
    ],
)  # fmt: skip
def test_models_without_an_answer_are_refused_by_name(
    store: Path, options: dict[str, Any], words: str
) -> None:
    url = trained(store, **{"tol": 0.1, **options})
    with pytest.raises(InputError, match=words):
        inspect_model(url, InspectConfig())


def test_weights_of_0_have_no_opinion_of_a_row(tmp_path: Path) -> None:
    place = open_store(tmp_path, create=True)
    write_dataset(place, np.zeros((60, 4), np.float32), np.arange(60) % 3, np.zeros(60, np.int8))
    model = train(TrainConfig(store=str(tmp_path), k=1, transforms=()), HERE).model
    with pytest.raises(InputError, match="W of m0001 is 0, so it prefers no class"):
        inspect_model(model, InspectConfig())


def test_a_softmax_goes_on_from_a_hinge_without_what_belongs_to_the_hinge(store: Path) -> None:
    before = trained(store, loss="topk_hinge", k=3, C=0.5, method="dual_ascent")
    config = settings_of_model(TrainConfig(loss="softmax", tol=0.1), before)
    assert (config.C, config.k, config.method) == (0.5, None, "auto")
    started = load_model(train(config, HERE).model).record.result["start"]
    assert (started["model"], started["from"]) == (before.rpartition("/")[2], "weights")


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
