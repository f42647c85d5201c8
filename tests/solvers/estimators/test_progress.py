"""How far training is: what is printed, and functions of the caller that see every round."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from sklearn.datasets import load_iris
from sklearn.exceptions import ConvergenceWarning

from topline import (
    InvalidProblemError,
    MultilabelClassifier,
    MultitaskClassifier,
    RegularisationPath,
    TopKClassifier,
    TopKClassifierCV,
    TopKHinge,
    solve,
)


def test_verbose_of_solve_and_of_each_fit_of_a_path_begins_anew(capsys: pytest.CaptureFixture[str]) -> None:
    X, y = load_iris(return_X_y=True)
    solve(X, y, TopKHinge(1), lam=1e-3, verbose=True)
    alone = capsys.readouterr().out
    assert "relative gap" in alone
    RegularisationPath(TopKClassifier(k=1, verbose=True), Cs=[0.1, 1.0]).fit(X, y)
    starts = [line for line in capsys.readouterr().out.splitlines() if "relative gap" in line]
    passes = [int(line.split()[0]) for line in starts]
    assert any(now <= before for before, now in itertools.pairwise(passes)), (
        "the second C says where it began"
    )


@pytest.mark.parametrize("make", [TopKClassifier, MultilabelClassifier, TopKClassifierCV])
def test_callbacks_see_every_round_and_may_end_the_training(make: Any) -> None:
    X, y = load_iris(return_X_y=True)
    seen = []

    def watch(record: Any, state: Any) -> bool:
        seen.append(record.passes)
        return False

    with pytest.warns(ConvergenceWarning, match="a callback stopped the training"):
        make(tol=1e-9, callbacks=[watch]).fit(X, y)
    assert seen


@pytest.mark.parametrize("model", [TopKClassifier(), MultitaskClassifier()])
def test_a_row_without_a_label_is_named(model: Any) -> None:
    """As of an empty cell of a table; sorting it beside text is a TypeError."""
    with pytest.raises(InvalidProblemError, match="row 1 has no label: drop such rows"):
        model.fit([[0.0], [1.0], [2.0]], ["a", None, "b"])


def test_labels_that_are_fractions_are_refused_and_whole_floats_keep_their_type() -> None:
    X, y = load_iris(return_X_y=True)
    assert TopKClassifier(k=1).fit(X, y.astype(float)).classes_.tolist() == [0.0, 1.0, 2.0]
    with pytest.raises(
        InvalidProblemError, match=r"the label of row 0 is 0\.5, a fraction; .*y\.astype\(str\)"
    ):
        TopKClassifier(k=1).fit(X, y + 0.5)
    assert TopKClassifier(k=1).fit(X, (y + 0.5).astype(str)).classes_.tolist() == ["0.5", "1.5", "2.5"]


def test_a_function_that_is_not_in_a_list_and_labels_that_are_objects_are_named() -> None:
    X, y = load_iris(return_X_y=True)
    with pytest.raises(InvalidProblemError, match=r"callbacks is one function: put it in a list"):
        solve(X, y, TopKHinge(1), lam=1e-3, callbacks=lambda record, state: True)  # type: ignore[arg-type]
    with pytest.raises(InvalidProblemError, match=r"the label of row 0, 0, .* give text, y.astype\(str\)"):
        TopKClassifier(k=1).fit(X, y.astype(object))
    assert TopKClassifier(k=1).fit(X, y.astype(str).astype(object)).classes_.tolist() == ["0", "1", "2"]
