"""What cannot be solved is refused by name, before or while the first pass reads it."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from tests.solvers.problems import examples
from topline import (
    InvalidProblemError,
    MaxHinge,
    NonFiniteError,
    Softmax,
    TopKHinge,
    TruncatedTopKEntropy,
    UnsupportedCombinationError,
    solve,
)

X, Y = examples(n=20)


def with_value(position, value, array=X):
    changed = array.copy()
    changed[position] = value
    return changed


def call(**changes):
    arguments = {"X": X, "y": Y, "loss": MaxHinge(), "lam": 0.1, "method": "fw", "max_passes": 2, **changes}
    return solve(**arguments)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"y": with_value(3, -1, Y)}, "the label of row 3 is -1; labels must lie between 0 and 4"),
        ({"y": with_value(3, 9, Y), "m": 5}, "the label of row 3 is 9; labels must lie between 0 and 4"),
        ({"y": with_value(3, 0.5, Y.astype(float))}, r"the label of row 3 is 0.5; .* y\.astype\(str\)"),
        ({"y": with_value(3, np.nan, Y.astype(float))}, "the label of row 3 is nan; give whole numbers"),
        ({"y": Y.astype(str)}, "the labels have dtype <U21; give whole numbers"),
        ({"y": Y[:-1]}, "there are 20 rows of features but 19 labels"),
        ({"y": Y[:, None]}, r"the labels have the shape \(20, 1\)"),
        ({"X": X[0]}, r"the features have the shape \(4,\)"),
        ({"X": X[:0], "y": Y[:0]}, "there are no examples"),
        ({"X": X[:, :0]}, "the features have no columns"),
        ({"X": X.astype(complex)}, "the features have dtype complex128"),
        ({"X": X.astype(object)}, "the features have dtype object"),
        ({"X": np.ma.masked_greater(X, 1.0)}, r"a masked array, .* give X.filled\(0.0\)"),
        ({"y": np.zeros(20, dtype=int)}, "there are 1 classes"),
        ({"loss": TopKHinge(6)}, "there are only 5 classes; use k <= 5"),
        ({"loss": "topk_hinge"}, "the loss topk_hinge needs k, which is not given"),
        ({"loss": TopKHinge}, "give one of the losses of topline, such as TopKHinge"),
        ({"lam": 0.0}, "lam is 0.0; give a positive number"),
        ({"lam": -1.0}, "lam is -1.0"),
        ({"lam": np.nan}, "lam is nan"),
        ({"smoothing": -0.1}, "smoothing is -0.1"),
        ({"smoothing": np.inf}, "smoothing is inf"),
        ({"tol": 0.0}, "tol is 0.0; give a positive number"),
        ({"tol": np.nan}, "tol is nan"),
        ({"max_passes": 0}, "max_passes is 0"),
        ({"max_passes": 1.5}, "max_passes is 1.5"),
        ({"time_limit": 0.0}, "time_limit is 0.0"),
        ({"method": "simplex"}, "there is no method named 'simplex'; use one of"),
        ({"method": ["fw"]}, r"there is no method named \['fw'\]; use one of"),
        ({"lam": "0.1"}, "lam is '0.1'; give a positive number"),
        ({"smoothing": None}, "smoothing is None; give a number of at least 0"),
        ({"tol": "1e-3"}, "tol is '1e-3'; give a positive number"),
        ({"time_limit": "60"}, "time_limit is '60'; give a positive number of seconds"),
        ({"m": 5.5}, "m is 5.5; give the number of classes as a whole number"),
        ({"m": "5"}, "m is '5'; give the number of classes as a whole number"),
        ({"seed": -1}, "seed is -1; give a whole number of at least 0"),
        ({"seed": None}, "seed is None; give a whole number of at least 0"),
    ],
)
def test_what_makes_no_problem(changes, message) -> None:
    with pytest.raises(InvalidProblemError, match=message):
        call(**changes)


def test_whole_floats_are_labels() -> None:
    assert np.array_equal(call(y=Y.astype(np.float32)).W, call().W)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"loss": Softmax(), "smoothing": 0.5}, "the loss softmax is smooth as it is"),
        ({"loss": TruncatedTopKEntropy(2)}, "the loss truncated_topk_entropy is not convex"),
        ({"loss": TruncatedTopKEntropy(2), "method": "lbfgs", "keep_duals": True}, "has no dual variables"),
        ({"smoothing_kind": "others"}, "the smoothing kind others is for the hinges"),
    ],
)
def test_what_is_not_offered_together(changes, message) -> None:
    with pytest.raises(UnsupportedCombinationError, match=message):
        call(**changes)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("make", [np.asarray, sparse.csr_matrix, lambda a: a.astype(np.float32)])
def test_features_that_are_no_numbers_are_named_by_row(make, value) -> None:
    with pytest.raises(NonFiniteError, match="rows 4, 17 hold NaN or infinity"):
        call(X=make(with_value(([4, 17], [0, 3]), value)))


def test_many_bad_rows_are_counted() -> None:
    with pytest.raises(NonFiniteError, match=r"rows 0, 1, 2, 3, 4 and 15 more"):
        call(X=X * np.nan)


def test_plain_lists_will_do() -> None:
    assert call(X=X.tolist(), y=Y.tolist()).passes == 2


def test_scores_need_the_right_number_of_features() -> None:
    result = call()
    np.testing.assert_allclose(result.decision_function(X), X @ result.W)
    with pytest.raises(InvalidProblemError, match="give rows of 4 features"):
        result.decision_function(X[:, :3])


def test_whole_numbers_of_numpy_are_as_good_as_python_s() -> None:
    """A search over a grid gives such numbers."""
    result = call(max_passes=np.int64(3), seed=np.int32(1), m=np.int64(5), tol=np.float32(1e-9))
    assert result.passes == 3
