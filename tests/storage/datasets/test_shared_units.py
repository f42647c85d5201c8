"""What versions share: units are stored once, whoever writes them, and belong to all that refer to them."""

from __future__ import annotations

import numpy as np
import pytest

from tests.storage.samples import (
    CLASSES,
    assignments,
    begin,
    dense,
    manifest_of,
    part,
    sparse,
    unit_of,
    write_dataset,
    write_units,
)
from tests.storage.test_integrity import flip_first, lose
from topline.storage.arrays import ChunkPlan
from topline.storage.datasets import (
    CsrDatasetWriter,
    Dataset,
    DatasetInfo,
    DatasetWriter,
    check_dataset,
    find_by_key,
    list_datasets,
    read_catalog,
    remove_dataset,
    staged,
)
from topline.storage.errors import FormatError, IntegrityError, MismatchError, NotFoundError
from topline.storage.stores import Store
from topline.storage.verification import verify_store

PLAN = ChunkPlan(n_rows=100, chunk_rows=8, shard_rows=32)

# Hundreds of requests to a server in Python: seconds.
SLOW_S3 = pytest.param("s3", marks=pytest.mark.slow)


def grown(store: Store, X: object, cuts: tuple[int, ...], key: str) -> DatasetInfo:
    """A dataset of the first rows of X in units of other sizes."""
    rows = X[: cuts[-1]]  # type: ignore[index]
    plan = ChunkPlan(cuts[-1], 8, 32)
    kind = DatasetWriter if isinstance(X, np.ndarray) else CsrDatasetWriter
    writer = kind.begin(store, key, rows.shape[1], "float32", plan, {"backbone": "test"}, cuts=cuts)
    for unit in range(writer.units):
        span = writer.bounds(unit)
        writer.write_unit(unit, rows[span.start : span.stop], part(span.start, span.stop))
    return writer.commit(*assignments(cuts[-1]), CLASSES)


def feature_files(store: Store) -> set[str]:
    return {path for path in store.walk("units") if not path.endswith(".json")}


@pytest.mark.parametrize("any_store", ["local", "memory", SLOW_S3], indirect=True)
@pytest.mark.parametrize("make", [dense, sparse])
def test_a_version_of_one_more_row_costs_that_row(any_store: Store, make: object) -> None:
    X = make(101, 6)  # type: ignore[operator]
    first = grown(any_store, X, (0, 32, 64, 96, 100), "one")
    before = feature_files(any_store)
    second = grown(any_store, X, (0, 32, 64, 96, 100, 101), "two")
    assert len(feature_files(any_store) - before) == len(before) / 4, "one unit's files"
    assert before < feature_files(any_store)
    for info in (first, second):
        dataset = Dataset(any_store, info)
        assert dataset.sample_ids() == [f"image-{row}" for row in range(info.n_rows)]
        for start, stop in ((0, info.n_rows), (95, info.n_rows), (31, 33), (99, 100), (50, 50)):
            found, wanted = dataset.rows(start, stop), X[start:stop]
            if make is sparse:
                found, wanted = found.toarray(), wanted.toarray()
            np.testing.assert_array_equal(found, wanted)
    assert verify_store(any_store) == []


def test_other_labels_and_another_key_share_everything(local_store: Store) -> None:
    X = dense(100, 6)
    first = write_dataset(local_store, X, PLAN, key="one")
    shared = set(local_store.walk("units")) | set(local_store.walk("manifests"))
    writer = begin(local_store, X, PLAN, key="two")
    write_units(writer, X)
    second = writer.commit(np.zeros(100, np.int32), np.zeros(100, np.int8), ("only",))
    assert set(local_store.walk("units")) | set(local_store.walk("manifests")) == shared
    assert Dataset(local_store, first).manifest()["class_name"].to_pylist()[:2] == ["ant", "bee"]
    assert Dataset(local_store, second).manifest()["class_name"].to_pylist()[:2] == ["only", "only"]


def test_the_same_numbers_in_another_layout_are_other_contents(local_store: Store) -> None:
    X = dense(96, 6)
    first = write_dataset(local_store, X, ChunkPlan(96, 8, 32), key="one")
    second = write_dataset(local_store, X, ChunkPlan(96, 16, 32), key="two")
    assert unit_of(local_store, first, 0) != unit_of(local_store, second, 0)
    assert manifest_of(local_store, first, 0) == manifest_of(local_store, second, 0)


def test_a_shared_unit_that_is_damaged_is_mended_by_writing_it_again(local_store: Store) -> None:
    X = dense(100, 6)
    first = write_dataset(local_store, X, PLAN, key="one")
    second = write_dataset(local_store, X, PLAN, key="two")
    place = f"{unit_of(local_store, first, 1)}/c/0/0"
    for damage in (flip_first, lose):
        damage(local_store, place)
        for info in (first, second):
            with pytest.raises(IntegrityError, match=rf"features of dataset {info.id}: shard 1 .*rows 32-"):
                Dataset(local_store, info).rows(0, 100)
        (finding,) = verify_store(local_store)
        assert finding.path == place
        writer = begin(local_store, X, PLAN, key=f"mended {damage.__name__}")
        write_units(writer, X)
        assert verify_store(local_store)[0].harmless
        writer.abandon()
        assert verify_store(local_store) == []


def test_a_manifest_is_checked_a_unit_at_a_time(local_store: Store) -> None:
    info = write_dataset(local_store, dense(100, 6), PLAN, key="one")
    dataset = Dataset(local_store, info)
    dataset.check_manifest()
    place = manifest_of(local_store, info, 1)
    flip_first(local_store, place)
    with pytest.raises(IntegrityError, match=r"is damaged.*rows 32-"):
        dataset.check_manifest()
    lose(local_store, place)
    with pytest.raises(IntegrityError, match=r"is missing.*rows 32-"):
        dataset.check_manifest()


def test_cuts_are_agreed_on(local_store: Store) -> None:
    X = dense(100, 6)
    grown(local_store, X, (0, 50, 100), "done")
    assert staged(local_store, "begun") is None
    kinds = {"d": 6, "dtype": "float32", "plan": PLAN, "attributes": {}}
    writer = DatasetWriter.begin(local_store, "begun", cuts=(0, 1, 100), base="d0001", **kinds)
    found = staged(local_store, "begun")
    assert found is not None
    assert (found["cuts"], found["base"], writer.bounds(1).rows) == ([0, 1, 100], "d0001", 99)
    with pytest.raises(MismatchError, match="begun with other cuts"):
        DatasetWriter.begin(local_store, "begun", cuts=(0, 2, 100), base="d0001", **kinds)
    for cuts in ((0, 0, 100), (0, 99), (1, 100)):
        with pytest.raises(FormatError, match="units are cut at 0 <"):
            DatasetWriter.begin(local_store, "other", cuts=cuts, **kinds)


def test_what_is_removed_is_out_of_sight_and_its_number_stays_taken(local_store: Store) -> None:
    X = dense(100, 6)
    first, second = (write_dataset(local_store, X, PLAN, key=key) for key in ("one", "two"))
    open_one = Dataset(local_store, first)
    remove_dataset(local_store, first, "nobody needs it", "a test")
    assert list_datasets(local_store) == [second]
    assert find_by_key(local_store, "one") is None
    assert read_catalog(local_store).removed[first.id].reason == "nobody needs it"
    with pytest.raises(NotFoundError, match=rf"{first.id} was removed .*nobody needs it; it has {second.id}"):
        Dataset.open(local_store, first.id)
    np.testing.assert_array_equal(open_one.rows(0, 100), X)
    again = write_dataset(local_store, X, PLAN, key="one")
    assert (again.seq, again.folder != first.folder, Dataset.open(local_store).info) == (4, True, again)
    assert check_dataset(Dataset.open(local_store), deep=True) == []
    assert [(f.path, f.harmless) for f in verify_store(local_store)] == [(first.folder, True)]
    remove_dataset(local_store, again, "again", "a test")
    assert Dataset.open(local_store).info == second
    local_store.delete_tree(first.folder)
    with pytest.raises(NotFoundError, match=r"was removed .*nobody needs it"):
        Dataset(local_store, first)
