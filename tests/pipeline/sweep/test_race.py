"""Which cells end and why, decided on measurements made by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import t as student

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


def test_the_race_is_a_paired_test_over_groups_of_rows_on_the_folds_to_come() -> None:
    """At the edge of the rule: L - u - v against t sqrt((1 - s) G/(G-1) sum (d_g - mean)^2) / rows - e."""
    ours, theirs = [450.0, 440.0, 10.0], [420.0, 430.0, 0.0]
    ahead, behind = looks_at(1.0, 890, 900, by_group=ours), looks_at(0.1, 840, 850, by_group=theirs)
    # Both are unsettled: half a standard error of 1000 rows at 0.9 is 0.0047, of all 5000 rows 0.0021.
    assert not ahead.settled(1e-3)
    half = 0.5 * (0.9 * 0.1 / 5000) ** 0.5
    spread = (0.8 * 3 / 2 * sum((d - 50 / 3) ** 2 for d in (30.0, 10.0, 10.0))) ** 0.5 / ROWS
    edge = float(student.cdf((0.05 - 0.02 + half) / spread, 2))
    out = ("pruned", "race: behind after 1 of 5 folds")
    assert states([ahead, behind], confidence=edge + 2e-3) == [("running", "")] * 2
    assert states([ahead, behind], confidence=edge - 2e-3) == [("running", ""), out]
    assert states([ahead, behind], rule="certificate", confidence=0.51) == [("running", "")] * 2
    # What has settled moves no further; what has never been seen moving may still go anywhere.
    still = looks_at(0.1, 847, 850, by_group=theirs)
    assert states([looks_at(1.0, 899, 900, by_group=ours), still], confidence=edge + 2e-3)[1] == out
    once = looks_at(0.1, 850, by_group=theirs)
    assert states([ahead, once], confidence=0.51)[1] == ("running", "")
    assert states([ahead, once], tol=0.01, confidence=0.51)[1] == out
    # Who is out puts nobody else out, and who leads stays, also of two that are alike.
    gone = replace(looks_at(5.0, 999, 999, by_group=ours), state="pruned")
    assert states([gone, ahead])[1] == ("running", "")
    twins = [looks_at(C, 900, 900, by_group=ours) for C in (1.0, 0.1)]
    assert states(twins) == [out, ("running", "")]
    # Answers of older versions do not say how groups did.
    assert states([looks_at(1.0, 900, 900, by_group=()), still], confidence=0.51)[1] == ("running", "")


def test_of_cells_that_lead_each_other_in_a_circle_one_stays() -> None:
    """On the folds that two have seen the first leads the last, the last the second, the second the first."""
    hits = {0.1: [880], 1.0: [880, 920], 10.0: [870, 950, 950, 920]}
    cells = [
        Standing(Cell(LOSS, C), 8, (a_round(found),) if len(found) > 1 else (), looks=a_round(found)[:1])
        for C, found in hits.items()
    ]
    assert lead(cells[0], cells[2]) > 0.0
    assert lead(cells[2], cells[1]) > 0.0
    out = ("pruned", "race: behind after 1 of 8 folds")
    assert states(cells, tol=0.01) == [out, ("pruned", "race: behind after 2 of 8 folds"), ("running", "")]


def test_leads_are_compared_on_the_folds_that_both_have_seen() -> None:
    """A cell with all folds leads one of the first fold by what both have there."""
    whole, first = standing(1.0, a_round([700, 900, 900, 900, 900])), looks_at(0.1, 690)
    assert lead(whole, first) == 0.01
    assert lead(first, whole) == -0.01
    # Who has seen all folds is finished, however far behind.
    far = standing(0.1, a_round([100] * 5, earlier=100))
    assert states([whole, far]) == [("finished", "settled")] * 2


def test_the_test_puts_the_better_of_two_out_as_seldom_as_it_says() -> None:
    """Two cells as good as each other, less what is ignored: one of them is out in 1 of 20 draws or fewer."""
    rng, wrong = np.random.default_rng(0), 0
    draws, groups, folds = 400, 50, 5
    for _ in range(draws):
        # On every row one of two that differ is right, the second by e more often than the first.
        differs = rng.random(ROWS * folds) < 0.2
        shift = 0.5 * (0.9 * 0.1 / (ROWS * folds)) ** 0.5 / 0.2
        first = differs & (rng.random(ROWS * folds) < 0.5 - shift)
        second = differs & ~first
        group = rng.integers(groups, size=ROWS)

        def look(C, right, group=group):
            seen = right[:ROWS]
            by_group = tuple(np.bincount(group[seen], minlength=groups).astype(float))
            return looks_at(C, *[800 + int(seen.sum())] * 2, by_group=by_group)

        after = judged([look(1.0, first), look(2.0, second)], "race", 1e-3, 0.95)
        wrong += after[1].state == "pruned" and second.sum() - first.sum() > 0
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
