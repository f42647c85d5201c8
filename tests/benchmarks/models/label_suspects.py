"""Flipped labels found by `leave_one_out` and by cleanlab's rule.

    python -m tests.benchmarks.models.label_suspects

Shares of the labels are exchanged for another class, drawn with the seeds 0, 1, ...  Ours are the suspects of
a classifier that is trained once on the flipped labels; what is timed is `leave_one_out` alone, with
`--passes` of dual steps, beside the fit that it needs (-1: as many as the fit took, as `leave_one_out` and
`topline inspect` have by themselves).  cleanlab's are its label quality scores (self-confidence) of
probabilities that five-fold cross-validation of scikit-learn's logistic regression predicts on the same rows
with the same C; where cleanlab is not installed its published rule is applied, which is the same number: the
predicted probability of the given label (Northcutt et al., "Confident learning", 2021).  Its time is that of
both.  "max_hinge" is ranked as `topline inspect` ranks it, with `second_opinion`, whose softmax counts to the
time; "hinge alone" is ranked by the hinge itself (`--no-second-opinion`).  The set "office" is the
photographs behind "googlenet", described by the network of the default features.  Times are CPU seconds; the
area under the ROC curve is of the flipped against the other rows, as mean and standard error over the seeds.
"""

from __future__ import annotations

import sys
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import StratifiedKFold, cross_val_predict

from tests.benchmarks.datasets import DATA_DIR, DataSet, load
from tests.benchmarks.harness import features_of, print_head, print_row, read_options, unpacked, with_cpu
from tests.benchmarks.models.photograph_features import ARCHIVE
from topline import MaxHinge, Softmax, solve
from topline.solvers.inspection import leave_one_out, second_opinion

SETS = ("usps", "letter", "googlenet", "office")
LOSSES = {"softmax": Softmax(), "max_hinge": MaxHinge()}
#: A loss, and whether a softmax gives a second opinion.
WAYS = {"softmax": ("softmax", False), "max_hinge": ("max_hinge", True), "hinge alone": ("max_hinge", False)}


@dataclass(frozen=True)
class Found:
    """Area under the ROC curve, CPU seconds, and CPU seconds of the fit that comes before."""

    auc: float
    seconds: float
    fit_seconds: float = 0.0


def rows_of(X: Any) -> Any:
    """Return rows of unit norm with a constant feature, as `topline train` has them by default."""
    X = X / np.linalg.norm(X, axis=1, keepdims=True)
    return np.hstack([X, np.ones((len(X), 1), X.dtype)])


def flipped(y: Any, share: float, seed: int) -> tuple[Any, Any]:
    """Return the labels with a share of them exchanged for another class, and which."""
    rng = np.random.default_rng(seed)
    wrong = np.zeros(len(y), dtype=bool)
    wrong[rng.permutation(len(y))[: round(share * len(y))]] = True
    given, m = y.copy(), int(y.max()) + 1
    given[wrong] = (y[wrong] + rng.integers(1, m, wrong.sum())) % m
    return given, wrong


def labelled(name: str, folder: Path, *, quick: bool) -> DataSet:
    """Return a set by its name, the photographs as features; FileNotFoundError without its file."""
    if name != "office":
        return load(name, folder, quick=quick)
    with tempfile.TemporaryDirectory() as place:
        images = unpacked(folder / ARCHIVE, Path(place)) / "amazon"
        _, stored = features_of(images, Path(place) / "store")
        described = stored.labels() >= 0  # others are copies, or cannot be read
        X = stored.rows(0, stored.info.n_rows)[described]
        return DataSet(name, X.astype(np.float32), stored.labels()[described])


def ours(X: Any, y: Any, wrong: Any, way: str, C: float, passes: int) -> Found:
    """Rank by the margins without each row."""
    loss, asks_softmax = WAYS[way]
    lam = 1.0 / (len(y) * C)
    result, fit_seconds = with_cpu(lambda: solve(X, y, LOSSES[loss], lam, method="auto"))

    def judged() -> Any:
        found = leave_one_out(X, y, result, max_passes=passes if passes >= 0 else None)
        return found.suspicion() + (second_opinion(X, y, result).suspicion() if asks_softmax else 0.0)

    suspicion, seconds = with_cpu(judged)
    return Found(float(roc_auc_score(wrong, suspicion)), seconds, fit_seconds)


def by_cleanlab(X: Any, y: Any, wrong: Any, C: float) -> Found:
    """Rank by cleanlab's label quality."""
    folds = StratifiedKFold(5, shuffle=True, random_state=0)
    model = LogisticRegression(C=C, max_iter=1000)

    def score() -> Any:
        P = cross_val_predict(model, X, y, cv=folds, method="predict_proba")
        return quality(P, y)

    scores, seconds = with_cpu(score)
    return Found(float(roc_auc_score(wrong, -scores)), seconds)


def quality(P: Any, y: Any) -> Any:
    """Return cleanlab's self-confidence of each label, by the library where it is installed."""
    try:
        from cleanlab.rank import get_label_quality_scores
    except ImportError:
        return P[np.arange(len(y)), y]
    return get_label_quality_scores(y, P, method="self_confidence")


def line(name: str, share: float, loss: str, mine: list[Found], theirs: list[Found]) -> list[str]:
    """Return the cells of a row of the table."""
    gains = np.array([one.auc - other.auc for one, other in zip(mine, theirs, strict=True)])
    error = gains.std(ddof=1) / np.sqrt(len(gains)) if len(gains) > 1 else float("nan")
    seconds = [float(np.mean([getattr(one, part) for one in mine])) for part in ("seconds", "fit_seconds")]
    peer = float(np.mean([other.seconds for other in theirs]))
    aucs = (float(np.mean([one.auc for one in found])) for found in (mine, theirs))
    return [
        name, f"{share:.0%}", loss, *(f"{auc:.4f}" for auc in aucs), f"{gains.mean():+.4f} ± {error:.4f}",
        f"{seconds[0]:.3f}", f"{seconds[1]:.2f}", f"{peer:.2f}", f"{seconds[0] / peer:.3f}",
    ]  # fmt: skip


def main(arguments: list[str] | None = None) -> None:
    """Print the table as Markdown."""
    options = read_options(
        __doc__, arguments, data=DATA_DIR, sets=list(SETS), shares=[0.05, 0.1], losses=list(WAYS), C=1.0,
        passes=0, rows=int, seeds=5, quick=False,
    )  # fmt: skip
    aucs, seconds = ("AUC", "AUC of cleanlab", "difference"), ("s", "s of the fit before", "s of cleanlab")
    print_head("set", "flipped", "loss", *aucs, *seconds, "ratio")
    warnings.simplefilter("ignore")
    for name in options.sets:
        try:
            data = labelled(name, options.data, quick=options.quick)
        except FileNotFoundError as missing:
            print(f"{name}: skipped, {missing.filename} is not there", file=sys.stderr)
            continue
        X, y_true = rows_of(data.X)[: options.rows], data.y[: options.rows]
        for share in options.shares:
            drawn = [flipped(y_true, share, seed) for seed in range(options.seeds)]
            theirs = [by_cleanlab(X, y, wrong, options.C) for y, wrong in drawn]
            for loss in options.losses:
                few, some = X[::2], y_true[::2]
                ours(few, some, some == 0, loss, options.C, min(options.passes, 2))  # compiles
                mine = [ours(X, y, wrong, loss, options.C, options.passes) for y, wrong in drawn]
                print_row(*line(name, share, loss, mine, theirs))


if __name__ == "__main__":
    main()
