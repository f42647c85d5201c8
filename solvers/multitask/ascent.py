"""Dual coordinate ascent on the hinge losses of T tasks, with the scores of all tasks in one small product.

The weights of task t live in the space of a kernel K of examples, and tasks may share theirs through a
matrix M (T, T), positive semi-definite.  With dual variables a_ti, 0 <= y_ti a_ti <= 1, and C > 0,

    scores            s_t = C sum_u M_tu K a_u                                            (n,)
    primal            P = 1/T sum_t [ (1/n) sum_i phi_gamma(y_ti s_ti) + <a_t, s_t> / (2 n) ]
    dual              D = 1/T sum_t [ (1/n) sum_i (y_ti a_ti - gamma/2 a_ti^2) - <a_t, s_t> / (2 n) ]

M = I gives T support vector machines with nothing in common (thesis, (B.1) to (B.6), C = 1/(lambda n)); with
M = W^T W the minimiser is the shared representation U for fixed predictors W ((4.4) to (4.7) and (B.7),
C = 1/(mu n T)).  The thesis keeps C a_ti in the place of a_ti.

One thing differs from the thesis: it passes over an example with K_ii = 0, which leaves the example's loss of
1 in the gap for ever.  Nothing but the box bounds its variable, which goes to the end of it here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from topline.solvers.core.objective import relative_gap
from topline.solvers.core.stopping import Status, StoppingCriteria
from topline.solvers.jit_cache import jit
from topline.solvers.multitask.shared import task_conjugates, task_losses
from topline.solvers.typing import Float64Array, Int64Array


@dataclass(frozen=True, eq=False)
class TaskDuals:
    """Where an ascent arrived; the values were measured with products that were computed afresh.

    Attributes
    ----------
    A : (n, T) dual variables, 0 <= y a <= 1.
    products : (n, T) float64, K A.
    primal, dual : (T,) terms of P and D; of tasks apart, each task's own objective values.
    gaps : (T,) relative gap of each task, or of all together, T times.
    passes : passes over the examples of all tasks.
    status : SOLVED, MAX_PASSES, or NO_PROGRESS where a pass changed nothing.
    """

    A: Float64Array
    products: Float64Array
    primal: Float64Array
    dual: Float64Array
    gaps: Float64Array
    passes: int
    status: Status


def ascend(
    K: Float64Array,
    signs: Float64Array,
    C: float,
    M: Float64Array | None,
    criteria: StoppingCriteria,
    *,
    smoothing: float = 0.0,
    seed: int = 0,
    start: Float64Array | None = None,
) -> TaskDuals:
    """Maximise D by passes in random orders over tasks and examples, until no gap is above `criteria.tol`.

    Parameters
    ----------
    K : (n, n) float64, symmetric and positive semi-definite.
    signs : (n, T) labels y of 1.0 and -1.0.
    C : weight of the losses against the regulariser.
    M : (T, T) what the tasks share; None for the identity, where each task is certified, and finished, alone.
    smoothing : gamma of the smooth hinge, 0 for the hinge.
    start : (n, T) duals to start from, clipped to their box; None for zeros.

    The gap is a sum of terms that Fenchel and Young keep from being negative, whatever K is; it bounds the
    distance to the minimum where K is positive semi-definite, which the caller vouches for.
    """
    run = _Run(K, np.ascontiguousarray(signs.T, dtype=np.float64), C, M, smoothing)
    A = np.zeros_like(run.signs)
    if start is not None:
        A = np.ascontiguousarray(run.signs * np.clip(run.signs * start.T, 0.0, 1.0))
    products = A @ K
    primal, dual = run.values(A, products)
    random = np.random.default_rng(seed)
    passes, changed, fresh = 0, 1, True
    while True:
        gaps = run.gaps(primal, dual)
        unsolved = np.flatnonzero(~(gaps <= criteria.tol))
        done = not len(unsolved) or not changed or passes >= criteria.max_passes
        if done and fresh:
            status = Status.MAX_PASSES if changed else Status.NO_PROGRESS
            status = status if len(unsolved) else Status.SOLVED
            A, products = np.ascontiguousarray(A.T), np.ascontiguousarray(products.T)
            return TaskDuals(A, products, primal, dual, gaps, passes, status)
        if done:
            # What many small changes were added to is computed again before it certifies anything.
            products, fresh = A @ K, True
        else:
            changed = run.visit(A, products, random.permutation(unsolved), random)
            passes, fresh = passes + 1, False
        primal, dual = run.values(A, products)


@dataclass(frozen=True, eq=False)
class _Run:
    """What stays the same during an ascent; tasks are rows here, so that each lies in one piece."""

    K: Float64Array
    signs: Float64Array
    C: float
    M: Float64Array | None
    gamma: float

    def visit(
        self, A: Float64Array, products: Float64Array, tasks: Int64Array, random: np.random.Generator
    ) -> int:
        """Pass once over all examples of some tasks; give how many variables changed."""
        n = A.shape[1]
        orders = random.permuted(np.tile(np.arange(n), (len(tasks), 1)), axis=1)
        M = np.eye(len(A)) if self.M is None else self.M
        return int(visit_tasks(self.K, self.signs, tasks, orders, self.C, self.gamma, M, A, products))

    def values(self, A: Float64Array, products: Float64Array) -> tuple[Float64Array, Float64Array]:
        """Return the terms of P and D of each task, (T,) each."""
        scores = self.C * (products if self.M is None else self.M @ products)
        half = 0.5 * np.einsum("ti,ti->t", A, scores) / A.shape[1]
        primal = task_losses(self.signs, scores, self.gamma) + half
        return primal, task_conjugates(self.signs, A, self.gamma) - half

    def gaps(self, primal: Float64Array, dual: Float64Array) -> Float64Array:
        """Return the relative gap that counts for each task: its own, or that of all together."""
        if self.M is not None:
            primal, dual = (np.full(len(values), values.mean()) for values in (primal, dual))
        return np.array([relative_gap(p - d, p) for p, d in zip(primal, dual, strict=True)])


@jit
def visit_tasks(
    K: Float64Array,
    signs: Float64Array,
    tasks: Int64Array,
    orders: Int64Array,
    C: float,
    gamma: float,
    M: Float64Array,
    A: Float64Array,
    products: Float64Array,
) -> int:
    """Replace each dual variable of some tasks by its maximiser, one after the other; give how many changed.

    It is (4.7), with the skip rule (B.6): a variable at the end of its box that the gradient presses against
    is left before anything else is computed.  The scores of a task are put together when its turn comes, and
    within the turn they change through K a_t alone.

    Parameters
    ----------
    K : (n, n).
    tasks, orders : (v,) tasks in the order of their turns, (v, n) places in the order of their visits.
    M : (T, T).
    signs, A, products : (T, n) labels, dual variables and K a_t; the last two are kept up to date.
    """
    n = K.shape[0]
    others = np.empty(n)
    changed = 0
    for turn in range(len(tasks)):
        t = tasks[turn]
        y, a, product = signs[t], A[t], products[t]
        others[:] = 0.0
        for u in range(len(M)):
            if u != t and M[t, u] != 0.0:
                for j in range(n):
                    others[j] += M[t, u] * products[u, j]
        for i in orders[turn]:
            before = y[i] * a[i]
            rest = 1.0 - y[i] * C * (others[i] + M[t, t] * product[i]) - gamma * before
            if (before <= 0.0 and rest <= 0.0) or (before >= 1.0 and rest >= 0.0):
                continue
            curvature = C * M[t, t] * K[i, i] + gamma
            after = 1.0 if rest > 0.0 else 0.0
            if curvature > 0.0:
                after = min(max(before + rest / curvature, 0.0), 1.0)
            step = y[i] * (after - before)
            if step == 0.0:
                continue
            a[i] = y[i] * after
            changed += 1
            row = K[i]
            for j in range(n):
                product[j] += step * row[j]
    return changed
