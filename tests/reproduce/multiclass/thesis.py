"""Letter, newsgroups and silhouettes with every loss of Lapin's thesis (chapter 6, table 6.6)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from tests.reproduce.formats import Examples
from tests.reproduce.learners import Budget, FromSoftmax, Learner, OneVsAllLiblinear, Trained
from tests.reproduce.score import printed
from tests.reproduce.selection import Split, Trial, compare, figures_of
from tests.reproduce.table import Reproduction, Setting, Table
from topline.solvers.losses import MaxHinge, Softmax, TopKEntropy, TopKOthersHinge

KS = (1, 3, 5, 10)
#: Rows of the table, in its order.
LEARNERS: tuple[Learner, ...] = (
    OneVsAllLiblinear("OVA SVM"),
    OneVsAllLiblinear("OVA LR", logistic=True),
    Trained("SVM Multi", MaxHinge()),
    Trained("LR Multi", Softmax(), method="lbfgs"),
    *(Trained(f"top-{k} SVM", TopKOthersHinge(k)) for k in (3, 5, 10)),
    Trained("top-1 SVM_1", MaxHinge(), 1.0, "others", "lbfgs"),
    *(Trained(f"top-{k} SVM_1", TopKOthersHinge(k), 1.0, "others", "lbfgs") for k in (3, 5, 10)),
    *(Trained(f"top-{k} Ent", TopKEntropy(k), method="lbfgs") for k in (3, 5, 10)),
    *(FromSoftmax(f"top-{k} Ent_tr", k) for k in (3, 5, 10)),
)
#: What a quick run leaves out: the neighbours of rows that it has.
SLOW = frozenset({"top-3 SVM", "top-3 SVM_1", "top-3 Ent", "top-10 Ent", "top-3 Ent_tr", "top-10 Ent_tr"})
#: What a trial run leaves out besides: losses of the same kind as others.
TWICE = frozenset({"top-10 SVM", "top-1 SVM_1", "top-10 SVM_1"})
#: Rows of the newsgroups that are run; OVA LR and Ent_tr take as long there as all others together.
NEWS20_ROWS = (
    "OVA SVM", "SVM Multi", "LR Multi", "top-3 SVM", "top-5 SVM", "top-10 SVM", "top-1 SVM_1", "top-5 SVM_1",
    "top-5 Ent",
)  # fmt: skip
NEWS20_QUICKLY = ("OVA SVM", "SVM Multi", "LR Multi", "top-5 SVM", "top-5 SVM_1")
NEWS20_TRAIN, NEWS20_TEST = 15_935, 3_993

ALOI = printed("thesis.aloi")
LETTER = printed("thesis.letter")
NEWS20 = printed("thesis.news20")
SILHOUETTES = printed("thesis.silhouettes")


def learners(setting: Setting, names: Sequence[str] = ()) -> list[Learner]:
    """Give the rows that a run has."""
    left_out = setting.of(frozenset[str](), SLOW, SLOW | TWICE)
    return [
        learner
        for learner in LEARNERS
        if learner.name not in left_out and (not names or learner.name in names)
    ]


def budget(setting: Setting) -> Budget:
    """Give how far a training goes."""
    return setting.of(Budget(1e-3, 200), Budget(1e-2, 60), Budget(0.1, 2))


def letter(setting: Setting) -> Reproduction:
    """Divide the 15,000 training rows at random; the 5,000 test rows are the published ones."""
    data = setting.data.load("letter", alone=True)
    splits = letter_splits(setting, data)
    train, held, tests = (len(rows) for rows in (*splits[0].folds[0], splits[0].test))
    Cs = [10.0**power for power in setting.of(range(-5, 4), range(-1, 3), range(1))]
    trials = compare(setting, data, learners(setting), splits, Cs, KS, budget(setting))
    notes = {
        "a": "the thesis trains once, on the 10,500 rows of letter.scale.tr, and chooses C on the 4,500 of"
        " letter.scale.val; which rows these are is not in the files at hand, so ours are random divisions of"
        " the same 15,000, and the spread is that of the division alone",
        "b": "OVA rows are LIBLINEAR's, like the others without a constant feature: with one OVA SVM falls"
        " to about 58 % top-1 here, away from the thesis's 63.0 %",
        "c": "the objective of Ent_tr is not convex, and top-1 falls all the way down from the softmax of the"
        " same C, where it starts: the thesis does not say when its descent along the gradient stops, ours"
        " goes on to the end; after 25 steps all four figures of top-10 Ent_tr are within 0.8 points of the"
        " thesis's (letter-causes --quick)",
    }
    protocol = {
        "data": f"{train:,} training, {held:,} validation, {tests:,} test rows; {len(splits)} times",
        "model": _model(setting, Cs, "no constant feature"),
    }
    return _table(trials, LETTER, protocol, notes)


def letter_splits(setting: Setting, data: Examples) -> list[Split]:
    """Give random divisions of the training rows."""
    train, tests = data.parts
    rows, held = np.arange(train), setting.of(4500, 4500, 14800)
    splits = []
    for seed in range(setting.of(4, 3, 1)):
        mixed = setting.rng(seed).permutation(rows)
        splits.append(Split.held_out(mixed[held:], mixed[:held], np.arange(train, train + tests)))
    return splits


def aloi(setting: Setting) -> Reproduction:
    """Divide the images of every object into halves; a quick run has every tenth object alone."""
    data = setting.data.load("aloi", alone=True)
    if setting.of(False, True, False):
        kept = data.y % 10 == 0
        data = Examples(data.X[kept], data.y[kept] // 10)
    splits = []
    for seed in range(setting.of(2, 2, 1)):
        rows = halves(setting.rng(seed), data.y)
        held = len(rows[0]) // 5
        splits.append(Split(((rows[0][held:], rows[0][:held]),), rows[1], rows[0]))
    Cs = [10.0**power for power in setting.of(range(-2, 3), range(3), range(1))]
    names = setting.of((), NEWS20_QUICKLY, NEWS20_QUICKLY)
    trials = compare(setting, data, learners(setting, names), splits, Cs, KS, budget(setting))
    notes = {
        "a": "the thesis divides the images of each object into halves at random, as here, and chooses C by"
        " cross-validation; a quick run has a tenth of the objects, an easier problem that does not count",
        "c": "the objective of Ent_tr is not convex, and the thesis does not say when its descent stops"
        " (letter-causes)",
    }
    protocol = {
        "data": f"{len(rows[0]):,} training and {len(rows[1]):,} test images of {data.m:,} objects,"
        f" {len(splits)} random divisions",
        "model": _model(setting, Cs, "C by a fifth of the training rows, then training on all of them"),
    }
    return _table(trials, ALOI, protocol, notes, counts=setting.of(True, False, True))


def halves(rng: np.random.Generator, y: NDArray[np.int64]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Give two halves of the rows in random order, each with half of the rows of every class."""
    mixed = rng.permutation(len(y))
    ranked = mixed[np.argsort(y[mixed], kind="stable")]
    first, second = ranked[::2], ranked[1::2]
    return rng.permutation(first), rng.permutation(second)


def news20(setting: Setting) -> Reproduction:
    """Divide the messages at random, rows of unit length, C by one fifth of the training rows."""
    data = _unit_rows(setting.data.load("news20", alone=True))
    n = len(data.y)
    test = round(n * NEWS20_TEST / (NEWS20_TRAIN + NEWS20_TEST))
    splits = []
    for seed in range(setting.of(2, 2, 1)):
        mixed = setting.rng(seed).permutation(n)
        fifth = (n - test) // 5
        fold = (mixed[test + fifth :], mixed[test : test + fifth])
        splits.append(Split((fold,), mixed[:test], mixed[test:]))
    Cs = [10.0**power for power in setting.of(range(-1, 3), range(1, 2), range(1))]
    names = setting.of(NEWS20_ROWS, NEWS20_QUICKLY, NEWS20_QUICKLY)
    trials = compare(setting, data, learners(setting, names), splits, Cs, KS, budget(setting))
    notes = {
        "a": "other features: the thesis has LIBSVM's news20 (62,060 words, 15,478 principal components,"
        f" the published division), ours are {data.X.shape[1]:,} word counts of the bodies alone, scaled to"
        " unit length. Message headers, which name institutions and often the newsgroup, are left out, which"
        " costs accuracy"
    }
    protocol = {
        "data": f"{n - test:,} training and {test:,} test messages, {len(splits)} random divisions",
        "model": _model(setting, Cs, "C by a fifth of the training rows, then training on all of them"),
    }
    return _table(trials, NEWS20, protocol, notes, counts=False)


def silhouettes(setting: Setting) -> Reproduction:
    """Take the published parts; the spread is that of the test rows, drawn again with replacement."""
    data = setting.data.load("silhouettes28", alone=True)
    train, validation, tests = data.parts
    rows = np.arange(train + validation + tests)
    first, last = rows[:train], rows[train + validation :]
    held = rows[train : train + validation]
    splits = [Split.held_out(first, held, last)]
    for seed in range(setting.of(3, 1, 0)):
        mixed = setting.rng(seed).permutation(train + validation)
        splits.append(Split.held_out(mixed[:train], mixed[train:], last))
    Cs = [10.0**power for power in setting.of(range(-5, 4), range(-2, 1), range(1))]
    trials = compare(setting, data, learners(setting), splits, Cs, KS, budget(setting))
    notes = {
        "a": "the first division is the published one; the others deal training and validation rows anew, so"
        " that there is a spread. C is chosen on validation rows for each column"
    }
    protocol = {
        "data": f"{train:,} training, {validation:,} validation, {tests:,} test silhouettes",
        "model": _model(setting, Cs, "no constant feature"),
    }
    return _table(trials, SILHOUETTES, protocol, notes)


def _unit_rows(data: Examples) -> Examples:
    from sklearn.preprocessing import normalize

    return Examples(sparse.csr_matrix(normalize(data.X), dtype=np.float32), data.y)


def _model(setting: Setting, Cs: Sequence[float], more: str) -> str:
    goal = budget(setting)
    chosen = "chosen for each column on validation rows" if len(Cs) > 1 else "fixed"
    return (
        f"C of {Cs[0]:g} to {Cs[-1]:g} ({len(Cs)} values), {chosen}; trained to relative gap {goal.tol:g} or"
        f" {goal.passes} passes; {more}"
    )


def _table(
    trials: Mapping[str, Sequence[Trial]],
    paper: Mapping[str, Sequence[float]],
    protocol: Mapping[str, str],
    notes: Mapping[str, str],
    *,
    counts: bool = True,
) -> Reproduction:
    reasons = {name: "c" if "Ent_tr" in name else "b" if "OVA" in name else "a" for name in paper}
    keys = {name: key if key in notes else "a" for name, key in reasons.items()}
    return Reproduction(tuple(figures_of(trials, paper, KS, keys, counts=counts)), protocol, notes)


LETTER_TABLE = Table(
    "letter", "Top-k accuracy (%) of all losses of the thesis on Letter", "Lapin's thesis, table 6.6", letter,
    ("letter",),
)  # fmt: skip
ALOI_TABLE = Table(
    "aloi", "Top-k accuracy (%) of all losses of the thesis on ALOI", "Lapin's thesis, table 6.6", aloi,
    ("aloi",),
)  # fmt: skip
NEWS20_TABLE = Table(
    "news20", "Top-k accuracy (%) of the thesis's losses on 20 newsgroups", "Lapin's thesis, table 6.6",
    news20, ("news20",),
)  # fmt: skip
SILHOUETTES_TABLE = Table(
    "silhouettes", "Top-k accuracy (%) of all losses of the thesis on Caltech 101 Silhouettes",
    "Lapin's thesis, table 6.6", silhouettes, ("silhouettes28",),
)  # fmt: skip
