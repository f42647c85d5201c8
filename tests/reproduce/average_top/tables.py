"""The average top-k loss for two classes and for regression (Fan et al., tables 1 and 2, figures 1 and 3)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.reproduce.average_top.experiments import (
    Choice,
    Comparison,
    Descent,
    compare,
    error_by_k,
    grid_of_C,
    grid_of_k,
    sinc,
    to_unit_interval,
)
from tests.reproduce.average_top.toys import Line, over_k
from tests.reproduce.formats import Examples
from tests.reproduce.score import printed
from tests.reproduce.table import Figure, Reproduction, Setting, Table, over_splits, run_all

CLASSIFICATION = printed("average_top.classification")
REGRESSION = printed("average_top.regression")
DRAWN_CURVES = printed("average_top.curves")


#: Random divisions that the paper's means and standard deviations are of.
PAPER_SPLITS = 10
#: Sets that are drawn here after a recipe that the paper does not give.
DRAWN = ("sinc",)
AGGREGATES = ("maximum", "average", "average_top")
COLUMNS = ("maximum", "average", "AT_k*")
CURVES = ("monks", "australian", "splice", "phoneme")
SINC_ROWS = 1000

Signs = tuple[NDArray[np.float64], NDArray[np.float64]]
Results = Mapping[tuple[str, str], Sequence[Comparison]]


def two_classes(data: Examples, name: str) -> Signs:
    """Give features and labels of -1 and 1; of splice's three classes the first two are one."""
    if name == "splice":
        data = bases_in_order(data)
    if name == "monks":  # the paper's 432 rows are the test part, which has every combination once
        data = Examples(data.X[data.parts[0] :], data.y[data.parts[0] :])
    positive = data.y <= 1 if name == "splice" else data.y == 1
    return np.asarray(data.X, np.float64), np.where(positive, 1.0, -1.0)


#: Bases in the order of their letters, A, C, G, T, as LIBSVM's splice has them.
BASES = np.array([-1.0, 1.0 / 3.0, -1.0 / 3.0, 1.0])
#: A code that fewer rows of a column have stands for a letter of doubt (D, N, R or S), not for a base.
DOUBTFUL = 10


def bases_in_order(data: Examples) -> Examples:
    """Give splice's bases as LIBSVM does: A, G, C, T as -1, -1/3, 1/3, 1, without doubtful letters.

    The public copy numbers the letters of each column for itself, in alphabetical order.
    """
    X = np.zeros(data.X.shape)
    certain = np.ones(len(X), dtype=bool)
    for j, column in enumerate(np.asarray(data.X).T):
        codes, places, counts = np.unique(column, return_inverse=True, return_counts=True)
        bases = counts >= DOUBTFUL
        values = np.zeros(len(codes))
        values[bases] = BASES[: bases.sum()]
        X[:, j] = values[places]
        certain &= bases[places]
    return Examples(X[certain], data.y[certain])


def classification(setting: Setting) -> Reproduction:
    """Run table 1 on the sets that are there."""
    sets = {
        name: two_classes(setting.data.load(name), name)
        for name in (*CLASSIFICATION, *OURS)
        if setting.data.has(name)
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
        "c": "splice is UCI's 3,188 rows, EI and IE against N, without the 17 that have a letter of doubt;"
        " the paper has LIBSVM's 3,175. Bases are A, G, C, T as -1, -1/3, 1/3, 1, as LIBSVM's are: all but 40"
        " of its 1,000 training rows stand among ours. The public copy numbers the letters of each column by"
        " the alphabet, which is another problem for a linear classifier",
        "g": "LIBSVM's 1,000 training rows alone, balanced and a third of the paper's: not the paper's set,"
        " for which no figure is printed",
        "d": "random divisions differ; the paper's features are not said to be standardised, ours are. The"
        " paper trains by 1,000 epochs of stochastic gradients, ours is the optimum to a gap of 1e-6",
        "e": "the maximum loss by 100 epochs of the paper's equation 4 from w = 0, where its released code"
        " takes 1,000 from a random w: neither this nor the optimum gives the paper's column on every set"
        " (hinge on spambase: 21.0 in print), and what does is not known",
    }
    if missing:
        notes["f"] = f"not run, for their files are not there: {', '.join(missing)} (see --list)"
    return Reproduction(figures, _protocol(setting, sets), notes)


CLASSIFICATION_NOTES = {"monks": "b", "splice": "c", "splice_libsvm": "g"}
#: Sets that stand beside the paper's.
OURS = ("splice_libsvm",)


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
        printed = paper[name][losses.index(loss)] if name in paper else (None,) * (2 * len(AGGREGATES))
        for place, aggregate in enumerate(AGGREGATES):
            values = [scale * getattr(split, aggregate).test for split in splits]
            note = "a" if aggregate == "maximum" else notes.get(name, "d")
            mean, spread = printed[2 * place : 2 * place + 2]
            figures.append(
                over_splits(
                    f"{name}, {loss}",
                    COLUMNS[place],
                    values,
                    mean,
                    spread,
                    note,
                    digits,
                    PAPER_SPLITS,
                    "lower",
                    counts=name not in DRAWN,
                )
            )
            if aggregate == "maximum" and descents is not None:
                values = [scale * choice.test for choice in descents[name, loss]]
                column = "maximum, eq. 4"
                figures.append(over_splits(f"{name}, {loss}", column, values, note="e", digits=digits))
    return tuple(figures)


def fine_grid_of_k(n: int) -> tuple[int, ...]:
    """Give the logarithmic grid and the tenths of n: below the share of noise all k have the same optimum."""
    return tuple(sorted({*grid_of_k(n), *(max(1, tenth * n // 10) for tenth in range(3, 11))}))


def _maximum_note(results: Results) -> str:
    choices = [split.maximum for splits in results.values() for split in splits]
    collapsed = sum(choice.collapsed for choice in choices)
    text = (
        "the maximum loss is minimised here to its optimum, and the paper's after 1,000 epochs of stochastic"
        " gradients; what its column shows is not explained by that alone (table at-k-causes)"
    )
    if not collapsed:
        return text
    return (
        f"{text}. In {collapsed} of {len(choices)} trainings the optimum is w = 0, which answers the larger"
        " class everywhere (an erratum of the README)"
    )


def _protocol(setting: Setting, sets: Mapping[str, Signs]) -> dict[str, str]:
    sizes = ", ".join(f"{name} {X.shape[0]:,} x {X.shape[1]}" for name, (X, _) in sets.items())
    return {
        "data": f"{sizes}; {setting.of(10, 2, 1)} random divisions into 50 % training, 25 % validation and"
        " 25 % test rows",
        "model": "C of 10^-5 to 10^5, extended at its ends, and k on a logarithmic grid of 1 to n with the"
        " tenths of n, both by the validation rows" + setting.of("", "; quickly: five C and five k", ""),
        "C": "C here belongs to AT_k + |w|^2/(2C); the paper's equation 3 is (k/n) times AT_k, whose C is"
        " C n/k (an erratum of the README)",
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
        "a": "the paper prints no numbers: its column is read from the drawing, to 0.1. What it says of all"
        " four sets is that some k between 1 and n does better than both, in a clear range. A gain above 0 is"
        " that, of the k with the least mean error on the test rows, as a reader of the figure picks it; k ="
        " n is the average loss. The paper's curves are where stochastic gradients end, ours optima: at k = 1"
        " that is w = 0, which answers the larger class",
        "b": "Phoneme needs a file that is not in every copy (see --list)",
    }
    protocol = {"data": f"{len(seeds)} random divisions, C = 100, test error in percent"}
    return _over_k(list(shown.values()), protocol, notes)


def _ks(setting: Setting, n: int) -> tuple[int, ...]:
    half = n // 2
    few = (1, half // 10, *(tenth * half // 10 for tenth in range(4, 11)))
    return setting.of(fine_grid_of_k(half), few, (1, n // 10, n // 2))


def _over_k(
    lines: Sequence[tuple[str, Sequence[Line]]], protocol: Mapping[str, str], notes: Mapping[str, str]
) -> Reproduction:
    """Lay out all lines, each a figure of its own."""
    found = [over_k(name, draws, "a", DRAWN_CURVES[name]) for name, draws in lines]
    figures = [figure for those, _ in found for figure in those]
    return Reproduction(tuple(figures), protocol, notes, ".2f", tuple(chart for _, chart in found))


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
)  # fmt: skip
