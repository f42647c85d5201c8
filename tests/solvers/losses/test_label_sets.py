"""Label sets: the table and the indicator matrix say the same, and what is no table is refused by name."""

from __future__ import annotations

import json

import numpy as np
import pytest
from scipy import sparse

from topline.solvers.errors import InvalidProblemError
from topline.solvers.losses import LabelSets
from topline.solvers.losses.base import NO_MARGINS
from topline.solvers.projections.columns import own_class, own_count


def indicator(rng, n=40, m=5):
    return (rng.random((n, m)) < 0.4).astype(np.int8)


def test_indicator_returns():
    Y = indicator(np.random.default_rng(0))
    sets, codes = LabelSets.from_indicator(Y)
    assert codes.shape == (40,)
    assert codes.dtype == np.int64
    assert len(sets) == len(np.unique(Y, axis=0)) == codes.max() + 1
    np.testing.assert_array_equal(sets.indicator(codes), Y)
    np.testing.assert_array_equal(sets.sizes[codes], Y.sum(axis=1))
    for i in (0, 7, 39):
        np.testing.assert_array_equal(sets.labels(codes[i]), np.flatnonzero(Y[i]))


@pytest.mark.parametrize("make", [sparse.csr_matrix, sparse.csr_array, sparse.coo_array, np.asarray])
def test_table_depends_neither_on_the_format_nor_on_the_order_of_rows(make):
    rng = np.random.default_rng(1)
    Y = indicator(rng)
    sets, codes = LabelSets.from_indicator(Y)
    order = rng.permutation(len(Y))
    again, shuffled = LabelSets.from_indicator(make(Y[order]))
    assert again == sets
    assert hash(again) == hash(sets)
    np.testing.assert_array_equal(shuffled, codes[order])


def test_lists_are_sets():
    sets, codes = LabelSets.from_lists([[2, 0, 2], [], [0, 2], [1]], 3)
    np.testing.assert_array_equal(sets.indicator(codes), [[1, 0, 1], [0, 0, 0], [1, 0, 1], [0, 1, 0]])
    assert codes[0] == codes[2]


def test_kernels_read_the_same_sets():
    sets, _ = LabelSets.from_lists([[], [1], [0, 2], [0, 1, 2]], 3)
    for code in range(len(sets)):
        count = own_count(sets.table, code)
        assert [own_class(sets.table, code, place) for place in range(1, count + 1)] == list(
            sets.labels(code)
        )
        assert own_class(sets.table, code, count + 1) == -1
    # Without a table y is the one own class.
    assert [own_class(NO_MARGINS, 2, place) for place in (1, 2)] == [2, -1]


def test_dict_returns_through_json():
    sets, _ = LabelSets.from_lists([[], [1], [0, 2]], 3)
    assert LabelSets.from_dict(json.loads(json.dumps(sets.to_dict()))) == sets


def test_digest_tells_tables_apart():
    digests = {
        LabelSets([0, 1, 2], [0, 1], 2).digest,
        LabelSets([0, 1, 2], [1, 0], 2).digest,
        LabelSets([0, 1, 2], [0, 1], 3).digest,
        LabelSets([0, 2], [0, 1], 2).digest,
        LabelSets([0, 0, 2], [0, 1], 2).digest,
    }
    assert len(digests) == 5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([0, 1], [0], 0), "m of the label sets is 0"),
        (([0, 1], [0.5], 2), "indices of the label sets has the shape"),
        (([0, 2], [0], 2), "must rise from 0 to the 1 labels"),
        (([1, 1], [0], 2), "must rise from 0"),
        (([], [], 2), "must rise from 0"),
        (([0, 1], [2], 2), "holds the label 2; labels must lie between 0 and 1"),
        (([0, 1, 3], [0, 1, 1], 2), "the labels of label set 1 do not ascend"),
        (([0, 1, 1, 2], [0, 0], 2), "label sets 0 and 2 are the same"),
    ],
)
def test_what_is_no_table_is_refused(arguments, message):
    with pytest.raises(InvalidProblemError, match=message):
        LabelSets(*arguments)


@pytest.mark.parametrize(
    ("Y", "message"),
    [
        ([0, 1], "has the shape"),
        ([[0, 2]], "other values than 0 and 1"),
        ([[0.0, np.nan]], "other values than 0 and 1"),
        ([["a", "b"]], "other values than 0 and 1"),
    ],
)
def test_what_is_no_indicator_is_refused(Y, message):
    with pytest.raises(InvalidProblemError, match=message):
        LabelSets.from_indicator(Y)


def test_incomplete_record_is_refused():
    with pytest.raises(InvalidProblemError, match=r"without \['indptr'\]"):
        LabelSets.from_dict({"m": 2, "indices": []})
