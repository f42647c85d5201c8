"""The piecewise linear losses straight from their definitions.

Rank weights and margins are read from the loss's own parameters, never from the form that the kernels use.
"""

from __future__ import annotations

from itertools import permutations, product

import numpy as np

from tests.reference import multilabel
from tests.reference.columns import (
    alpha_row,
    infeasibility,
    others_twin,
    two_curvatures_twin,
    wtopk_twin,
    wusunier_twin,
)
from topline.solvers.losses import (
    LossForm,
    MultilabelHinge,
    OneVsAll,
    StructuredHinge,
    TopKOthersHinge,
    UsunierHinge,
    WeightedUsunierHinge,
)
from topline.solvers.losses.hinges import HINGE_THEN_SUM, SUM_THEN_HINGE


def rank_weights(loss, m):
    """Give the rank weights of a loss, padded to length m."""
    fields = loss.to_dict()
    rho = fields.get("rho") or ([1.0 / fields["k"]] * fields["k"] if "k" in fields else [1.0])
    return np.concatenate([rho, np.zeros(m - len(rho))])


def signs_of(y, m):
    """Give z of one example: 1 at its own class or classes, -1 elsewhere."""
    return 2.0 * multilabel.own_classes(y, m) - 1.0


def margins_of(loss, y, m):
    """Give delta of one example."""
    if isinstance(loss, OneVsAll):
        return -signs_of(y, m)
    if isinstance(loss, MultilabelHinge):
        return 1.0 - multilabel.own_classes(y, m)
    return np.array(loss.margins[y]) if isinstance(loss, StructuredHinge) else 1.0 - np.eye(m)[y]


def hinges_first(loss):
    """Say whether each violation is cut at zero before the sum."""
    return isinstance(loss, UsunierHinge | WeightedUsunierHinge)


def own_in_sort(loss):
    """Say whether the own class takes part in the sort of the violations."""
    return not isinstance(loss, TopKOthersHinge)


def vertices(loss, y, m):
    """Give every u = -dPhi that the loss can have (m small): beta over all orders, and all cuts or none."""
    if isinstance(loss, OneVsAll):
        return np.array(list(product([0.0, 1.0], repeat=m))) * signs_of(y, m)
    if isinstance(loss, MultilabelHinge):
        return multilabel.hinge_vertices(y, m)
    rho = rank_weights(loss, m)
    if not own_in_sort(loss):
        orders = [np.insert(order, y, 0.0) for order in permutations(rho[: m - 1])]
    else:
        orders = [np.array(order) for order in permutations(rho)]
    masks = product([0.0, 1.0], repeat=m) if hinges_first(loss) else [np.zeros(m), np.ones(m)]
    betas = {tuple(order * mask) for mask in map(np.array, masks) for order in orders}
    return np.array([alpha_row(np.array(beta), y) for beta in sorted(betas)])


def brute_loss(loss, s, y):
    """Give Phi(s; y) as the largest -<u, delta + s> over all u."""
    m = len(s)
    return float(np.max(-vertices(loss, y, m) @ (margins_of(loss, y, m) + s)))


def hinge_value(loss, s, y):
    """Give Phi(s; y) by its printed definition."""
    m = len(s)
    if isinstance(loss, OneVsAll):
        return float(np.maximum(0.0, 1.0 - signs_of(y, m) * s).sum())
    if isinstance(loss, MultilabelHinge):
        return multilabel.hinge(s, y)
    rho = rank_weights(loss, m)
    a = margins_of(loss, y, m) + s - s[y]
    a = a if own_in_sort(loss) else np.append(np.delete(a, y), -np.inf)
    ranked = np.sort(a)[::-1][: np.count_nonzero(rho)]
    rho = rho[: len(ranked)]
    return float(rho @ np.maximum(ranked, 0.0)) if hinges_first(loss) else max(0.0, float(rho @ ranked))


def vertex(loss, s, y):
    """Give one u = -dPhi(s): the best of the sorted order."""
    m = len(s)
    if isinstance(loss, OneVsAll):
        z = signs_of(y, m)
        return z * (1.0 - z * s > 0)
    if isinstance(loss, MultilabelHinge):
        return multilabel.hinge_vertex(s, y)
    a = margins_of(loss, y, m) + s - s[y]
    order = np.argsort(-a, kind="stable")
    order = order if own_in_sort(loss) else np.append(order[order != y], y)
    rho = rank_weights(loss, m)
    beta = np.zeros(m)
    if hinges_first(loss):
        beta[order] = rho * (a[order] > 0)
    elif rho @ a[order] > 0:
        beta[order] = rho
    return alpha_row(beta, y)


def smoothed_vertex(loss, s, y, gamma, kind="moreau"):
    """Give u = -grad Phi_gamma(s), through a twin of the column projection; `kind` as in a Problem."""
    m = len(s)
    own = gamma if kind == "moreau" else 0.0
    if isinstance(loss, OneVsAll):
        z = signs_of(y, m)
        return z * np.clip((1.0 - z * s) / gamma, 0.0, 1.0)
    if isinstance(loss, MultilabelHinge):
        return multilabel.smoothed_hinge_vertex(s, y, gamma)
    b = margins_of(loss, y, m) + s - s[y]
    rho = np.trim_zeros(rank_weights(loss, m), "b")
    if hinges_first(loss) or len(rho) == 1:
        # With one rank all families are the same loss.
        return wusunier_twin(b, y, gamma, own, rho)
    if not own_in_sort(loss):
        return others_twin(b, y, gamma, own, rho)
    return wtopk_twin(b, y, gamma, rho) if own else two_curvatures_twin(b, y, gamma, 0.0, rho)


def hinge_infeasibility(loss, alpha, y):
    """Give by how much a dual row leaves the domain of the conjugate, at most 0 inside."""
    m = len(alpha)
    if isinstance(loss, OneVsAll):
        a = signs_of(y, m) * alpha
        return max(-a.min(), a.max() - 1.0)
    if isinstance(loss, MultilabelHinge):
        return multilabel.hinge_infeasibility(alpha, y)
    form = LossForm(
        m=m,
        family=HINGE_THEN_SUM if hinges_first(loss) else SUM_THEN_HINGE,
        rho=np.trim_zeros(rank_weights(loss, m), "b"),
    )
    return infeasibility(form, alpha, y, own_in_sort(loss))
