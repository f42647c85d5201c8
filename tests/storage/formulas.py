"""P and D of what a store holds, by storage/README.md, for the losses that its test stores."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.spatial.distance import cdist
from scipy.special import entr, logsumexp

TRANSFORMS: dict[str, Any] = {
    "l2": lambda X: X / np.linalg.norm(X, axis=1, keepdims=True).clip(1e-30),
    "bias": lambda X: np.hstack([X, np.ones((len(X), 1))]),
    "standardize": lambda X, mean, scale: (X - mean) * scale,
    "pca": lambda X, mean, components: (X - mean) @ components,
}
#: Phi of scores, with the own classes of each row in boolean, and -Phi*(-u).
PHI: dict[str, Any] = {
    "topk_hinge": lambda s, own, k: np.sort(s + ~own - s[own][:, None])[:, -k:].mean(axis=1).clip(0),
    "softmax": lambda s, own, k: logsumexp(s, axis=1) - s[own],
    "one_vs_all_logistic": lambda s, own, k: np.logaddexp(0, np.where(own, -s, s)).sum(axis=1),
}
CONJUGATES: dict[str, Any] = {
    "topk_hinge": lambda u, own: -np.where(own, 0, u).sum(axis=1),
    "softmax": lambda u, own: entr(own - u).sum(axis=1),
    "one_vs_all_logistic": lambda u, own: (entr(abs(u)) + entr(1 - abs(u))).sum(axis=1),
}


def transformed(X: Any, transforms: list[dict[str, Any]], arrays: dict[str, Any]) -> Any:
    """Rows after the fitted transforms."""
    for place, transform in enumerate(transforms):
        start = f"transform.{place}."
        fitted = {name.removeprefix(start): array for name, array in arrays.items() if name.startswith(start)}
        X = TRANSFORMS[transform["name"].partition(":")[0]](X, **fitted).astype(np.float32)
    return X.astype(float)


def primal_and_dual(
    record: dict[str, Any], arrays: dict[str, Any], X: Any, own: Any, w: Any, duals: list[Any]
) -> tuple[float, float]:
    """P and D of a model with its arrays, transformed rows, own classes, weights and blocks of dual rows."""
    lam, name, top, (n, m) = record["lam"], record["loss"]["name"], record["config"]["average_top"], own.shape
    if record["kernel"]:
        values, vectors = np.linalg.eigh(np.exp(-record["kernel"]["gamma"] * cdist(X, X, "sqeuclidean")))
        X = vectors * np.sqrt(values.clip(0))  # rows whose inner products are K

    def losses(W: Any, change: Any = 0.0) -> Any:
        return PHI[name](X @ W + change, own, record["loss"].get("k", 1))

    def weights(W: Any) -> Any:
        if top is None:
            return w / n
        k, p = top if top >= 1 else top * n, np.zeros(n)
        p[np.argsort(-losses(W), kind="stable")] = (k - np.arange(n)).clip(0, 1) / k
        return p

    def directions(W: Any) -> Any:
        """Minus the gradients of the losses: central differences, which are exact on a linear piece."""
        return np.stack([losses(W, -step) - losses(W, step) for step in 1e-6 * np.eye(m)], axis=1) / 2e-6

    if duals:
        parts = [(w / n, np.concatenate(duals).astype(float) / w[:, None])]
    else:
        points, shares = arrays.get("cut_points", [arrays["W"]]), arrays.get("cut_shares", [1.0])
        parts = [(share * weights(W), directions(W)) for share, W in zip(shares, points, strict=True)]
    V = sum(X.T @ (p[:, None] * u) for p, u in parts) / lam
    dual = sum(p @ CONJUGATES[name](u, own) for p, u in parts)
    W = V if record["kernel"] else arrays["W"].astype(float)
    if "dual_sums" in arrays and not duals:
        V, dual = arrays.get("dual_W", W), arrays["dual_sums"][0]
    return lam / 2 * (W**2).sum() + weights(W) @ losses(W), dual - lam / 2 * (V**2).sum()
