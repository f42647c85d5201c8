"""Held-out accuracy during a run: ever more rarely, on a sample, and without influence on the run.

The rows are those of validation, else of the test split; without either there is no look.  A look is one
product of a sample with W, made by the coordinator between two rounds; all but the first take a hundredth of
the time at most.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import vstack

from topline.pipeline.rows import TrainingRows
from topline.pipeline.training.plan import TrainingPlan
from topline.solvers.core.state import SolverState

#: Most rows of the sample, stored rows read for it, multiplications of a look, and numbers.
MOST_ROWS, MOST_READ, MOST_TERMS, MOST_NUMBERS = 2_000, 1 << 16, 1 << 29, 1 << 23
#: Seconds of training before the first look, growth of the interval, and largest share of time for looks.
FIRST_SECONDS, LONGER, SHARE = 1.0, 1.5, 0.01


@dataclass(frozen=True, eq=False)
class HeldOutRows:
    """A sample of rows that training does not see, read on first use."""

    rows: TrainingRows

    @classmethod
    def of(cls, plan: TrainingPlan) -> HeldOutRows | None:
        """Return those of a plan; None if there are none, or if a row has no single class to compare with."""
        dataset = plan.rows.dataset
        if plan.spec.kernel is not None or dataset.label_sets() is not None:
            return None
        for split in ("val", "test"):
            rows = TrainingRows(dataset, split, plan.transforms)
            if len(rows):
                return cls(TrainingRows(dataset, split, plan.transforms, _sample(rows, plan.m)))
        return None

    @cached_property
    def features(self) -> Any:
        """The rows (r, d), dense or CSR."""
        parts = [X.copy() for _, _, X in self.rows.tiles()]
        return np.concatenate(parts) if isinstance(parts[0], np.ndarray) else vstack(parts, format="csr")

    def accuracy(self, W: NDArray[np.float64]) -> float:
        """Return the share of rows whose class has the highest score under W (d, m)."""
        scores = np.asarray(self.features @ W.astype(np.float32), dtype=np.float64)
        places = np.arange(len(scores)), self.rows.labels()
        own = scores[places].copy()
        scores[places] = -np.inf
        return float(np.mean(own > scores.max(axis=1)))


def _sample(rows: TrainingRows, m: int) -> NDArray[np.int64]:
    """Return the sampled rows, ascending, from a few batches, which alone are read."""
    random = np.random.default_rng(0)
    spans = [rows.batch_span(batch) for batch in random.permutation(rows.batches).tolist()]
    batches = max(MOST_READ * rows.batches // rows.dataset.info.n_rows, 1)
    read = [np.arange(start, stop) for start, stop in spans if stop > start][:batches]
    d = rows.shape[1]
    most = min(MOST_ROWS, max(MOST_TERMS // (d * m), 1), max(MOST_NUMBERS // d, 1))
    return np.sort(random.permutation(np.concatenate(read))[:most])


class Watch:
    """Looks at held-out rows after some rounds of a run, by `clock`."""

    def __init__(self, rows: HeldOutRows, clock: Callable[[], float] = time.monotonic) -> None:
        self._rows, self._clock = rows, clock
        self._began = clock()
        self._due = FIRST_SECONDS
        self._spent = 0.0

    def look(self, state: SolverState) -> dict[str, Any]:
        """Return the history's record of a look at the best weights so far; empty if none is due."""
        begun = self._clock()
        W = state.best.W
        W = state.W if W is None else W
        if begun - self._began < self._due or not W.any():
            return {}
        found = {
            "held_out": self._rows.accuracy(W),
            "held_out_rows": len(self._rows.rows),
            "held_out_split": self._rows.rows.split,
        }
        ended = self._clock()
        self._spent += ended - begun
        self._due = max(LONGER * (ended - self._began), self._spent / SHARE)
        return found
