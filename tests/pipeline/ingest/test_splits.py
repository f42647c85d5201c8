from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topline.pipeline.errors import InputError
from topline.pipeline.ingest.splits import HeldOut, hold_out, repeated_content, split_of_content, split_rows
from topline.storage.schema import SPLITS


def ids(n: int) -> list[str]:
    return [f"image {i}" for i in range(n)]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=60),
    st.sampled_from([0.0, 0.1, 0.2, 0.5, 0.9]),
    st.integers(0, 3),
)
def test_each_class_gives_its_share_and_keeps_one(labels: list[int], share: float, seed: int) -> None:
    y = np.asarray(labels, dtype=np.int32)
    held = hold_out(ids(len(y)), y, HeldOut(share, seed=seed)) == SPLITS["test"]
    more = hold_out(ids(len(y)), y, HeldOut(share, 0.04, 0.05, seed))
    # What is drawn for validation and calibration comes from the training rows.
    assert np.array_equal(more == SPLITS["test"], held)
    for label in set(labels):
        rows = y == label
        n = int(rows.sum())
        left = n - 1
        for part, name in ((share, "test"), (0.04, "val"), (0.05, "calibration")):
            count = min(int(part * n + 0.5), left)
            assert (more[rows] == SPLITS[name]).sum() == count
            left -= count


def test_the_hold_out_depends_on_ids_and_seed_alone() -> None:
    y = np.repeat(np.arange(3, dtype=np.int32), 20)
    names = ids(60)
    held = hold_out(names, y, HeldOut(0.25, 0.1, 0.1, 1))
    order = np.random.default_rng(0).permutation(60)
    shuffled = hold_out([names[i] for i in order], y[order], HeldOut(0.25, 0.1, 0.1, 1))
    assert np.array_equal(shuffled, held[order])
    # A class's own choice is not touched by the others.
    assert np.array_equal(hold_out(names[:20], y[:20], HeldOut(0.25, 0.1, 0.1, 1)), held[:20])
    assert not np.array_equal(hold_out(names, y, HeldOut(0.25, 0.1, 0.1, 2)), held)


def test_rejected_rows_have_no_label_and_classes_without_rows_are_left_out() -> None:
    usable = np.array([True, False, True, True, False])
    found = split_rows(ids(5), ["b", "a", "b", "c", None], [None] * 5, usable, held_out=HeldOut(0.5))
    assert found.class_names == ("b", "c")
    assert found.labels.tolist() == [0, -1, 0, 1, -1]
    assert (found.split == SPLITS["rejected"]).tolist() == (~usable).tolist()
    # Of the two of b one is held out, of the one of c none.
    assert sorted(found.split[[0, 2]].tolist()) == [SPLITS["train"], SPLITS["test"]]
    assert found.split[3] == SPLITS["train"]


def test_given_splits_are_kept() -> None:
    splits = ["train", "val", "test", "train"]
    found = split_rows(ids(4), ["a", "a", "b", "b"], splits, np.ones(4, bool), held_out=HeldOut(0.5))
    assert found.split.tolist() == [0, 1, 2, 0]
    # Calibration rows, which nobody gave, are drawn of the training rows; validation rows are there.
    n = 40
    splits = [("train", "val", "test", "train")[i % 4] for i in range(n)]
    kept = split_rows(ids(n), ["a"] * n, splits, np.ones(n, bool), held_out=HeldOut(0.5, 0.5, 0.25))
    calibration = kept.split == SPLITS["calibration"]
    assert [SPLITS[word] for word in splits] == np.where(calibration, SPLITS["train"], kept.split).tolist()
    assert calibration.sum() == 5


def test_a_content_keeps_its_split_and_shares_are_kept() -> None:
    held_out = HeldOut(0.2, 0.1, 0.3, 5)
    found = [split_of_content(name, held_out) for name in ids(4000)]
    assert found == [split_of_content(name, held_out) for name in ids(4000)]
    for name, share in {**held_out.shares, "train": 0.4}.items():
        # Five standard errors of a share of 4,000.
        assert abs(found.count(name) / 4000 - share) < 5 * np.sqrt(share * (1 - share) / 4000)
    tests = {name for name, split in zip(ids(4000), found, strict=True) if split == "test"}
    assert tests == {name for name in ids(4000) if split_of_content(name, HeldOut(0.2, seed=5)) == "test"}


def test_nothing_left_is_said() -> None:
    with pytest.raises(InputError, match="no usable example"):
        split_rows(ids(1), ["a"], [None], np.zeros(1, bool), held_out=HeldOut(0.2))
    with pytest.raises(InputError, match="left for training"):
        split_rows(ids(1), ["a"], ["test"], np.ones(1, bool), held_out=HeldOut(0.2))


def test_repeated_content_points_to_the_usable_row_with_the_first_name() -> None:
    usable = np.array([False, True, True, True, True])
    names = [("a",), ("c",), ("d",), ("b",), ("e",)]
    assert repeated_content(["x", "x", "y", "x", "y"], usable, names).tolist() == [-1, 3, -1, -1, 2]
