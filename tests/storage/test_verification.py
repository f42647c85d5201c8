"""fsck: everything that is wrong in a store, once, with the rows and what to do."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from tests.storage.models.test_records import ARRAYS, record
from tests.storage.samples import (
    CLASSES,
    assignments,
    begin,
    bucket_when_slow,
    dense,
    part,
    sparse,
    unit_of,
    write_dataset,
    write_units,
)
from tests.storage.test_integrity import empty, flip_first, halve, lose
from topline.storage.arrays import ChunkPlan
from topline.storage.datasets import Dataset, DatasetInfo, check_dataset
from topline.storage.models import save_model
from topline.storage.records import Finding
from topline.storage.runs import HistoryWriter, create_run, finish_run, save_checkpoint
from topline.storage.runs.history import history_path
from topline.storage.stores import Store
from topline.storage.stores.local import PARTIAL
from topline.storage.stores.sealed import NumberedFolders, sealed
from topline.storage.verification import verify_store

PLAN = ChunkPlan(n_rows=101, chunk_rows=8, shard_rows=32)


def fill(store: Store) -> tuple[DatasetInfo, DatasetInfo]:
    """Two datasets, a model and a run with a history and two checkpoints."""
    first = write_dataset(store, dense(101, 6), PLAN, key="dense")
    second = write_dataset(store, sparse(101, 6), PLAN, key="sparse")
    save_model(store, record(dataset=first.id, dataset_digest=first.digest), ARRAYS)
    run_id = create_run(store, {}, dataset=second.id)
    with closing(HistoryWriter(store, run_id)) as history:
        history.append({"round": 0})
        history.append({"round": 1})
    for number in (1, 2):
        save_checkpoint(store, run_id, number, {"W": np.ones(3)}, None, {})
    return first, second


def only(findings: list[Finding]) -> Finding:
    (finding,) = findings
    return finding


@bucket_when_slow
def test_a_sound_store_has_no_findings(any_store: Store) -> None:
    fill(any_store)
    assert verify_store(any_store, deep=True) == []
    assert verify_store(any_store, deep=False) == []


def test_an_empty_store_has_none(any_store: Store) -> None:
    assert verify_store(any_store) == []


@pytest.mark.parametrize(
    ("damage", "kind", "shallow"),
    [
        (lose, "missing", True),
        (empty, "wrong-size", True),
        (halve, "wrong-size", True),
        (flip_first, "wrong-digest", False),
    ],
)
@pytest.mark.parametrize(
    ("place", "rows"), [("unit", (32, 64)), ("arrays/labels/c/0", (0, 101)), ("units.json", None)]
)
def test_a_damaged_file_of_a_dataset(
    local_store: Store, damage: object, kind: str, shallow: bool, place: str, rows: tuple[int, int] | None
) -> None:
    first, _ = fill(local_store)
    path = f"{unit_of(local_store, first, 1)}/c/0/0" if place == "unit" else f"{first.folder}/{place}"
    damage(local_store, path)
    finding = only(verify_store(local_store))
    assert (finding.kind, finding.path, finding.rows) == (kind, path, rows)
    assert first.id in finding.what
    assert not finding.harmless
    assert finding.fix
    # The list of units is read, not only looked at.
    assert bool(verify_store(local_store, deep=False)) == (shallow or place == "units.json")
    assert finding.to_json()["kind"] == kind
    if place == "unit":
        assert "(rows 32-63)" in str(finding)


@pytest.mark.parametrize("name", ["indptr", "indices", "data"])
def test_a_damaged_sparse_unit(local_store: Store, name: str) -> None:
    _, second = fill(local_store)
    flip_first(local_store, f"{unit_of(local_store, second, 1)}/{name}/c/0")
    assert only(verify_store(local_store)).rows == (32, 64)


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("commits/datasets/00000002.json", "dataset"),
        ("models/m0001/00000001.json", "model"),
        ("models/m0001/arrays/W/c/0/0", "wrong-digest"),
        ("runs/r0001/run.json", "run"),
        ("runs/r0001/checkpoints/00000001.json", "checkpoint"),
    ],
)
def test_damage_anywhere_else(local_store: Store, path: str, kind: str) -> None:
    fill(local_store)
    flip_first(local_store, path)
    found = verify_store(local_store)
    assert kind in {finding.kind for finding in found}
    assert any(path.startswith(finding.path) or finding.path.startswith(path) for finding in found)


@pytest.mark.parametrize(
    ("damage", "kind"), [(lose, "missing"), (halve, "wrong-size"), (flip_first, "wrong-digest")]
)
def test_a_damaged_part_of_a_checkpoint(local_store: Store, damage: object, kind: str) -> None:
    run_id = create_run(local_store, {})
    duals = [(0, 5, np.ones((5, 2))), (9, 20, np.ones((11, 2)))], [(5, 9, np.ones((4, 2)))]
    save_checkpoint(
        local_store, run_id, 1, {"W": np.ones(3)}, lambda w: [e for rows in duals for e in w.write(rows)], {}
    )
    (path,) = (path for path in local_store.walk() if path.endswith("duals/000000000009-000000000020"))
    damage(local_store, path)
    finding = only(verify_store(local_store))
    assert (finding.kind, finding.path, finding.rows) == (kind, path, (9, 20))
    assert finding.fix == "resume from the checkpoint before it, or start a new run"


def test_a_run_that_was_killed_before_its_outcome_was_written_is_no_damage(local_store: Store) -> None:
    """Training ends, the certificate follows, then the outcome: nobody can tell a kill from a lost file."""
    run_id = create_run(local_store, {})
    with closing(HistoryWriter(local_store, run_id)) as history:
        history.append({"round": 0})
        history.append({"event": "end", "reason": None})
    finding = only(verify_store(local_store))
    assert (finding.kind, finding.path, finding.harmless) == ("run", f"runs/{run_id}/outcome.json", True)
    assert "resume the run" in finding.fix
    finish_run(local_store, run_id, {"status": "solved"})
    assert verify_store(local_store) == []


@pytest.mark.parametrize(("before", "torn"), [((), "begun.json"), (("begun.json",), "model.json")])
def test_a_writer_killed_in_its_first_records_did_no_damage(
    local_store: Store, before: tuple[str, ...], torn: str
) -> None:
    for name in before:
        local_store.write_bytes(f"models/m0001/{name}", sealed(f"models/m0001/{name}", {}))
    local_store.write_bytes(f"models/m0001/{torn}.0123456789ab{PARTIAL}", b"{")
    found = verify_store(local_store)
    assert found
    assert all(finding.harmless for finding in found), found


def test_parts_of_a_save_that_crashed(local_store: Store) -> None:
    fill(local_store)
    stray = "runs/r0001/checkpoints/00000003-0123abcd"
    local_store.write_bytes(f"{stray}/duals/000000000000-000000000005", b"torn")
    finding = only(verify_store(local_store))
    assert (finding.kind, finding.path, finding.harmless) == ("staging", stray, True)
    flip_first(local_store, "runs/r0001/checkpoints/00000001.json")
    kinds = [finding.kind for finding in verify_store(local_store)]
    assert kinds == ["checkpoint", "staging"], "whose folder the other one is nobody knows any more"


def test_a_damaged_line_of_a_history(local_store: Store) -> None:
    fill(local_store)
    local_store.write_bytes(
        history_path("r0001"), b"nonsense\n" + local_store.read_bytes(history_path("r0001"))
    )
    finding = only(verify_store(local_store))
    assert finding.kind == "history"
    assert "line 1" in finding.what


def test_a_lost_commit_record(local_store: Store) -> None:
    fill(local_store)
    lose(local_store, "commits/datasets/00000001.json")
    found = verify_store(local_store)
    assert (found[0].kind, found[0].path) == ("dataset", "commits/datasets/00000001.json")
    assert found[0].what == "it is missing from the commit log"


def test_models_and_runs_whose_dataset_is_gone(local_store: Store) -> None:
    save_model(local_store, record(dataset="d0007-gone"), ARRAYS)
    create_run(local_store, {}, dataset="d0008-gone")
    found = verify_store(local_store)
    assert [(finding.kind, finding.path) for finding in found] == [
        ("dataset-gone", "models/m0001"),
        ("dataset-gone", "runs/r0001"),
    ]
    assert "d0007-gone is gone" in found[0].what


def test_leftovers_are_reported_as_harmless_and_last(local_store: Store) -> None:
    first, _ = fill(local_store)
    root = Path(local_store.url)
    write_units(begin(local_store, dense(101, 6), PLAN, key="half"), dense(101, 6), [0, 2])
    NumberedFolders("models", "m").reserve(local_store)
    (root / unit_of(local_store, first, 1) / f"c/0/0.abc{PARTIAL}").write_bytes(b"torn")
    (root / first.folder / "notes.txt").write_text("mine")
    flip_first(local_store, f"{first.folder}/arrays/labels/c/0")
    found = verify_store(local_store)
    assert [finding.harmless for finding in found] == [False, True, True, True, True]
    assert {finding.kind for finding in found[1:]} == {"staging", "partial", "foreign-file"}


def test_values_that_break_the_rules_though_every_digest_fits(
    local_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    import topline.storage.datasets.writer as writers

    def careless(labels: object, split: object, *_: object) -> tuple[object, object]:
        return np.asarray(labels, np.int32), np.asarray(split, np.int8)

    X = dense(101, 6)
    writer = begin(local_store, X, PLAN)
    write_units(writer, X)
    labels = np.zeros(101, np.int32)
    with monkeypatch.context() as patch:
        patch.setattr(writers, "check_labels_and_splits", careless)
        labels[17] = 99
        writer.commit(labels, np.zeros(101, np.int8), ("a", "b"))
    finding = only(verify_store(local_store))
    assert finding.kind == "values"
    assert "99 in row 17 is a label out of range" in finding.what
    assert check_dataset(Dataset.open(local_store), deep=False) == []


def test_a_manifest_that_disagrees_though_every_digest_fits(
    local_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    import topline.storage.datasets.writer as writers

    with monkeypatch.context() as patch:
        patch.setattr(writers, "check_rejected", lambda *_: None)
        X = dense(101, 6)
        writer = begin(local_store, X, PLAN)
        write_units(writer, X)
        status = ["rejected" if row == 40 else "ok" for row in range(101)]
        writer.commit(*assignments(101), CLASSES, part(0, 101, status=status))
    finding = only(verify_store(local_store))
    assert finding.kind == "values"
    assert "row 40 (image-40) is rejected, and its split is 0" in finding.what


def test_nan_that_came_in_though_every_digest_fits(
    local_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    import topline.storage.datasets.writer as writers

    X = dense(101, 6)
    X[70, 1] = np.nan
    with monkeypatch.context() as patch:
        patch.setattr(writers, "dense_unit", lambda X, *_: np.ascontiguousarray(X))
        write_dataset(local_store, X, PLAN)
    finding = only(verify_store(local_store))
    assert (finding.kind, finding.rows) == ("non-finite", (64, 96))
