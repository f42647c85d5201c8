"""Checks of the arguments of `solve`; each refusal says in one sentence what was received and what to do."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topline.solvers.core.rows import RowSource, compute_dtype, is_sparse, without_repeats
from topline.solvers.errors import InvalidProblemError
from topline.solvers.losses import LabelSets, Loss
from topline.solvers.typing import Float64Array, IntArray


@dataclass(frozen=True, eq=False)
class LabelledRows:
    """Examples, checked for a loss.

    Attributes
    ----------
    rows : source of their features, (n, d).
    labels : (n,) int32, numbers of classes, or of `label_sets` if there are any.
    weights : (n,) float64, how often each counts; None if each counts once.
    m : number of classes.
    label_sets : the sets that the labels number if an example has several classes, else None.
    """

    rows: RowSource
    labels: IntArray
    weights: Float64Array | None
    m: int
    label_sets: LabelSets | None = None

    @classmethod
    def of(
        cls,
        loss: Loss,
        X: Any,
        y: Any,
        *,
        m: int | None = None,
        label_sets: LabelSets | None = None,
        sample_weight: Any = None,
    ) -> LabelledRows:
        """Return the checked arguments of `solve`; raises InvalidProblemError naming the fault."""
        rows = checked_rows(X)
        n = int(rows.shape[0])
        label_sets, labels, classes = _checked_sets(y, n, m, loss, label_sets)
        if label_sets is not None:
            _refuse_empty_sets(loss, classes, label_sets, labels)
        return cls(rows, labels, checked_weights(sample_weight, n), classes, label_sets)


def checked_rows(X: Any) -> RowSource:
    """Return X as a source of rows; the first pass over it checks the values."""
    if is_sparse(X) and X.format != "csr":
        raise InvalidProblemError(f"the features are a sparse {X.format} matrix; give X.tocsr()")
    if isinstance(X, np.ma.MaskedArray):
        raise InvalidProblemError(
            "the features are a masked array, and solvers know no missing values; give X.filled(0.0), or drop"
            " rows that miss any"
        )
    source: RowSource = X if isinstance(X, RowSource) else np.asarray(X)
    if len(source.shape) != 2:
        raise InvalidProblemError(
            f"the features have the shape {tuple(source.shape)}; give one row per example"
        )
    compute_dtype(source.dtype)
    return without_repeats(source) if is_sparse(source) else source


def checked_labels(y: Any, n: int, m: Any) -> tuple[IntArray, int]:
    """Return labels as (n,) int32 and the number of classes (by default the largest label + 1).

    Floats must be whole numbers.  Without m every class below the largest must have an example, because a gap
    suggests a labelling error.
    """
    labels = np.asarray(y)
    if labels.ndim != 1:
        raise InvalidProblemError(f"the labels have the shape {labels.shape}; give one label per example")
    if len(labels) != n:
        raise InvalidProblemError(
            f"there are {n} rows of features but {len(labels)} labels; give one label per row"
        )
    if n == 0:
        raise InvalidProblemError("there are no examples; give at least one row of features")
    if labels.dtype.kind == "f":
        labels = _whole(labels)
    if labels.dtype.kind not in "iu":
        raise InvalidProblemError(
            f"the labels have dtype {labels.dtype}; give whole numbers from 0 to m - 1, such as"
            " np.unique(y, return_inverse=True)[1], or use TopKClassifier, which takes any labels"
        )
    if m is not None and (isinstance(m, bool) or not isinstance(m, Integral)):
        raise InvalidProblemError(
            f"m is {m!r}; give the number of classes as a whole number, or leave it out"
        )
    classes = _classes_without_gaps(labels) if m is None else int(m)
    wrong = np.flatnonzero((labels < 0) | (labels >= classes))
    if wrong.size:
        row = int(wrong[0])
        raise InvalidProblemError(
            f"the label of row {row} is {labels[row]}; labels must lie between 0 and {classes - 1}"
        )
    return labels.astype(np.int32), classes


def _whole(labels: Any) -> IntArray:
    """Return floats as integers; refuse fractions."""
    wrong = np.flatnonzero((labels != np.rint(labels)) | (np.abs(labels) > np.iinfo(np.int32).max))
    if wrong.size:
        row = int(wrong[0])
        raise InvalidProblemError(
            f"the label of row {row} is {labels[row]}; give whole numbers from 0 to m - 1, or"
            " TopKClassifier, which takes any text, y.astype(str)"
        )
    whole: IntArray = labels.astype(np.int64)
    return whole


def _classes_without_gaps(labels: Any) -> int:
    """Return the largest label + 1; raises InvalidProblemError if a class below it has no example."""
    there = np.unique(labels[labels >= 0])
    classes = int(there[-1]) + 1 if len(there) else 1
    if len(there) == classes or not len(there):
        return classes
    first = int(np.flatnonzero(there != np.arange(len(there)))[0])
    raise InvalidProblemError(
        f"the largest label is {classes - 1}, but class {first} and {classes - len(there) - 1} more below it "
        f"have no example; give np.unique(y, return_inverse=True)[1] as y, or m={classes} to have them as "
        "classes all the same"
    )


def _checked_sets(
    y: Any, n: int, m: int | None, loss: Loss, label_sets: LabelSets | None
) -> tuple[LabelSets | None, IntArray, int]:
    """Return the label sets that y numbers, made from y if it is an indicator matrix, then y and m."""
    shape = np.shape(y)
    # A loss of single labels refuses the shape.
    if label_sets is None and len(shape) == 2 and shape[1] > 1 and loss.form(shape[1]).takes_label_sets:
        label_sets, y = LabelSets.from_indicator(y)
    if label_sets is None:
        return None, *checked_labels(y, n, m)
    if not isinstance(label_sets, LabelSets):
        raise InvalidProblemError(
            f"label_sets is {label_sets!r}; give the LabelSets that `LabelSets.from_indicator` makes"
        )
    labels, _ = checked_labels(y, n, len(label_sets))
    return label_sets, labels, label_sets.m if m is None else m


def _refuse_empty_sets(loss: Loss, m: int, label_sets: LabelSets, labels: IntArray) -> None:
    """Refuse examples without labels for a loss that spreads a unit of probability over them."""
    if loss.form(m).family.empty_sets:
        return
    empty = np.flatnonzero(label_sets.sizes[labels] == 0)
    if empty.size:
        raise InvalidProblemError(
            f"row {empty[0]} has no label, and {loss.name} shares one unit of probability among the labels of"
            " a row; leave such rows out, or use multilabel_hinge, for which they cost nothing"
        )


def checked_seed(seed: Any) -> int:
    """Return a seed that NumPy accepts."""
    if isinstance(seed, bool) or not isinstance(seed, Integral) or seed < 0:
        raise InvalidProblemError(f"seed is {seed!r}; give a whole number of at least 0")
    return int(seed)


def checked_weights(sample_weight: Any, n: int) -> Float64Array | None:
    """Return sample weights as (n,) float64; None if every example counts once."""
    if sample_weight is None:
        return None
    try:
        weights = np.array(sample_weight, dtype=np.float64)
    except (TypeError, ValueError):
        raise InvalidProblemError(
            "sample_weight is not a sequence of numbers; give one per example"
        ) from None
    if weights.shape != (n,):
        raise InvalidProblemError(
            f"sample_weight has the shape {weights.shape}; give one number for each of {n} rows"
        )
    bad = np.flatnonzero(~(np.isfinite(weights) & (weights >= 0.0)))
    if bad.size:
        row = int(bad[0])
        raise InvalidProblemError(
            f"sample_weight of row {row} is {weights[row]}; give finite weights that are not negative"
        )
    if not weights.any():
        raise InvalidProblemError("every sample_weight is 0; give at least one example a positive weight")
    return None if (weights == 1.0).all() else weights


def positive_number(name: str, value: Any) -> float:
    """Return a positive finite number as a float."""
    if isinstance(value, bool) or not isinstance(value, Real) or not 0.0 < float(value) < math.inf:
        raise InvalidProblemError(f"{name} is {value!r}; give a positive number")
    return float(value)


def number_from_zero(name: str, value: Any) -> float:
    """Return a finite number of at least 0 as a float."""
    if isinstance(value, bool) or not isinstance(value, Real) or not 0.0 <= float(value) < math.inf:
        raise InvalidProblemError(f"{name} is {value!r}; give a number of at least 0")
    return float(value)


def positive_integer(name: str, value: Any) -> int:
    """Return a whole number of at least 1."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
        raise InvalidProblemError(f"{name} is {value!r}; give a whole number of at least 1")
    return int(value)


#: If one column has more than this share of the rows' squares, or this many times the median standard
#: deviation, the other columns hardly count.
NEARLY_ALL, FAR_APART = 0.9, 10.0
#: If column means have more than this share of the squares, only a small remainder tells rows apart.
MOSTLY_MEANS = 0.75


def scale_note(sample: NDArray[Any], *, means: bool = False) -> str | None:
    """Return a warning about rows (r, d) whose columns differ in scale; None if there is nothing to say.

    With `means`, columns far from 0 also count: such rows are scaled to length 1, or have no bias.
    """
    X = np.asarray(sample, dtype=np.float64)
    if X.shape[1] < 3 or len(X) < 2:
        return None
    centres, spreads, squares = X.mean(axis=0), X.std(axis=0), np.einsum("ij,ij->j", X, X) / len(X)
    all_squares = max(float(squares.sum()), np.finfo(np.float64).tiny)
    largest, live = int(squares.argmax()), spreads > 0.0
    if squares[largest] > NEARLY_ALL * all_squares:
        share = squares[largest] / all_squares
        return (
            f"feature {largest} of {len(squares)}, counted from 0, makes {share:.1%} of the squares of the"
            " rows, so that the others hardly count"
        )
    typical = float(np.median(spreads[live])) if live.any() else 1.0
    widest = int(spreads.argmax())
    times = spreads[widest] / typical
    if times > FAR_APART:
        return (
            f"feature {widest} of {len(squares)}, counted from 0, varies {times:,.0f} times as much as most,"
            " so that the others hardly count"
        )
    share = float(centres @ centres) / all_squares
    if means and share > MOSTLY_MEANS:
        return (
            f"the means of the {len(squares)} features make {share:.1%} of the squares of the rows, so that"
            " what tells rows apart hardly counts"
        )
    return None
