"""What a method takes of memory besides rows, dual variables and a few W, for those who share memory out."""

from __future__ import annotations

from dataclasses import dataclass

from topline.solvers.blocks import most_kept
from topline.solvers.core.problem import Problem
from topline.solvers.methods.registry import MethodSpec


@dataclass(frozen=True)
class MethodMemory:
    """Memory of one method on one problem.

    Attributes
    ----------
    arrays : of the shape of W, that the coordinator holds for it.
    formed : numbers in the largest matrix that blocks sum for it.
    kept : bytes that all blocks together can make use of between requests; they do with less.
    """

    arrays: int = 0
    formed: int = 0
    kept: int = 0


#: What a method takes that steps along one direction.
PLAIN = MethodMemory()


def method_memory(spec: MethodSpec, problem: Problem, features: int) -> MethodMemory:
    """Return what a method takes for a problem whose features take so many bytes in float32."""
    formed = spec.formed(problem)
    if not spec.second_order:
        return MethodMemory(spec.arrays(problem), formed)
    kept = most_kept(problem.n, problem.m, features, smooth=problem.form.smooth)
    return MethodMemory(spec.arrays(problem), formed, kept)
