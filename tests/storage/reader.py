"""Another reader of stores, written from storage/README.md alone: python tests/storage/reader.py MODEL.

It prints P and D of a model.  Transforms, losses and the kernel are those of the models that its test stores.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from numcodecs import Zstd
from scipy.sparse import csr_array
from scipy.spatial.distance import cdist
from scipy.special import entr, logsumexp

#: What a transform makes of rows, with its arrays by name.
TRANSFORMS: dict[str, Any] = {
    "l2": lambda X, fitted: X / np.linalg.norm(X, axis=1, keepdims=True).clip(1e-30),
    "bias": lambda X, fitted: np.hstack([X, np.ones((len(X), 1))]),
    "standardize": lambda X, fitted: (X - fitted("mean")) * fitted("scale"),
    "pca": lambda X, fitted: (X - fitted("mean")) @ fitted("components"),
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


def read(path: Path) -> Any:
    return json.loads(path.read_bytes())


def sparse(indptr: Any, indices: Any, data: Any, columns: int) -> Any:
    return csr_array((data, indices, indptr), (len(indptr) - 1, columns)).toarray().astype(float)


def dual_rows(path: Path) -> Any:
    """The block of A in a file."""
    line, data = path.read_bytes().split(b"\n", 1)
    head, arrays = json.loads(line), []
    for kind, size in head["arrays"]:
        arrays.append(np.frombuffer(Zstd().decode(data[:size]) if size else b"", kind))
        data = data[size:]
    if len(arrays) == 1:
        return arrays[0].reshape(head["shape"]).astype(float)
    return sparse(np.append(0, np.cumsum(arrays[0])), *arrays[1:], head["shape"][1])


def training_rows(store: Path, dataset: str) -> tuple[Any, Any, Any, Any]:
    """Features, labels, own classes and own weights of the rows that a model learns from."""
    commit = read(store / f"commits/datasets/{int(dataset[1:5]):08d}.json")
    folder, d, m = store / commit["folder"], commit["d"], commit["m"]
    arrays = zarr.open_group(folder / "arrays", mode="r")
    parts: list[Any] = [zarr.open(store / "units" / unit["features"]) for unit in read(folder / "units.json")]
    if commit["layout"] == "csr":
        parts = [sparse(*(part[name][:] for name in ("indptr", "indices", "data")), d) for part in parts]
    y, own = arrays["labels"][:], np.eye(m)
    if commit["label_sets"] is not None:
        sets = arrays["label_set_indices"][:]
        own = sparse(arrays["label_set_indptr"][:], sets, np.ones(len(sets)), m)
    w = arrays["weights"][:] if "weights" in arrays else np.ones(len(y))
    rows = (arrays["split"][:] == 0) & (y >= 0)
    X = np.concatenate([part[:] for part in parts])
    return X[rows].astype(np.float32), y[rows], own[y[rows]] > 0, w[rows]


def bounds(model: Path) -> tuple[float, float]:
    """P and D of the model in a folder of a store."""
    record, arrays = read(max(model.glob("0*.json"))), zarr.open_group(model / "arrays", mode="r")
    lam, name, top = record["lam"], record["loss"]["name"], record["config"]["average_top"]
    X, y, own, w = training_rows(model.parents[1], record["dataset"])
    n, m = own.shape
    w = w if record["class_weights"] is None else w * np.array(record["class_weights"])[y]
    for place, one in enumerate(record["transforms"]):
        fitted = lambda part, place=place: arrays[f"transform.{place}.{part}"][:]  # noqa: E731
        X = TRANSFORMS[one["name"].partition(":")[0]](X, fitted).astype(np.float32)
    X = X.astype(float)
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

    duals = [dual_rows(path) for path in sorted(model.glob("arrays/duals/*"))]
    points, shares = (arrays[one][:] if one in arrays else None for one in ("cut_points", "cut_shares"))
    if duals:
        parts = [(w / n, np.concatenate(duals) / w[:, None])]
    elif points is not None:
        parts = [(share * weights(W), directions(W)) for share, W in zip(shares, points, strict=True)]
    else:
        parts = [(weights(arrays["W"][:]), directions(arrays["W"][:]))]
    V = sum(X.T @ (p[:, None] * u) for p, u in parts) / lam
    W = V if record["kernel"] else arrays["W"][:].astype(float)
    dual = sum(p @ CONJUGATES[name](u, own) for p, u in parts)
    if "dual_sums" in arrays and not duals:
        V, dual = arrays["dual_W"][:] if "dual_W" in arrays else W, arrays["dual_sums"][0]
    return lam / 2 * (W**2).sum() + weights(W) @ losses(W), dual - lam / 2 * (V**2).sum()


if __name__ == "__main__":
    print(*bounds(Path(sys.argv[1])))
