"""Which cells of a path are looked at, on curves of accuracy that are known."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from topline.pipeline.options import Cell, Variant
from topline.pipeline.sweep.cells import Outcome, still_needed
from topline.pipeline.sweep.race import Standing, due, skipped

ROWS, FOLDS = 10_000, 2
LOSS, OTHER = Variant("topk_hinge", 1, 0.0), Variant("softmax", None, 0.0)


def ended(one, mean):
    parts = tuple(
        Outcome(one.cell.C, fold, ROWS, mean * ROWS, 0, ROWS, 1.0, 0.01, 0.01, 5, 0.1, "solved")
        for fold in range(FOLDS)
    )
    return replace(one, rounds=(parts,), state="finished")


def looked_at(curve, places, variant=LOSS):
    """Take a path of so many C, a decade apart, to its end; returns the places in the order of looking."""
    cells = [Standing(Cell(variant, 10.0**place), FOLDS) for place in range(places)]
    order = []
    while asked := due(cells, "race"):
        order.append([round(math.log10(one.cell.C)) for one in asked])
        cells = [ended(one, curve(math.log10(one.cell.C))) if one in asked else one for one in cells]
        cells = skipped(cells, "race")
    assert not any(one.state == "running" for one in cells)
    return order, cells


@pytest.mark.parametrize("places", [11, 30, 45])
@pytest.mark.parametrize("top", [0.0, 0.2, 0.5, 0.61, 0.9, 1.0])
@pytest.mark.parametrize("bend", [0.02, 0.4])
def test_the_best_of_a_concave_curve_is_found_and_few_cells_are_looked_at(places, top, bend) -> None:
    """To half a standard error, 0.0018 at most of so many rows."""

    def curve(x):
        return 0.9 - bend * (x / (places - 1) - top) ** 2

    order, cells = looked_at(curve, places)
    best = max(curve(place) for place in range(places))
    found = max(one.mean for one in cells if one.rounds)
    assert found >= best - 0.5 * math.sqrt(0.9 * 0.1 / (FOLDS * ROWS))
    assert sum(map(len, order)) <= 12
    assert sum(map(len, order)) < places or top == 1.0


def test_the_largest_C_come_last_and_only_while_the_curve_rises() -> None:
    order, cells = looked_at(lambda x: 0.9 - 0.01 * abs(x - 7), 11)
    assert order == [[0, 2, 4, 6], [7], [8]]
    assert [round(math.log10(one.cell.C)) for one in cells if one.state == "skipped"] == [1, 3, 5, 9, 10]
    assert {one.why for one in cells if one.state == "skipped"} == {"race: no better than its neighbours"}
    order, _ = looked_at(lambda x: 0.5 + 0.03 * x, 11)
    assert order[-1] == [10]


def test_short_paths_and_the_other_rules_leave_nothing_out() -> None:
    cells = [Standing(Cell(LOSS, 10.0**place), FOLDS) for place in range(5)]
    assert due(cells, "race") == cells
    cells += [Standing(Cell(LOSS, 10.0**place), FOLDS) for place in range(5, 45)]
    for rule in ("certificate", "none"):
        assert due(cells, rule) == cells
        done = [ended(one, 0.9 - 0.01 * place) if place < 5 else one for place, one in enumerate(cells)]
        assert skipped(done, rule) == done


def test_the_best_of_all_paths_counts_and_a_path_waits_for_what_it_has_begun() -> None:
    good = [ended(Standing(Cell(OTHER, 1.0), FOLDS), 0.95)]
    poor = [Standing(Cell(LOSS, 10.0**place), FOLDS) for place in range(11)]
    begun = [ended(one, 0.6) if place in (0, 2, 4, 6) else one for place, one in enumerate(poor)]
    after = skipped([*good, *begun], "race")
    assert [one.state for one in after].count("skipped") == 7
    waiting = [replace(one, state="running") if place == 4 else one for place, one in enumerate(begun)]
    assert skipped([*good, *waiting], "race") == [*good, *waiting]
    assert due(waiting, "race") == [waiting[4]]


def test_what_no_waiting_cell_starts_from_is_forgotten() -> None:
    """Kept are the cells that go on, and of each waiting one the next smaller that is known."""
    assert still_needed([0.1, 1.0, 10.0, 100.0], [10.0, 30.0]) == {1.0, 10.0}
    assert still_needed([1.0, 10.0], [0.5, 1.0]) == {1.0}
    assert still_needed([1.0, 10.0], []) == set()
