"""A small search finds what an exhaustive one finds, within its budget, and the same each time."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import balanced_accuracy_score, top_k_accuracy_score
from sklearn.model_selection import StratifiedKFold

from topline import MaxHinge, Softmax
from topline.solvers.run import search as searching
from topline.solvers.run.search import Goal, Part, Search, Trial

PIXELS, DIGITS = load_digits(return_X_y=True)
PIXELS, DIGITS = PIXELS[:600].astype(np.float32), DIGITS[:600]
FOLDS = list(StratifiedKFold(5).split(PIXELS, DIGITS))
TRIALS = [Trial(scaling, loss) for loss in (Softmax(), MaxHinge()) for scaling in ("small", "plain")]


def part(scaling: str, fold: int) -> Part:
    """Pixels from 0 to 1, or so small that C = 1 hardly fits them."""
    train, test = FOLDS[fold]
    X = PIXELS / np.float32(16.0 if scaling == "plain" else 4000.0)
    return Part(X[train], DIGITS[train], X[test], DIGITS[test])


def test_the_best_is_near_that_of_an_exhaustive_search() -> None:
    found = Search(part, TRIALS, 600, 10).find()
    truth = max(
        np.mean([
            LogisticRegression(C=C, fit_intercept=False, max_iter=5000)
            .fit(part("plain", fold).X, part("plain", fold).y)
            .score(part("plain", fold).held_out, part("plain", fold).held_out_y)
            for fold in range(5)
        ])
        for C in (0.1, 1.0, 10.0)
    )  # fmt: skip
    # Two standard errors of a share of 600 rows.
    error = 2.0 * np.sqrt(truth * (1.0 - truth) / 600)
    assert found.share(found.best, Goal()) >= truth - error
    assert found.default.behind
    assert found.default is found.cells[0]
    assert (found.default.trial, found.default.C) == (TRIALS[0], 1.0)
    assert all(cell.relative_gap <= searching.GAP for cell in found.cells)


@pytest.mark.parametrize(("goal", "k"), [(Goal(), 1), (Goal(3), 3), (Goal(per_class=True), 1)])
def test_shares_are_those_of_scikit_learn(goal: Goal, k: int) -> None:
    found = Search(part, TRIALS[1:2], 600, 10, goal, folds=1, tol=1e-7).find()
    rows = part("plain", 0)
    peer = LogisticRegression(fit_intercept=False, tol=1e-9, max_iter=5000).fit(rows.X, rows.y)
    if goal.per_class:
        truth = balanced_accuracy_score(rows.held_out_y, peer.predict(rows.held_out))
    else:
        truth = top_k_accuracy_score(rows.held_out_y, peer.decision_function(rows.held_out), k=k)
    assert found.share(found.default, goal) == pytest.approx(truth, abs=1e-12)


def test_the_choice_follows_from_data_and_seed() -> None:
    first, again = (Search(part, TRIALS, 600, 10, seed=3).find() for _ in range(2))
    assert [(cell.trial, cell.C, cell.passes) for cell in first.cells] == [
        (cell.trial, cell.C, cell.passes) for cell in again.cells
    ]
    assert (first.best.trial, first.best.C) == (again.best.trial, again.best.C)


def test_six_fits_are_the_most_where_these_take_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searching, "LEAST", 1.0)
    monkeypatch.setattr(searching, "SECONDS", 0.0)
    found = Search(part, TRIALS, 600, 10).find()
    assert found.fits <= searching.FITS
    assert 600 * found.default.passes[0] * found.fits == pytest.approx(
        sum(len(FOLDS[fold][0]) * passes for cell in found.cells for fold, passes in enumerate(cell.passes))
    )


@pytest.mark.parametrize("limit", [1e-9, None])
def test_a_time_that_is_up_leaves_the_default(limit: float | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of a small problem as one that is given."""
    monkeypatch.setattr(searching, "SECONDS", 0.0)
    found = Search(part, TRIALS, 600, 10, time_limit=limit).find()
    assert found.best is found.default
    assert found.ended == "the time was up"


def test_given_values_of_C_are_the_only_ones() -> None:
    told: list[int] = []
    found = Search(part, TRIALS, 600, 10, C=0.5, Cs=(0.5,), told=partial(told.append, 1)).find()
    assert {cell.C for cell in found.cells} == {0.5}
    assert len(told) == sum(len(cell.passes) for cell in found.cells)


def test_few_rows_of_a_large_problem_are_searched_on() -> None:
    assert Search.rows(600, 64, 10) == 600
    assert Search.rows(10**6, 1281, 1000) == 250_000
