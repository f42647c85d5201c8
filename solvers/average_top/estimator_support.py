"""What the estimators of the average top-k loss share: from parameters to a fit, and what it leaves."""

from __future__ import annotations

import warnings
from dataclasses import replace
from numbers import Integral, Real
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from topline.solvers.average_top.kernel_svm import AverageTopKernelResult, minimise_with_kernel
from topline.solvers.average_top.losses import INDIVIDUAL_LOSSES, IndividualLoss
from topline.solvers.average_top.problem import AverageTopResult
from topline.solvers.average_top.solving import minimise
from topline.solvers.core.inputs import positive_number
from topline.solvers.core.risks import AverageTopK
from topline.solvers.core.state import SolveResult
from topline.solvers.core.stopping import Status
from topline.solvers.counts import how_many
from topline.solvers.errors import InvalidProblemError
from topline.solvers.estimators.base import FittedModel, one_of_two
from topline.solvers.kernels import KernelExpansion, KernelResult
from topline.solvers.losses import LOSSES, Loss, MaxHinge, Softmax, make_loss
from topline.solvers.run import solve
from topline.solvers.typing import Float64Array, IntArray

#: What the losses of two classes are called where there are more.
_OF_CLASSES: dict[str, Loss] = {"hinge": MaxHinge(), "logistic": Softmax()}


class CollapsedWarning(UserWarning):
    """The optimum is w = 0: the k worst examples contradict each other, and nothing was learned."""


class AverageTopAttributes(FittedModel):
    """Fits of an estimator with the parameters k, C, method, tol, max_iterations and those of kernels."""

    loss: Any
    k: Any
    C: Any
    method: Any
    tol: Any
    max_iterations: Any

    def _fit_signs(self, X: Any, y: Float64Array, loss: IndividualLoss) -> None:
        """Fit one score for each example, and set the fitted attributes."""
        k, C = number_of_losses(self.k, len(y)), positive_number("C", self.C)
        rows, kernel = self._with_intercept(X)
        result: AverageTopResult
        if kernel is None:
            result = minimise(
                rows, y, loss, k, C, method=self.method, tol=self.tol, max_iterations=self.max_iterations
            )
            self._keep_weights(result.w[:, None])
        else:
            result = kernel_result = minimise_with_kernel(
                kernel, X, y, loss, k, C, tol=self.tol, max_iterations=self.max_iterations
            )
            self._keep_expansion(two_columns(kernel_result))
        self._keep(result, k, collapsed=result.collapsed, rounds=result.iterations)

    def _fit_classes(self, X: Any, labels: IntArray, m: int) -> None:
        """Fit a score for each class, and set the fitted attributes."""
        k, C = number_of_losses(self.k, len(labels)), positive_number("C", self.C)
        rows, kernel = self._with_intercept(X)
        if self.method != "auto":
            raise InvalidProblemError(
                f"the method {self.method!r} is for two classes and the losses hinge and logistic; use auto"
            )
        result = solve(
            rows, labels, loss_of_classes(self.loss), 1.0 / C, kernel=kernel, tol=self.tol,
            max_passes=self.max_iterations, risk=AverageTopK(k), m=m,
        )  # fmt: skip
        result = with_collapse(result)
        if isinstance(result, KernelResult):
            self._keep_expansion(result.expansion)
        else:
            self._keep_weights(one_of_two(result.W))
        self._keep(result, k, collapsed=result.collapsed, rounds=result.passes)

    def _keep(
        self, result: AverageTopResult | SolveResult, k: float, *, collapsed: bool, rounds: int
    ) -> None:
        """Set the attributes that every fit has, and warn of what went wrong."""
        self._refuse_overflow(result.status)
        if result.status is not Status.SOLVED:
            warnings.warn(
                f"training ended after {how_many(rounds, 'rounds')} ({result.status.value}) at a relative gap"
                f" of {result.relative_gap:.2g}, short of tol = {self.tol:g}; scale the features, raise"
                " max_iterations or raise tol",
                ConvergenceWarning,
                stacklevel=4,
            )
        if collapsed:
            warnings.warn(
                f"the optimum is w = 0 for k = {k:g}: the k largest losses contradict each other, or C is too"
                " small for this tol, and every prediction is the same; raise k or C, or clean the labels",
                CollapsedWarning,
                stacklevel=4,
            )
        self.k_, self.collapsed_ = k, collapsed
        self._keep_certificate(result, rounds)
        self.status_ = result.status


def with_collapse(result: SolveResult) -> SolveResult:
    """Return the result with W = 0 where that is as good as what was found: its signs would mean nothing."""
    at_zero = result.state.loss_at_zero
    if not result.collapsed or at_zero is None:
        return result
    nothing: dict[str, Any] = {}
    if isinstance(result, KernelResult):
        none = np.zeros_like(result.expansion.coefficients)
        nothing = {"expansion": replace(result.expansion, coefficients=none)}
    return replace(result, W=np.zeros_like(result.W), primal=at_zero, status=Status.SOLVED, **nothing)


def number_of_losses(k: Any, n: int) -> float:
    """Return the k in [1, n] that the parameter means: a number, a share of n below 1, or None for all."""
    if k is None:
        return float(n)
    if isinstance(k, bool) or not isinstance(k, Real) or not float(k) > 0.0:
        raise InvalidProblemError(f"k is {k!r}; give a number from 1 on, a share between 0 and 1, or None")
    if float(k) == 1.0 and not isinstance(k, Integral):
        raise InvalidProblemError(
            f"k is {k!r}, which is one loss as a number and all of them as a share; give the whole number 1"
            " for the largest loss alone, or None for all"
        )
    return max(float(k) * n, 1.0) if float(k) < 1.0 else min(float(k), float(n))


def loss_of_signs(loss: Any) -> IndividualLoss | None:
    """Return the loss of one score and a sign that a parameter means, None where it means another."""
    known = INDIVIDUAL_LOSSES.get(loss) if isinstance(loss, str) else loss
    return known if isinstance(known, IndividualLoss) and known.binary else None


def loss_of_classes(loss: Any) -> Any:
    """Return the loss of m scores that a parameter means; a value is left to `solve` to check."""
    if isinstance(loss, IndividualLoss) and loss.binary:
        loss = loss.name
    if not isinstance(loss, str):
        return loss
    if loss in _OF_CLASSES:
        return _OF_CLASSES[loss]
    if loss not in LOSSES:
        raise InvalidProblemError(
            f"there is no loss named {loss!r}; use hinge or logistic, or a loss of classes such as"
            " TopKHinge(5)"
        )
    if LOSSES[loss][1] is not None:
        raise InvalidProblemError(f"the loss {loss} has parameters; give it as a value, such as TopKHinge(5)")
    return make_loss(loss)


def two_columns(result: AverageTopKernelResult) -> KernelExpansion:
    """Return the expansion of one score as that of two classes, whose difference it is."""
    half = 0.5 * result.expansion.coefficients
    return replace(result.expansion, coefficients=np.hstack([-half, half]))
