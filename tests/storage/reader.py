"""Another reader of stores, written from storage/README.md alone: P and D of a model, with NumPy and Zarr.

`python tests/storage/reader.py MODEL`; it knows the losses, transforms and kernel that its test stores.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from numcodecs import Zstd


def read(path: Path) -> Any:
    return json.loads(path.read_bytes())


def training_rows(store: Path, name: str) -> tuple[Any, Any, Any, Any]:
    """Features, labels, own classes (n, m) and own weights of the training rows of a dataset."""
    commit = read(store / f"commits/datasets/{int(name[1:5]):08d}.json")
    folder, m = store / commit["folder"], commit["m"]
    arrays = zarr.open_group(folder / "arrays", mode="r")
    units = [features(store / "units" / one["features"], commit["d"]) for one in read(folder / "units.json")]
    y, own = arrays["labels"][:], np.eye(m)
    if "label_set_indptr" in arrays:
        members = np.split(arrays["label_set_indices"][:], arrays["label_set_indptr"][1:-1])
        own = np.array([np.isin(np.arange(m), one) for one in members])
    rows = (arrays["split"][:] == 0) & (y >= 0)
    w = arrays["weights"][:] if "weights" in arrays else np.ones(len(y))
    return np.concatenate(units)[rows].astype(np.float32), y[rows], own[y[rows]].astype(bool), w[rows]


def features(unit: Path, d: int) -> Any:
    if read(unit / "zarr.json")["node_type"] == "array":
        return zarr.open_array(unit, mode="r")[:]
    indptr, indices, data = (
        zarr.open_group(unit, mode="r")[part][:] for part in ("indptr", "indices", "data")
    )
    return filled((len(indptr) - 1, d), np.diff(indptr), indices, data)


def filled(shape: Any, counts: Any, columns: Any, values: Any) -> Any:
    rows = np.zeros(shape)
    rows[np.repeat(np.arange(len(counts)), counts), columns] = values
    return rows


def dual_rows(duals: Path) -> Any:
    blocks = []
    for path in sorted(duals.iterdir()):
        line, _, data = path.read_bytes().partition(b"\n")
        head, arrays = json.loads(line), []
        for kind, size in head["arrays"]:
            arrays.append(np.frombuffer(Zstd().decode(data[:size]) if size else b"", kind))
            data = data[size:]
        whole = len(arrays) == 1
        blocks.append(arrays[0].reshape(head["shape"]) if whole else filled(head["shape"], *arrays))
    return np.concatenate(blocks).astype(float)


def transformed(X: Any, names: list[str], arrays: Path) -> Any:
    for place, name in enumerate(names):
        if name == "l2":
            X = X / np.maximum(np.linalg.norm(X, axis=1, keepdims=True), 1e-30)
        elif name == "bias":
            X = np.hstack([X, np.ones((len(X), 1))])
        else:
            fitted = {path.name: zarr.open_array(path)[:] for path in arrays.glob(f"transform.{place}.*")}
            X = X - fitted[f"transform.{place}.mean"]
            scaled = name == "standardize"
            X = (
                X * fitted[f"transform.{place}.scale"]
                if scaled
                else X @ fitted[f"transform.{place}.components"]
            )
        X = X.astype(np.float32)
    return X.astype(float)


def entropy(q: Any) -> Any:
    return -(q * np.log(np.maximum(q, 1e-300))).sum(axis=1)


def vertex(s: Any, own: Any, k: int) -> Any:
    ranks = np.argsort(np.argsort(-(~own + s - s[own][:, None]), axis=1), axis=1)
    beta = (ranks < k) * (topk_hinge(s, own, k) > 0)[:, None] / k
    return own * beta.sum(axis=1, keepdims=True) - beta


def topk_hinge(s: Any, own: Any, k: int) -> Any:
    return np.maximum(0.0, np.sort(~own + s - s[own][:, None], axis=1)[:, -k:].mean(axis=1))


#: Phi(s), -Phi*(-u) and u(s) of rows with these own classes.
LOSSES: dict[str, Any] = {
    "topk_hinge": (topk_hinge, lambda u, own, k: -(~own * u).sum(axis=1), vertex),
    "softmax": (
        lambda s, own, k: np.log(np.exp(s).sum(axis=1)) - s[own],
        lambda u, own, k: entropy(own - u),
        lambda s, own, k: own - np.exp(s) / np.exp(s).sum(axis=1, keepdims=True),
    ),
    "one_vs_all_logistic": (
        lambda s, own, k: np.log1p(np.exp(np.where(own, -s, s))).sum(axis=1),
        lambda u, own, k: entropy(abs(u)) + entropy(1.0 - abs(u)),
        lambda s, own, k: own - 1.0 / (1.0 + np.exp(-s)),
    ),
}


def bounds(model: Path) -> tuple[float, float]:
    """P and D of the model in a folder of a store."""
    record, arrays = read(max(model.glob("0*.json"))), zarr.open_group(model / "arrays", mode="r")
    X, y, own, w = training_rows(model.parents[1], record["dataset"])
    X = transformed(X, [one["name"] for one in record["transforms"]], model / "arrays")
    lam, gamma, n, duals = record["lam"], record["smoothing"], len(X), model / "arrays/duals"
    w = w if record["class_weights"] is None else w * np.array(record["class_weights"])[y]
    average_top, k = record["config"]["average_top"], record["loss"].get("k", 1)
    phi, conjugate, u = (lambda rows, f=f: f(rows, own, k) for f in LOSSES[record["loss"]["name"]])

    def p(s: Any) -> Any:
        if average_top is None:
            return w / n
        count, found = average_top if average_top >= 1 else average_top * n, np.zeros(n)
        found[np.argsort(-phi(s), kind="stable")] = np.clip(count - np.arange(n), 0.0, 1.0) / count
        return found

    if record["kernel"] is not None:
        differences = X[:, None] - X
        values, vectors = np.linalg.eigh(np.exp(-record["kernel"]["gamma"] * (differences**2).sum(axis=2)))
        X = vectors * np.sqrt(np.maximum(values, 0.0))  # rows whose inner products are K
    W = arrays["W"][:].astype(float) if record["kernel"] is None else X.T @ dual_rows(duals) / (lam * n)
    primal = lam / 2 * (W**2).sum() + p(X @ W) @ phi(X @ W)
    if duals.is_dir():
        parts = [(w / n, dual_rows(duals) / w[:, None])]
    elif "cut_points" in arrays:
        points = zip(arrays["cut_shares"][:], arrays["cut_points"][:], strict=True)
        parts = [(share * p(X @ point), u(X @ point)) for share, point in points]
    elif "dual_sums" in arrays:
        V, (mean, squares) = arrays["dual_W"][:] if "dual_W" in arrays else W, arrays["dual_sums"][:]
        return primal, mean - gamma / 2 * squares - lam / 2 * (V**2).sum()
    else:
        parts = [(p(X @ W), u(X @ W))]
    V = sum(X.T @ (q[:, None] * rows) for q, rows in parts) / lam
    linear = sum(q @ (conjugate(rows) - gamma / 2 * (rows**2).sum(axis=1)) for q, rows in parts)
    return primal, linear - lam / 2 * (V**2).sum()


if __name__ == "__main__":
    print(*bounds(Path(sys.argv[1])))
