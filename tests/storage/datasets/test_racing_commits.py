"""Two writers of one key whose files differ: what one publishes, the other does not replace."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest

from tests.storage.samples import CLASSES, assignments, begin, dense, write_dataset, write_units
from tests.storage.test_integrity import flip_first
from topline.storage.arrays import ChunkPlan
from topline.storage.datasets import Dataset, DatasetInfo, DatasetWriter, LabelSetTable, check_dataset
from topline.storage.datasets.contents import PackedUnit
from topline.storage.errors import FormatError, IntegrityError
from topline.storage.retention import RetentionPolicy, prune
from topline.storage.stores import Store
from topline.storage.verification import verify_store

PLAN = ChunkPlan(n_rows=100, chunk_rows=8, shard_rows=32)
X = dense(100, 6)
#: What another machine computes: one number differs in its last bit.
OTHER = X.copy()
OTHER[40, 2] = np.nextafter(X[40, 2], np.float32(9))


class Killed(BaseException):
    """A writer falls dead."""


class Watched:
    """A store on which something happens in the moment before a record is put to the log of datasets."""

    def __init__(self, store: Store, meanwhile: Callable[[str, bytes], object]) -> None:
        self.store, self.meanwhile = store, meanwhile

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    def put_if_absent(self, path: str, data: bytes) -> bool:
        if path.startswith("commits/datasets/") and path.endswith(".json"):
            self.meanwhile(path, data)
        return self.store.put_if_absent(path, data)


def writer(store: Store, rows: Any, meanwhile: Callable[[str, bytes], object] | None = None) -> DatasetWriter:
    watched: Any = store if meanwhile is None else Watched(store, meanwhile)
    made = begin(watched, rows, PLAN)
    write_units(made, rows)
    return made


def commit(made: DatasetWriter) -> DatasetInfo:
    return made.commit(*assignments(100), CLASSES)


def killed(*_: object) -> None:
    raise Killed


def check(store: Store, info: DatasetInfo, rows: Any) -> None:
    """The dataset is whole, has these rows, is the only one of the key, and loses nothing by a pruning."""
    assert check_dataset(Dataset(store, info), deep=True) == []
    assert [finding for finding in verify_store(store, deep=True) if not finding.harmless] == []
    prune(store, RetentionPolicy(keep=1, days=0), datetime.now(UTC))
    # A writer that was killed did not put its record's head; the next record would.
    assert [one for one in verify_store(store, deep=True) if not one.path.endswith(".head")] == []
    np.testing.assert_array_equal(Dataset(store, info).rows(0, 100), rows)
    again = begin(store, rows, PLAN)
    assert (again.committed, commit(again)) == (info, info)


@pytest.mark.parametrize("rows", [X, OTHER], ids=["the same", "others"])
def test_files_that_a_killed_writer_left(memory_store: Store, rows: Any) -> None:
    with pytest.raises(Killed):
        commit(writer(memory_store, X, killed))
    second = writer(memory_store, rows)
    info = commit(second)
    assert (info.folder == second.folder) == (rows is X)
    check(memory_store, info, rows)


def test_a_writer_that_is_overtaken_takes_its_own_files_away(memory_store: Store) -> None:
    won: list[DatasetInfo] = []

    def another_commits(*_: object) -> None:
        if not won:
            won.append(commit(writer(memory_store, OTHER)))

    assert commit(writer(memory_store, X, another_commits)) == won[0]
    check(memory_store, won[0], OTHER)


def test_who_is_killed_after_its_marks_leaves_those_of_what_is_stored(
    local_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = writer(local_store, X)
    with monkeypatch.context() as patch:
        patch.setattr(PackedUnit, "put", killed)
        with pytest.raises(Killed):
            write_units(begin(local_store, OTHER, PLAN), OTHER)
    check(local_store, commit(made), X)


SETS = LabelSetTable.checked([0, 0, 1, 3, 6], [1, 0, 2, 0, 1, 2], 3)
ROWS = 40


def commit_sets(store: Store, label_sets: Any = SETS, labels: Any = None) -> Dataset:
    """Forty rows whose labels are the numbers of SETS."""
    X = dense(ROWS, 3)
    writer = begin(store, X, ChunkPlan(ROWS, 8, 32))
    write_units(writer, X)
    _, split = assignments(ROWS)
    codes = np.arange(ROWS) % len(SETS) if labels is None else labels
    return Dataset.open(store, writer.commit(codes, split, CLASSES, label_sets=label_sets).id)


def test_label_sets_come_back_and_name_their_classes(memory_store: Store) -> None:
    dataset = commit_sets(memory_store)
    found = dataset.label_sets()
    assert found.indptr.tolist() == SETS.indptr.tolist()
    assert found.indices.tolist() == SETS.indices.tolist()
    assert dataset.info.label_sets == len(SETS)
    assert dataset.info.m == len(CLASSES)
    assert dataset.labels().tolist() == [row % 4 for row in range(ROWS)]
    assert dataset.manifest()["class_name"].to_pylist()[:4] == ["", "bee", "ant, Käfer", "ant, bee, Käfer"]
    assert check_dataset(dataset, deep=True) == []


def test_a_dataset_of_single_labels_has_no_table(memory_store: Store) -> None:
    dataset = Dataset.open(memory_store, write_dataset(memory_store, dense(ROWS, 3)).id)
    assert dataset.label_sets() is None
    assert dataset.info.label_sets is None
    assert not any("label_set" in path for path in dataset.files.by_path)


def test_a_set_of_no_class_at_all_is_stored(memory_store: Store) -> None:
    dataset = commit_sets(memory_store, LabelSetTable.checked([0, 0], [], 3), np.zeros(ROWS, dtype=np.int64))
    found = dataset.label_sets()
    assert found is not None
    assert [members.tolist() for members in found] == [[]]


def test_numbers_of_sets_that_are_not_there_are_refused(memory_store: Store) -> None:
    with pytest.raises(
        FormatError, match=r"4 in row 7 is a label out of range: 4 label sets have labels 0..3"
    ):
        commit_sets(memory_store, labels=np.where(np.arange(ROWS) == 7, 4, 0))


@pytest.mark.parametrize(
    ("indptr", "indices", "message"),
    [
        ([0, 1, 2], [0, 3], "label set 1 holds 3, and 3 classes"),
        ([0, 1, 2], [0, -1], "label set 1 holds -1"),
        ([0, 2], [1, 0], "the classes of label set 0 do not rise"),
        ([0, 2], [1, 1], "the classes of label set 0 do not rise"),
        ([0, 1, 2], [1, 1], "label sets 0 and 1 are the same"),
        ([0, 0, 0], [], "label sets 0 and 1 are the same"),
        ([0, 3], [0, 1], "indptr of label sets rises from 0 to the 2 classes"),
        ([0, 2, 1, 2], [0, 1], "indptr of label sets rises"),
        ([], [], "indptr of label sets rises"),
        ([0, 1], [0.5], "indices of label sets holds whole numbers"),
    ],
)
def test_tables_that_are_none_are_refused(
    memory_store: Store, indptr: Any, indices: Any, message: str
) -> None:
    with pytest.raises(FormatError, match=message):
        LabelSetTable.checked(indptr, indices, 3)
    unchecked = LabelSetTable(np.asarray(indptr), np.asarray(indices))
    with pytest.raises(FormatError, match=message):
        commit_sets(memory_store, unchecked, np.zeros(ROWS, dtype=np.int64))


@pytest.mark.parametrize("name", ["label_set_indptr", "label_set_indices"])
def test_a_damaged_table_is_found(memory_store: Store, name: str) -> None:
    dataset = commit_sets(memory_store)
    path = next(path for path in dataset.files.by_path if name in path and not path.endswith("zarr.json"))
    flip_first(memory_store, f"{dataset.info.folder}/{path}")
    again = Dataset.open(memory_store, dataset.info.id)
    with pytest.raises(IntegrityError, match=name):
        again.label_sets()
    assert [finding.kind for finding in check_dataset(again, deep=True)] == ["wrong-digest"]
