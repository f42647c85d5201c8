"""What is to be solved, before there are rows: the one place where problems are made and refused.

`solve`, compiling, training, sweeps and inspection describe their problem as a `ProblemSpec`.  `Problem`
checks the numbers of one problem; combinations are refused here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from topline.solvers.core.inputs import LabelledRows, positive_number
from topline.solvers.core.problem import Problem, SmoothingKind
from topline.solvers.core.risks import MEAN_RISK, AverageTopK, MeanRisk, Risk
from topline.solvers.errors import InvalidProblemError, UnsupportedCombinationError
from topline.solvers.kernels import KernelFeatures, as_kernel, is_positive
from topline.solvers.losses import LabelSets, Loss
from topline.solvers.methods import Choice, MethodSpec, chosen_method
from topline.solvers.names import DEFAULT_METHOD

#: Methods that need only the scores of all rows, with the number of rows up to which the matrix is factored
#: anyway: that takes less time, and gives features for many calls.
ON_BLOCKS = {"dual_ascent": 1000, "fw": 3000, "fw_away": 0, "fw_pairwise": 0, "fw_fully_corrective": 0}


@dataclass(frozen=True)
class ProblemSpec:
    """A loss with its regularisation, smoothing and risk, and how it is solved.

    Attributes
    ----------
    loss, smoothing, smoothing_kind, risk : as in `Problem`.
    lam, C : weight of the regulariser, or the C of lam = 1/(n C); one of the two.
    method : its name.
    kernel : None for features as they are, else a kernel, its name or `KernelFeatures`.
    weights : the option that weights examples, with its value; None where all count once.
    keep_duals : whether A is kept; None lets the method decide.
    of_duals : whether the result is W(A), and judged by it.
    stored : whether the result becomes a stored model, which with a kernel consists of its dual variables.

    Examples
    --------
    >>> from topline import TopKHinge
    >>> from topline.solvers.run import ProblemSpec
    >>> ProblemSpec(TopKHinge(2), C=1.0).problem(n=100, d=8, m=5).lam
    0.01
    """

    loss: Loss
    lam: float | None = None
    C: float | None = None
    smoothing: float = 0.0
    smoothing_kind: SmoothingKind = "moreau"
    risk: Risk = MEAN_RISK
    method: str = DEFAULT_METHOD
    kernel: Any = None
    weights: str | None = None
    keep_duals: bool | None = None
    of_duals: bool = False
    stored: bool = False

    def __post_init__(self) -> None:
        # A class has the methods of its instances, so the protocol check alone would accept it.
        given: Any = self.loss
        if isinstance(given, type) or not isinstance(given, Loss):
            names = "; TopKClassifier and the command line take names" if isinstance(given, str) else ""
            raise InvalidProblemError(
                f"the loss is {given!r}; give one of the losses of topline, such as TopKHinge(5){names}"
            )
        if not isinstance(self.risk, MeanRisk | AverageTopK):
            raise InvalidProblemError(
                f"the risk is {self.risk!r}; give MeanRisk() or a value such as AverageTopK(50)"
            )

    def problem(
        self, n: int, d: int, m: int, label_sets: LabelSets | None = None, *, joint: bool = False
    ) -> Problem:
        """Return the problem of n examples with d features and m classes; raises the errors of `Problem`."""
        lam: Any = self.lam if self.C is None else 1.0 / (max(n, 1) * positive_number("C", self.C))
        return Problem(
            self.loss, n, d, m, lam, self.smoothing, self.smoothing_kind, label_sets, self.risk, joint
        )

    def problem_of(self, examples: LabelledRows, *, joint: bool = False) -> Problem:
        """Return the problem of examples."""
        n, d = (int(size) for size in examples.rows.shape)
        return self.problem(n, d, examples.m, examples.label_sets, joint=joint)

    def chosen(self, problem: Problem, **known: Any) -> tuple[MethodSpec, Choice]:
        """Return the method for this problem and the reason; `known` is as for `chosen_method`.

        Raises UnsupportedCombinationError for options that cannot be combined.
        """
        of_duals = self.of_duals or self.kernel is not None
        method, choice = chosen_method(self.method, problem, kernel=of_duals, **known)
        method.refuse(problem, kernel=of_duals)
        if not problem.mean_risk:
            self._refuse_with_risk(problem)
        if self.kernel is not None and self.stored:
            self._refuse_without_duals(method)
        if self.kernel is None and self.keep_duals:
            self._refuse_duals(problem, method)
        return method, choice

    def keeps_duals(self, problem: Problem, method: MethodSpec) -> bool:
        """Return whether A is kept: on request, as the stored model, or because the method needs it."""
        if self.keep_duals or method.needs_duals(problem.form, problem.smoothing):
            return True
        able = method.keeps_duals or (method.smooths_through_duals and problem.mean_risk)
        return self.kernel is not None and able

    def on_blocks(self, problem: Problem, method: str) -> bool:
        """Return whether blocks compute the kernel on demand and no matrix is factored.

        For a stored model the choice does not depend on the number of rows.
        """
        if self.kernel is None or method not in ON_BLOCKS or not problem.mean_risk:
            return False
        if self.stored:
            return True
        known = not isinstance(self.kernel, KernelFeatures) and is_positive(as_kernel(self.kernel))
        return known and problem.n > ON_BLOCKS[method]

    def _refuse_with_risk(self, problem: Problem) -> None:
        """Refuse options that need examples with fixed weights."""
        risk, kernel = problem.risk.name, self.kernel
        if self.weights is not None:
            raise UnsupportedCombinationError(
                f"{self.weights} does not go with the risk {risk}, which chooses what each example counts;"
                f" leave {self.weights} out, or the risk"
            )
        if self.stored and kernel is not None:
            raise UnsupportedCombinationError(
                f"the risk {risk} does not go with kernel {as_kernel(kernel).name}, whose models are dual"
                " variables; use the transform nystroem or fourier in its place, or topline.solve in Python"
            )
        if self.keep_duals:
            raise UnsupportedCombinationError(
                f"keep_duals does not go with the risk {risk}, whose weights move with every round; leave"
                " keep_duals out"
            )

    def _refuse_without_duals(self, method: MethodSpec) -> None:
        """Refuse a stored kernel model without the dual variables that it consists of."""
        known = method.keeps_duals or method.smooths_through_duals or method.name in ON_BLOCKS
        if known and self.keep_duals is not False:
            return
        lacking = "keep_duals is off" if self.keep_duals is False else f"the method {method.name} knows none"
        raise UnsupportedCombinationError(
            f"a model with a kernel is made of its dual variables, and {lacking}; use dual_ascent, sdca, fw"
            " or fw_fully_corrective, and leave keep_duals out"
        )

    def _refuse_duals(self, problem: Problem, method: MethodSpec) -> None:
        """Refuse to keep dual variables that do not exist."""
        if method.dual_free:
            raise UnsupportedCombinationError(
                f"the method {method.name} never knows the dual variables; leave keep_duals out or use"
                " another method"
            )
        if not problem.form.convex:
            raise UnsupportedCombinationError(
                f"the loss {problem.loss.name} is not convex and has no dual variables; leave keep_duals out"
            )
