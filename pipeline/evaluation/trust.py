"""How far a model's probabilities and sets can be trusted, measured block by block on held-out rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topline.pipeline.calibration import in_words, row_draws
from topline.pipeline.evaluation.records import ProbabilityQuality, SetQuality
from topline.solvers.calibration import (
    Calibration,
    SetRule,
    Weighing,
    calibration_error,
    conformity,
    reliability,
)
from topline.solvers.errors import InvalidProblemError

#: Coverages of which evaluation measures the sets, where there are calibration rows enough.
COVERAGES = (0.8, 0.9, 0.95)
# Draws of the measured rows; those of calibration rows are independent of them, as their ids differ.
SEED = 0


class TrustMeter:
    """Gathers blocks of scored rows."""

    def __init__(self, calibration: Calibration) -> None:
        self._calibration = calibration
        self._rules = _rules(calibration)
        self._losses: list[NDArray[np.float64]] = []
        self._confidence: list[NDArray[np.float64]] = []
        self._held: list[list[NDArray[np.bool_]]] = [[] for _ in self._rules]
        self._sizes: list[list[NDArray[np.int64]]] = [[] for _ in self._rules]

    def add(self, scores: NDArray[np.float64], labels: NDArray[np.int64], ids: Sequence[str]) -> None:
        """Measure rows with scores (r, m), classes (r,) and ids (r,)."""
        place, found, p = np.arange(len(labels)), self._calibration.probabilities, None
        if found is not None:
            logs = found.log_probabilities(scores)
            p = np.exp(logs)
            self._losses.append(-logs[place, labels])
            self._confidence.append(p.max(axis=1))
        if not self._rules:
            return
        draws = row_draws(ids, SEED)
        known: dict[Weighing, NDArray[np.float64]] = {}
        for rule, held, sizes in zip(self._rules, self._held, self._sizes, strict=True):
            if rule.weighing not in known:
                weights = None if rule.probabilities is None else p
                known[rule.weighing] = conformity(scores, weights, draws, rule.weighing)
            members = known[rule.weighing] <= rule.thresholds
            held.append(members[place, labels])
            sizes.append(members.sum(axis=1))

    def probabilities(self, ranks: NDArray[np.int64]) -> ProbabilityQuality | None:
        """Return the quality of the probabilities, None without any; `ranks` (n,) are of own classes."""
        if not self._losses:
            return None
        bins = reliability(np.concatenate(self._confidence), ranks == 1)
        return ProbabilityQuality(
            in_words(self._calibration),
            self._calibration.fitted_rows,
            float(np.concatenate(self._losses).mean()),
            calibration_error(bins),
            bins,
        )

    def sets(self, labels: NDArray[np.int64], ranks: NDArray[np.int64]) -> tuple[SetQuality, ...]:
        """Return the quality of the sets of all coverages; labels and ranks are those of all rows, (n,)."""
        return tuple(
            _quality(rule, np.concatenate(held), np.concatenate(sizes), labels, ranks)
            for rule, held, sizes in zip(self._rules, self._held, self._sizes, strict=True)
        )


def _rules(calibration: Calibration) -> list[SetRule]:
    """Return the rules that the calibration rows are enough for."""
    found = []
    for per_class in (False, True):
        for coverage in COVERAGES:
            try:
                found.append(calibration.rule(coverage, per_class=per_class))
            except InvalidProblemError:
                continue
    return found


def _quality(
    rule: SetRule,
    held: NDArray[np.bool_],
    sizes: NDArray[Any],
    labels: NDArray[np.int64],
    ranks: NDArray[np.int64],
) -> SetQuality:
    n, covered = len(held), int(held.sum())
    known = np.unique(labels)
    shares = np.array([held[labels == code].mean() for code in known])
    fixed_k = _guesses(ranks, covered / n)
    if rule.per_class:
        fixed_k = max(_guesses(ranks[labels == code], float(shares.min())) for code in known)
    return SetQuality(
        coverage=rule.coverage,
        per_class=rule.per_class,
        sets_by=rule.sets_by,
        rows=n,
        measured=covered / n,
        mean_size=float(sizes.mean()),
        empty=float(np.mean(sizes == 0)),
        least_class=float(shares.min()),
        fixed_k=fixed_k,
    )


def _guesses(ranks: NDArray[np.int64], accuracy: float) -> int:
    """Return the least k of which the top-k accuracy on rows of these ranks is at least `accuracy`."""
    # Rounded first, for a share of rows times rows may be a little above their number.
    place = int(np.ceil(round(accuracy * len(ranks), 6)))
    return int(np.sort(ranks)[max(place, 1) - 1])
