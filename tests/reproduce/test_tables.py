from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from tests.reference.euclidean import project_bipartite_simplex
from tests.reproduce import SOURCES, TABLES, DataFiles, Effort, Figure, Reproduction, Setting, reproduce
from tests.reproduce.multilabel import METRICS, value_of
from tests.reproduce.page import render
from tests.reproduce.scaling import bipartite_by_sorting
from tests.reproduce.stand_ins import WRITERS
from tests.reproduce.table import over_splits
from topline.solvers.estimators.multilabel_metrics import partition_metrics, ranking_metrics

PAPERS = ("Hirohashi and Kato", "Lapin", "Fan et al.", "Tajima et al.")


def test_every_data_set_has_a_stand_in() -> None:
    assert set(WRITERS) == set(SOURCES)


@pytest.mark.parametrize("name", TABLES)
def test_a_table_says_where_it_is_from_and_runs(name: str, stand_ins: Path) -> None:
    table = TABLES[name]
    assert table.source.startswith(PAPERS)
    found = reproduce(table, Setting(DataFiles((stand_ins,)), Effort.TINY))
    check_contract(found)
    page = render(table, found)
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
