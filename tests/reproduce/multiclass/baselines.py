"""The thesis's baselines: one-vs-all, TopPush, SVM^Perf and Wsabie++ beside top-k machines (table 5.3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from tests.reproduce.baselines import fit_wsabie, solve_svm_perf, solve_top_push
from tests.reproduce.formats import Examples
from tests.reproduce.learners import Budget, Grid, Labels, Learner, OneVsAllLiblinear, Trained, Weights
from tests.reproduce.score import printed
from tests.reproduce.selection import Split, Trial, compare, figures_of
from tests.reproduce.table import Reproduction, Setting, Table
from topline.solvers.losses import MaxHinge, TopKOthersHinge, UsunierHinge

KS = (1, 2, 3, 4, 5, 10)
SILHOUETTES = printed("thesis.baselines")
#: Step sizes of Wsabie++, which validation chooses from as it does from C.
STEPS = (0.03, 0.1, 0.3)
EPOCHS = 30


@dataclass(frozen=True)
class TopPush:
    """Positives above the highest negative, of the multiclass problem's reduction to two classes."""

    name: str = "TopPush"

    def path(self, X: Any, y: Labels, m: int, Cs: Grid, budget: Budget) -> list[Weights]:
        """Train for each C."""
        mask = y[:, None] == np.arange(m)
        rounds = 10 * budget.passes
        return [solve_top_push(X, mask, 1.0 / (C * len(y)), tol=budget.tol, max_rounds=rounds).W for C in Cs]


@dataclass(frozen=True)
class Perf:
    """SVM^Perf for the measure at k n of the same reduction."""

    name: str
    measure: Literal["precision", "recall"]
    k: int

    def path(self, X: Any, y: Labels, m: int, Cs: Grid, budget: Budget) -> list[Weights]:
        """Train for each C."""
        mask = y[:, None] == np.arange(m)
        options: dict[str, Any] = {"k": self.k * len(y), "measure": self.measure}
        return [
            solve_svm_perf(
                X, mask, 1.0 / (C * len(y)), tol=budget.tol, max_cuts=budget.passes, **options
            ).W
            for C in Cs
        ]  # fmt: skip


@dataclass(frozen=True)
class Wsabie:
    """Wsabie++ in as many dimensions as there are classes, or in so many; its grid is of step sizes."""

    name: str
    memory: int
    dimension: int | None = None

    def path(self, X: Any, y: Labels, m: int, Cs: Grid, budget: Budget) -> list[Weights]:
        """Train for each step size; a class without examples scores lowest."""
        found = []
        for step in Cs:
            fitted = fit_wsabie(
                X, y, dimension=self.dimension or m, memory=self.memory, step=step,
                epochs=min(EPOCHS, budget.passes),
            )  # fmt: skip
            W = np.zeros((X.shape[1], m))
            W[:, fitted.classes] = fitted.W
            found.append(W)
        return found


def ranked(setting: Setting) -> list[Learner]:
    """Give the rows of the reduction to two classes."""
    rows: list[Learner] = [
        OneVsAllLiblinear("SVM OVA"),
        TopPush(),
        Perf("Prec@1", "precision", 1),
        Perf("Prec@5", "precision", 5),
        Perf("Recall@1", "recall", 1),
        Perf("Recall@5", "recall", 5),
    ]
    return setting.of(rows, [rows[0], rows[2], rows[4]], [rows[0], rows[2]])


def machines(setting: Setting) -> list[Learner]:
    """Give the rows of top-k machines, which are trained until they change no more."""
    rows: list[Learner] = [
        Trained("top-1 SVM", MaxHinge()),
        Trained("top-5 SVM alpha", TopKOthersHinge(5)),
        Trained("top-5 SVM beta", UsunierHinge(5)),
    ]
    return setting.of(rows, rows, rows[:1])


def sampled(setting: Setting) -> list[Learner]:
    """Give the rows of Wsabie++."""
    rows: list[Learner] = [
        *(Wsabie(f"W++, {memory}/m", memory) for memory in (0, 1, 2, 4)),
        *(Wsabie(f"W++, {memory}/256", memory, 256) for memory in (0, 4)),
    ]
    return setting.of(rows, [rows[0], rows[1], rows[3]], rows[:1])


def run(
    setting: Setting,
    data: Examples,
    splits: Sequence[Split],
    Cs: Sequence[float],
    machine_Cs: Sequence[float],
) -> dict[str, list[Trial]]:
    """Train all rows; C and the step size by validation, for each column."""
    dense = Examples(np.asarray(data.X, np.float64), data.y, data.parts)
    budget = setting.of(Budget(1e-2, 600), Budget(3e-2, 300), Budget(0.1, 2))
    to_the_end = setting.of(Budget(1e-3, 1000), Budget(1e-3, 600), Budget(0.1, 2))
    steps = setting.of(STEPS, STEPS, STEPS[:1])
    return {
        **compare(setting, dense, ranked(setting), splits, Cs, KS, budget),
        **compare(setting, dense, machines(setting), splits, machine_Cs, KS, to_the_end),
        **compare(setting, dense, sampled(setting), splits, steps, KS, budget),
    }


def reproduction(
    setting: Setting, trials: Mapping[str, Sequence[Trial]], paper: Mapping[str, Sequence[float]],
    protocol: Mapping[str, str], notes: Mapping[str, str],
) -> Reproduction:  # fmt: skip
    """Lay out the rows, with what all of them share."""
    shared = {
        "model": "C, or the step size of W++, by validation rows for each column; TopPush and SVM^Perf on the"
        " reduction of n m examples to two classes; no constant feature",
        "training": f"TopPush and SVM^Perf to a relative gap of {setting.of('1e-2', '3e-2', '0.1')} or"
        f" {setting.of(600, 300, 2)} cuts (ten times as many rounds of TopPush), top-k machines to"
        f" {setting.of('1e-3', '1e-3', '0.1')}; W++ samples for {EPOCHS} epochs",
    }
    figures = figures_of(trials, paper, KS, dict.fromkeys(trials, "a"))
    return Reproduction(tuple(figures), {**protocol, **shared}, notes)


def letter(setting: Setting) -> Reproduction:
    """Train on the thesis's number of rows of letter."""
    data = setting.data.load("letter", alone=True)
    train, tests = data.parts
    held, used = 4500, setting.of(10_500, 3000, 200)
    splits = []
    for seed in range(setting.of(3, 1, 1)):
        mixed = setting.rng(seed).permutation(train)
        splits.append(
            Split.held_out(mixed[held : held + used], mixed[:held], np.arange(train, train + tests))
        )
    Cs = [10.0**power for power in setting.of(range(-3, 3), range(1), range(1))]
    machine_Cs = [10.0**power for power in setting.of(range(-3, 3), range(3), range(1))]
    trials = run(setting, data, splits, Cs, machine_Cs)
    notes = {
        "a": "the thesis prints no numbers of these baselines on letter. On silhouettes and Indoor 67 (its"
        " table 5.3) it has W++ without memory above one-vs-all, TopPush and SVM^Perf and below the top-k"
        " SVMs, and a memory of violators costs accuracy. " + _ordering(trials)
    }
    data_line = f"{used:,} training, {held:,} validation, {tests:,} test rows; {len(splits)} times"
    return reproduction(setting, trials, {}, {"data": data_line}, notes)


def _ordering(trials: Mapping[str, Sequence[Trial]]) -> str:
    """Say how the rows are ordered here, by top-1 and by top-5."""
    parts = []
    for k in (1, 5):
        means = {
            name: float(np.mean([trial.accuracy[k] for trial in those])) for name, those in trials.items()
        }
        ordered = sorted(means, key=means.__getitem__, reverse=True)
        parts.append(f"by top-{k}: " + " > ".join(f"{name} {means[name]:.1f}" for name in ordered))
    return "Here " + "; ".join(parts)


def silhouettes(setting: Setting) -> Reproduction:
    """Train on the published parts of the silhouettes, and on divisions of training and validation anew."""
    data = setting.data.load("silhouettes28", alone=True)
    train, validation, tests = data.parts
    last = np.arange(train + validation, train + validation + tests)
    splits = [Split.held_out(np.arange(train), np.arange(train, train + validation), last)]
    for seed in range(setting.of(2, 1, 0)):
        mixed = setting.rng(seed).permutation(train + validation)
        splits.append(Split.held_out(mixed[:train], mixed[train:], last))
    Cs = [10.0**power for power in setting.of(range(-4, 3), range(-2, 1), range(1))]
    notes = {
        "a": "the thesis's own code of SVM^Perf and Wsabie++ is not public, and it gives neither the step"
        " sizes nor the number of epochs; the first division is the published one"
    }
    data_line = f"{train:,} training, {validation:,} validation, {tests:,} test silhouettes"
    return reproduction(setting, run(setting, data, splits, Cs, Cs), SILHOUETTES, {"data": data_line}, notes)


TABLES = (
    Table(
        "letter-baselines", "Top-k accuracy (%) of the thesis's baselines on Letter",
        "Lapin's thesis, table 5.3 (its methods, another set)", letter, ("letter",),
    ),
    Table(
        "silhouettes-baselines", "Top-k accuracy (%) of the thesis's baselines on Caltech 101 Silhouettes",
        "Lapin's thesis, table 5.3", silhouettes, ("silhouettes28",),
    ),
)  # fmt: skip
