from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topline.pipeline.errors import InputError
from topline.pipeline.ingest.splits import hold_out, repeated_content, split_rows
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
    held = hold_out(ids(len(y)), y, share=share, seed=seed)
    for label in set(labels):
        rows = y == label
        n = int(rows.sum())
        assert held[rows].sum() == min(int(share * n + 0.5), n - 1)


def test_the_hold_out_depends_on_ids_and_seed_alone() -> None:
    y = np.repeat(np.arange(3, dtype=np.int32), 20)
    names = ids(60)
    held = hold_out(names, y, share=0.25, seed=1)
    order = np.random.default_rng(0).permutation(60)
    shuffled = hold_out([names[i] for i in order], y[order], share=0.25, seed=1)
    assert np.array_equal(shuffled, held[order])
    # A class's own choice is not touched by the others.
    assert np.array_equal(hold_out(names[:20], y[:20], share=0.25, seed=1), held[:20])
    assert not np.array_equal(hold_out(names, y, share=0.25, seed=2), held)


def test_rejected_rows_have_no_label_and_classes_without_rows_are_left_out() -> None:
    usable = np.array([True, False, True, True, False])
    found = split_rows(ids(5), ["b", "a", "b", "c", None], [None] * 5, usable, test_share=0.5, seed=0)
    assert found.class_names == ("b", "c")
    assert found.labels.tolist() == [0, -1, 0, 1, -1]
    assert (found.split == SPLITS["rejected"]).tolist() == (~usable).tolist()
    # Of the two of b one is held out, of the one of c none.
    assert sorted(found.split[[0, 2]].tolist()) == [SPLITS["train"], SPLITS["test"]]
    assert found.split[3] == SPLITS["train"]


def test_given_splits_are_kept() -> None:
    splits = ["train", "val", "test", "train"]
    found = split_rows(ids(4), ["a", "a", "b", "b"], splits, np.ones(4, bool), test_share=0.5, seed=0)
    assert found.split.tolist() == [0, 1, 2, 0]


def test_nothing_left_is_said() -> None:
    with pytest.raises(InputError, match="no usable example"):
        split_rows(ids(1), ["a"], [None], np.zeros(1, bool), test_share=0.2, seed=0)
    with pytest.raises(InputError, match="left for training"):
        split_rows(ids(1), ["a"], ["test"], np.ones(1, bool), test_share=0.2, seed=0)


def test_repeated_content_points_to_the_usable_row_with_the_first_name() -> None:
    usable = np.array([False, True, True, True, True])
    names = [("a",), ("c",), ("d",), ("b",), ("e",)]
    assert repeated_content(["x", "x", "y", "x", "y"], usable, names).tolist() == [-1, 3, -1, -1, 2]
