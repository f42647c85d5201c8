"""The average top-k loss for two classes and for regression (Fan et al., tables 1 and 2, figures 1 and 3)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.reproduce.average_top_experiments import (
    Choice,
    Comparison,
    Descent,
    compare,
    error_by_k,
    grid_of_C,
    grid_of_k,
    sinc,
    to_unit_interval,
    toy_error_by_k,
)
from tests.reproduce.formats import Examples
from tests.reproduce.printed import printed
from tests.reproduce.table import Figure, Reproduction, Setting, Table, over_splits, run_all
from topline.pipeline.pages import Series, line_chart

CLASSIFICATION = printed("average_top.classification")
REGRESSION = printed("average_top.regression")


AGGREGATES = ("maximum", "average", "average_top")
COLUMNS = ("maximum", "average", "AT_k*")
CURVES = ("monks", "australian", "splice", "phoneme")
SINC_ROWS = 1000

Signs = tuple[NDArray[np.float64], NDArray[np.float64]]
Results = Mapping[tuple[str, str], Sequence[Comparison]]


def two_classes(data: Examples, name: str) -> Signs:
    """Give features and labels of -1 and 1; of splice's three classes the first two are one."""
    if name == "monks":  # the paper's 432 rows are the test part, which has every combination once
        data = Examples(data.X[data.parts[0] :], data.y[data.parts[0] :])
    positive = data.y <= 1 if name == "splice" else data.y == 1
    return np.asarray(data.X, np.float64), np.where(positive, 1.0, -1.0)


def classification(setting: Setting) -> Reproduction:
    """Run table 1 on the sets that are there."""
    sets = {
        name: two_classes(setting.data.load(name), name) for name in CLASSIFICATION if setting.data.has(name)
    }
    results = compared(setting, sets, ("logistic", "hinge"))
    descents = descended(setting, sets, ("logistic", "hinge"))
    figures = figures_of(
        results, CLASSIFICATION, ("logistic", "hinge"), 100.0, CLASSIFICATION_NOTES, 2, descents
    )
    missing = [name for name in CLASSIFICATION if name not in sets]
    notes = {
        "a": _maximum_note(results),
        "b": "the paper does not say which Monk's problem it has nor how categories became numbers: ours is"
        " the 432 rows of monks-3's test part, categories 1, 2, ... as they are, standardised",
        "c": "splice is UCI's 3,188 rows with bases as numbers, EI and IE against N, where the paper has"
        " LIBSVM's 3,175 rows, numbered otherwise. The numbering does not explain the difference: row"
        " splice_libsvm has LIBSVM's, of 1,000 rows, and is no nearer, though with a third of the rows to"
        " train on. We do not know what does",
        "d": "random divisions differ; the paper's features are not said to be standardised, ours are. The"
        " paper trains by 1,000 epochs of stochastic gradients, ours is the optimum to a gap of 1e-6",
        "e": "the maximum loss trained in the paper's way, with 100 epochs of its equation 4 from w = 0: that"
        " is no optimum, for it starts with every loss above the threshold, as the average does, and k = 1"
        " hardly moves it afterwards",
    }
    if missing:
        notes["f"] = f"not run, for their files are not there: {', '.join(missing)} (see --list)"
    return Reproduction(figures, _protocol(setting, sets), notes)


CLASSIFICATION_NOTES = {"monks": "b", "splice": "c", "splice_libsvm": "c"}


def regression(setting: Setting) -> Reproduction:
    """Run table 2 on the sets that are there, and on a Sinc of our own."""
    sets = {"sinc": sinc(setting.rng(), SINC_ROWS)}
    for name in ("housing", "abalone", "cpusmall"):
        if setting.data.has(name):
            data = setting.data.load(name)
            sets[name] = (data.X, data.y)
    sets = {name: (X, to_unit_interval(y)) for name, (X, y) in sets.items()}
    results = compared(setting, sets, ("square", "absolute"))
    figures = figures_of(results, REGRESSION, ("square", "absolute"), 1.0, {"sinc": "b"}, 4)
    notes = {
        "a": _maximum_note(results),
        "b": "the recipe of Sinc is in a supplement that is not at hand: ours is sin(x)/x on [-10, 10] with"
        f" normal noise of 0.1, {SINC_ROWS:,} points seen through ten radial functions",
        "d": "random divisions differ, and ours is the optimum to a gap of 1e-6 where the paper stops after"
        " 1,000 epochs of stochastic gradients",
    }
    missing = [name for name in REGRESSION if name not in sets]
    if missing:
        notes["e"] = f"not run, for their files are not there: {', '.join(missing)} (see --list)"
    return Reproduction(figures, _protocol(setting, sets), notes, ".4f")


def compared(setting: Setting, sets: Mapping[str, Signs], losses: Sequence[str]) -> Results:
    """Run every set, loss and split; each is one piece of work."""
    seeds = [1000 * setting.seed + split for split in range(setting.of(10, 2, 1))]
    keys = [(name, loss) for name in sets for loss in losses]
    jobs = [partial(_compare, setting, *sets[name], loss, seed) for name, loss in keys for seed in seeds]
    found = run_all(setting, "train", jobs, "splits")
    return {key: found[at * len(seeds) : (at + 1) * len(seeds)] for at, key in enumerate(keys)}


def descended(
    setting: Setting, sets: Mapping[str, Signs], losses: Sequence[str]
) -> Mapping[tuple[str, str], Sequence[Choice]]:
    """Train the maximum loss by the paper's stochastic gradients, on the splits of `compared`."""
    seeds = [1000 * setting.seed + split for split in range(setting.of(10, 2, 1))]
    train = Descent(epochs=setting.of(100, 20, 2))
    keys = [(name, loss) for name in sets for loss in losses]
    jobs = [
        partial(compare, *sets[name], loss, seed, Cs=_grid(setting), ks=(1,), train=train)
        for name, loss in keys
        for seed in seeds
    ]
    found = [comparison.maximum for comparison in run_all(setting, "descend", jobs, "splits")]
    return {key: found[at * len(seeds) : (at + 1) * len(seeds)] for at, key in enumerate(keys)}


def _compare(setting: Setting, X: Any, y: Any, loss: str, seed: int) -> Comparison:
    n = len(y) // 2
    ks = setting.of(fine_grid_of_k(n), (1, n // 10, n // 2, 7 * n // 10, n), (1, n))
    return compare(X, y, loss, seed, Cs=_grid(setting), ks=ks)


def _grid(setting: Setting) -> tuple[float, ...]:
    return setting.of(grid_of_C(), grid_of_C()[1:10:2], (1.0,))


def figures_of(
    results: Results,
    paper: Mapping[str, Sequence[Sequence[float]]],
    losses: Sequence[str],
    scale: float,
    notes: Mapping[str, str],
    digits: int,
    descents: Mapping[tuple[str, str], Sequence[Choice]] | None = None,
) -> tuple[Figure, ...]:
    """Lay out test errors beside the paper's, and the maximum by descent beside the same figure."""
    figures = []
    for (name, loss), splits in results.items():
        printed = paper[name][losses.index(loss)]
        for place, aggregate in enumerate(AGGREGATES):
            values = [scale * getattr(split, aggregate).test for split in splits]
            note = "a" if aggregate == "maximum" else notes.get(name, "d")
            mean, spread = printed[2 * place : 2 * place + 2]
            figures.append(over_splits(f"{name}, {loss}", COLUMNS[place], values, mean, spread, note, digits))
            if aggregate == "maximum" and descents is not None:
                values = [scale * choice.test for choice in descents[name, loss]]
                column = "maximum, eq. 4"
                figures.append(over_splits(f"{name}, {loss}", column, values, mean, spread, "e", digits))
    return tuple(figures)


def fine_grid_of_k(n: int) -> tuple[int, ...]:
    """Give the logarithmic grid and the tenths of n: below the share of noise all k have the same optimum."""
    return tuple(sorted({*grid_of_k(n), *(max(1, tenth * n // 10) for tenth in range(3, 11))}))


def _maximum_note(results: Results) -> str:
    choices = [split.maximum for splits in results.values() for split in splits]
    collapsed = sum(choice.collapsed for choice in choices)
    text = (
        "the maximum loss is minimised here to its optimum; the paper's column shows where 1,000 epochs of"
        " stochastic gradients stood"
    )
    if not collapsed:
        return text
    return (
        f"{text}. In {collapsed} of {len(choices)} trainings the optimum is w = 0, which answers the larger"
        " class everywhere (erratum h5b)"
    )


def _protocol(setting: Setting, sets: Mapping[str, Signs]) -> dict[str, str]:
    sizes = ", ".join(f"{name} {X.shape[0]:,} x {X.shape[1]}" for name, (X, _) in sets.items())
    return {
        "data": f"{sizes}; {setting.of(10, 2, 1)} random divisions into 50 % training, 25 % validation and"
        " 25 % test rows",
        "model": "C of 10^-5 to 10^5, extended at its ends, and k on a logarithmic grid of 1 to n with the"
        " tenths of n, both by the validation rows" + setting.of("", "; quickly: five C and five k", ""),
        "C": "C here belongs to AT_k + |w|^2/(2C); the paper's equation 3 is (k/n) times AT_k, whose C is"
        " C n/k (erratum h4)",
    }  # fmt: skip


def curves(setting: Setting) -> Reproduction:
    """Run figure 3: the test error over k at C = 100."""
    names = [name for name in CURVES if setting.data.has(name)]
    sets = {name: two_classes(setting.data.load(name), name) for name in names}
    seeds = range(setting.of(10, 3, 2))
    jobs = [
        partial(
            error_by_k, *sets[name], loss, 1000 * setting.seed + seed, ks=_ks(setting, len(sets[name][1]))
        )
        for name in names
        for loss in ("logistic", "hinge")
        for seed in seeds
    ]
    keys = [(name, loss) for name in names for loss in ("logistic", "hinge")]
    found = run_all(setting, "train", jobs, "curves")
    lines = {key: found[at * len(seeds) : (at + 1) * len(seeds)] for at, key in enumerate(keys)}
    shown = {key: (f"{key[0]}, {key[1]}", those) for key, those in lines.items()}
    notes = {
        "a": "the paper draws this figure and prints no numbers: what it says of all four sets is that some k"
        " between 1 and n does better than both, in a clear range. A gain above 0 is that, of the k with the"
        " least mean error on the test rows, as a reader of the figure picks it; k = n is the average loss",
        "b": "Phoneme needs a file that is not in every copy (see --list)",
    }
    protocol = {"data": f"{len(seeds)} random divisions, C = 100, test error in percent"}
    return _over_k(list(shown.values()), protocol, notes)


def toys(setting: Setting) -> Reproduction:
    """Run figure 1: two toys of 200 points with an outlier."""
    seeds = range(setting.of(20, 5, 2))
    ks = setting.of(None, None, (1, 10, 200))
    keys = [(toy, loss) for toy in ("multimodal", "imbalanced") for loss in ("logistic", "hinge")]
    jobs = [
        partial(toy_error_by_k, toy, loss, 1000 * setting.seed + seed, ks=ks)
        for toy, loss in keys
        for seed in seeds
    ]
    found = run_all(setting, "train", jobs, "draws")
    lines = [
        (f"{toy}, {loss}", found[at * len(seeds) : (at + 1) * len(seeds)])
        for at, (toy, loss) in enumerate(keys)
    ]
    notes = {
        "a": "the paper draws this figure, shows k = 10 as the best and prints no numbers; its points come"
        " with its authors' code. Ours are drawn anew after its description, on 10,000 fresh points without"
        " the outlier; at k = 1 the optimum is w = 0, which is counted as an error everywhere",
    }
    return _over_k(lines, {"data": f"{len(seeds)} draws of 200 points, C = 100"}, notes)


def _ks(setting: Setting, n: int) -> tuple[int, ...]:
    half = n // 2
    few = (1, half // 10, *(tenth * half // 10 for tenth in range(4, 11)))
    return setting.of(fine_grid_of_k(half), few, (1, n // 10, n // 2))


Line = tuple[tuple[int, float], ...]


def _over_k(
    lines: Sequence[tuple[str, Sequence[Line]]], protocol: Mapping[str, str], notes: Mapping[str, str]
) -> Reproduction:
    """Give the errors of maximum, average and best k, the gain of the best k in each draw, and the curves."""
    figures: list[Figure] = []
    drawn = []
    for name, draws in lines:
        ks = [k for k, _ in draws[0]]
        errors = 100.0 * np.array([[error for _, error in line] for line in draws])
        best = int(errors.mean(axis=0)[1:-1].argmin()) + 1 if len(ks) > 2 else 0
        gain = errors[:, [0, -1]].min(axis=1) - errors[:, best]
        for column, values in (
            ("k = 1", errors[:, 0]), ("k = n", errors[:, -1]), (f"k = {ks[best]}", errors[:, best]),
        ):  # fmt: skip
            figures.append(over_splits(name, column, values.tolist()))
        figures.append(over_splits(name, "gain > 0?", gain.tolist(), note="a"))
        line = Series.of("test error", np.log10(ks), errors.mean(axis=0))
        drawn.append((name, "k", line_chart([line], x_label="log10 k", y_label="error, %")))
    return Reproduction(tuple(figures), protocol, notes, ".2f", tuple(drawn))


def _table(
    name: str, title: str, where: str, run: Callable[[Setting], Reproduction], needs: Iterable[str]
) -> Table:
    return Table(name, title, f"Fan et al., average top-k loss, {where}", run, tuple(needs), any_of=True)


TABLES = (
    _table(
        "at-k-classification", "Misclassification (%) of maximum, average and average top-k loss", "table 1",
        classification, CLASSIFICATION,
    ),
    _table(
        "at-k-regression", "RMSE of maximum, average and average top-k loss, targets in [0, 1]", "table 2",
        regression, ("housing", "abalone", "cpusmall"),
    ),
    _table("at-k-curves", "Misclassification (%) over k at C = 100", "figure 3", curves, CURVES),
    _table("at-k-toys", "Misclassification (%) over k on two toys", "figure 1", toys, ()),
)  # fmt: skip
