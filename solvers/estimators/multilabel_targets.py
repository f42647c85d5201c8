"""Targets of a multilabel estimator: the forms that scikit-learn knows, as numbered label sets and back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.preprocessing import MultiLabelBinarizer
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import column_or_1d

from topline.solvers.errors import InvalidProblemError
from topline.solvers.losses import LabelSets
from topline.solvers.typing import Int64Array


class TargetForm(Enum):
    """How labels come to an estimator, and leave it."""

    INDICATOR = "indicator"
    SETS = "sets"
    SINGLE = "single"


@dataclass(frozen=True, eq=False)
class Targets:
    """The labels of n examples.

    Attributes
    ----------
    form : as what they came.
    classes : (m,) labels in the order of the columns.
    sets, codes : the label sets that occur, and their number for each example (n,).
    """

    form: TargetForm
    classes: np.ndarray[Any, Any]
    sets: LabelSets
    codes: Int64Array

    @classmethod
    def of(cls, y: Any) -> Targets:
        """Read y: an indicator matrix (n, m), n sets of labels, or n single labels.

        Raises InvalidProblemError, a ValueError, for anything else.
        """
        if are_sets(y):
            binarizer = MultiLabelBinarizer(sparse_output=True)
            Y = binarizer.fit_transform(y)
            return cls._several(TargetForm.SETS, binarizer.classes_, Y)
        if np.ndim(y) == 2 and np.shape(y)[1] > 1:
            kind = type_of_target(y)
            if kind != "multilabel-indicator":
                raise InvalidProblemError(
                    f"y is a matrix of the type {kind}; give 1 where an example has the label and 0 elsewhere"
                )
            return cls._several(TargetForm.INDICATOR, np.arange(np.shape(y)[1]), y)
        labels = column_or_1d(y, warn=True)
        check_classification_targets(labels)
        classes, codes = np.unique(labels, return_inverse=True)
        _refuse_one_label(classes)
        everyone = np.arange(len(classes))
        return cls(
            TargetForm.SINGLE,
            classes,
            LabelSets(np.append(everyone, len(classes)), everyone, len(classes)),
            codes,
        )

    @classmethod
    def _several(cls, form: TargetForm, classes: np.ndarray[Any, Any], Y: Any) -> Targets:
        _refuse_one_label(classes)
        sets, codes = LabelSets.from_indicator(Y)
        return cls(form, classes, sets, codes)

    @property
    def indicator(self) -> NDArray[np.bool_]:
        """(n, m), True where an example has the label."""
        return self.sets.indicator(self.codes)


def are_sets(y: Any) -> bool:
    """Return whether y is a sequence of sets of labels; lists of different lengths are refused.

    Lists that all have one length could be sets or rows of an indicator, so they count as rows.
    """
    listed = isinstance(y, Sequence) or (isinstance(y, np.ndarray) and y.dtype == object and y.ndim == 1)
    if not listed or not len(y):
        return False
    if all(isinstance(labels, set | frozenset) for labels in y):
        return True
    if all(isinstance(labels, list | tuple) for labels in y) and len({len(labels) for labels in y}) > 1:
        raise InvalidProblemError(
            "y is a sequence of lists of different lengths; give a set of labels per row, such as"
            " [set(labels) for labels in y]"
        )
    return False


def indicator_of(
    y: Any, form: TargetForm, classes: np.ndarray[Any, Any]
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return labels as an indicator (n, m), and which rows (n,) have only labels seen in the fit."""
    if form is TargetForm.INDICATOR:
        dense: Any = y.toarray() if hasattr(y, "toarray") else np.asarray(y)
        if dense.ndim != 2 or dense.shape[1] != len(classes):
            raise InvalidProblemError(
                f"y has the shape {dense.shape}; give an indicator matrix with {len(classes)} columns"
            )
        return np.asarray(dense != 0), np.ones(len(dense), dtype=np.bool_)
    if form is TargetForm.SINGLE:
        rows = np.asarray(column_or_1d(y)[:, None] == classes)
        return rows, np.asarray(rows.any(axis=1))
    if not are_sets(y):
        raise InvalidProblemError(
            "y is not a sequence of sets, as it was in fit; give a set of labels per row"
        )
    place = {label: j for j, label in enumerate(classes.tolist())}
    rows = np.zeros((len(y), len(classes)), dtype=np.bool_)
    for i, labels in enumerate(y):
        rows[i, [place[label] for label in labels if label in place]] = True
    return rows, np.asarray(rows.sum(axis=1) == np.array([len(labels) for labels in y]))


def in_form(predicted: NDArray[np.bool_], form: TargetForm, classes: np.ndarray[Any, Any]) -> Any:
    """Return predicted labels (n, m): an indicator of 0 and 1, or a list of sets of labels, as in the fit."""
    if form is TargetForm.INDICATOR:
        return predicted.astype(np.int64)
    return [set(classes[row].tolist()) for row in predicted]


def _refuse_one_label(classes: np.ndarray[Any, Any]) -> None:
    if len(classes) < 2:
        raise InvalidProblemError(
            f"every label is {classes[0]}, which is one class; give examples of at least two classes"
            if len(classes)
            else "no example has a label; give examples of at least two classes"
        )
