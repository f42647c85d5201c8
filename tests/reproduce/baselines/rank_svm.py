"""RankSVM for examples with several labels: every label of an example is to score above every other one.

    P(W) = 1/2 |W|^2 + C sum_i 1/(|Y_i| |Z_i|) sum_{y in Y_i, z in Z_i} max(0, 1 - (s_iy - s_iz))
    D(a) = sum_iyz a_iyz - 1/2 |W(a)|^2,   W(a) = sum_iyz a_iyz x_i (e_y - e_z)^T,
           0 <= a_iyz <= C / (|Y_i| |Z_i|)

with s_i = W^T x_i and Z_i the labels that i does not have.  As a binary SVM it has an example Phi_y(x_i) -
Phi_z(x_i) for each pair, of m d features; here a pass of dual coordinate ascent goes through the pairs with
the m scores of their example, and W changes once an example.
Source: A. Elisseeff, J. Weston, "A kernel method for multi-labelled classification", NIPS 2001.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.reproduce.baselines.rows import finite_rows
from topline.solvers.core.problem import positive_integer, positive_number
from topline.solvers.core.rows import is_sparse
from topline.solvers.core.state import HasObjective, Objective
from topline.solvers.errors import InvalidProblemError
from topline.solvers.jit_cache import jit
from topline.solvers.typing import Float64Array, Int64Array


@dataclass(frozen=True, eq=False)
class RankSVMResult(HasObjective):
    """What `solve_rank_svm` reached: `W` (d, m) scores rows of X as X @ W; P and D at W = W(a)."""

    W: Float64Array
    objective: Objective
    passes: int


def solve_rank_svm(
    X: Any, labels: Any, C: float, *, tol: float = 1e-3, max_passes: int = 1000, seed: int = 0
) -> RankSVMResult:
    """Solve P for X (n, d) dense and an indicator `labels` (n, m) of what each example has.

    Ends at a relative gap of `tol` or after `max_passes`; the result says which gap it has.  An example with
    no label, or with all of them, has no pairs and counts for nothing.

    Raises InvalidProblemError where X is sparse, no example has a pair, shapes differ, or C or tol is no
    positive number, and NonFiniteError for NaN or infinity in X.
    """
    X, has = finite_rows(X), np.asarray(labels, dtype=bool)
    if is_sparse(X):
        raise InvalidProblemError("RankSVM takes features as an array; give X.toarray()")
    X = np.ascontiguousarray(X, dtype=np.float64)
    if has.ndim != 2 or len(has) != len(X):
        raise InvalidProblemError(
            f"X has the shape {X.shape} and labels {has.shape}; give a row of each for every example"
        )
    counts = has.sum(axis=1)
    pairs = counts * (has.shape[1] - counts)
    if not pairs.any():
        raise InvalidProblemError("no example has one label and lacks another; give labels that tell apart")
    C, tol = positive_number("C", C), positive_number("tol", tol)
    max_passes = positive_integer("max_passes", max_passes)
    caps = C / np.maximum(pairs, 1)
    starts = np.concatenate([[0], np.cumsum(pairs)]).astype(np.int64)
    a, W = np.zeros(starts[-1]), np.zeros((X.shape[1], has.shape[1]))
    rng = np.random.default_rng(seed)
    used = np.flatnonzero(pairs)
    result = RankSVMResult(W, Objective(C * len(used), 0.0), 0)
    for done in range(1, max_passes + 1):
        visit_pairs(X, has, caps, starts, rng.permutation(used), a, W)
        W = X.T @ signed_sums(has, starts, a)
        loss = float(caps @ pair_losses(X @ W, has))
        square = 0.5 * float(np.vdot(W, W))
        primal, dual = square + loss, float(a.sum()) - square
        result = RankSVMResult(W, Objective(primal, min(dual, primal)), done)
        if result.relative_gap <= tol:
            break
    return result


@jit
def visit_pairs(
    X: Float64Array,
    has: np.ndarray[Any, np.dtype[np.bool_]],
    caps: Float64Array,
    starts: Int64Array,
    order: Int64Array,
    a: Float64Array,
    W: Float64Array,
) -> None:
    """Maximise D over one pair after another, example by example in the given order; a and W change."""
    d, m = W.shape
    scores, change = np.empty(m), np.empty(m)
    for i in order:
        scores[:] = 0.0
        change[:] = 0.0
        square = 0.0
        for f in range(d):
            square += X[i, f] * X[i, f]
            for j in range(m):
                scores[j] += X[i, f] * W[f, j]
        place = starts[i]
        for y in range(m):
            if not has[i, y]:
                continue
            for z in range(m):
                if has[i, z]:
                    continue
                # Where x = 0 a pair adds to D and not to W.
                best = caps[i]
                if square > 0.0:
                    best = a[place] + (1.0 - scores[y] + scores[z]) / (2.0 * square)
                step = min(max(best, 0.0), caps[i]) - a[place]
                a[place] += step
                change[y] += step
                change[z] -= step
                scores[y] += step * square
                scores[z] -= step * square
                place += 1
        for f in range(d):
            for j in range(m):
                W[f, j] += X[i, f] * change[j]


@jit
def signed_sums(
    has: np.ndarray[Any, np.dtype[np.bool_]], starts: Int64Array, a: Float64Array
) -> Float64Array:
    """Return A (n, m) with W(a) = X^T A: sums of a over the pairs of each label, negative where lacked."""
    n, m = has.shape
    sums = np.zeros((n, m))
    for i in range(n):
        place = starts[i]
        if starts[i + 1] == place:
            continue
        for y in range(m):
            if has[i, y]:
                for z in range(m):
                    if not has[i, z]:
                        sums[i, y] += a[place]
                        sums[i, z] -= a[place]
                        place += 1
    return sums


@jit
def pair_losses(scores: Float64Array, has: np.ndarray[Any, np.dtype[np.bool_]]) -> Float64Array:
    """Return sum_{y, z} max(0, 1 - (s_y - s_z)) of each row of scores (n, m)."""
    n, m = has.shape
    losses = np.zeros(n)
    for i in range(n):
        for y in range(m):
            if has[i, y]:
                for z in range(m):
                    if not has[i, z]:
                        losses[i] += max(0.0, 1.0 - scores[i, y] + scores[i, z])
    return losses
