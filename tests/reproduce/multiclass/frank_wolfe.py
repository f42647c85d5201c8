"""Frank-Wolfe methods beside projected gradients: iterations, seconds, errors.

Hirohashi and Kato, figure 1; Tajima et al., tables 1 and 2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.reproduce.formats import Examples
from tests.reproduce.score import printed
from tests.reproduce.selection import topk_percent
from tests.reproduce.table import Figure, Reproduction, Setting, Table, over_splits, run_all
from topline.pipeline.pages import Series, line_chart
from topline.solvers.core.state import SolveResult
from topline.solvers.losses import TopKHinge, WeightedUsunierHinge
from topline.solvers.run import available_cores, solve

#: Singular directions in the papers.
DIRECTIONS = 1024


def reduced(setting: Setting, data: Examples, *, unit: bool) -> tuple[Examples, int]:
    """Give the examples in their first singular directions, in float32, and how many these are.

    `unit` scales the rows of counts to unit length first; else all are divided by one number, for which their
    mean squared length is 1.
    """
    from sklearn.decomposition import TruncatedSVD
    from sklearn.preprocessing import normalize

    kept = min(setting.of(DIRECTIONS, 256, 16), min(data.X.shape) - 1)
    setting.begin("reduce", 1, "matrix")
    model = TruncatedSVD(kept, n_iter=setting.of(4, 1, 1), random_state=setting.seed)
    X = model.fit_transform(normalize(data.X) if unit else data.X)
    setting.advance()
    if not unit:
        X /= np.sqrt(np.mean(np.einsum("ij,ij->i", X, X)))
    return Examples(np.ascontiguousarray(X, np.float32), data.y), kept


METHODS = {"PG": "projected_gradient", "StdFW": "fw_open_loop", "LSFW": "fw"}
ATOMS = {"Std FW": "fw", "AFW": "fw_away", "PFW": "fw_pairwise"}
#: max(0, 6 - j) / 15, the weights of Tajima et al.
WEIGHTS = np.arange(5, 0, -1) / 15.0
SECONDS = printed("frank_wolfe.seconds")
ERRORS_KS = (1, 3, 5, 10)
NEWS20_ERRORS = printed("frank_wolfe.news20")
CALTECH_ERRORS = printed("frank_wolfe.caltech")
#: Random halves that the paper's errors and deviations are of.
PAPER_HALVES = 20
GOAL = 1e-3
TURNS = 3
GAMMAS = (0.0, 1e-3, 1e-2, 1e-1)
#: Of figure 1; the paper does not say which.
FIGURE_K = 5


def seconds(setting: Setting) -> Reproduction:
    """Time iterations on random features of the papers' shapes: values do not decide how long one takes."""
    rounds = setting.of(10, 3, 2)
    shapes = {
        name: (shape if setting.of(True, True, False) else (60, 8, 6)) for name, (shape, _) in SECONDS.items()
    }
    setting.begin("time", len(shapes) * len(METHODS) * TURNS, "runs")
    found: dict[tuple[str, str], list[float]] = {}
    for place, (name, (n, d, m)) in enumerate(shapes.items()):
        rng = setting.rng(place)
        X = rng.standard_normal((n, d), dtype=np.float32)
        X /= np.linalg.norm(X, axis=1, keepdims=True)
        y = np.arange(n) % m
        # In turns, for the machine may have other work at one time than at another.
        for _ in range(TURNS):
            for method in METHODS:
                found.setdefault((name, method), []).extend(
                    iteration_seconds(X, y, m, METHODS[method], rounds)
                )
                setting.advance()
    figures = [
        over_splits(
            name, method, found[name, method], SECONDS[name][1][column], note="a", digits=3, better=""
        )
        for name in SECONDS
        for column, method in enumerate(METHODS)
    ]
    figures += [
        Figure(
            name, "LSFW/StdFW", float(np.median(found[name, "LSFW"]) / np.median(found[name, "StdFW"])),
            paper=printed[2] / printed[1], note="b", better="",
        )
        for name, (_, printed) in SECONDS.items()
    ]  # fmt: skip
    notes = {
        "a": f"another machine: here float32 products on {available_cores()} cores, and the paper does not"
        " say what it ran on. Features are random ones of the paper's shapes, for the time of an iteration"
        " does not depend on their values",
        "b": "an exact step costs the paper 1.2 to 1.4 times an open-loop one, for it multiplies again;"
        " here it follows from sums that the iteration has already, in O(d m)",
    }
    protocol = {
        "data": ", ".join(f"{name} {n:,} x {d:,}, m {m}" for name, (n, d, m) in shapes.items()),
        "timing": f"{TURNS} times {rounds} iterations of each method, in turns; the spread is that of the"
        " iterations",
    }
    return Reproduction(tuple(figures), protocol, notes, ".3f")


def iteration_seconds(X: Any, y: Any, m: int, method: str, rounds: int) -> list[float]:
    """Give the seconds of single iterations."""
    solve(X[:m], y[:m], WeightedUsunierHinge(WEIGHTS), 1.0 / m, method=method, max_passes=2, m=m)
    result = solve(
        X,
        y,
        WeightedUsunierHinge(WEIGHTS),
        1.0 / len(y),
        method=method,
        tol=1e-12,
        max_passes=rounds + 2,
        m=m,
    )
    taken = np.diff([record.seconds for record in result.history])
    return [float(value) for value in taken[1:]]


def errors(
    setting: Setting,
    data: Examples,
    paper: Mapping[str, Sequence[float]],
    notes: Mapping[str, str],
    *,
    counts: bool,
) -> Reproduction:
    """Halve the data again and again; a fifth of the training half decides lambda for each method."""
    repeats = setting.of(3, 2, 2)
    Cs = setting.of((0.01, 0.1, 1.0, 10.0), (0.1, 1.0, 10.0), (1.0,))
    passes = setting.of(1000, 150, 3)
    jobs = [partial(_halves, setting, data, repeat, Cs, passes) for repeat in range(repeats)]
    trials = run_all(setting, "train", jobs, "halves")
    figures = []
    for method in (*METHODS, "optimum"):
        for place, k in enumerate(ERRORS_KS):
            values = [trial[method][k] for trial in trials]
            mean, spread = paper[method][2 * place : 2 * place + 2] if method in paper else (None, None)
            figures.append(
                over_splits(
                    method, f"top-{k}", values, mean, spread, "a", 3, PAPER_HALVES, "lower", counts=counts
                )
            )  # fmt: skip
    protocol = {
        "data": f"{len(data.y):,} x {data.X.shape[1]:,}, halved at random {repeats} times (the paper:"
        f" {PAPER_HALVES})",
        "model": f"{passes:,} iterations; C = 1/(lambda n) of {Cs[0]:g} to {Cs[-1]:g} by the top-1 error"
        " on a fifth of the training half after a quarter of them; row 'optimum' is dual ascent, to a gap"
        " of 1e-3",
    }
    return Reproduction(tuple(figures), protocol, notes, ".3f")


def _halves(
    setting: Setting, data: Examples, repeat: int, Cs: Sequence[float], passes: int
) -> dict[str, dict[int, float]]:
    mixed = setting.rng(repeat).permutation(len(data.y))
    half = len(mixed) // 2
    train, test = mixed[:half], mixed[half:]
    inner, held = train[: 4 * half // 5], train[4 * half // 5 :]
    found = {}
    for name, method in {**METHODS, "optimum": "dual_ascent"}.items():
        limit = setting.of(300, 60, 3) if name == "optimum" else passes
        seen = [_errors(data, held, _fit(data, inner, method, C, max(2, limit // 4)))[1] for C in Cs]
        best = Cs[int(np.argmin(seen))]
        found[name] = _errors(data, test, _fit(data, train, method, best, limit))
    return found


def _fit(data: Examples, rows: NDArray[np.intp], method: str, C: float, passes: int) -> SolveResult:
    loss = WeightedUsunierHinge(WEIGHTS)
    return solve(
        data.X[rows], data.y[rows], loss, 1.0 / (C * len(rows)), method=method, max_passes=passes, m=data.m,
        tol=1e-3 if method == "dual_ascent" else 1e-9,
    )  # fmt: skip


def _errors(data: Examples, rows: NDArray[np.intp], result: SolveResult) -> dict[int, float]:
    shares = topk_percent(data.X[rows], data.y[rows], result.W, ERRORS_KS)
    return {k: 1.0 - 0.01 * share for k, share in shares.items()}


def news20_errors(setting: Setting) -> Reproduction:
    """Run table 1 (e)."""
    data, kept = reduced(setting, setting.data.load("news20", alone=True), unit=False)
    notes = {
        "a": f"other features: {kept} singular directions of word counts of message bodies, where"
        " the paper has 1,024 of LIBSVM's; it does not say how these were scaled. Row 'optimum' tells what"
        " the features allow from what the iterations left undone"
    }
    return errors(setting, data, NEWS20_ERRORS, notes, counts=False)


def caltech_errors(setting: Setting) -> Reproduction:
    """Run table 1 (a)."""
    data = setting.data.load("silhouettes16", alone=True)
    notes = {
        "a": "the paper says n = 6,339 and 102 classes, the published file has 8,671 silhouettes of 101; ours"
        " halves all of them"
    }
    examples = Examples(np.ascontiguousarray(data.X, np.float32), data.y)
    return errors(setting, examples, CALTECH_ERRORS, notes, counts=True)


def gap_curves(setting: Setting) -> Reproduction:
    """Run figure 1: duality gaps over iterations, with the paper's gamma and with gamma times n."""
    data, kept = reduced(setting, setting.data.load("news20", alone=True), unit=True)
    rows = setting.rng().permutation(len(data.y))[: setting.of(15_935, 4_000, 100)]
    X, y = data.X[rows], data.y[rows]
    n = len(rows)
    passes = setting.of(400, 60, 5)
    cases = [(name, gamma, gamma) for name in ATOMS for gamma in GAMMAS]
    cases += [(name, gamma, gamma * n) for name in ATOMS for gamma in GAMMAS[1:]]
    jobs = [partial(_curve, X, y, data.m, ATOMS[name], used, passes) for name, _, used in cases]
    curves = run_all(setting, "train", jobs, "runs")
    figures: list[Figure] = []
    for (name, gamma, used), gaps in zip(cases, curves, strict=True):
        row = f"{name}, gamma {gamma:g}{' n' if used != gamma else ''}"
        below = np.flatnonzero(gaps < GOAL)
        reached = float(below[0] + 1) if len(below) else float(passes)
        printed = 8.0 if (name, gamma) == ("Std FW", 0.1) else None
        figures.append(
            Figure(
                row,
                "iterations",
                reached,
                paper=printed,
                note="a" if printed else "",
                digits=0,
                better="",
                counts=False,
            )
        )
        figures.append(Figure(row, "last gap", float(gaps[-1])))
    notes = {
        "a": "the paper says that with gamma = 0.1 the gap fell below 1e-3 within eight iterations. With"
        " its own definition of gamma that is out of reach; the released code multiplies gamma by n"
        " (an erratum of the README), as do the rows 'gamma n': a smoothing so strong that W stays near 0",
        "b": f"'iterations' is when the gap fell below 1e-3, {passes} where it did not. The paper gives"
        f" neither k nor lambda: here k = {FIGURE_K} and lambda = 1/n; {kept} singular directions of rows"
        " of unit length. Std FW has the gap of the lifted problem with smoothing (as the paper), AFW and"
        " PFW the true",
    }
    pairs = list(zip(cases, curves, strict=True))
    charts = tuple(
        (
            f"{name}, {'gamma n' if times_n else 'gamma'}", "log10 iterations",
            _chart([pair for pair in pairs if pair[0][0] == name and (pair[0][1] != pair[0][2]) == times_n]),
        )
        for times_n in (False, True)
        for name in ATOMS
    )  # fmt: skip
    protocol = {"data": f"{n:,} x {kept}, {data.m} classes; {passes} iterations"}
    return Reproduction(tuple(figures), protocol, notes, ".3g", charts)


def _curve(X: Any, y: Any, m: int, method: str, gamma: float, passes: int) -> NDArray[np.float64]:
    result = solve(X, y, TopKHinge(FIGURE_K), 1.0 / len(y), gamma, method, tol=1e-7, max_passes=passes, m=m)
    return np.array([record.gap for record in result.history])


def _chart(curves: Sequence[tuple[tuple[str, float, float], NDArray[np.float64]]]) -> Any:
    lines = [
        Series.of(f"gamma {gamma:g}", np.log10(np.arange(1, len(gaps) + 1)), gaps, 1 + place, positive=True)
        for place, ((_, gamma, _), gaps) in enumerate(curves)
    ]
    return line_chart(lines, x_label="log10 iterations", y_label="gap", log=True, target=("1e-3", GOAL))


TAJIMA = "Tajima et al., Frank-Wolfe for SVM-type classifiers"
TABLES = (
    Table("iteration-seconds", "Seconds per iteration of PG, StdFW and LSFW", f"{TAJIMA}, table 2", seconds),
    Table(
        "news20-errors", "Top-k error of PG, StdFW and LSFW on 20 newsgroups", f"{TAJIMA}, table 1",
        news20_errors, ("news20",),
    ),
    Table(
        "silhouettes-errors", "Top-k error of PG, StdFW and LSFW on 16 x 16 silhouettes", f"{TAJIMA},"
        " table 1",
        caltech_errors, ("silhouettes16",),
    ),
    Table(
        "gap-curves", "Iterations of Std FW, AFW and PFW to a gap of 1e-3, by smoothing",
        "Hirohashi and Kato, weighted top-k SVM, figure 1", gap_curves, ("news20",),
    ),
)  # fmt: skip
