"""Datasets whose rows have several labels: the table of their sets is stored, checked and refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.storage.samples import CLASSES, assignments, begin, dense, write_dataset, write_units
from topline.storage.arrays import ChunkPlan
from topline.storage.datasets import Dataset, LabelSetTable, check_dataset
from topline.storage.errors import FormatError, IntegrityError
from topline.storage.stores import Store

SETS = LabelSetTable.checked([0, 0, 1, 3, 6], [1, 0, 2, 0, 1, 2], 3)
ROWS = 40


def commit(store: Store, label_sets: Any = SETS, labels: Any = None) -> Dataset:
    """Forty rows whose labels are the numbers of SETS."""
    X = dense(ROWS, 3)
    writer = begin(store, X, ChunkPlan(ROWS, 8, 32))
    write_units(writer, X)
    _, split = assignments(ROWS)
    codes = np.arange(ROWS) % len(SETS) if labels is None else labels
    return Dataset.open(store, writer.commit(codes, split, CLASSES, label_sets=label_sets).id)


def test_label_sets_come_back_and_name_their_classes(memory_store: Store) -> None:
    dataset = commit(memory_store)
    found = dataset.label_sets()
    assert found is not None
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
    dataset = commit(memory_store, LabelSetTable.checked([0, 0], [], 3), np.zeros(ROWS, dtype=np.int64))
    found = dataset.label_sets()
    assert found is not None
    assert [members.tolist() for members in found] == [[]]


def test_numbers_of_sets_that_are_not_there_are_refused(memory_store: Store) -> None:
    with pytest.raises(
        FormatError, match=r"4 in row 7 is a label out of range: 4 label sets have labels 0..3"
    ):
        commit(memory_store, labels=np.where(np.arange(ROWS) == 7, 4, 0))


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
        commit(memory_store, unchecked, np.zeros(ROWS, dtype=np.int64))


@pytest.mark.parametrize("name", ["label_set_indptr", "label_set_indices"])
def test_a_damaged_table_is_found(memory_store: Store, name: str) -> None:
    dataset = commit(memory_store)
    path = next(path for path in dataset.files.by_path if name in path and not path.endswith("zarr.json"))
    place = f"{dataset.info.folder}/{path}"
    data = bytearray(memory_store.read_bytes(place))
    data[0] ^= 1
    memory_store.write_bytes(place, bytes(data))
    again = Dataset.open(memory_store, dataset.info.id)
    with pytest.raises(IntegrityError, match=name):
        again.label_sets()
    assert [finding.kind for finding in check_dataset(again, deep=True)] == ["wrong-digest"]
