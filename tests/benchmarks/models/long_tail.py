"""What margins by class sizes do for rare classes, and margins by a tree for the kind of mistakes.

    python -m tests.benchmarks.models.long_tail [--data FOLDER] [--seeds N] [--quick]

Rare classes: the training digits of USPS are cut to an exponential profile, the rarest class a hundredth of
the most frequent one, another draw and another order of the classes for each seed.  Mistakes: half of the
CIFAR-10 training photographs a seed, as features of `efficientnet_lite0`, and a tree of their classes.  C and
the parameter of the margins are chosen by 3-fold cross-validation on the training rows (macro top-1 of the
first part, top-1 of the second); what is printed is measured on the held-out rows of the files.  Intervals
are those of Student's t over the seeds, of the paired differences to the usual margins.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t as student

from tests.benchmarks.datasets import DATA_DIR, digits
from tests.benchmarks.harness import (
    features_of,
    print_head,
    print_row,
    read_options,
    rows_and_labels,
    unpacked,
)
from topline import MaxHinge, StructuredHinge, ldam_margins, logit_adjusted_margins, solve, tree_margins
from topline.pipeline.evaluation.metrics import ranks_against_ties, rarest_third

IMBALANCE, FOLDS = 100.0, 3
COSTS, COSTS_OF_FEATURES = (0.1, 1.0, 10.0, 100.0), (0.3, 1.0, 3.0)
TREE = """cat,pet dog,pet deer,hoofed horse,hoofed pet,mammal hoofed,mammal mammal,animal bird,animal
frog,animal automobile,road truck,road
airplane,vehicle ship,vehicle road,vehicle animal,thing vehicle,thing"""

#: How high the root lies above a cat.
STEPS = 4.0

#: Training and held-out rows with their labels, and the names of the classes.
Data = tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any], tuple[str, ...]]
#: A loss, and how often each row counts, from the labels of the training rows.
Way = Callable[[NDArray[Any], int], tuple[Any, NDArray[np.float64] | None]]


def usps(folder: Path) -> Data:
    with np.load(folder / "usps" / "usps.npz") as parts:
        return (
            *(_rows(parts[f"X_{name}"]) if axis == "X" else parts[f"y_{name}"].astype(np.int32)
              for name in ("train", "test") for axis in ("X", "y")),
            tuple("0123456789"),
        )  # fmt: skip


def cifar(folder: Path) -> Data:
    with tempfile.TemporaryDirectory() as place:
        unpacked(folder / "cifar10_jpeg" / "cifar10_jpeg_subset.zip", Path(place))
        parts: list[Any] = []
        names: tuple[str, ...] = ()
        for name in ("train", "test"):
            images = next(path for path in Path(place).rglob(name) if path.is_dir())
            options = {"backbone": "efficientnet_lite0", "test_share": 0.0}
            _, dataset = features_of(images, Path(place) / f"store-{name}", **options)
            X, y = rows_and_labels(dataset)
            parts += [_rows(X), y]
            names = dataset.class_names
        return (*parts, names)


def quick(_folder: Path) -> Data:
    X, y = digits(_folder)
    X, y = _rows(X), y.astype(np.int32)
    names = ("cat", "dog", "deer", "horse", "bird", "frog", "automobile", "truck", "airplane", "ship")
    return X[::2], y[::2], X[1::2], y[1::2], names


def _rows(X: NDArray[Any]) -> NDArray[np.float32]:
    """Rows of length 1, as by the transform l2."""
    X = X.astype(np.float32)
    return np.hstack([X / np.linalg.norm(X, axis=1, keepdims=True), np.ones((len(X), 1), np.float32)])


def long_tail(y: NDArray[Any], seed: int) -> NDArray[np.int64]:
    """Rows whose classes, in a random order, have sizes that fall exponentially."""
    rng, m = np.random.default_rng(seed), int(y.max()) + 1
    most = np.bincount(y).min()
    kept = []
    for place, c in enumerate(rng.permutation(m)):
        size = round(most * IMBALANCE ** (-place / (m - 1)))
        kept.append(rng.choice(np.flatnonzero(y == c), max(size, FOLDS), replace=False))
    return np.sort(np.concatenate(kept))


def usual(y: NDArray[Any], m: int) -> tuple[Any, None]:
    return MaxHinge(), None


def balanced(y: NDArray[Any], m: int) -> tuple[Any, NDArray[np.float64]]:
    counts = np.bincount(y, minlength=m)
    return MaxHinge(), len(y) / (np.count_nonzero(counts) * counts[y])


def margins_of(make: Callable[[NDArray[Any], float], NDArray[Any]], number: float) -> Way:
    return lambda y, m: (StructuredHinge(make(np.bincount(y, minlength=m), number)), None)


RARE: Mapping[str, Sequence[Way]] = {
    "usual margins": [usual],
    "class_weight balanced": [balanced],
    "ldam": [margins_of(ldam_margins, power) for power in (0.125, 0.25, 0.5)],
    "logit-adjusted": [margins_of(logit_adjusted_margins, tau) for tau in (0.1, 0.2, 0.4)],
}


def tree_ways(names: Sequence[str]) -> Mapping[str, Sequence[Way]]:
    pairs = [(child, parent) for child, parent in (link.split(",") for link in TREE.split())]
    margins = {least: tree_margins(names, pairs, least) for least in (0.5, 0.0)}
    return {
        "usual margins": [usual],
        "tree": [lambda y, m: (StructuredHinge(margins[0.5]), None)],
        "tree, least 0": [lambda y, m: (StructuredHinge(margins[0.0]), None)],
    }


def fitted(X: NDArray[Any], y: NDArray[Any], m: int, way: Way, C: float) -> NDArray[np.float64]:
    loss, weights = way(y, m)
    return solve(X, y, loss=loss, lam=1.0 / (len(y) * C), sample_weight=weights, tol=1e-3, m=m).W


def chosen(
    X: NDArray[Any], y: NDArray[Any], m: int, ways: Sequence[Way], costs: Sequence[float], *, macro: bool
) -> NDArray[np.float64]:
    """Return W of the way and the C that are the most accurate over the folds, on all rows."""
    fold = np.empty(len(y), dtype=int)
    fold[np.argsort(y, kind="stable")] = np.arange(len(y)) % FOLDS
    weights = 1.0 / np.bincount(y, minlength=m)[y] if macro else np.ones(len(y))
    found = {}
    for number, way in enumerate(ways):
        for C in costs:
            hits = np.empty(len(y))
            for out in range(FOLDS):
                W = fitted(X[fold != out], y[fold != out], m, way, C)
                hits[fold == out] = ranks_against_ties(X[fold == out] @ W, y[fold == out]) == 1
            found[number, C] = hits @ weights
    number, C = max(found, key=lambda place: found[place])
    return fitted(X, y, m, ways[number], C)


def rare_metrics(scores: NDArray[Any], y: NDArray[Any], trained: NDArray[Any]) -> list[float]:
    """Macro and tail top-1, micro top-1 and top-5, and both with classes as frequent as in training, in %."""
    ranks, m = ranks_against_ties(scores, y), len(trained)
    by_class = [np.array([np.mean(ranks[y == c] <= k) for c in range(m)]) for k in (1, 5)]
    shares = trained / trained.sum()
    tail = by_class[0][rarest_third(trained)].mean()
    values = (
        by_class[0].mean(),
        tail,
        *(np.mean(ranks <= k) for k in (1, 5)),
        *(shares @ part for part in by_class),
    )
    return [100.0 * float(value) for value in values]


def tree_metrics(scores: NDArray[Any], y: NDArray[Any], heights: NDArray[Any]) -> list[float]:
    """Top-1 in percent, and the mean height of a mistake and of an answer in steps of the tree."""
    steps = STEPS * heights[y, scores.argmax(axis=1)]
    return [100.0 * float(np.mean(steps == 0.0)), float(steps[steps > 0.0].mean()), float(steps.mean())]


def table(
    title: str, heads: Sequence[str], found: Mapping[str, NDArray[Any]], formats: Sequence[str]
) -> None:
    """Print the means over the seeds, and the paired differences to the first line with their intervals."""
    print_head(title, *heads)
    first = next(iter(found.values()))
    for name, values in found.items():
        cells = []
        for place, text in enumerate(formats):
            cell = text.format(values[:, place].mean())
            if values is not first and len(values) > 1:
                gain = values[:, place] - first[:, place]
                half = student.ppf(0.975, len(gain) - 1) * gain.std(ddof=1) / np.sqrt(len(gain))
                cell += f" ({text.replace(':', ':+').format(gain.mean())} ± {text.format(half)})"
            cells.append(cell)
        print_row(name, *cells)
    print()


HEADS = ("macro top-1", "tail top-1", "top-1", "top-5", "top-1, cut shares", "top-5, cut shares")


def rare(title: str, data: Data, seeds: int) -> dict[str, NDArray[Any]]:
    X, y, held, held_y, names = data
    found: dict[str, list[list[float]]] = {name: [] for name in RARE}
    for seed in range(seeds):
        kept = long_tail(y, seed)
        trained = np.bincount(y[kept], minlength=len(names))
        for name, ways in RARE.items():
            W = chosen(X[kept], y[kept], len(names), ways, COSTS, macro=True)
            found[name].append(rare_metrics(held @ W, held_y, trained))
    arrays = {name: np.array(values) for name, values in found.items()}
    table(title, HEADS, arrays, ["{:.2f}"] * 6)
    return arrays


def mistakes(title: str, data: Data, seeds: int) -> dict[str, NDArray[Any]]:
    X, y, held, held_y, names = data
    ways = tree_ways(names)
    heights = ways["tree, least 0"][0](y, len(names))[0].margins
    found: dict[str, list[list[float]]] = {name: [] for name in ways}
    for seed in range(seeds):
        kept = np.random.default_rng(seed).permutation(len(y))[: len(y) // 2]
        for name, ways_here in ways.items():
            W = chosen(X[kept], y[kept], len(names), ways_here, COSTS_OF_FEATURES, macro=False)
            found[name].append(tree_metrics(held @ W, held_y, heights))
    arrays = {name: np.array(values) for name, values in found.items()}
    table(
        title, ("top-1", "height of a mistake", "height of an answer"), arrays, ["{:.2f}", "{:.3f}", "{:.4f}"]
    )
    return arrays


def main(arguments: list[str] | None = None) -> dict[str, dict[str, NDArray[Any]]]:
    options = read_options(__doc__, arguments, data=DATA_DIR, seeds=10, quick=False)
    if options.quick:
        small = quick(options.data)
        return {"rare": rare("digits, cut", small, 2), "tree": mistakes("digits, halves", small, 2)}
    return {
        "rare": rare("USPS, cut", usps(options.data), options.seeds),
        "tree": mistakes("CIFAR, halves", cifar(options.data), options.seeds),
    }


if __name__ == "__main__":
    main()
