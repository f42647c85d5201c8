"""What the first command reaches on data that nobody tuned for, beside what takes more work.

    python -m tests.benchmarks.models.first_answer [--data FOLDER] [--sets NAME ...] [--quick]

Rows are cut in two, a class to its share: at most `TRAINED` to train on and the others, at most `HELD_OUT`,
to measure top-1 accuracy on.  `run` is the search of `topline run` and `train --auto` on the imported table
with the training that follows; its cost is that of the search, in fits of the default and seconds, and of
that training.  The estimator's default and scikit-learn's LogisticRegression are fitted to standardised
columns.  The exhaustive search takes softmax, the hinge and the smooth hinge with C from 1e-3 to 1e2, of rows
standardised or of length 1, by five folds.

The bar: `run` is never more than two standard errors of its accuracy (`error`) below any of them.  `behind`
is by how many standard errors of the paired difference, which is smaller, the best of them leads; of 24 such
comparisons one or two are above 2 by chance where all are equal, were they independent.
"""

from __future__ import annotations

import argparse
import gzip
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy import io
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import Normalizer, StandardScaler

from tests.benchmarks.datasets import DATA_DIR, QUICK_ROWS, SETS
from topline import TopKClassifier, TopKClassifierCV
from topline.pipeline.ingest import import_features
from topline.pipeline.jobs import train_as_asked
from topline.pipeline.options import ClusterConfig, ImportConfig, SearchConfig, TrainConfig
from topline.pipeline.rows import StoredModel

TRAINED, HELD_OUT = 2000, 4000
LOSSES = (("softmax", 0.0), ("max_hinge", 0.0), ("max_hinge", 1.0))
#: Standard errors that `run` may be below another.
ERRORS = 2.0


def vowel(folder: Path) -> tuple[Any, Any]:
    """Read the 528 training and 462 test rows of vowel, of speakers of their own, as one set."""
    parts = []
    for part in ("train", "test"):
        with gzip.open(folder / "vowel" / f"vowel_{part}.csv.gz", "rt") as lines:
            parts.append(np.loadtxt(lines, delimiter=",", skiprows=1))
    table = np.concatenate(parts)
    return table[:, 1:], table[:, 0]


def leaves100(folder: Path) -> tuple[Any, Any]:
    """Read the shape, texture and margin of a hundred kinds of leaves, 16 rows each."""
    parts = io.loadmat(folder / "leaves100" / "100Leaves.mat")
    views = [np.asarray(view, dtype=np.float64) for view in parts["data"].ravel()]
    y = parts["truth"].ravel()
    return np.hstack([view if len(view) == len(y) else view.T for view in views]), y


DATA: dict[str, Callable[[Path], tuple[Any, Any]]] = {
    "digits": SETS["digits"], "vowel": vowel, "leaves100": leaves100, "satimage": SETS["satimage"],
    "usps": SETS["usps"], "optdigits": SETS["optdigits"], "letter": SETS["letter_all"],
    "googlenet": SETS["googlenet"],
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Answers:
    """Which held-out rows each way has right, and what `run` took: fits, seconds of search and training."""

    right: dict[str, np.ndarray]
    fits: float
    search: float
    training: float
    chosen: str

    @property
    def behind(self) -> float:
        """By how many standard errors of the paired difference the best other way leads `run`, at least 0."""
        ahead = [right.astype(float) - self.right["run"] for right in self.right.values()]
        return max(float(one.mean() * np.sqrt(len(one)) / max(one.std(), 1e-12)) for one in ahead)


def answers(X: Any, y: Any, *, quick: bool = False) -> Answers:
    """Train each way on the same rows, and ask them for the others."""
    labels = np.unique(y, return_inverse=True)[1]
    most = QUICK_ROWS if quick else TRAINED
    size = min(most, len(labels) // 2)
    X, X_test, y, y_test = train_test_split(X, labels, train_size=size, stratify=labels, random_state=0)
    X_test, y_test = X_test[:HELD_OUT], y_test[:HELD_OUT]
    model, fits, search, training = _run(X, y)
    W = model.scores(model.transforms.apply(X_test.astype(np.float32))).argmax(axis=1)
    names = [int(name) for name in model.model.record.class_names]
    right = {"run": np.asarray(names)[W] == y_test}
    ways = {
        "estimator": make_pipeline(StandardScaler(), TopKClassifier()),
        "LogisticRegression": make_pipeline(StandardScaler(), LogisticRegression(max_iter=5000)),
        "exhaustive": _exhaustive(X, y, Cs=3 if quick else 6),
    }
    for name, way in ways.items():
        right[name] = way.fit(X, y).predict(X_test) == y_test
    config = model.model.record.config
    said = f"{config['loss']} C={config['C']:g} {','.join(config['transforms'])}"
    return Answers(right, fits, search, training, said)


def _run(X: Any, y: Any) -> tuple[StoredModel, float, float, float]:
    """Import a table and train on it as `topline train --auto` does; return the model and what it took."""
    with tempfile.TemporaryDirectory() as folder:
        np.save(Path(folder) / "X.npy", X.astype(np.float32))
        np.save(Path(folder) / "y.npy", y)
        store = str(Path(folder) / "store")
        files = {"features": f"{folder}/X.npy", "labels": f"{folder}/y.npy", "test_share": 0.0}
        import_features(ImportConfig(**files, store=store))
        began = time.perf_counter()
        config = TrainConfig(store=store)
        made = train_as_asked(config, ClusterConfig(workers=0), search=SearchConfig(auto=True))
        seconds, chosen = time.perf_counter() - began, made.chosen or {}
        return StoredModel.open(made.model), chosen["fits"], chosen["seconds"], seconds - chosen["seconds"]


def _exhaustive(X: Any, y: Any, Cs: int) -> Any:
    """Return the way that does best by five folds, not fitted to all rows yet."""
    best, way = -1.0, None
    for scale in (StandardScaler, Normalizer):
        scaled = scale().fit_transform(X)
        for loss, smoothing in LOSSES:
            found = TopKClassifierCV(Cs, loss=loss, smoothing=smoothing, tol=1e-2).fit(scaled, y)
            if found.best_score_ > best:
                best = found.best_score_
                model = TopKClassifier(loss=loss, smoothing=smoothing, C=found.C_)
                way = make_pipeline(scale(), model)
    return way


def main(argv: list[str] | None = None) -> int:
    """Print the table; 1 where `run` is below another way beyond the bar."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--data", type=Path, default=DATA_DIR)
    parser.add_argument("--sets", nargs="+", choices=list(DATA), default=list(DATA))
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args(argv)
    heads = ("set", "run", "error", "estimator", "LogisticRegression", "exhaustive", "behind", "fits",
             "search s", "train s", "chosen")  # fmt: skip
    print(f"| {' | '.join(heads)} |")
    print("|---" * len(heads) + "|")
    below = []
    for name in given.sets:
        found = answers(*DATA[name](given.data), quick=given.quick)
        shares = {way: right.mean() for way, right in found.right.items()}
        p = shares["run"]
        error = np.sqrt(p * (1.0 - p) / len(found.right["run"]))
        ways = " | ".join(f"{shares[way]:.1%}" for way in ("estimator", "LogisticRegression", "exhaustive"))
        print(
            f"| {name} | {p:.1%} | {error:.1%} | {ways} | {found.behind:.1f} | {found.fits:.1f} |"
            f" {found.search:.1f} |"
            f" {found.training:.1f} | {found.chosen} |",
            flush=True,
        )
        below += [f"{name}: {way}" for way, share in shares.items() if share - p > ERRORS * error]
    print("all within the bar" if not below else f"run is below: {'; '.join(below)}")
    return int(bool(below))


if __name__ == "__main__":
    raise SystemExit(main())
