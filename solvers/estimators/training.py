"""What the estimators share: one training through `solve`, what a fit leaves behind, and scores from it."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from sklearn.exceptions import ConvergenceWarning

from topline.solvers.core.inputs import positive_number
from topline.solvers.core.problem import SmoothingKind
from topline.solvers.core.state import SolveResult
from topline.solvers.core.stopping import Status
from topline.solvers.estimators.base import FittedModel, one_of_two
from topline.solvers.estimators.support import seed_of, shortfall
from topline.solvers.kernels import KernelResult
from topline.solvers.losses import LabelSets, Loss
from topline.solvers.run import Callback, solve
from topline.solvers.typing import Float64Array, IntArray


class Training(FittedModel):
    """Training and its attributes, for an estimator with the parameters named here."""

    C: float
    method: str
    tol: float
    max_passes: int
    random_state: Any
    verbose: bool
    callbacks: Sequence[Callback]
    n_features_in_: int

    def _train(
        self,
        X: Any,
        labels: IntArray,
        weights: Float64Array | None,
        loss: Loss,
        smoothing: float,
        smoothing_kind: SmoothingKind = "moreau",
        *,
        label_sets: LabelSets | None = None,
        options: Mapping[str, Any] = MappingProxyType({}),
    ) -> SolveResult:
        """Solve for the rows of X (n, d); `options` are whatever else `solve` takes."""
        rows, kernel = self._with_intercept(X)
        return solve(
            rows, labels, loss, 1.0 / (len(labels) * positive_number("C", self.C)), smoothing, self.method,
            kernel, weights, self.tol, self.max_passes, seed_of(self.random_state),
            callbacks=self.callbacks, verbose=self.verbose, smoothing_kind=smoothing_kind,
            label_sets=label_sets, **options,
        )  # fmt: skip

    def _keep_result(self, result: SolveResult, *, two_as_one: bool = True) -> None:
        """Set the fitted attributes; `two_as_one` keeps of two classes only the second less the first."""
        self._refuse_overflow(result.status)
        if result.status is not Status.SOLVED:
            warnings.warn(shortfall(result, self.tol), ConvergenceWarning, stacklevel=3)
        if isinstance(result, KernelResult):
            self._keep_expansion(result.expansion, two_as_one=two_as_one)
        else:
            self._keep_weights(one_of_two(result.W) if two_as_one else result.W)
        self._keep_certificate(result, result.passes)
        self.status_ = result.status
        self.method_, self.why_ = result.method, result.why
        self.history_ = result.history
