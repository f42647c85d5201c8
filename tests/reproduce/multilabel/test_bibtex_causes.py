"""What `bibtex-causes` changes of the choice, beside scikit-learn and all that can be chosen."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import f1_score, precision_score, recall_score

from tests.reproduce import DataFiles
from tests.reproduce.multilabel.bibtex_causes import (
    by_cardinality,
    by_label,
    harmonic_f1,
    of_means,
    on_test_rows,
)
from tests.reproduce.multilabel.tables import LOSSES, METRICS, Scored, validated


@pytest.fixture
def found() -> Scored:
    """Two candidates of scores that know something of the labels."""
    rng = np.random.default_rng(0)
    relevant, wanted = (rng.random((60, 5)) < np.linspace(0.1, 0.5, 5) for _ in range(2))
    held = np.array([relevant + rng.normal(size=relevant.shape) * spread for spread in (0.5, 1.0)])
    final = [wanted + rng.normal(size=wanted.shape) * spread for spread in (0.5, 1.0)]
    return Scored(relevant, wanted, held, final)


def test_the_test_rows_choose_best_for_themselves(found: Scored) -> None:
    honest, best = validated(found), on_test_rows(found)
    for metric in METRICS.values():
        assert best[metric] <= honest[metric] if metric in LOSSES else best[metric] >= honest[metric]


def test_a_threshold_for_each_label_is_the_best_there_is(found: Scored) -> None:
    """Every threshold between two scores of a label is tried here; the first candidate knows more."""
    expected = []
    for own, scores, labels, last in zip(
        found.relevant.T, found.held[0].T, found.wanted.T, found.final[0].T, strict=True
    ):
        ranked = np.sort(scores)[::-1]
        cuts = 0.5 * (ranked[1:] + ranked[:-1])  # the highest of equally good ones
        best = cuts[np.argmax([f1_score(own, scores > cut) for cut in cuts])]
        expected.append(f1_score(labels, last > best))
    assert by_label(found) == {"f1_macro": pytest.approx(np.mean(expected), abs=1e-12)}


def test_macro_f1_of_means_is_that_of_scikit_learns_means(found: Scored) -> None:
    predicted = found.final[0] > 0.6
    means = [score(found.wanted, predicted, average="macro") for score in (precision_score, recall_score)]
    expected = 2.0 * means[0] * means[1] / sum(means)
    assert harmonic_f1(found.wanted, predicted) == pytest.approx(expected)
    # By Jensen's inequality the harmonic mean of means is no less than the mean of harmonic means.
    assert expected >= f1_score(found.wanted, predicted, average="macro")
    assert 0.0 < of_means(found)["f1_macro"] <= 1.0


def test_the_number_of_labels_is_met(found: Scored) -> None:
    assert set(by_cardinality(found)) == set(METRICS.values())
    same = Scored(found.relevant, found.relevant, found.held, list(found.held))
    perfect = Scored(found.relevant, found.wanted, found.relevant[None] * 1.0, [found.wanted * 1.0])
    assert by_cardinality(perfect)["f1_micro"] == 1.0
    assert by_cardinality(same)["f1_micro"] <= validated(same)["f1_micro"]


@pytest.mark.data
def test_the_file_is_divided_more_evenly_than_at_random(shared_data: Path) -> None:
    """Squared differences of the labels' shares, in those expected at random: 159 if it were random."""
    files = DataFiles((shared_data,))
    if not files.has("bibtex"):
        pytest.skip(f"no bibtex at {shared_data}: see python -m tests.reproduce --list")
    Y = files.load("bibtex").y
    share = Y.mean(axis=0)
    unit = share * (1.0 - share) * (1.0 / 4880 + 1.0 / 2515)

    def uneven(order: np.ndarray) -> float:
        first, rest = Y[order[:4880]].mean(axis=0), Y[order[4880:]].mean(axis=0)
        return float(np.sum((first - rest) ** 2 / unit))

    by_chance = [uneven(np.random.default_rng(seed).permutation(len(Y))) for seed in range(20)]
    assert 140 < np.mean(by_chance) < 180
    assert uneven(np.arange(len(Y))) == pytest.approx(102.5, abs=0.1)
    assert min(by_chance) > 110
