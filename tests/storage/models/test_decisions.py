"""Decisions on models: what follows from the log, who wins a race, and what damage does."""

from __future__ import annotations

import multiprocessing
from typing import Any

import pytest

from tests.storage.models.test_records import ARRAYS, record
from tests.storage.test_integrity import flip_first
from topline.storage.errors import ConflictError, FormatError, IntegrityError
from topline.storage.fingerprint import digest_json
from topline.storage.models import (
    DecisionRecord,
    Standing,
    delete_model,
    read_standing,
    record_decision,
    save_model,
)
from topline.storage.stores import CommitLog, Store, open_store
from topline.storage.stores.sealed import sealed
from topline.storage.verification import verify_store

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


def _race(arguments: tuple[str, int]) -> str:
    url, number = arguments
    try:
        record_decision(open_store(url), Standing(), entry("promote", f"m{number:04d}", f"r{number:04d}"))
    except ConflictError as error:
        return str(error)
    return ""


def test_one_racer_wins_and_the_others_are_told_who(local_store: Store) -> None:
    with multiprocessing.get_context("fork").Pool(4) as pool:
        said = pool.map(_race, [(local_store.url, number) for number in range(1, 9)], chunksize=1)
    standing = read_standing(local_store)
    assert standing.seq == 1
    assert said.count("") == 1
    winner = standing.entries[0]
    assert winner.model == f"m{said.index('') + 1:04d}"
    for text in filter(None, said):
        assert f"meanwhile {winner.model} was promoted by {winner.by} at {winner.when}" in text


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
