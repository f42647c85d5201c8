"""Which cells end and why, decided on measurements made by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import binom, hypergeom

from topline.pipeline.options.sweep import Cell, Variant
from topline.pipeline.sweep.cells import Outcome
from topline.pipeline.sweep.race import (
    FACTOR,
    FIRST_GAP,
    Standing,
    best_cell,
    contested,
    grown,
    judged,
    lead,
    may_go_on,
    next_step,
    simplest_cell,
)

ROWS = 1000
LOSS = Variant("topk_hinge", 1, 0.0)


def a_part(fold, hits, gap=0.01, low=0, high=ROWS, status="solved", earlier=None, by_group=(0.0, 0.0)):
    return Outcome(1.0, fold, ROWS, hits, low, high, 1.0, gap, gap, 5, 0.1, status, earlier, by_group)


def a_round(hits, **known):
    return tuple(a_part(fold, h, **known) for fold, h in enumerate(hits))


def standing(C, *rounds):
    return Standing(Cell(LOSS, C), 5, tuple(rounds))


def looks_at(C, *hits, **known):
    """Return a cell that was looked at on the first fold, each time with so many hits."""
    one = Standing(Cell(LOSS, C), 5)
    for found in hits:
        one = grown(one, [a_part(0, found, **known)], "race")
    return one


def states(standings, rule="race", tol=1e-3, confidence=0.95):
    return [(one.state, one.why) for one in judged(standings, rule, tol, confidence)]


def test_a_cell_whose_upper_bound_is_below_a_lower_one_is_out_and_narrow_bounds_finish() -> None:
    best = standing(1.0, a_round([900] * 5, low=880, high=920))
    worse = standing(0.1, a_round([800] * 5, low=700, high=879))
    open_ = standing(0.01, a_round([800] * 5, low=700, high=881))
    exact = standing(10.0, a_round([905] * 5, low=901, high=902))
    found = states([best, worse, open_], rule="certificate")
    assert found == [("running", ""), ("pruned", "certificate: cannot be the best"), ("running", "")]
    assert states([exact], rule="certificate") == [("finished", "certificate: no finer answer can matter")]
    assert states([best, worse, exact], rule="none") == [("running", "")] * 3


OUT = ("pruned", "race: behind after 1 of 5 folds")


def differing(plus, minus):
    """Return the hits by group of two cells: alone right on so many rows, each in a group of its own."""
    shared = np.full(50, 18.0)
    ours = shared + (np.arange(50) < plus)
    return tuple(ours), tuple(shared + (np.arange(50) >= 50 - minus))


@pytest.mark.parametrize(("plus", "minus"), [(0, 0), (3, 0), (7, 0), (12, 2), (20, 8), (24, 6), (25, 20)])
def test_the_race_is_an_exact_test_of_the_rows_on_which_one_of_two_is_right(plus, minus) -> None:
    """Counted in full: one of two cells that look at one, two and four folds is out after the first."""
    ours, theirs = differing(plus, minus)
    ahead = looks_at(1.0, 900 + plus, gap=1e-3, by_group=ours)
    behind = looks_at(2.0, 900 + minus, gap=1e-3, by_group=theirs)
    share = (901 + plus) / 1002
    ignored = 0.5 * (share * (1 - share) / 5000) ** 0.5 * 5000
    for confidence in (0.55, 0.7, 0.85, 0.95, 0.999):
        chance, seen = (1.0 - confidence) / 3, plus + minus
        counts = np.arange(seen, 5001)
        most = counts[binom.cdf(seen, counts, 0.2) >= chance / 2].max() + 1
        own = int((most - ignored) // 2)
        rare = own < plus or hypergeom.sf(plus - 1, most, own, seen) <= chance / 2
        assert (states([ahead, behind], confidence=confidence)[1] == OUT) is bool(rare), confidence
    assert states([ahead, behind], rule="certificate", confidence=0.51) == [("running", "")] * 2


def test_a_cell_alone_in_its_race_runs_on() -> None:
    assert states([looks_at(1.0, 902, 902)]) == [("running", "")]


def test_what_moves_may_move_on_and_who_is_out_puts_nobody_out() -> None:
    ours, theirs = differing(40, 2)
    ahead, behind = looks_at(1.0, 890, 940, by_group=ours), looks_at(0.1, 899, 902, by_group=theirs)
    assert not ahead.settled(1e-3)
    assert behind.settled(1e-3)
    assert states([ahead, behind]) == [("running", "")] * 2
    assert states([looks_at(1.0, 939, 940, by_group=ours), behind])[1] == OUT
    # What has never been seen moving may still go anywhere.
    settled, once = looks_at(1.0, 939, 940, by_group=ours), looks_at(0.1, 902, by_group=theirs)
    assert states([settled, once], confidence=0.51)[1] == ("running", "")
    assert states([settled, once], tol=0.01, confidence=0.51)[1] == OUT
    # Who is out puts nobody else out, and who leads stays.
    gone = replace(looks_at(5.0, 999, 999, by_group=ours), state="pruned")
    assert states([gone, behind])[1] == ("running", "")
    # Answers of older versions do not say how groups did.
    assert states([looks_at(1.0, 940, 940, by_group=()), behind], confidence=0.51)[1] == ("running", "")


def test_of_cells_that_lead_each_other_in_a_circle_one_stays() -> None:
    """On the folds that two have seen the first leads the last, the last the second, the second the first."""
    hits = {0.1: [880], 1.0: [890, 920], 10.0: [870, 960, 950, 920]}
    cells = [
        Standing(Cell(LOSS, C), 8, (a_round(found),) if len(found) > 1 else (), looks=a_round(found)[:1])
        for C, found in hits.items()
    ]
    assert lead(cells[0], cells[2]) > 0.0
    assert lead(cells[2], cells[1]) > 0.0
    out = ("pruned", "race: behind after 1 of 8 folds")
    assert states(cells, tol=0.01, confidence=0.51) == [
        out,
        ("pruned", "race: behind after 2 of 8 folds"),
        ("running", ""),
    ]


def test_leads_are_compared_on_the_folds_that_both_have_seen() -> None:
    """A cell with all folds leads one of the first fold by what both have there."""
    whole, first = standing(1.0, a_round([700, 900, 900, 900, 900])), looks_at(0.1, 690)
    assert lead(whole, first) == 0.01
    assert lead(first, whole) == -0.01
    # Who has seen all folds is finished, however far behind.
    far = standing(0.1, a_round([100] * 5, earlier=100))
    assert states([whole, far]) == [("finished", "settled")] * 2


@pytest.mark.parametrize(
    ("cells", "only_best", "only_others"), [(2, 12, 0), (2, 15, 3), (2, 215, 200), (6, 14, 2)]
)
def test_the_best_is_lost_by_chance_as_seldom_as_it_says(cells, only_best, only_others) -> None:
    """The first of some cells is better by a row more than is ignored, and is out in 1 of 20 draws at most.

    On `only_best` rows it alone is right, and on `only_others` of their own each of the others.
    """
    rng, wrong = np.random.default_rng(0), 0
    draws, groups, folds = 300, 50, 5
    for _ in range(draws):
        right, order = np.ones((cells, ROWS * folds), dtype=bool), rng.permutation(ROWS * folds)
        right[:, order[:500]] = False
        for other in range(1, cells):
            mine, theirs, order = np.split(
                order[500 if other == 1 else 0 :], [only_best, only_best + only_others]
            )
            right[other, mine] = False
            right[:, theirs] = (np.arange(cells) == other)[:, None]
        group = rng.integers(groups, size=ROWS)

        def seen(fold, mine, group=group):
            hit = mine[fold * ROWS :][:ROWS]
            by_group = tuple(np.bincount(group[hit], minlength=groups).astype(float))
            return a_part(fold, int(hit.sum()), gap=1e-3, by_group=by_group)

        found = [Standing(Cell(LOSS, float(cells - place)), folds) for place in range(cells)]
        while any(one.state == "running" for one in found):
            for place, one in enumerate(found):
                if one.state == "running":
                    parts = [seen(fold, right[place]) for fold in next_step(one, "race", 1e-3)[0]]
                    found[place] = grown(one, parts, "race")
            found = judged(found, "race", 1e-3, 0.95)
        assert right[0].sum() - right[1:].sum(axis=1).max() > found[0].resolution * ROWS * folds
        wrong += found[0].state == "pruned"
    assert wrong / draws < 0.05 + 2 * (0.05 * 0.95 / draws) ** 0.5


def test_a_cell_has_settled_when_a_smaller_gap_moved_it_by_half_a_standard_error_at_most() -> None:
    half = 0.5 * (0.9 * 0.1 / ROWS) ** 0.5  # 0.0047 of 1000 rows: 4.7
    assert half == pytest.approx(4.7 / ROWS, rel=1e-2)
    assert looks_at(1.0, 896, 900).settled(1e-3)
    assert not looks_at(1.0, 895, 900).settled(1e-3)
    # The first look has moved from where its gap was `EARLIER` times as large, if it ever was.
    assert looks_at(1.0, 900, earlier=904).settled(1e-3)
    assert not looks_at(1.0, 900).settled(1e-3)
    assert looks_at(1.0, 900).settled(0.01)
    assert looks_at(1.0, 900, status="max_passes").settled(1e-3)


def test_the_tolerance_budgets_and_overflows_end_a_cell_by_every_rule() -> None:
    for rule in ("race", "certificate", "none"):
        assert states([standing(1.0, a_round([900] * 5, gap=1e-3))], rule) == [("finished", "tolerance")]
        short = standing(1.0, a_round([900] * 5, status="max_passes"))
        assert states([short], rule) == [("finished", "stopped short: max_passes")]
        failed = standing(1.0, a_round([0] * 5, gap=float("nan"), status="nonfinite"))
        assert states([failed], rule) == [("pruned", "failed: the numbers overflowed")]
    failed = looks_at(1.0, 0, status="nonfinite")
    assert states([failed, looks_at(2.0, 900)]) == [
        ("pruned", "failed: the numbers overflowed"),
        ("running", ""),
    ]


def test_a_cell_whose_numbers_overflow_later_keeps_what_it_took_before() -> None:
    whole = standing(1.0, a_round([900] * 5), a_round([0] * 5, status="nonfinite"))
    looked = replace(looks_at(1.0, 880, 900), rounds=whole.rounds)
    for one in (whole, looked, looks_at(1.0, 900, 0, status="nonfinite")):
        (failed,) = judged([one], "race", 1e-3, 0.95)
        assert failed.state == "pruned"
        assert (failed.passes, failed.seconds) == (one.passes, one.seconds)
        assert failed.parts == one.parts


def test_gaps_fall_by_a_factor_from_where_the_worst_fold_is_and_never_below_the_tolerance() -> None:
    fresh, every = standing(1.0), range(5)
    assert next_step(fresh, "certificate", 1e-3) == (every, FIRST_GAP)
    assert next_step(fresh, "none", 1e-3) == (every, 1e-3)
    mixed = standing(1.0, (*a_round([1] * 4, gap=0.01), a_part(4, 1, gap=0.02)))
    assert next_step(mixed, "certificate", 1e-3) == (every, 0.02 / FACTOR)
    assert next_step(mixed, "certificate", 0.01) == (every, 0.01)


def test_a_race_looks_at_the_first_fold_until_it_has_settled_then_at_as_many_more_as_it_has_seen() -> None:
    """On other folds it goes at once to the gap that was small enough on the first."""
    assert next_step(standing(1.0), "race", 1e-3) == (range(1), FIRST_GAP)
    one = grown(standing(1.0), [a_part(0, 850, gap=0.08)], "race")
    assert next_step(one, "race", 1e-3) == (range(1), 0.04)
    one = grown(one, [a_part(0, 840, gap=0.03)], "race")
    assert next_step(one, "race", 1e-3) == (range(1), 0.015)
    one = grown(one, [a_part(0, 842, gap=0.004)], "race")
    assert next_step(one, "race", 1e-3) == (range(1, 2), 0.03)
    assert (one.mean, one.passes, one.parts[0].earlier) == (0.842, 15, 840)
    one = grown(one, [a_part(1, 862)], "race")
    assert next_step(one, "race", 1e-3) == (range(2, 4), 0.03)
    one = grown(one, [a_part(fold, 852) for fold in (2, 3)], "race")
    assert next_step(one, "race", 1e-3) == (range(4, 5), 0.03)
    one = grown(one, [a_part(4, 852)], "race")
    assert (one.mean, one.passes, len(one.rounds)) == (0.852, 35, 1)
    assert next_step(looks_at(1.0, 900, earlier=900), "race", 1e-3) == (range(1, 2), 0.02)


def test_cells_that_are_as_good_as_the_best_and_still_moved_take_one_round_more() -> None:
    """Half a standard error of 5000 rows at 0.9 is 0.0021, 10.6 rows."""

    def went_on(*cells, rule="race"):
        return [one.cell.C for one in contested(cells, rule) if one.state == "running"]

    rounds = [a_round([hits] * 5, earlier=hits - 3) for hits in (900, 898, 897)]
    cells = [standing(C, one) for C, one in zip((1.0, 2.0, 3.0), rounds, strict=True)]
    best, near, far = judged(cells, "race", 1e-3, 0.95)
    assert {one.why for one in (best, near, far)} == {"settled"}
    assert went_on(best, near, far) == [1.0, 2.0]
    assert went_on(best, far) == []
    assert went_on(best, near, rule="certificate") == []
    assert went_on(best, near, looks_at(0.1, 900)) == [0.1]
    again = replace(best, state="running")
    assert next_step(again, "race", 1e-3) == (range(5), 0.01 / FACTOR)
    settled = judged([grown(again, a_round([890] * 5), "race")], "race", 1e-3, 0.95)[0]
    # Once is enough: no cell comes back a second time, and its dual variables are let go.
    assert (settled.state, settled.why, settled.mean) == ("finished", "settled", 0.89)
    assert went_on(settled, near) == []
    assert went_on(replace(settled, rounds=again.rounds * 2), near) == [2.0]
    assert [may_go_on(one, "race") for one in (best, again, settled)] == [True, True, False]
    for exact in (replace(near, why="tolerance"), replace(near, rounds=(a_round([898] * 5, earlier=896),))):
        assert went_on(best, exact) == [1.0]


def test_the_best_is_the_highest_and_the_simplest_the_smallest_C_within_its_standard_error() -> None:
    def ended(C, hits, state="finished"):
        return replace(standing(C, a_round(hits)), state=state)

    best = ended(10.0, [890, 910, 900, 880, 920])  # standard error 0.0071
    tied = ended(30.0, [900] * 5)
    near, far = ended(1.0, [893] * 5), ended(0.1, [892] * 5)
    out = ended(100.0, [950] * 5, "pruned")
    # Few rows of an easy fold make no cell as good as the best of all folds.
    easy = ended(0.01, [990], "pruned")
    other = Standing(Cell(Variant("softmax", None, 0.0), 0.01), 5, near.rounds, "finished")
    cells = [easy, far, near, best, tied, out, other]
    assert best_cell(cells) is best
    assert simplest_cell(cells, best) is near
    assert best_cell([out]) is None
    assert easy.error == pytest.approx((0.99 * 0.01 / ROWS) ** 0.5, rel=0.1)
