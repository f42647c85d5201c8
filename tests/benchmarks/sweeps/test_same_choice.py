"""The benchmark that compares a sweep's choice with exhaustive ones runs at a small size."""

from __future__ import annotations

import pytest

from tests.benchmarks.sweeps.same_choice import COARSE, EXACT, SWEEP, main

pytestmark = pytest.mark.benchmarks

SIZES = ["--rows", "300", "--d", "16", "--m", "4", "--k", "1", "--folds", "2"]
WORDS = [*SIZES, "--unseen", "400", "--samples", "1"]


def test_a_choice_is_held_against_that_of_all_cells_one_by_one(tmp_path, capsys) -> None:
    (found,) = main([*WORDS, "--folder", str(tmp_path), "--C", "1e-3,1", "--losses", "topk_hinge"])
    assert set(found) == {SWEEP, COARSE, EXACT}
    # A C of 1e-3 learns next to nothing of these rows: every search tells it from one of 1.
    assert {one.cell.C for one in found.values()} == {1.0}
    assert found[EXACT].behind == found[SWEEP].behind == 0.0
    # One of four classes by chance.
    assert found[SWEEP].unseen > 0.28
    assert found[EXACT].passes > found[COARSE].passes > 0
    assert "sweep: the same cell 1 of 1 times" in capsys.readouterr().out
