"""Which losses are top-s calibrated: minimisers on random distributions (propositions 6.8 to 6.13)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from tests.reproduce.table import Figure, Reproduction, Setting, Table, run_all
from topline.solvers.losses import (
    LDRKL,
    Loss,
    MaxHinge,
    OneVsAll,
    PolyhedralTopK,
    Softmax,
    SumExponential,
    TopKEntropy,
    TopKHinge,
    TopKOthersHinge,
    UsunierHinge,
    WeightedTopKHinge,
    WeightedUsunierHinge,
    linear,
)
from topline.solvers.losses.consistency import consistency

CLASSES = 4


@dataclass(frozen=True)
class Row:
    """A loss, its smoothing, and whether the thesis says that it is calibrated; None where it is open."""

    name: str
    loss: Loss
    smoothing: float = 0.0
    kind: str = "moreau"
    calibrated: bool | None = None


ROWS = (
    Row("one_vs_all_hinge", OneVsAll("hinge"), calibrated=False),
    Row("one_vs_all_logistic", OneVsAll("logistic"), calibrated=True),
    Row("one_vs_all_hinge, gamma 1", OneVsAll("hinge"), 1.0, calibrated=True),
    Row("max_hinge", MaxHinge(), calibrated=False),
    Row("softmax", Softmax(), calibrated=True),
    Row("max_hinge, gamma 1", MaxHinge(), 1.0),
    Row("max_hinge, gamma 1, others", MaxHinge(), 1.0, "others"),
    Row("max_hinge, gamma 0.1", MaxHinge(), 0.1),
    Row("topk_hinge, k = 2", TopKHinge(2)),
    Row("topk_others_hinge, k = 2", TopKOthersHinge(2)),
    Row("usunier_hinge, k = 2", UsunierHinge(2)),
    Row("weighted_topk_hinge, linear, k = 3", WeightedTopKHinge(linear(3))),
    Row("weighted_usunier_hinge, linear, k = 3", WeightedUsunierHinge(linear(3))),
    Row("topk_hinge, k = 2, gamma 1", TopKHinge(2), 1.0),
    Row("topk_others_hinge, k = 2, gamma 1, others", TopKOthersHinge(2), 1.0, "others"),
    Row("usunier_hinge, k = 2, gamma 1", UsunierHinge(2), 1.0),
    Row("topk_entropy, k = 2", TopKEntropy(2)),
    Row("ldr_kl, T = 0.3", LDRKL(0.3)),
    Row("sum_exponential", SumExponential()),
    Row("polyhedral_topk, k = 2", PolyhedralTopK(2)),
)


def run(setting: Setting) -> Reproduction:
    """Decide for every loss, s and distribution."""
    rng = setting.rng()
    draws = setting.of(40, 5, 1)
    distributions = rng.dirichlet(np.ones(CLASSES), size=draws)
    rows = setting.of(ROWS, ROWS, ROWS[3:5])
    jobs = [partial(_consistent, row, p) for row in rows for p in distributions]
    found = np.array(run_all(setting, "minimise", jobs, "risks"), dtype=float).reshape(
        len(rows), draws, CLASSES - 1
    )
    figures = [
        Figure(
            row.name, f"top-{s + 1}", 100.0 * shares[s], paper=100.0 if row.calibrated else None, better="",
            note="b" if row.calibrated is False else "a",
        )
        for row, shares in zip(rows, found.mean(axis=1), strict=True)
        for s in range(CLASSES - 1)
    ]  # fmt: skip
    notes = {
        "a": "a loss is top-s calibrated if its minimiser is right for every distribution: 100 here is what"
        " these draws show and no proof, anything below 100 disproves it. The thesis leaves all rows open"
        " but those of the next note and one_vs_all_logistic, one_vs_all_hinge, gamma 1, and softmax, which"
        " are calibrated (propositions 6.9, 6.10, 6.12)",
        "b": "not calibrated (propositions 6.8 and 6.11); the thesis prints no numbers. Where one class has"
        " more than half of the mass the multiclass hinge puts it first, and leaves the others level",
        "c": "truncated_topk_entropy, which is not convex, is calibrated for s >= k (proposition 6.13): the"
        " tests of `topline.solvers.losses.consistency` minimise it from many starts",
    }
    protocol = {
        "data": f"{draws} distributions of {CLASSES} classes, uniform on the simplex",
        "decision": "a class outside the s likeliest comes level with one of them: right if the population"
        " risk must rise by more than 1e-6, both risks minimised by cutting planes to 1e-7",
    }
    return Reproduction(tuple(figures), protocol, notes, ".0f")


def _consistent(row: Row, p: np.ndarray) -> list[bool]:
    options = {"smoothing": row.smoothing, "smoothing_kind": row.kind}
    return [consistency(row.loss, p, s, **options).consistent for s in range(1, CLASSES)]  # type: ignore[arg-type]


TABLE = Table(
    "top-k-calibration",
    "Share (%) of distributions on which every population minimiser is top-s Bayes optimal",
    "Lapin's thesis, propositions 6.8 to 6.13",
    run,
)
