"""Records of a later version: a reader ignores the fields that it does not know."""

from __future__ import annotations

import json
from contextlib import closing
from typing import Any

import numpy as np
import pytest

from tests.storage.models.test_records import ARRAYS, record
from tests.storage.samples import dense, write_dataset
from topline.storage import records
from topline.storage.arrays import ChunkPlan, from_rows
from topline.storage.cache import PredictionsDraft, StoredKernel, StoredPredictions
from topline.storage.datasets import Dataset, UnitRef, list_datasets
from topline.storage.errors import FormatError, IntegrityError
from topline.storage.models import (
    DecisionRecord,
    ModelRecord,
    Standing,
    load_model,
    read_standing,
    record_decision,
    save_model,
    update_record,
)
from topline.storage.runs import (
    HistoryWriter,
    add_answer,
    create_run,
    create_sweep,
    finish_run,
    finish_sweep,
    history,
    latest_checkpoint,
    read_answers,
    read_history,
    read_run,
    read_sweep,
    save_checkpoint,
)
from topline.storage.served_schedule import ServedSchedule, note_schedule, read_schedule
from topline.storage.stores import FileEntry, Store, held_lease, holder, sealed
from topline.storage.verification import verify_store

KEY = "0" * 16
PLAN = ChunkPlan(n_rows=101, chunk_rows=8, shard_rows=32)
X = dense(101, 6)


@pytest.mark.parametrize("field", ["lam", "method", "n", "multilabel", "id"])
def test_a_field_of_another_type_is_refused(field: str) -> None:
    made = record().to_json()
    for value in ([], {"n": 1}, "text" if field in ("lam", "n") else 3):
        with pytest.raises(FormatError, match=f"{field} is "):
            ModelRecord.from_json({**made, field: value})


def test_a_record_that_names_too_few_classes_or_lies_too_deep_is_refused(local_store: Store) -> None:
    with pytest.raises(FormatError, match="has m = 1000000000 and the names of 3 classes"):
        ModelRecord.from_json({**record().to_json(), "m": 10**9, "d": 10**9})
    local_store.write_bytes("schedule.json", b'{"every": ' + b"[" * 100_000 + b"]" * 100_000 + b"}")
    with pytest.raises(IntegrityError, match="not a sealed JSON record"):
        read_schedule(local_store)


def fill(store: Store) -> None:
    """One of everything that a store holds."""
    info = write_dataset(store, X, PLAN, key="mine")
    model = save_model(store, record(dataset=info.id, dataset_digest=info.digest), ARRAYS)
    update_record(model, evaluation={"top1": 0.5})
    record_decision(store, Standing(), DecisionRecord("promote", "m0001", "the first", "a test"))
    run = create_run(store, {"C": 1.0}, dataset=info.id)
    with closing(HistoryWriter(store, run)) as history:
        history.append({"round": 0})
    duals = from_rows([(0, 4, np.ones((4, 3), np.float32))])
    save_checkpoint(store, run, 1, {"W": np.ones(3)}, duals, {"fingerprint": {"C": 1.0}})
    finish_run(store, run, {"status": "solved"})
    sweep = create_sweep(store, {"C": [1.0]}, info.id, info.digest)
    add_answer(store, sweep, 0, {"C": 1.0})
    finish_sweep(store, sweep, {"best": 0})
    note_schedule(store, ServedSchedule("6h", "UTC", since="2026-03-01T02:00:00+00:00"))
    StoredKernel.write(store, KEY, np.eye(5), np.eye(5, dtype=np.float32), {"rows": 5})
    best = PredictionsDraft.begin(store, KEY, ChunkPlan(5, 5, 5), 2)
    arrays = {"classes": np.zeros((5, 2), np.int32), "scores": np.zeros((5, 2), np.float32)}
    written = best.write_arrays(0, arrays)
    best.publish(KEY, written, {"rows": 5})


def extend(store: Store) -> set[str]:
    """Return the names of the files that are records, each of which has the field; heartbeats get it here."""
    changed = set()
    for path in store.walk():
        name = path.rpartition("/")[2]
        if name == "zarr.json" or name.rpartition(".")[2] not in {"json", "jsonl", "beat"}:
            continue
        text = store.read_bytes(path)
        if name.endswith(".beat"):
            lines = [json.dumps({**json.loads(line), "added-later": 1}) for line in text.splitlines()]
            store.write_bytes(path, "".join(f"{line}\n" for line in lines).encode())
        else:
            assert b"added-later" in text, "others hold its digest: it was written with the field"
        changed.add(name)
    return changed


def test_fields_of_a_later_version_are_ignored(local_store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    listed, listed_unit, plain = FileEntry.to_json, UnitRef.to_json, records.plain

    def later(entry: FileEntry) -> dict[str, Any]:
        return {**listed(entry), "added-later": True}

    def later_plain(fields: Any) -> Any:
        return plain({**fields, "added-later": {"by": [1]}})

    store = local_store

    def later_unit(unit: UnitRef) -> dict[str, Any]:
        return {**listed_unit(unit), "added-later": True}

    monkeypatch.setattr(FileEntry, "to_json", later)
    monkeypatch.setattr(UnitRef, "to_json", later_unit)
    for module in (history, sealed):
        monkeypatch.setattr(module, "plain", later_plain)
    fill(store)
    with held_lease(store, "retrain", "a test"):
        assert extend(store) >= {
            "00000001.json",
            "00000001.beat",
            "000000.json",
            "begun.json",
            "files.json",
            "history.jsonl",
            "outcome.json",
            "run.json",
            "schedule.json",
            "staging.json",
            "sweep.json",
        }
        assert str(holder(store, "retrain")).startswith("a test (process ")
    assert verify_store(store) == []
    (info,) = list_datasets(store)
    np.testing.assert_array_equal(Dataset.open(store, info.id).rows(0, 101), X)
    assert write_dataset(store, X, PLAN, key="mine").id == info.id, "and is not written again"
    model = load_model(f"{store.url}/models/m0001")
    np.testing.assert_array_equal(model.array("W"), ARRAYS["W"])
    assert (model.record.revision, model.record.evaluation) == (2, {"top1": 0.5})
    assert read_standing(store).champion == "m0001"
    run = read_run(store, "r0001")
    assert (run.config, run.outcome and run.outcome["status"]) == ({"C": 1.0}, "solved")
    assert [line["round"] for line in read_history(store, run.id)] == [0]
    checkpoint = latest_checkpoint(store, run.id, fingerprint={"C": 1.0})
    np.testing.assert_array_equal(checkpoint.dual_blocks().rows(0, 4), np.ones((4, 3)))
    sweep = read_sweep(store, "s0001")
    assert sweep.outcome["best"] == 0
    assert [answer["C"] for answer in read_answers(store, sweep.id)] == [1.0]
    schedule = read_schedule(store)
    assert schedule.every == "6h"
    np.testing.assert_array_equal(StoredKernel.load(store, KEY).matrix.rows(0, 5), np.eye(5))
    assert StoredPredictions.load(store, KEY).classes.rows(0, 5).shape == (5, 2)
