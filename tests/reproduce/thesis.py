"""Letter, newsgroups and silhouettes with every loss of Lapin's thesis (chapter 6, table 6.6)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from scipy import sparse

from tests.reproduce.formats import Examples
from tests.reproduce.learners import Budget, FromSoftmax, Learner, OneVsAllLiblinear, Trained
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

LETTER = {
    "OVA SVM": (63.0, 82.0, 88.1, 94.6),
    "OVA LR": (68.1, 86.1, 90.6, 96.2),
    "SVM Multi": (76.5, 89.2, 93.1, 97.7),
    "LR Multi": (75.3, 90.3, 94.3, 98.0),
    "top-3 SVM": (74.0, 91.0, 94.4, 97.8),
    "top-5 SVM": (70.8, 91.5, 95.1, 98.4),
    "top-10 SVM": (61.6, 88.9, 96.0, 99.6),
    "top-1 SVM_1": (76.8, 89.9, 93.6, 97.6),
    "top-3 SVM_1": (74.1, 90.9, 94.5, 97.9),
    "top-5 SVM_1": (70.8, 91.5, 95.2, 98.6),
    "top-10 SVM_1": (61.7, 89.1, 95.9, 99.7),
    "top-3 Ent": (73.0, 90.8, 94.9, 98.5),
    "top-5 Ent": (69.7, 90.9, 95.1, 98.8),
    "top-10 Ent": (65.0, 89.7, 96.2, 99.6),
    "top-3 Ent_tr": (63.6, 91.1, 95.6, 98.8),
    "top-5 Ent_tr": (50.3, 87.7, 96.1, 99.4),
    "top-10 Ent_tr": (46.5, 80.9, 93.7, 99.6),
}
NEWS20 = {
    "OVA SVM": (84.3, 95.4, 97.9, 99.5),
    "OVA LR": (84.9, 96.3, 97.8, 99.3),
    "SVM Multi": (85.4, 94.9, 97.2, 99.1),
    "LR Multi": (84.5, 96.4, 98.1, 99.5),
    "top-3 SVM": (85.1, 96.6, 98.2, 99.3),
    "top-5 SVM": (84.3, 96.7, 98.4, 99.3),
    "top-10 SVM": (82.7, 96.5, 98.4, 99.3),
    "top-1 SVM_1": (85.6, 96.3, 98.0, 99.3),
    "top-3 SVM_1": (85.1, 96.6, 98.4, 99.4),
    "top-5 SVM_1": (84.5, 96.7, 98.4, 99.4),
    "top-10 SVM_1": (82.9, 96.5, 98.4, 99.5),
    "top-3 Ent": (84.7, 96.6, 98.3, 99.4),
    "top-5 Ent": (84.3, 96.8, 98.6, 99.4),
    "top-10 Ent": (82.7, 96.4, 98.5, 99.4),
    "top-3 Ent_tr": (83.4, 96.4, 98.3, 99.4),
    "top-5 Ent_tr": (83.2, 96.0, 98.2, 99.4),
    "top-10 Ent_tr": (82.9, 95.7, 97.9, 99.4),
}
SILHOUETTES = {
    "OVA SVM": (61.8, 76.5, 80.8, 86.6),
    "OVA LR": (63.2, 80.4, 84.4, 89.4),
    "SVM Multi": (62.8, 77.8, 82.0, 86.9),
    "LR Multi": (63.2, 81.2, 85.1, 89.7),
    "top-3 SVM": (63.4, 79.7, 83.6, 88.3),
    "top-5 SVM": (63.3, 80.0, 84.3, 88.7),
    "top-10 SVM": (63.0, 80.5, 84.6, 89.1),
    "top-1 SVM_1": (63.9, 80.3, 84.0, 89.0),
    "top-3 SVM_1": (63.3, 80.1, 84.0, 89.2),
    "top-5 SVM_1": (63.3, 80.5, 84.5, 89.1),
    "top-10 SVM_1": (63.1, 80.5, 84.8, 89.1),
    "top-3 Ent": (63.3, 81.1, 85.0, 89.9),
    "top-5 Ent": (63.2, 80.9, 85.2, 89.9),
    "top-10 Ent": (62.5, 80.8, 85.4, 90.1),
    "top-3 Ent_tr": (60.7, 81.1, 85.2, 90.2),
    "top-5 Ent_tr": (58.3, 79.8, 85.2, 90.2),
    "top-10 Ent_tr": (51.9, 78.4, 84.6, 90.2),
}


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
    train, tests = data.parts
    rows, held = np.arange(train), setting.of(4500, 4500, 14800)
    splits = []
    for seed in range(setting.of(4, 3, 1)):
        mixed = setting.rng(seed).permutation(rows)
        splits.append(Split.held_out(mixed[held:], mixed[:held], np.arange(train, train + tests)))
    Cs = [10.0**power for power in setting.of(range(-5, 4), range(-1, 3), range(1))]
    trials = compare(setting, data, learners(setting), splits, Cs, KS, budget(setting))
    notes = {
        "a": "the thesis trains once, on the 10,500 rows of letter.scale.tr, and chooses C on the 4,500 of"
        " letter.scale.val; which rows these are is not in the files at hand, so ours are random divisions of"
        " the same 15,000, and the spread is that of the division alone",
        "b": "OVA rows are LIBLINEAR's, like the others without a constant feature: with one OVA SVM falls"
        " to about 58 % top-1 here, away from the thesis's 63.0 %",
        "c": "the objective of Ent_tr is not convex: what it ends at depends on where it starts (the softmax"
        " at the same C) and on when it stops",
    }
    protocol = {
        "data": f"{train - held:,} training, {held:,} validation, {tests:,} test rows; {len(splits)} times",
        "model": _model(setting, Cs, "no constant feature"),
    }
    return _table(trials, LETTER, protocol, notes)


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
        " costs accuracy",
    }
    protocol = {
        "data": f"{n - test:,} training and {test:,} test messages, {len(splits)} random divisions",
        "model": _model(setting, Cs, "C by a fifth of the training rows, then training on all of them"),
    }
    return _table(trials, NEWS20, protocol, notes)


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
        " that there is a spread. C is chosen on validation rows for each column",
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
) -> Reproduction:
    reasons = {name: "c" if "Ent_tr" in name else "b" if "OVA" in name else "a" for name in paper}
    keys = {name: key if key in notes else "a" for name, key in reasons.items()}
    return Reproduction(tuple(figures_of(trials, paper, KS, keys)), protocol, notes)


LETTER_TABLE = Table(
    "letter", "Top-k accuracy (%) of all losses of the thesis on Letter", "Lapin's thesis, table 6.6", letter,
    ("letter",),
)  # fmt: skip
NEWS20_TABLE = Table(
    "news20", "Top-k accuracy (%) of the thesis's losses on 20 newsgroups", "Lapin's thesis, table 6.6",
    news20, ("news20",),
)  # fmt: skip
SILHOUETTES_TABLE = Table(
    "silhouettes", "Top-k accuracy (%) of all losses of the thesis on Caltech 101 Silhouettes",
    "Lapin's thesis, table 6.6", silhouettes, ("silhouettes28",),
)  # fmt: skip
