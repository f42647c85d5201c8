"""The registry: challengers weighed on rows that nobody was trained on, guarded changes, lost races."""

from __future__ import annotations

import getpass
import shutil
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.pipeline.small_data import make_features, make_split, write_dataset
from tests.storage.test_integrity import flip_first
from topline.pipeline.certification.recompute import SOURCES
from topline.pipeline.errors import GuardError, InputError
from topline.pipeline.evaluation.measurement import evaluate
from topline.pipeline.notices import decision_notices
from topline.pipeline.options.train import ClusterConfig, TrainConfig
from topline.pipeline.registry.decisions import (
    champion_url,
    delete,
    mark,
    promote,
    promote_by_rule,
    registered,
    rollback,
    weigh,
)
from topline.pipeline.registry.promotion import Evidence, PromotionRule, compare, decide, measure
from topline.pipeline.rows.partition import TrainingRows
from topline.pipeline.rows.stored_model import StoredModel
from topline.pipeline.training import train
from topline.storage.datasets import Dataset
from topline.storage.errors import ConflictError, NotFoundError
from topline.storage.models import load_model, read_standing, update_record
from topline.storage.stores import open_store

ROWS, WIDTH, CLASSES = 700, 12, 5
BASES = ("A", "W", "W and its cuts", "W and b", "W, b and aa", "W, W(A) and b")


def fitted(store: str, dataset: str, **options: Any) -> str:
    chosen = {"k": 2, "tol": 0.01, "C": 10.0, **options}
    return train(TrainConfig(store=store, dataset=dataset, **chosen), ClusterConfig(workers=0)).model


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four models: of the data, of its first rows, of spoiled labels, and one that lacks a class."""
    folder = tmp_path_factory.mktemp("registry") / "store"
    store = open_store(folder, create=True)
    X, labels = make_features(ROWS, WIDTH, CLASSES, noise=0.2)
    split = make_split(ROWS)
    few = ROWS // 7
    spoiled = np.where(split == 0, (labels + 1) % CLASSES, labels).astype(np.int32)
    turned = np.roll(split, 1)
    fewer = labels < CLASSES - 1
    ids = [
        write_dataset(store, X[:few], labels[:few], turned[:few], key="few", m=CLASSES).id,
        write_dataset(store, X, labels, split, key="all", m=CLASSES).id,
        write_dataset(store, X, spoiled, split, key="spoiled", m=CLASSES).id,
        write_dataset(store, X[fewer], labels[fewer], split[fewer], key="fewer").id,
    ]
    for dataset in ids:
        fitted(str(folder), dataset)
    return folder


@pytest.fixture
def store(trained: Path, tmp_path: Path) -> str:
    return str(shutil.copytree(trained, tmp_path / "store"))


def url(store: str, number: int) -> str:
    return f"{store}/models/m{number:04d}"


def fresh_rows(challenger: StoredModel, champion: StoredModel) -> list[int]:
    """Test rows of the challenger's dataset that the champion was not trained on."""
    known, ids = champion.dataset().sample_ids(), challenger.dataset().sample_ids()
    seen = {known[row] for row in TrainingRows(champion.dataset()).indices}
    rows = TrainingRows(challenger.dataset(), "test")
    return [place for place, row in enumerate(rows.indices) if ids[row] not in seen]


@pytest.mark.parametrize("rival", [1, 4])
def test_both_are_measured_on_rows_that_neither_was_trained_on(store: str, rival: int) -> None:
    """Also where one does not know a class: each row of that is a miss."""
    found = measure(url(store, 2), url(store, rival))
    challenger, champion = StoredModel.open(url(store, 2)), StoredModel.open(url(store, rival))
    rows, fresh = TrainingRows(challenger.dataset(), "test"), fresh_rows(challenger, champion)
    assert found.excluded == len(rows) - len(fresh) > 0
    names = [pair.metric.name for pair in found.compared]
    assert names == ["top-1", "top-2", "top-3", "macro-top-1", "tail-top-1"]
    trained = np.bincount(TrainingRows(challenger.dataset()).labels())
    y, X = rows.labels()[fresh], np.array(rows[0 : len(rows)])[fresh]
    for model, shares in ((challenger, "challenger"), (champion, "champion")):
        scores = np.asarray(model.transforms.apply(X), dtype=float) @ model.W
        best = np.argsort(-scores, axis=1)
        for pair in found.compared:
            right = (best[:, : pair.metric.topk] == y[:, None]).any(axis=1)
            by_class = {c: right[y == c].mean() for c in np.unique(y).tolist()}
            rare = sorted(trained[list(by_class)])[-(-len(by_class) // 3) - 1]
            expected = {
                "macro-top-1": np.mean(list(by_class.values())),
                "tail-top-1": np.mean([share for c, share in by_class.items() if trained[c] <= rare]),
            }.get(pair.metric.name, right.mean())
            assert getattr(pair, shares) == pytest.approx(expected, abs=1e-12)
            assert pair.rows == len(y)
    assert found.drift.rows_before == champion.model.record.n
    assert found.drift.rows_now == challenger.model.record.n


def test_a_model_against_itself_is_as_good_as_evaluation_says(store: str) -> None:
    same = measure(url(store, 2), url(store, 2))
    evaluated = evaluate(url(store, 2))
    values = {metric.name: value for metric, value in evaluated.measured()}
    for pair in same.compared:
        assert pair.challenger == pytest.approx(values[pair.metric.name])
    assert {(pair.gain, pair.p_value) for pair in same.compared} == {(0.0, 1.0)}


def test_a_model_is_not_put_beside_itself(store: str) -> None:
    with pytest.raises(InputError, match="m0002 would be compared with itself: name another model"):
        compare(url(store, 2), url(store, 2))


def test_the_rule_promotes_keeps_and_says_why(store: str) -> None:
    rule = PromotionRule(k=1)
    first = promote_by_rule(url(store, 1), rule, by="r0001")
    second = promote_by_rule(url(store, 2), rule, by="r0002")
    assert (first.decision.promote, second.decision.promote) == (True, True), second.decision.text
    assert champion_url(store) == url(store, 2)
    spoiled = promote_by_rule(url(store, 3), rule, by="r0003")
    assert not spoiled.decision.promote
    assert "top-1" in spoiled.decision.text
    again = promote_by_rule(url(store, 3), rule, by="r0004")
    assert again.standing == spoiled.standing
    assert promote_by_rule(url(store, 2), rule).decision.reasons == ("it is the champion already",)
    entries = read_standing(open_store(store)).entries
    who = f"{getpass.getuser()}@{socket.gethostname()}"
    assert [(entry.action, entry.model, entry.by) for entry in entries] == [
        ("promote", "m0001", f"r0001 ({who})"), ("promote", "m0002", f"r0002 ({who})"),
        ("keep", "m0003", f"r0003 ({who})"),
    ]  # fmt: skip
    assert entries[2].reason == spoiled.decision.text
    kept = entries[2].evidence["comparison"]["accuracies"][0]
    assert kept["challenger"] < kept["champion"]
    assert entries[1].evidence["certificate"]["certified"] is True
    assert rollback(store, reason="complaints").champion == "m0001"
    with pytest.raises(GuardError, match="no champion before m0001"):
        rollback(store)


def test_guards_of_promotion(store: str) -> None:
    promote(url(store, 2))
    with pytest.raises(GuardError, match=r"m0004 is not promoted: it does not know 1 classes .*\(class 4\)"):
        promote(url(store, 4))
    refused = weigh(url(store, 4), PromotionRule(k=1, on_class_changes="refuse"))
    assert not refused.decision.promote
    assert "does not know 1 classes of the champion (gone class 4)" in refused.decision.text
    common = weigh(url(store, 4), PromotionRule(k=1))
    assert common.evidence.on_common
    assert common.evidence.classes.removed == ("class 4",)
    update_record(url(store, 4), certificate=None)
    with pytest.raises(GuardError, match=r"it has no certificate .*; it does not know"):
        promote(url(store, 4))
    with pytest.raises(GuardError, match="--force needs a --reason"):
        promote(url(store, 4), force=True)
    standing = promote(url(store, 4), force=True, reason="class 4 was retired")
    assert (standing.champion, standing.entries[-1].forced) == ("m0004", True)
    flip_first(open_store(store), "models/m0001/arrays/W/c/0/0")
    with pytest.raises(InputError, match="m0001 is damaged"):
        promote(url(store, 1), force=True, reason="never mind")
    with pytest.raises(NotFoundError, match="no model m0009"):
        promote(url(store, 9))


def test_rollback_needs_the_champion_before_whole(store: str) -> None:
    with pytest.raises(GuardError, match="has had no champion: promote a model first"):
        rollback(store)
    promote(url(store, 1))
    with pytest.raises(GuardError, match="has had no champion before m0001: promote a model instead"):
        rollback(store)
    promote(url(store, 2))
    flip_first(open_store(store), "models/m0001/arrays/W/c/0/0")
    with pytest.raises(InputError, match="m0001 is damaged"):
        rollback(store)
    assert champion_url(store) == url(store, 2)


def test_deleting_spares_the_champion_and_the_way_back(store: str) -> None:
    promote(url(store, 1))
    promote(url(store, 2))
    with pytest.raises(GuardError, match="m0002 is not deleted: it is the champion"):
        delete(url(store, 2))
    with pytest.raises(GuardError, match="a rollback of m0002 would need it"):
        delete(url(store, 1))
    mark(url(store, 3), "archive")
    assert registered(store)[0].stage("m0003") == "archived"
    delete(url(store, 3))
    delete(url(store, 3), reason="to finish it")
    delete(url(store, 1), force=True, reason="it must go")
    standing, records = registered(store)
    assert ([record.id for record in records], standing.previous) == (["m0002", "m0004"], None)
    assert [entry.forced for entry in standing.entries if entry.action == "delete"] == [False, True]


def test_who_decides_on_old_evidence_is_told_what_happened(store: str) -> None:
    seen = weigh(url(store, 1), PromotionRule()).standing
    promote(url(store, 2), by="r0042")
    with pytest.raises(ConflictError, match="m0001 was not promoted: meanwhile m0002 was promoted by r0042"):
        promote(url(store, 1), evidence=Evidence(), standing=seen)
    assert champion_url(store) == url(store, 2)


def test_without_the_old_data_it_is_said_what_is_not_known(store: str) -> None:
    place = open_store(store)
    place.delete_tree(Dataset.open(place, StoredModel.open(url(store, 1)).model.record.dataset).info.folder)
    found = measure(url(store, 2), url(store, 1))
    assert (found.excluded, found.drift) == (None, None)
    assert found.of("top-1") is not None
    assert "is missing" in measure(url(store, 1), url(store, 2)).unmeasured


def test_two_models_side_by_side(store: str) -> None:
    other = fitted(store, "latest", C=3.0, transforms=("bias",))
    found = compare(other, url(store, 4)).to_dict()
    assert found["differences"]["C"] == [3.0, 10.0]
    assert found["differences"]["transforms"] == [["bias"], ["l2", "bias"]]
    assert "loss" not in found["differences"]
    assert [model["stage"] for model in found["models"]] == ["candidate", "candidate"]
    assert found["evidence"]["accuracies"][0]["k"] == 1


def test_common_classes_compete_among_themselves(store: str) -> None:
    """Of a class that only one knows no row counts, and no column either."""
    champion, challenger = StoredModel.open(url(store, 2)), StoredModel.open(url(store, 4))
    found = measure(url(store, 4), url(store, 2), common=True)
    rows, fresh = TrainingRows(challenger.dataset(), "test"), fresh_rows(challenger, champion)
    names = challenger.model.record.class_names
    y, X = rows.labels()[fresh], np.array(rows[0 : len(rows)])[fresh]
    columns = [champion.model.record.class_names.index(name) for name in names]
    right = (np.asarray(champion.transforms.apply(X), float) @ champion.W)[:, columns].argmax(axis=1) == y
    pair = found.of("top-1")
    assert pair.champion == pytest.approx(right.mean(), abs=1e-12)
    assert (found.on_common, pair.rows) == (True, len(y))
    train = TrainingRows(challenger.dataset(), "train", champion.transforms)
    given = (np.array(train[0 : len(train)], float) @ champion.W)[:, columns].argmax(axis=1)
    assert found.disputed.rows == len(train)
    assert found.disputed.share == pytest.approx((given != train.labels()).mean(), abs=1e-12)


def test_the_same_reason_is_counted_and_told_the_third_time(
    store: str, caplog: pytest.LogCaptureFixture
) -> None:
    promote(url(store, 2))
    rule = PromotionRule(k=1, least_gain=0.9, least_rows=0.0)
    seen = [promote_by_rule(url(store, number), rule).decision for number in (1, 3, 4)]
    assert [decision.repeated for decision in seen] == [1, 2, 3]
    assert "is kept for the same reason (gain" in caplog.text
    assert "m0002 is kept for the same reason" in seen[2].text
    entries = registered(store)[0].entries
    assert [entry.repeated for entry in entries if entry.action == "keep"] == [1, 2, 3]
    again = promote_by_rule(url(store, 4), rule).decision
    assert again.repeated == 3, "the same model weighed again is not another time"


def test_a_rule_may_want_a_certificate_that_believes_no_sum_of_the_run(store: str) -> None:
    """The bases are ranked: stored dual variables, weights alone, sums that the training run stored."""
    record = load_model(url(store, 1)).record
    wanted = {"A": {"A"}, "W": {"A", "W", "W and its cuts"}, "any": set(BASES)}
    for basis, enough in wanted.items():
        for found in BASES:
            certificate = {**(record.certificate or {}), "rests_on": found}
            rule = PromotionRule(basis=basis)
            decision = decide(replace(record, certificate=certificate), None, Evidence(), rule)
            assert decision.promote is (found in enough), (basis, found)
            assert decision.promote or f"a certificate from {SOURCES[basis]}" in decision.text


def test_the_images_that_a_decision_was_made_on_are_in_the_record_and_in_its_notice(store: str) -> None:
    images = {"seen": 50, "new": 4, "changed": 1, "gone": 246, "rejected": 6, "described": 5}
    standing = promote_by_rule(url(store, 1), PromotionRule(), images=images).standing
    entry = standing.entries[-1]
    assert entry.evidence["images"] == images
    (notice,) = decision_notices(entry, store)
    assert notice.text.endswith("(of 50 images 4 new, 1 changed, 246 gone, 6 rejected)")
    assert notice.facts["images"]["gone"] == 246
