"""What the first command reaches on data that nobody tuned for, beside what takes more work.

    python -m tests.benchmarks.models.first_answer [--data FOLDER] [--sets NAME ...] [--quick]

Rows of tables are cut in two, a class to its share: at most `TRAINED` to train on and the others, at most
`HELD_OUT`, to measure top-1 accuracy on.  Pictures become the features that `topline run` chooses, half of
them to train on.  `run` is its search, which is that of `train --auto`, with the training that follows; its
cost is that of the search, in fits of the default, and processor seconds of both.  The estimator's default
and scikit-learn's LogisticRegression are fitted to standardised columns.  The exhaustive search takes
softmax, the hinge and the smooth hinge with C from 1e-3 to 1e2, of rows standardised or of length 1, by
five folds.

The bar: `run` is never more than two standard errors of its accuracy (`error`) below any of them.  `behind`
is by how many standard errors of the paired difference, which is smaller, the best of them leads; of 36 such
comparisons one or two are above 2 by chance where all are equal, were they independent.
"""

from __future__ import annotations

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
from tests.benchmarks.harness import (
    features_of,
    print_head,
    print_row,
    read_options,
    rows_and_labels,
    unpacked,
)
from tests.benchmarks.models import photograph_accuracy
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
PICTURES = {**photograph_accuracy.SETS, "cifar": ("cifar10_jpeg/cifar10_jpeg_subset.zip", "train")}


@dataclass(frozen=True, eq=False)
class Rows:
    """A store with rows to train on, the same rows X (n, d) with classes y (n,), and others to ask for."""

    store: str
    X: Any
    y: Any
    X_test: Any
    y_test: Any


def table(name: str, folder: Path, place: Path, *, quick: bool = False) -> Rows:
    """Cut a table in two, and import one part."""
    X, y = DATA[name](folder)
    labels = np.unique(y, return_inverse=True)[1]
    size = min(QUICK_ROWS if quick else TRAINED, len(labels) // 2)
    X, X_test, y, y_test = train_test_split(X, labels, train_size=size, stratify=labels, random_state=0)
    np.save(place / "X.npy", X.astype(np.float32))
    np.save(place / "y.npy", y)
    files = {"features": str(place / "X.npy"), "labels": place / "y.npy", "test_share": 0.0}
    import_features(ImportConfig(**files, store=str(place / "store")))
    return Rows(str(place / "store"), X, y, X_test[:HELD_OUT], y_test[:HELD_OUT])


def pictures(name: str, folder: Path, place: Path) -> Rows:
    """Describe pictures as `topline run` does, half of them to train on."""
    archive, below = PICTURES[name]
    images = unpacked(folder / archive, place) / below
    store, dataset = features_of(images, place / "store", test_share=0.5)
    return Rows(store, *rows_and_labels(dataset), *rows_and_labels(dataset, "test"))


@dataclass(frozen=True, eq=False)
class Answers:
    """Which held-out rows each way has right, and what `run` took: fits of the search, processor seconds."""

    right: dict[str, np.ndarray]
    fits: float
    seconds: float
    chosen: str

    @property
    def behind(self) -> float:
        """By how many standard errors of the paired difference the best other way leads `run`, at least 0."""
        ahead = [right.astype(float) - self.right["run"] for right in self.right.values()]
        return max(float(one.mean() * np.sqrt(len(one)) / max(one.std(), 1e-12)) for one in ahead)


def answers(rows: Rows, *, quick: bool = False) -> Answers:
    """Train each way on the same rows, and ask them for the others."""
    began = time.process_time()
    config = TrainConfig(store=rows.store)
    made = train_as_asked(config, ClusterConfig(workers=0), search=SearchConfig(auto=True))
    seconds, chosen = time.process_time() - began, made.chosen or {}
    model = StoredModel.open(made.model)
    # The codes of classes are the labels, which are whole numbers from 0.
    found = model.scores(model.transforms.apply(rows.X_test.astype(np.float32))).argmax(axis=1)
    right = {"run": found == rows.y_test}
    ways = {
        "estimator": make_pipeline(StandardScaler(), TopKClassifier()),
        "LogisticRegression": make_pipeline(StandardScaler(), LogisticRegression(max_iter=5000)),
        "exhaustive": _exhaustive(rows.X, rows.y, Cs=3 if quick else 6),
    }
    for name, way in ways.items():
        right[name] = way.fit(rows.X, rows.y).predict(rows.X_test) == rows.y_test
    used = model.model.record.config
    said = f"{used['loss']} C={used['C']:g} {','.join(used['transforms'])}"
    return Answers(right, chosen["fits"], seconds, said)


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
    given = read_options(__doc__, argv, data=DATA_DIR, sets=[*DATA, *PICTURES], quick=False)
    ways = ("estimator", "LogisticRegression", "exhaustive")
    print_head("set", "run", "error", *ways, "behind", "fits", "CPU s", "chosen")
    below = []
    for name in given.sets:
        with tempfile.TemporaryDirectory() as place:
            made = (
                table(name, given.data, Path(place), quick=given.quick)
                if name in DATA
                else pictures(name, given.data, Path(place))
            )
            found = answers(made, quick=given.quick)
        shares = {way: right.mean() for way, right in found.right.items()}
        p = shares["run"]
        error = np.sqrt(p * (1.0 - p) / len(found.right["run"]))
        numbers = (f"{number:.1f}" for number in (found.behind, found.fits, found.seconds))
        print_row(
            name, *(f"{share:.1%}" for share in (p, error, *map(shares.get, ways))), *numbers, found.chosen
        )
        below += [f"{name}: {way}" for way, share in shares.items() if share - p > ERRORS * error]
    print("all within the bar" if not below else f"run is below: {'; '.join(below)}")
    return int(bool(below))


if __name__ == "__main__":
    raise SystemExit(main())
