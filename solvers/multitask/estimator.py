"""The scikit-learn estimator of multitask learning; importing it loads scikit-learn."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass
from types import MappingProxyType
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted, validate_data

from topline.solvers.core.state import Status
from topline.solvers.counts import how_many
from topline.solvers.errors import InvalidProblemError
from topline.solvers.estimators.base import ROWS, ScoringClassifier, seed_of
from topline.solvers.kernels import (
    Kernel,
    KernelExpansion,
    LinearKernel,
    WithConstant,
    factor,
    gram_matrix,
    is_precomputed,
)
from topline.solvers.multitask.strategies import MultitaskResult, solve_multi, solve_single, solve_stacked
from topline.solvers.names import not_known
from topline.solvers.typing import Float64Array

#: Each strategy's solver, and its parameters beyond the common ones.
STRATEGIES: Mapping[str, tuple[Callable[..., MultitaskResult], tuple[str, ...]]] = MappingProxyType(
    {
        "single": (solve_single, ()),
        "stacked": (solve_stacked, ("C_tasks",)),
        "multi": (solve_multi, ("C_tasks", "C_shared", "max_alternations", "change_tol", "certify")),
    }
)


# scikit-learn has no types.
@dataclass(eq=False, repr=False)
class MultitaskClassifier(ScoringClassifier, BaseEstimator):  # type: ignore[misc]
    """One-vs-all support vector machines whose classes learn a representation together.

    Each class against all others is a task.  "single" trains a support vector machine for each, "stacked" a
    second layer of them on the scores of the first, and "multi" minimises, over a linear map U into as many
    dimensions as there are tasks and one predictor w_t per task,

        sum_ti phi(y_ti <w_t, U^T x_i>) + |W|_F^2 / (2 C_tasks) + |U|_F^2 / (2 C_shared),

    in turns (MTL-SDCA of Lapin, Schiele and Hein, CVPR 2014).  It suits few examples per class and related
    classes: the minimum is that of sum phi + |V|_* / sqrt(C_tasks C_shared) over V = U W, which prefers
    weights of low rank.

    Parameters
    ----------
    strategy : "multi", "single" or "stacked"; the kind of training
    C : weight of the losses in the support vector machines, as in SVC; in the first layer for "stacked", and
        for the start of "multi"
    C_tasks, C_shared : float; weights of the losses against the predictors ("multi" and "stacked") and the
        representation ("multi"); None for C
    smoothing : gamma of the smooth hinge, 0 for the hinge.  At 0.5 or so "multi" is faster and its gap much
        narrower, since its turns can get stuck at kinks of the hinge.
    kernel : "linear", "rbf", "polynomial", "chi2", a value such as ``RBFKernel(0.5)``, or "precomputed",
        where X is K(train, train) in `fit` and K(new, train) afterwards.  The kernel matrix must fit in
        memory.
    gamma, degree, coef0 : as in TopKClassifier.
        Parameters of a kernel given by name.
    fit_intercept : add 1 to the kernel, which gives a bias that is regularised like every other weight
    tol : relative duality gap of every convex subproblem
    max_passes : budget of passes over the examples for each of them
    max_alternations : largest number of turns of "multi"; None for 50
    change_tol : change of the dual variables (root of the mean square, each between 0 and 1) at which the
        turns of "multi" end; None for 1e-3
    certify : whether "multi" also solves the convex relaxation of its objective, in up to `max_passes` more
        passes, which makes `dual_` as high as possible; None for False
    random_state : int, RandomState or None; seed of the order of visits

    Attributes
    ----------
    classes_ : (m,) labels, sorted.
    coef_ : (m, d) float64 with the kernel "linear"; with two classes (1, d), for the second class.
    intercept_ : (m,) float64, or (1,); zeros without fit_intercept.
    kernel_ : the kernel with its parameters resolved.
    support_, dual_coef_ : indices of the support (s,), and its coefficients (m, s), or (1, s).
    n_features_in_ : int, and `feature_names_in_` where X has column names.
    n_iter_ : int, passes over the examples.
    primal_, dual_, dual_gap_, relative_gap_ : floats.  For "single" and "stacked" the mean of the tasks' P
        and D, their difference and its ratio to P.  For "multi" the objective, divided by the number of
        losses, and a lower bound of it over all U and W.
    subproblem_gap_ : float, largest relative gap of the convex problems solved last.  For "multi", which is
        not convex, only they are certified to `tol`; without `certify`, `relative_gap_` may be much wider.
    status_ : Status.  For "multi" SOLVED means that `relative_gap_` is at most tol, NO_PROGRESS that the
        turns converged, MAX_PASSES that a budget ran out.
    alternations_ : tuple of Alternation, one per turn of "multi".

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from topline import MultitaskClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> model = MultitaskClassifier("multi", C=0.1, smoothing=0.5).fit(X[::5], y[::5])
    >>> model.predict(X[:2])
    array([0, 0])
    >>> model.dual_ <= model.primal_
    True
    """

    strategy: str = "multi"
    C: float = 1.0
    C_tasks: float | None = None
    C_shared: float | None = None
    _: KW_ONLY
    smoothing: float = 0.0
    kernel: str | Kernel = "linear"
    fit_intercept: bool = True
    tol: float = 1e-3
    max_passes: int = 1000
    max_alternations: int | None = None
    change_tol: float | None = None
    certify: bool | None = None
    random_state: Any = 0

    def fit(self, X: Any, y: Any) -> Self:
        """Train on X (n, d), dense or sparse, float32 or float64, and y (n,), labels of two or more classes.

        Raises InvalidProblemError (a ValueError) for invalid parameters or data, and NonFiniteError if kernel
        values overflowed.
        """
        solver, parameters = self._strategy()
        X, classes, labels = self._examples(X, y)
        chosen = self._chosen_kernel() or LinearKernel()
        chosen = WithConstant(chosen) if self.fit_intercept else chosen
        kernel, train, K = gram_matrix(chosen, X)
        if is_precomputed(kernel):
            # Raises InvalidProblemError unless K is positive semi-definite.
            factor(K, rounded=True)
        # With two classes the second task is the first with the sign changed.
        tasks = np.arange(len(classes)) if len(classes) > 2 else np.array([1])
        signs = np.where(labels[:, None] == tasks, 1.0, -1.0)
        result = solver(
            K, signs, self.C, smoothing=self.smoothing, tol=self.tol, max_passes=self.max_passes,
            seed=seed_of(self.random_state), **parameters,
        )  # fmt: skip
        self.classes_ = classes
        self._keep_result(result, kernel, train)
        return self

    @available_if(lambda model: model.strategy == "multi")
    def represent(self, X: Any) -> Float64Array:
        """Return the fitted representation U^T x of each row of X, (rows, T) with T tasks, of "multi"."""
        check_is_fitted(self, "classes_")
        scores: Float64Array = self._representation.scores(validate_data(self, X, reset=False, **ROWS))
        return scores

    def _strategy(self) -> tuple[Callable[..., MultitaskResult], dict[str, Any]]:
        """Return the solver of the strategy with its parameters; refuse those of other strategies."""
        if self.strategy not in STRATEGIES:
            raise InvalidProblemError(not_known("strategy", self.strategy, STRATEGIES))
        solver, own = STRATEGIES[self.strategy]
        for name in STRATEGIES["multi"][1]:
            if name not in own and getattr(self, name) is not None:
                raise InvalidProblemError(
                    f"the strategy {self.strategy} has no {name}, which is {getattr(self, name)!r}; leave it"
                    " out"
                )
        given = {name: getattr(self, name) for name in own}
        return solver, {name: value for name, value in given.items() if value is not None}

    def _keep_result(self, result: MultitaskResult, kernel: Kernel, train: Any) -> None:
        unfinished = self.strategy != "multi" and result.status is not Status.SOLVED
        if unfinished or result.status is Status.MAX_PASSES or result.subproblem_gap > self.tol:
            warnings.warn(
                f"training ended after {how_many(result.passes, 'passes')} ({result.status.value}) with a gap"
                f" of {result.subproblem_gap:.2g} in a convex problem, tol = {self.tol:g}; scale the"
                " features, raise max_passes, max_alternations or tol, or lower C",
                ConvergenceWarning,
                stacklevel=3,
            )
        everyone = np.arange(len(result.coefficients))
        self._keep_expansion(KernelExpansion.of(kernel, train, everyone, result.coefficients))
        self.__dict__.pop("_representation", None)
        if result.shared is not None:
            self._representation = KernelExpansion.of(kernel, train, everyone, result.shared.Q)
        self._keep_certificate(result, result.passes)
        self.subproblem_gap_ = result.subproblem_gap
        self.status_ = result.status
        self.alternations_ = result.alternations
