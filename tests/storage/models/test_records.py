"""Models: published in one step, revised without losing anything, checked when read."""

from __future__ import annotations

import itertools
import pickle
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest

from tests.storage.samples import bucket_when_slow
from tests.storage.test_integrity import flip_first
from topline.storage.arrays import DualSource, from_rows
from topline.storage.errors import (
    FormatError,
    IncompleteError,
    IntegrityError,
    NotFoundError,
    UnsupportedURLError,
)
from topline.storage.models import (
    DecisionRecord,
    ModelRecord,
    Standing,
    delete_model,
    list_models,
    load_model,
    read_standing,
    record_decision,
    save_model,
    unfinished_models,
    update_record,
)
from topline.storage.records import digest_json
from topline.storage.retention import RetentionPolicy, prune
from topline.storage.stores import CommitLog, Store
from topline.storage.stores.sealed import sealed
from topline.storage.verification import verify_store

A = np.random.default_rng(0).standard_normal((100, 3))
ARRAYS = {"W": np.arange(12.0).reshape(4, 3), "b": np.ones(3, np.float32), "transform.mean": np.zeros(4)}


def record(**changes: Any) -> ModelRecord:
    values: dict[str, Any] = {
        "dataset": "d0001-0123abcd",
        "dataset_digest": "0" * 64,
        "config": {"k": 5},
        "loss": {"name": "topk_hinge", "k": 2},
        "lam": 1e-4,
        "C": 100.0,
        "smoothing": 0.0,
        "method": "fw",
        "n": 100,
        "d": 4,
        "m": 3,
        "class_names": ("ant", "bee", "Käfer"),
        "features": {"backbone": "hog", "cells": 8},
        "transforms": ({"name": "l2"}, {"name": "bias"}),
    }
    return ModelRecord(**{**values, **changes})


def blocks(*cuts: int) -> DualSource:
    return from_rows((a, b, A[a:b]) for a, b in itertools.pairwise(cuts))


def test_a_model_comes_back(any_store: Store) -> None:
    url = save_model(any_store, record(parents=("m0000",)), ARRAYS, blocks(0, 30, 31, 100))
    assert url == f"{any_store.url}/models/m0001"
    model = load_model(url)
    assert model.url == url
    assert model.arrays == ("W", "b", "transform.mean")
    for name, array in ARRAYS.items():
        assert model.array(name).dtype == array.dtype
        np.testing.assert_array_equal(model.array(name), array)
    assert model.has_duals
    np.testing.assert_array_equal(model.duals(0, 100), A)
    np.testing.assert_array_equal(model.duals(29, 33), A[29:33])
    assert (model.record.id, model.record.revision, model.record.version) == ("m0001", 1, 1)
    assert model.record.lineage["parents"] == ["m0000"]
    assert model.record.class_names == ("ant", "bee", "Käfer")
    assert model.record.transforms == ({"name": "l2"}, {"name": "bias"})
    assert ModelRecord.from_json(model.record.to_json()) == model.record


def test_a_model_without_duals(local_store: Store) -> None:
    model = load_model(save_model(local_store, record(), ARRAYS))
    assert not model.has_duals
    with pytest.raises(NotFoundError, match="without dual variables"):
        model.duals(0, 1)
    with pytest.raises(NotFoundError, match="no array 'V'; it has W, b"):
        model.array("V")


@bucket_when_slow
def test_models_are_numbered_and_listed(any_store: Store) -> None:
    assert list_models(any_store) == []
    urls = [save_model(any_store, record(method=f"method-{n}"), ARRAYS) for n in range(3)]
    assert [url.rpartition("/")[2] for url in urls] == ["m0001", "m0002", "m0003"]
    assert [model.method for model in list_models(any_store)] == ["method-0", "method-1", "method-2"]


@bucket_when_slow
def test_revisions_keep_the_arrays_and_each_other(any_store: Store) -> None:
    url = save_model(any_store, record(), ARRAYS)
    files_before = [path for path in any_store.walk("models") if "/arrays/" in path]
    assert update_record(url, certificate={"gap": np.float64(0.5), "bound": float("inf")}).revision == 2
    assert update_record(url, evaluation={"top1": 0.9}, result={"x": 1}).revision == 3
    latest = load_model(url).record
    assert latest.certificate == {"gap": 0.5, "bound": None}
    assert latest.evaluation == {"top1": 0.9}
    log = CommitLog(any_store, "m0001", "models")
    assert [revision["result"] for revision in log.records()] == [{}, {}, {"x": 1}]
    assert list_models(any_store) == [latest]
    assert [path for path in any_store.walk("models") if "/arrays/" in path] == files_before
    np.testing.assert_array_equal(load_model(url).array("W"), ARRAYS["W"])


@pytest.mark.parametrize("changes", [{"lam": 1.0}, {"parents": ()}, {"nonsense": 1}])
def test_what_is_trained_does_not_change(local_store: Store, changes: dict[str, Any]) -> None:
    url = save_model(local_store, record(), ARRAYS)
    with pytest.raises(FormatError):
        update_record(url, **changes)
    assert load_model(url).record.revision == 1


def test_models_that_are_not_there(local_store: Store) -> None:
    save_model(local_store, record(), ARRAYS)
    with pytest.raises(NotFoundError, match="no model m0007; it has m0001"):
        load_model(f"{local_store.url}/models/m0007")
    with pytest.raises(NotFoundError, match="there is no store"):
        load_model(f"{local_store.url}-other/models/m0001")
    with pytest.raises(UnsupportedURLError, match="<store>/models/<name>"):
        load_model(local_store.url)


def test_a_model_whose_writer_was_stopped(local_store: Store) -> None:
    def stopped() -> Any:
        yield 0, 30, A[:30]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        save_model(local_store, record(), ARRAYS, from_rows(stopped()))
    assert list_models(local_store) == []
    assert unfinished_models(local_store) == ["m0001"]
    with pytest.raises(IncompleteError, match="m0001 was begun and never finished"):
        load_model(f"{local_store.url}/models/m0001")
    assert save_model(local_store, record(), ARRAYS).endswith("m0002")


@bucket_when_slow
def test_a_deleted_model_is_gone_and_its_number_with_it(any_store: Store) -> None:
    for _ in range(2):
        url = save_model(any_store, record(), ARRAYS, blocks(0, 100))
    delete_model(url, "it was spoiled")
    delete_model(url, "again")
    with pytest.raises(NotFoundError, match=r"m0002 was deleted from .*: it was spoiled"):
        load_model(url)
    assert [model.id for model in list_models(any_store)] == ["m0001"]
    assert unfinished_models(any_store) == []
    if not any_store.locks:
        assert any_store.list("models/m0002/arrays"), "nobody knows who reads it"
        prune(any_store, RetentionPolicy(), datetime.now(UTC) + timedelta(days=2))
    assert any_store.walk("models/m0002") == ["models/m0002/begun.json", "models/m0002/deleted.json"]
    assert save_model(any_store, record(), ARRAYS).endswith("m0003")
    with pytest.raises(NotFoundError, match="no model m0009"):
        delete_model(f"{any_store.url}/models/m0009", "never there")


@pytest.mark.parametrize("cuts", [(0, 30), (0, 30, 99)])
def test_duals_must_be_of_all_examples(local_store: Store, cuts: tuple[int, ...]) -> None:
    with pytest.raises(FormatError, match="100 examples"):
        save_model(local_store, record(), ARRAYS, blocks(*cuts))
    assert list_models(local_store) == []
    assert [path for path in local_store.walk("models") if "/arrays/" in path] == []


@pytest.mark.parametrize("name", ["duals", "../W", "a/b", "", ".hidden"])
def test_names_that_arrays_do_not_have(local_store: Store, name: str) -> None:
    with pytest.raises(FormatError, match="not named"):
        save_model(local_store, record(), {name: ARRAYS["W"]})


def test_a_damaged_model_is_named(local_store: Store) -> None:
    url = save_model(local_store, record(), ARRAYS, blocks(0, 100))
    flip_first(local_store, "models/m0001/arrays/W/c/0/0")
    flip_first(local_store, "models/m0001/arrays/duals/000000000000-000000000100")
    model = load_model(url)
    with pytest.raises(IntegrityError, match="W of model m0001: shard 0 is damaged"):
        model.array("W")
    with pytest.raises(IntegrityError, match=r"duals of model m0001: .* is damaged.*\(rows 0-99\)"):
        model.duals(0, 100)
    np.testing.assert_array_equal(model.array("b"), ARRAYS["b"])
    flip_first(local_store, "models/m0001/00000001.json")
    with pytest.raises(IntegrityError, match=r"models/m0001/00000001\.json"):
        load_model(url)


def test_a_model_travels_by_its_url(local_store: Store) -> None:
    model = load_model(save_model(local_store, record(), ARRAYS, blocks(0, 100)))
    copy = pickle.loads(pickle.dumps(model))
    assert copy.record == model.record
    np.testing.assert_array_equal(copy.duals(3, 9), A[3:9])


LOG = "commits/registry"


def entry(action: str, model: str, by: str = "r0001") -> DecisionRecord:
    return DecisionRecord(action, model, f"to {action} {model}", by, {"topk": {"1": 0.5}})


def decide(store: Store, *decisions: tuple[str, str]) -> Standing:
    standing = read_standing(store)
    for action, model in decisions:
        standing = record_decision(store, standing, entry(action, model))
    return standing


def test_stages_and_reigns_follow_from_the_log(any_store: Store) -> None:
    told = decide(
        any_store,
        ("promote", "m0001"), ("keep", "m0002"), ("promote", "m0003"), ("archive", "m0002"),
        ("delete", "m0002"), ("promote", "m0004"), ("rollback", "m0003"),
    )  # fmt: skip
    standing = read_standing(any_store)
    assert standing == told
    stages = [standing.stage(f"m000{n}") for n in range(1, 6)]
    assert stages == ["archived", "deleted", "champion", "archived", "candidate"]
    assert (standing.champion, standing.former) == ("m0003", ("m0001",))
    assert [reign.model for reign in standing.reigns] == ["m0001", "m0003", "m0004", "m0003"]
    assert [reign.seq for reign in standing.reigns] == [1, 3, 6, 7]
    assert [reign.until is None for reign in standing.reigns] == [False, False, False, True]
    assert [one.action for one in standing.of("m0002")] == ["keep", "archive", "delete"]
    assert [one.champion_before for one in standing.entries[:3]] == [None, "m0001", "m0001"]
    assert standing.entries[0].evidence == {"topk": {"1": 0.5}}


def test_what_cannot_follow_is_refused_and_leaves_nothing(local_store: Store) -> None:
    standing = decide(local_store, ("promote", "m0001"), ("promote", "m0002"), ("delete", "m0003"))
    for action, model, why in [
        ("promote", "m0002", "is the champion"),
        ("keep", "m0002", "is the champion"),
        ("archive", "m0002", "is the champion"),
        ("promote", "m0003", "was deleted"),
        ("rollback", "m0003", "was deleted"),
        ("rollback", "m0004", "the champion before was m0001, not m0004"),
        ("crown", "m0004", "not 'crown'"),
    ]:
        with pytest.raises(FormatError, match=why):
            record_decision(local_store, standing, entry(action, model))
    assert read_standing(local_store) == standing


def test_a_deleted_model_is_not_rolled_back_to(local_store: Store) -> None:
    decided = [("promote", "m0001"), ("promote", "m0002"), ("promote", "m0001"), ("promote", "m0003")]
    standing = decide(local_store, *decided, ("delete", "m0002"))
    assert standing.former == ("m0001",)
    standing = decide(local_store, ("delete", "m0003"))
    assert (standing.champion, standing.former) == (None, ("m0001",))
    assert decide(local_store, ("rollback", "m0001")).champion == "m0001"
    standing = decide(local_store, ("promote", "m0004"), ("promote", "m0001"), ("delete", "m0004"))
    assert (standing.champion, standing.former) == ("m0001", ())


def test_a_damaged_log_is_named_by_everybody(local_store: Store) -> None:
    decide(local_store, ("promote", "m0001"), ("promote", "m0002"), ("promote", "m0003"))
    whole = local_store.read_bytes(f"{LOG}/00000002.json")
    before = digest_json(CommitLog(local_store, "registry").record(1))
    foreign = {**entry("promote", "m0009").to_json(), "seq": 2, "token": "", "previous": before}
    contradiction = sealed(f"{LOG}/00000002.json", foreign)
    for damage, named in [
        (lambda: flip_first(local_store, f"{LOG}/00000002.json"), "00000002.json is damaged"),
        (lambda: local_store.delete(f"{LOG}/00000002.json"), "00000002.json is missing"),
        (
            lambda: local_store.write_bytes(f"{LOG}/00000002.json", contradiction),
            "00000002.json contradicts the decisions before it: promote of m0009 was decided under None",
        ),
    ]:
        damage()
        with pytest.raises(IntegrityError, match=named):
            read_standing(local_store)
        assert any("00000002" in finding.path for finding in verify_store(local_store))
        local_store.write_bytes(f"{LOG}/00000002.json", whole)
    assert read_standing(local_store).champion == "m0003"


def test_the_log_and_the_models_are_checked_against_each_other(local_store: Store) -> None:
    urls = [save_model(local_store, record(), ARRAYS) for _ in range(4)]

    def found() -> list[Any]:
        findings = [finding for finding in verify_store(local_store) if finding.kind != "dataset-gone"]
        return [(finding.path, finding.what, finding.harmless) for finding in findings]

    decide(local_store, ("promote", "m0001"), ("promote", "m0002"), ("delete", "m0003"))
    assert found() == [("models/m0003", "it was to be deleted, and is there", True)]
    delete_model(urls[2], "as decided")
    assert found() == []
    delete_model(urls[3], "by nobody's decision")
    assert found() == [(LOG, "the decision to delete m0004 is missing", False)]
    decide(local_store, ("delete", "m0004"))
    local_store.delete_tree("models/m0001")
    assert found() == [("models/m0001", "it is the model to roll back to, and is gone", False)]
