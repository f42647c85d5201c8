"""Which cells end and why, decided on measurements made by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from scipy.stats import norm
from scipy.stats import t as student

from topline.pipeline.options.sweep import Cell, Variant
from topline.pipeline.sweep.cells import Outcome
from topline.pipeline.sweep.race import (
    FACTOR,
    FIRST_GAP,
    Standing,
    best_cell,
    judged,
    looked,
    looks_again,
    next_gap,
    out_at_first_look,
    promoted,
    simplest_cell,
)

ROWS = 1000
LOSS = Variant("topk_hinge", 1, 0.0)


def a_round(hits, gap=0.01, low=0, high=ROWS, status="solved", earlier=None):
    return tuple(
        Outcome(1.0, fold, ROWS, h, low, high, 1.0, gap, gap, 5, 0.1, status, earlier)
        for fold, h in enumerate(hits)
    )


def standing(C, *rounds):
    return Standing(Cell(LOSS, C), tuple(rounds))


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


def test_the_race_is_the_corrected_paired_test_less_what_both_still_move() -> None:
    """At the edge of the rule: mean(d) - u - v against t sd sqrt(1/J + 1/(J - 1))."""
    # d = 60, 40, 60, 40, 50 of 1000: mean 0.05, sd 0.01; both moved by 0.01 on the way.
    ahead = standing(1.0, a_round([910, 890, 910, 890, 900], earlier=890))
    behind = standing(0.1, a_round([850] * 5, earlier=840))
    limit = (0.05 - 0.01 - 0.01) / (0.01 * (1 / 5 + 1 / 4) ** 0.5)
    edge = float(student.cdf(limit, 4))
    assert states([ahead, behind], confidence=edge + 1e-4)[1] == ("running", "")
    assert states([ahead, behind], confidence=edge - 1e-4) == [
        ("running", ""),
        ("pruned", "race: behind the best"),
    ]
    assert states([ahead, behind], rule="certificate", confidence=0.51)[1] == ("running", "")
    never_seen_moving = standing(0.1, a_round([100] * 5))
    assert states([ahead, never_seen_moving])[1] == ("running", "")
    # One that is out puts nobody else out.
    gone = replace(standing(5.0, a_round([999] * 5, earlier=999)), state="pruned")
    assert states([gone, ahead])[1] == ("running", "")


def test_a_cell_is_settled_when_a_smaller_gap_moved_it_by_half_a_standard_error_at_most() -> None:
    half = 0.5 * (0.9 * 0.1 / 5000) ** 0.5  # 0.0021 of 5000 rows: 10.6
    assert half == pytest.approx(10.6 / 5000, rel=1e-2)
    still = standing(1.0, a_round([900] * 5), a_round([900, 900, 900, 905, 905]))
    moving = standing(1.0, a_round([900] * 5), a_round([900, 900, 900, 905, 907]))
    assert states([still]) == [("finished", "settled")]
    assert states([moving]) == [("running", "")]
    # A first round has moved from where its gap was `EARLIER` times as large, if it ever was.
    assert states([standing(1.0, a_round([900] * 5, earlier=898))]) == [("finished", "settled")]
    assert states([standing(1.0, a_round([900] * 5, earlier=897))]) == [("running", "")]
    assert states([standing(1.0, a_round([900] * 5))]) == [("running", "")]


def test_the_tolerance_budgets_and_overflows_end_a_cell_by_every_rule() -> None:
    for rule in ("race", "certificate", "none"):
        assert states([standing(1.0, a_round([900] * 5, gap=1e-3))], rule) == [("finished", "tolerance")]
        short = standing(1.0, a_round([900] * 5, status="max_passes"))
        assert states([short], rule) == [("finished", "stopped short: max_passes")]
        failed = standing(1.0, a_round([0] * 5, gap=float("nan"), status="nonfinite"))
        assert states([failed], rule) == [("pruned", "failed: the numbers overflowed")]


def test_gaps_fall_by_a_factor_from_where_the_worst_fold_is_and_never_below_the_tolerance() -> None:
    fresh = standing(1.0)
    assert [next_gap(fresh, rule, 1e-3) for rule in ("race", "certificate", "none")] == [
        FIRST_GAP,
        FIRST_GAP,
        1e-3,
    ]
    mixed = standing(1.0, (*a_round([1] * 4, gap=0.01), *a_round([1], gap=0.02)))
    assert next_gap(mixed, "race", 1e-3) == 0.02 / FACTOR
    assert next_gap(mixed, "race", 0.01) == 0.01


def test_the_best_is_the_highest_and_the_simplest_the_smallest_C_within_its_standard_error() -> None:
    def ended(C, hits, state="finished"):
        return replace(standing(C, a_round(hits)), state=state)

    best = ended(10.0, [890, 910, 900, 880, 920])  # standard error 0.0071
    tied = ended(30.0, [900] * 5)
    near, far = ended(1.0, [893] * 5), ended(0.1, [892] * 5)
    out = ended(100.0, [950] * 5, "pruned")
    other = Standing(Cell(Variant("softmax", None, 0.0), 0.01), near.rounds, "finished")
    cells = [far, near, best, tied, out, other]
    assert best_cell(cells) is best
    assert simplest_cell(cells, best) is near
    assert best_cell([out]) is None


def a_look(hits, gap=0.01, status="solved"):
    return Outcome(1.0, 0, ROWS, hits, 0, ROWS, 1.0, gap, gap, 5, 0.1, status)


def looks_at(C, *hits, gap=0.01, status="solved"):
    one = Standing(Cell(LOSS, C))
    for found in hits:
        one = looked(one, a_look(found, gap, status))
    return one


def test_a_cell_that_trails_on_the_first_fold_is_looked_at_again_or_out_and_others_go_to_all_folds() -> None:
    """Chance: 1.645 sqrt(0.9 * 0.1 / 1000 + 0.85 * 0.15 / 1000) = 0.0243, of shares of 1000 rows each."""
    ahead = looks_at(1.0, 900, 900)
    limit = norm.ppf(0.95) * (0.9 * 0.1 / ROWS + 0.85 * 0.15 / ROWS) ** 0.5
    assert limit == pytest.approx(0.0243, abs=1e-4)

    def ends(*cells, tol=1e-3):
        return [(one.state, one.why) for one in out_at_first_look([ahead, *cells], tol, 0.95)[1:]]

    # 0.05 behind: less 0.02 that it moved it is beyond chance, less 0.03 not.
    out, open_ = looks_at(0.1, 830, 850), looks_at(0.1, 820, 850)
    assert ends(out, open_) == [("pruned", "race: behind on the first fold"), ("running", "")]
    # One look from zero has no movement that would be known, unless the gap is small enough.
    assert ends(looks_at(0.1, 850)) == [("running", "")]
    assert ends(looks_at(0.1, 850), tol=0.01) == [("pruned", "race: behind on the first fold")]
    cells = [ahead, open_]
    assert looks_again(open_, cells, 1e-3, 0.95)
    assert looks_again(Standing(Cell(LOSS, 1.0)), cells, 1e-3, 0.95)
    for enough in (
        ahead,
        looks_at(0.1, 820, 880),
        looks_at(0.1, 850, gap=1e-3),
        looks_at(0.1, 1, status="x"),
    ):
        assert not looks_again(enough, cells, 1e-3, 0.95)
    assert next_gap(open_, "race", 1e-3) == 0.01 / FACTOR


def test_a_cell_that_is_out_at_first_has_one_fold_and_one_that_is_not_has_all() -> None:
    ahead, behind = looks_at(1.0, 900, 900), looks_at(0.1, 700, 700)
    out = out_at_first_look([ahead, behind], 1e-3, 0.95)[1]
    assert (out.mean, out.passes, len(out.rounds)) == (0.7, 10, 1)
    assert out.error == pytest.approx((0.7 * 0.3 / ROWS) ** 0.5, rel=1e-2)
    whole = promoted(ahead, a_round([910, 890])[1:])
    assert (whole.mean, whole.passes, [part.hits for part in whole.rounds[-1]]) == (0.895, 15, [900, 890])
    # The last look knows where the one before was.
    assert whole.rounds[-1][0].earlier == 900
    # Few rows of an easy fold make no cell as good as the best of all folds.
    best = replace(standing(1.0, a_round([800] * 5)), state="finished")
    easy = replace(out, rounds=((a_look(990),),))
    assert simplest_cell([easy, best], best) is best
