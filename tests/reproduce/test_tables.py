from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.reference.euclidean import project_bipartite_simplex
from tests.reproduce import SOURCES, TABLES, DataFiles, Effort, Figure, Reproduction, Setting, reproduce
from tests.reproduce.average_top.tables import bases_in_order, two_classes
from tests.reproduce.formats import Examples
from tests.reproduce.multiclass.scaling import bipartite_by_sorting
from tests.reproduce.multiclass.thesis import halves
from tests.reproduce.multilabel.tables import METRICS, Row, value_of
from tests.reproduce.page import Part, render
from tests.reproduce.score import Score, verdict
from tests.reproduce.stand_ins import WRITERS
from tests.reproduce.table import over_splits
from topline.solvers.estimators.multilabel_metrics import partition_metrics, ranking_metrics

#: How many figures (means, where there are spreads) each table of a paper prints.
PRINTED = {
    "circle": 18, "letter": 68, "aloi": 68, "aloi-weighted": 16, "silhouettes": 68,
    "silhouettes-baselines": 90, "letter-weighted": 16,
    "silhouettes-weighted": 16, "iteration-seconds": 20, "silhouettes-errors": 12, "top-k-calibration": 12,
    "projection-bipartite": 15, "at-k-classification": 48, "at-k-regression": 18, "at-k-curves": 24,
    "at-k-toys": 12, "multitask": 20, "weight-learning": 1,
}  # fmt: skip
#: Tables of other data than the paper's, or of changes to another table's protocol: none of their rows count.
ELSEWHERE = {
    "news20", "news20-weighted", "news20-causes", "news20-errors", "gap-curves", "letter-baselines",
    "letter-convergence", "projection-top-k", "at-k-sinc", "at-k-causes", "weight-learning-breast-cancer",
    "bibtex-causes", "letter-causes",
}  # fmt: skip
PAPERS = ("Hirohashi and Kato", "Lapin", "Fan et al.", "Tajima et al.")


def test_every_data_set_has_a_stand_in() -> None:
    assert set(WRITERS) == set(SOURCES)


@pytest.mark.parametrize("name", TABLES)
def test_a_table_says_where_it_is_from_and_runs(name: str, stand_ins: Path) -> None:
    table = TABLES[name]
    assert table.source.startswith(PAPERS)
    found = reproduce(table, Setting(DataFiles((stand_ins,)), Effort.TINY))
    check_contract(found)
    check_counts(name, found)
    page = render([Part(table, found)])
    assert "://" not in page
    assert table.title.split("(")[0] in page


def check_contract(found: Reproduction) -> None:
    """The paper's figures beside ours, and a note for each that can differ."""
    assert found.figures
    in_words = any("prints no numbers" in text for text in found.notes.values())
    assert in_words or any(figure.paper is not None for figure in found.figures)
    for figure in found.figures:
        assert math.isfinite(figure.ours), figure
        assert figure.spread is None or figure.spread >= 0.0
        if figure.paper is not None:
            assert figure.note in found.notes, figure
    assert found.protocol
    assert all(text.strip() for text in (*found.protocol.values(), *found.notes.values()))


def check_counts(name: str, found: Reproduction) -> None:
    """Each figure of the paper counts once, and only beside its own data; the others are shown."""
    score = Score.of(found.figures)
    if name in ELSEWHERE:
        assert score.compared == 0
    else:
        assert score.compared <= PRINTED.get(name, 42)  # 6 rows of 7 metrics for each multilabel set
        assert score.compared > 0 or name == "weight-learning"  # whose figure is of a larger sample
    beside = [figure for figure in found.figures if figure.paper is not None]
    assert score.compared + score.elsewhere == len(beside)
    for figure in beside:
        if figure.spread is not None:
            assert figure.standard_errors is not None
        if not figure.counts:
            assert verdict(figure).startswith("not counted")


def test_weights_0_are_no_figure_of_a_loss(stand_ins: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a hinge on many labels whose budget ends before any weights are better than none."""

    def collapsed(_row: Any, _X: Any, Y: Any, others: Any, grid: Any) -> Any:
        return [tuple(np.zeros((len(part), Y.shape[1])) for part in others) for _ in grid.Cs]

    monkeypatch.setattr(Row, "candidates", collapsed)
    found = reproduce(TABLES["multilabel-corel5k"], Setting(DataFiles((stand_ins,)), Effort.TINY))
    assert {figure.note for figure in found.figures} == {"e"}
    assert {figure.ours for figure in found.figures if figure.column == "RLoss"} == {100.0}
    assert "weights 0" in found.notes["e"]


def test_splice_counts_once(stand_ins: Path) -> None:
    """LIBSVM's 1,000 rows stand beside UCI's without a figure of the paper."""
    found = reproduce(TABLES["at-k-classification"], Setting(DataFiles((stand_ins,)), Effort.TINY))
    rows = {figure.row for figure in found.figures if figure.row.startswith("splice")}
    assert rows == {
        f"{name}, {loss}" for name in ("splice", "splice_libsvm") for loss in ("logistic", "hinge")
    }
    counted = [figure.row for figure in found.figures if figure.row in rows and figure.paper is not None]
    assert counted == ["splice, logistic"] * 3 + ["splice, hinge"] * 3


def test_a_difference_is_judged_by_both_spreads() -> None:
    ours = over_splits("row", "top-1", [70.0, 72.0], paper=75.0, paper_spread=1.5, digits=9)
    assert ours.ours == 71.0
    assert ours.spread == pytest.approx(math.sqrt(2.0))
    assert ours.difference == -4.0
    assert ours.within  # 4 <= 2 sqrt(2 + 2.25)
    assert not over_splits("row", "top-1", [70.0, 72.0], paper=75.0).within  # 4 > 2 sqrt(2) + 0.05
    # 71.0 may stand for anything up to 71.05.
    assert over_splits("row", "top-1", [71.0, 71.0], paper=71.05).within
    assert not over_splits("row", "top-1", [71.0, 71.0], paper=71.06).within
    assert Figure("row", "top-1", 71.0, paper=75.0).within is None
    assert over_splits("row", "top-1", [70.0, 72.0]).within is None


def test_halves_share_every_class() -> None:
    y = np.repeat([2, 0, 1], [4, 6, 2])
    first, second = halves(np.random.default_rng(0), y)
    assert sorted([*first, *second]) == list(range(12))
    assert np.bincount(y[first]).tolist() == np.bincount(y[second]).tolist() == [3, 1, 2]
    other, _ = halves(np.random.default_rng(1), y)
    assert set(other) != set(first)


def test_differences_come_in_standard_errors_and_are_counted() -> None:
    """70 and 72 beside 75 +- 1.5 of 9 splits: the errors are sqrt(2)/sqrt(2) = 1 and 0.5."""
    ours = over_splits("row", "top-1", [70.0, 72.0], 75.0, 1.5, digits=9, paper_count=9)
    assert ours.standard_errors == pytest.approx(-4.0 / math.sqrt(1.25), rel=1e-8)
    # Without a spread the paper has one split like ours; half a unit of its last digit is no difference.
    alone = over_splits("row", "top-1", [70.0, 72.0], 75.0)
    assert alone.standard_errors == pytest.approx(-3.95 / math.sqrt(3.0))
    assert over_splits("row", "top-1", [70.0, 72.0]).standard_errors is None
    assert Figure("row", "top-1", 71.0, paper=70.0).standard_errors is None


def test_wins_and_losses_are_counted_by_what_is_better() -> None:
    loss = over_splits("row", "top-1", [70.0, 72.0], 75.0)
    gain = over_splits("row", "error", [70.0, 72.0], 75.0, better="lower")
    close = over_splits("row", "top-3", [70.0, 72.0], 70.9)
    neutral = over_splits("row", "seconds", [70.0, 72.0], 60.0, better="")
    other = over_splits("row", "top-1", [70.0, 72.0], 60.0, note="b", counts=False)
    found = Score.of([loss, gain, close, neutral, other, Figure("row", "top-5", 3.0)])
    assert found == Score(4, wins=2, losses=1, clear_wins=1, clear_losses=1, neutral=1, elsewhere=1)
    assert str(found) == (
        "4 figures beside the paper's: ours better in 2, worse in 1; by more than 2 standard errors better"
        " in 1, worse in 1; neither higher nor lower is better in 1; 1 more are of other"
        " data or another protocol and do not count"
    )
    assert verdict(other) == "not counted, note b"
    assert "no figure" in str(Score.of([other]))


def test_splice_is_numbered_by_its_bases() -> None:
    """Each column numbers its own letters by the alphabet; a letter of doubt takes its row away."""
    first = np.tile(list("ACGT"), 12)
    second = np.tile(list("GGTCATCA"), 6)
    second[5] = "N"
    X = np.column_stack([np.unique(letters, return_inverse=True)[1] for letters in (first, second)])
    found = bases_in_order(Examples(X.astype(float), np.arange(48)))
    kept = np.delete(np.arange(48), 5)
    np.testing.assert_array_equal(found.y, kept)
    value = {"A": -1.0, "G": -1.0 / 3.0, "C": 1.0 / 3.0, "T": 1.0}
    expected = [[value[first[i]], value[second[i]]] for i in kept]
    np.testing.assert_allclose(found.X, expected)


@pytest.mark.data
def test_splice_is_libsvms(shared_data: Path) -> None:
    """All but 40 of LIBSVM's 1,000 rows stand among UCI's, with the same class."""
    files = DataFiles((shared_data,))
    X, signs = two_classes(files.load("splice"), "splice")
    libsvm = files.load("splice_libsvm")
    keys = {tuple(np.rint(3 * row).astype(int)): sign for row, sign in zip(X, signs, strict=True)}
    found = [keys.get(tuple(np.rint(3 * row).astype(int))) for row in libsvm.X]
    assert sum(sign is None for sign in found) == 40
    ours = np.array([sign or 0.0 for sign in found])
    theirs = np.where(libsvm.y == 1, -1.0, 1.0)  # its 1 is UCI's N
    assert not (ours * theirs < 0).any()
    assert len(X) == 3_171


def test_the_sorting_baseline_projects_on_the_same_point() -> None:
    rng = np.random.default_rng(0)
    for radius in (0.5, 10.0, 1e6):
        for _ in range(20):
            b, d = rng.normal(size=rng.integers(2, 30)), rng.normal(size=rng.integers(2, 30))
            expected = project_bipartite_simplex(b, d, radius)
            for ours, theirs in zip(bipartite_by_sorting(b, d, radius), expected, strict=True):
                np.testing.assert_allclose(ours, theirs, atol=1e-12)
    empty = bipartite_by_sorting(np.array([-2.0]), np.array([1.0, -1.0]), 1.0)
    assert not np.concatenate(empty).any()


def test_single_multilabel_metrics_are_those_of_the_table_of_metrics() -> None:
    rng = np.random.default_rng(1)
    relevant, scores = rng.random((40, 7)) < 0.3, rng.normal(size=(40, 7))
    relevant[0] = False  # a row without labels
    expected = {
        **partition_metrics(relevant, scores > 0.4),
        "rank_loss": ranking_metrics(relevant, scores, (1,)).rank_loss,
    }
    for metric in METRICS.values():
        assert value_of(metric, relevant, scores, 0.4) == pytest.approx(expected[metric], abs=1e-12)
