"""What multiclass tables compare: each learner gives weights for every C of a grid."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from topline.solvers.core.problem import SmoothingKind
from topline.solvers.core.state import SolverState
from topline.solvers.losses import Loss, Softmax, TruncatedTopKEntropy
from topline.solvers.run import regularisation_path, solve

Weights = NDArray[np.float64]
Labels = NDArray[np.int64]
Grid = Sequence[float]

#: LIBLINEAR draws its random order from one generator for the whole process.
_LIBLINEAR = threading.Lock()


@dataclass(frozen=True)
class Budget:
    """How exactly a learner is trained: relative gap to reach, and passes at most."""

    tol: float = 1e-3
    passes: int = 300


class Learner(Protocol):
    """A named way to weights."""

    @property
    def name(self) -> str:
        """Name of the row, in the paper's words."""
        ...

    def path(self, X: Any, y: Labels, m: int, Cs: Grid, budget: Budget) -> list[Weights]:
        """Train on X (n, d) and y (n,) for each C, smallest first; gives weights (d, m)."""
        ...


@dataclass(frozen=True)
class Trained:
    """One of our losses, trained to its certificate along the path of C.

    `method` is dual_ascent unless said otherwise; a Frank-Wolfe method is begun anew for every C.
    """

    name: str
    loss: Loss
    smoothing: float = 0.0
    kind: SmoothingKind = "moreau"
    method: str = "dual_ascent"

    def path(self, X: Any, y: Labels, m: int, Cs: Grid, budget: Budget) -> list[Weights]:
        """Train for each C."""
        results = regularisation_path(
            X, y, self.loss, Cs, self.smoothing, self.method, smoothing_kind=self.kind, m=m, tol=budget.tol,
            max_passes=budget.passes,
        )  # fmt: skip
        return [result.W for result in results]


@dataclass(frozen=True)
class Unfinished:
    """A Frank-Wolfe method that is stopped after some iterations, begun anew for every C."""

    name: str
    loss: Loss
    method: str
    iterations: int

    def path(self, X: Any, y: Labels, m: int, Cs: Grid, budget: Budget) -> list[Weights]:
        """Train for each C."""
        return [
            solve(
                X, y, self.loss, 1.0 / (C * len(y)), method=self.method, m=m, tol=1e-9,
                max_passes=self.iterations,
            ).W
            for C in Cs
        ]  # fmt: skip


@dataclass(frozen=True)
class FromSoftmax:
    """Truncated top-k entropy, which is not convex, from the solution of the softmax at the same C."""

    name: str
    k: int

    def path(self, X: Any, y: Labels, m: int, Cs: Grid, budget: Budget) -> list[Weights]:
        """Train for each C."""
        starts = Trained("softmax", Softmax(), method="lbfgs").path(X, y, m, Cs, budget)
        found = []
        for C, W in zip(Cs, starts, strict=True):
            result = solve(
                X, y, TruncatedTopKEntropy(self.k), 1.0 / (C * len(y)), method="lbfgs", m=m, tol=budget.tol,
                max_passes=budget.passes, state=SolverState.at(W),
            )  # fmt: skip
            found.append(result.W)
        return found


@dataclass(frozen=True)
class OneVsAllLiblinear:
    """m binary problems side by side through LIBLINEAR: the hinge or the logistic loss."""

    name: str
    logistic: bool = False
    #: Of LIBLINEAR's coordinate descent; more of them change no figure of the tables.
    iterations: ClassVar[int] = 1000

    def path(self, X: Any, y: Labels, m: int, Cs: Grid, budget: Budget) -> list[Weights]:
        """Train for each C; a class without examples scores lowest."""
        with _LIBLINEAR, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it says that it stopped at its budget, as others do silently
            return [np.column_stack([self._column(X, y == j, C) for j in range(m)]) for C in Cs]

    def _column(self, X: Any, own: NDArray[np.bool_], C: float) -> Weights:
        from sklearn.linear_model import LogisticRegression
        from sklearn.svm import LinearSVC

        if not own.any():
            return np.full(X.shape[1], 0.0)
        limits = {"C": C, "fit_intercept": False, "max_iter": self.iterations, "random_state": 0}
        if self.logistic:
            model = LogisticRegression(solver="liblinear", **limits)
        else:
            model = LinearSVC(loss="hinge", dual=True, **limits)
        return np.asarray(model.fit(X, own).coef_[0], np.float64)
