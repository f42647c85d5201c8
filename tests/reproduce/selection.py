"""Comparing multiclass learners by top-k accuracy: C on validation rows, figures on test rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.reproduce.formats import Examples
from tests.reproduce.learners import Budget, Learner, Weights
from tests.reproduce.table import Figure, Setting, over_splits, run_all
from topline.pipeline.evaluation import ranks_against_ties, topk_shares

Rows = NDArray[np.intp]

#: Accuracies in percent by learner and k, one for each split.
Accuracies = Mapping[tuple[str, int], Sequence[float]]


@dataclass(frozen=True, eq=False)
class Split:
    """Row numbers of one division of a set.

    Attributes
    ----------
    folds : pairs of training and validation rows; accuracies on the latter, averaged, choose C.
    test : rows that no choice has seen.
    final : rows for the training with the chosen C; None to test what the one fold has trained.
    """

    folds: tuple[tuple[Rows, Rows], ...]
    test: Rows
    final: Rows | None = None

    @classmethod
    def held_out(cls, train: Rows, validation: Rows, test: Rows) -> Split:
        """Choose C on rows that are used for nothing else."""
        return cls(((train, validation),), test)

    @classmethod
    def cross_validated(cls, rng: np.random.Generator, train: Rows, test: Rows, folds: int) -> Split:
        """Choose C by cross-validation over the training rows, then train on all of them."""
        parts = np.array_split(rng.permutation(train), folds)
        pairs = [
            (np.concatenate([*parts[:place], *parts[place + 1 :]]), part) for place, part in enumerate(parts)
        ]
        return cls(tuple(pairs), test, train)


@dataclass(frozen=True, eq=False)
class Trial:
    """Accuracies in percent of one learner on one split: on test rows, and where they chose C for each k."""

    accuracy: Mapping[int, float]
    validation: Mapping[int, float]
    C: Mapping[int, float]


def topk_percent(X: Any, y: NDArray[np.int64], W: Weights, ks: Sequence[int]) -> dict[int, float]:
    """Top-k accuracy in percent; equal scores count against the model."""
    shares = topk_shares(ranks_against_ties(np.asarray(X @ W), y), ks)
    return {k: 100.0 * share for k, share in shares.items()}


def compare(
    setting: Setting,
    data: Examples | Sequence[Examples],
    learners: Sequence[Learner],
    splits: Sequence[Split],
    Cs: Sequence[float],
    ks: Sequence[int],
    budget: Budget,
) -> dict[str, list[Trial]]:
    """Train every learner on every split for every C, and test the C that validation chose for each k.

    `data` is one set for all splits, or one for each.
    """
    sets = [data] * len(splits) if isinstance(data, Examples) else data
    jobs = [
        partial(run_trial, learner, examples, split, Cs, ks, budget)
        for learner in learners
        for examples, split in zip(sets, splits, strict=True)
    ]
    trials = run_all(setting, "train", jobs, "paths of C")
    return {
        learner.name: trials[place * len(splits) : (place + 1) * len(splits)]
        for place, learner in enumerate(learners)
    }


def run_trial(
    learner: Learner, data: Examples, split: Split, Cs: Sequence[float], ks: Sequence[int], budget: Budget
) -> Trial:
    """Train one learner on one split along the path of C; equal choices go to the smaller C."""
    means, path = _validated(learner, data, split, Cs, ks, budget)
    best = {k: int(means[k].argmax()) for k in ks}
    places = sorted(set(best.values()))
    if split.final is None:
        models = [path[place] for place in places]
    else:
        X, y = data.X[split.final], data.y[split.final]
        models = learner.path(X, y, data.m, [Cs[place] for place in places], budget)
    X, y = data.X[split.test], data.y[split.test]
    tested = {place: topk_percent(X, y, W, ks) for place, W in zip(places, models, strict=True)}
    return Trial(
        {k: tested[best[k]][k] for k in ks},
        {k: float(means[k][best[k]]) for k in ks},
        {k: float(Cs[best[k]]) for k in ks},
    )


def _validated(
    learner: Learner, data: Examples, split: Split, Cs: Sequence[float], ks: Sequence[int], budget: Budget
) -> tuple[dict[int, NDArray[np.float64]], list[Weights]]:
    """Give the mean accuracy over the folds for each k and C, and the models of the last fold."""
    if len(Cs) == 1 and split.final is not None:  # nothing to choose
        return {k: np.full(1, np.nan) for k in ks}, []
    seen: dict[int, list[list[float]]] = {k: [] for k in ks}
    path: list[Weights] = []
    for train, validation in split.folds:
        path = learner.path(data.X[train], data.y[train], data.m, Cs, budget)
        X, y = data.X[validation], data.y[validation]
        accuracies = [topk_percent(X, y, W, ks) for W in path]
        for k in ks:
            seen[k].append([accuracy[k] for accuracy in accuracies])
    return {k: np.mean(seen[k], axis=0) for k in ks}, path


def figures_of(
    trials: Mapping[str, Sequence[Trial]],
    paper: Mapping[str, Sequence[float]],
    ks: Sequence[int],
    notes: Mapping[str, str],
    *,
    counts: bool = True,
) -> list[Figure]:
    """Lay out what `compare` gave beside the paper's rows, whose entries follow `ks`.

    `counts` says whether the data is the paper's.
    """
    return [
        over_splits(
            name, f"top-{k}", [trial.accuracy[k] for trial in found],
            paper[name][place] if name in paper else None, note=notes.get(name, ""), counts=counts,
        )
        for name, found in trials.items()
        for place, k in enumerate(ks)
    ]  # fmt: skip
