"""Every method by its name, and its requirements."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from topline.solvers.blocks import most_kept
from topline.solvers.blocks.block import array_bytes
from topline.solvers.core.problem import Problem
from topline.solvers.errors import InvalidProblemError, UnsupportedCombinationError
from topline.solvers.losses import LossForm
from topline.solvers.methods.atoms import AwaySteps, FullyCorrective, PairwiseSteps
from topline.solvers.methods.auto import Auto
from topline.solvers.methods.base import Method
from topline.solvers.methods.dual_ascent import MEANS, DualAscent, Sdca
from topline.solvers.methods.frank_wolfe import (
    AtomFrankWolfe,
    ColumnFrankWolfe,
    FrankWolfe,
    unfit_for_columns,
)
from topline.solvers.methods.newton import ARRAYS, Newton, ProximalNewton, formed_numbers
from topline.solvers.methods.quasi_newton import Lbfgs, arrays_of_lbfgs, numbers_in_classes, unfit_for_lbfgs
from topline.solvers.methods.step_rules import ExactStep, Schedule
from topline.solvers.names import not_known


@dataclass(frozen=True)
class MethodSpec:
    """How to make a method, and what it requires.

    Attributes
    ----------
    name : the public name.
    make : returns the method for a number of blocks and a seed.
    keeps_duals : whether it always needs A; `smooths_through_duals` ones need it only with smoothing.
    dual_free : whether it never knows A, so that there is none to keep.
    smooths_through_duals : whether it smooths by shifting scores by gamma A, which needs A.
    one_block : whether several blocks cost it rounds, so that one is the default.
    convex_only : whether it needs a dual problem.
    whole_duals : whether it works on A as arrays, which a budget for dual variables must hold.
    follows_duals : whether W is W(A), or no A is known; a model with a kernel needs that.
    second_order : whether it requests second-order sums, for which blocks keep and form more.
    arrays : returns the number of arrays of the shape of W that it holds besides those of a step.
    formed : returns the number of entries of the largest matrix that blocks sum for it.
    any_risk : whether it needs only W, b and vertices, so that it works for risks other than the mean.
    make_for_risk : returns the method for a risk other than the mean, if that is a different one.
    make_for_smooth : returns the method for a smooth loss, if that is a different one, which needs no A.
    unfit : returns why a problem does not suit this method, or None.
    """

    name: str
    make: Callable[[int, int], Method]
    keeps_duals: bool = False
    dual_free: bool = False
    smooths_through_duals: bool = False
    one_block: bool = False
    convex_only: bool = True
    whole_duals: bool = False
    follows_duals: bool = True
    second_order: bool = False
    arrays: Callable[[Problem], int] = lambda _problem: 0
    formed: Callable[[Problem], int] = lambda _problem: 0
    any_risk: bool = False
    make_for_risk: Callable[[], Method] | None = None
    make_for_smooth: Callable[[], Method] | None = None
    unfit: Callable[[Problem], str | None] = lambda _problem: None

    def method_for(self, problem: Problem, blocks: int, seed: int) -> Method:
        """Return the method for a problem."""
        if self.make_for_risk is not None and not problem.mean_risk:
            return self.make_for_risk()
        if self.make_for_smooth is not None and problem.form.smooth:
            return self.make_for_smooth()
        return self.make(blocks, seed)

    def needs_duals(self, form: LossForm, smoothing: float) -> bool:
        """Return whether A must be kept, with this loss and smoothing."""
        if self.make_for_smooth is not None and form.smooth:
            return False
        return self.keeps_duals or (self.smooths_through_duals and smoothing > 0)

    def refuse(self, problem: Problem, *, kernel: bool = False) -> None:
        """Raise UnsupportedCombinationError if the problem does not suit this method."""
        if kernel and not self.follows_duals:
            raise UnsupportedCombinationError(
                f"the method {self.name} moves W apart from A, and a model with a kernel is its dual "
                "variables; use auto or dual_ascent"
            )
        if self.convex_only and not problem.form.convex:
            raise UnsupportedCombinationError(
                f"the loss {problem.loss.name} is not convex and has no dual problem, which the method "
                f"{self.name} needs; use lbfgs, which then gives no certificate"
            )
        name = problem.risk.name
        if not (problem.mean_risk or self.any_risk):
            able = ", ".join(spec.name for spec in _SPECS if spec.any_risk)
            raise UnsupportedCombinationError(
                f"the method {self.name} is for the mean risk, not for {name}; use one of {able}"
            )
        if not problem.mean_risk and self.smooths_through_duals and problem.smoothing > 0:
            able = ", ".join(spec.name for spec in _SPECS if spec.any_risk and not spec.smooths_through_duals)
            raise UnsupportedCombinationError(
                f"the method {self.name} smooths through dual variables, which it cannot keep for the risk "
                f"{name}; use one of {able}, or leave smoothing = {problem.smoothing:g} out"
            )
        reason = self.unfit(problem)
        if reason is not None:
            raise UnsupportedCombinationError(f"the method {self.name} {reason}")

    def refuse_budget(self, n: int, m: int, dual_bytes: int | None) -> None:
        """Raise UnsupportedCombinationError if A (n, m) must be an array and exceeds the budget."""
        if not self.whole_duals or dual_bytes is None:
            return
        needed = array_bytes(n, m)
        if dual_bytes < needed:
            raise UnsupportedCombinationError(
                f"the method {self.name} works on the dual variables as arrays of {needed} bytes, and there "
                f"is room for {dual_bytes}: allow more memory, or use dual_ascent, which packs them"
            )


def _unfit_without_bounds(problem: Problem) -> str | None:
    """Return why steps fixed beforehand do not suit a loss whose dual domain has no size, or None."""
    if problem.form.family.bounded:
        return None
    return (
        f"fixes its steps by the size of the dual domain, and that of {problem.loss.name} has none: use auto"
    )


def _always(method: Method) -> Callable[[int, int], Method]:
    return lambda _blocks, _seed: method


_SPECS = (
    MethodSpec(
        "auto",
        Auto,
        keeps_duals=True,
        one_block=True,
        convex_only=False,
        second_order=True,
        arrays=lambda _problem: ARRAYS,
        formed=formed_numbers,
        any_risk=True,
    ),
    MethodSpec("dual_ascent", DualAscent, keeps_duals=True, one_block=True, arrays=lambda _problem: MEANS),
    MethodSpec("sdca", Sdca, keeps_duals=True, one_block=True, arrays=lambda _problem: MEANS),
    MethodSpec(
        "newton",
        _always(ProximalNewton()),
        keeps_duals=True,
        follows_duals=False,
        second_order=True,
        arrays=lambda _problem: ARRAYS,
        formed=formed_numbers,
        make_for_smooth=Newton,
    ),
    MethodSpec("fw", _always(FrankWolfe(ExactStep())), smooths_through_duals=True, any_risk=True),
    MethodSpec("fw_away", _always(AtomFrankWolfe(AwaySteps())), dual_free=True, any_risk=True),
    MethodSpec("fw_pairwise", _always(AtomFrankWolfe(PairwiseSteps())), dual_free=True, any_risk=True),
    MethodSpec(
        "fw_fully_corrective",
        _always(AtomFrankWolfe(FullyCorrective())),
        dual_free=True,
        any_risk=True,
        make_for_risk=lambda: AtomFrankWolfe(FullyCorrective(), share=0.3),
    ),
    MethodSpec(
        "fw_away_columns",
        _always(ColumnFrankWolfe(pairwise=False)),
        keeps_duals=True,
        whole_duals=True,
        unfit=unfit_for_columns,
    ),
    MethodSpec(
        "fw_pairwise_columns",
        _always(ColumnFrankWolfe(pairwise=True)),
        keeps_duals=True,
        whole_duals=True,
        unfit=unfit_for_columns,
    ),
    MethodSpec(
        "fw_open_loop",
        _always(FrankWolfe(Schedule(2.0))),
        smooths_through_duals=True,
        any_risk=True,
        unfit=_unfit_without_bounds,
    ),
    MethodSpec(
        "projected_gradient",
        _always(FrankWolfe(Schedule(1.0, projects=True))),
        smooths_through_duals=True,
        any_risk=True,
        unfit=_unfit_without_bounds,
    ),
    MethodSpec(
        "lbfgs",
        _always(Lbfgs()),
        convex_only=False,
        arrays=arrays_of_lbfgs,
        formed=numbers_in_classes,
        unfit=unfit_for_lbfgs,
    ),
)
#: Every method by its name.
METHODS: Mapping[str, MethodSpec] = MappingProxyType({spec.name: spec for spec in _SPECS})


def method_named(name: Any) -> MethodSpec:
    """Return the method of this name; raises InvalidProblemError if there is none."""
    if not isinstance(name, str) or name not in METHODS:
        raise InvalidProblemError(not_known("method", name, METHODS))
    return METHODS[name]


@dataclass(frozen=True)
class MethodMemory:
    """Memory of one method on one problem.

    Attributes
    ----------
    arrays : of the shape of W, held by the coordinator.
    formed : numbers in the largest matrix that blocks sum for it.
    kept : bytes that all blocks together can use between requests; they manage with less.
    """

    arrays: int = 0
    formed: int = 0
    kept: int = 0


#: The memory of a method that steps along one direction.
PLAIN = MethodMemory()


def method_memory(spec: MethodSpec, problem: Problem, features: int) -> MethodMemory:
    """Return the memory of a method for a problem with this many bytes of float32 `features`."""
    formed = spec.formed(problem)
    if not spec.second_order:
        return MethodMemory(spec.arrays(problem), formed)
    kept = most_kept(problem.n, problem.m, features, smooth=problem.form.smooth)
    return MethodMemory(spec.arrays(problem), formed, kept)
