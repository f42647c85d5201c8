"""Which cells of a sweep end and why, which are looked at, and what they may hold."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy.stats import binom, hypergeom

from tests.solvers.problems import Requests
from topline import Softmax, TopKHinge
from topline.pipeline.cluster.memory_plan import FILLED, MIB, WORKER_BYTES
from topline.pipeline.options import ClusterConfig, TrainConfig
from topline.pipeline.options.sweep import Cell, Variant
from topline.pipeline.sweep.plan import SharedMemory
from topline.pipeline.sweep.race import (
    COARSE,
    EARLIER,
    FACTOR,
    FIRST_GAP,
    ROUNDED,
    Glance,
    Outcome,
    Path,
    Standing,
    advance_cell,
    best_cell,
    contested,
    due,
    grown,
    judged,
    lead,
    may_go_on,
    next_step,
    simplest_cell,
    skipped,
    still_needed,
)
from topline.solvers.blocks import swept_bytes
from topline.solvers.core.held_out import HitCount
from topline.solvers.core.problem import Problem
from topline.solvers.operations import Ascend, Evaluate, Rebuild, most_open

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


N, D, M = 400, 12, 4


class Rows:
    """Rows without any that are held out, which note what they are asked; A begins as that of any cell."""

    def __init__(self, executor):
        self.executor, self.radii = executor, []

    def start_from(self, before, problem):
        return before.best_multiple(problem)[1]

    def go_on(self, known, problem):
        raise NotImplementedError

    def count(self, W, radius):
        self.radii.append(radius)
        return HitCount(1, 0, 0, 0)

    def duals(self, state):
        """Return nothing: `start_from` takes what the executor has."""


@pytest.mark.parametrize(("goal", "tol", "certified"), [(0.01, 1e-3, False), (2e-3, 2e-3, True)])
def test_float64_is_for_the_tolerance_and_rounding_is_part_of_a_coarser_gap(goal, tol, certified) -> None:
    random = np.random.default_rng(0)
    y = (np.arange(N) % M).astype(np.int32)
    X = (random.standard_normal((M, D))[y] + random.standard_normal((N, D))).astype(np.float32)
    problem = Problem(TopKHinge(2), N, D, M, 1.0 / N)
    config = TrainConfig(store="memory", C=1.0, method="dual_ascent", tol=tol)
    with Requests() as executor:
        executor.bind(problem, X, y, keep_duals=True)
        rows, path = Rows(executor), Path()
        outcome = advance_cell(rows, path, problem, config, (1.0, goal, 0), 1.0)
    exact = [one for one in executor.seen if isinstance(one, Rebuild)]
    exact += [one for one in executor.seen if isinstance(one, Evaluate) and one.exact]
    assert bool(exact) is certified
    share = 0.0 if certified else ROUNDED
    assert COARSE <= outcome.relative_gap <= goal
    reached = path.cells[1.0]
    assert outcome.gap == reached.primal - reached.dual + share * abs(reached.primal)
    assert rows.radii[0] == pytest.approx(np.sqrt(outcome.gap / problem.lam))


@pytest.mark.parametrize(
    ("loss", "times", "measured"), [(Softmax(), 2.0, 0), (Softmax(), 1.1, 1), (TopKHinge(2), 2.0, 1)]
)
def test_an_entropy_that_starts_from_a_much_smaller_C_is_not_measured_there(loss, times, measured) -> None:
    """One sweep leaves it far behind; a hinge may start within the gap already."""
    random = np.random.default_rng(0)
    y = (np.arange(N) % M).astype(np.int32)
    X = (random.standard_normal((M, D))[y] + random.standard_normal((N, D))).astype(np.float32)
    config = TrainConfig(store="memory", C=1.0, method="dual_ascent", max_passes=4)
    first, zero = Problem(loss, N, D, M, 100.0 / N), np.log(M)
    with Requests() as executor:
        executor.bind(first, X, y, keep_duals=True)
        rows, path = Rows(executor), Path()
        advance_cell(rows, path, first, config, (0.01, 0.1, 0), zero)
        C = 0.01 * times
        executor.seen.clear()
        advance_cell(rows, path, Problem(loss, N, D, M, 1.0 / (N * C)), config, (C, 1e-3, 0), zero)
    kinds = [type(request) for request in executor.seen]
    assert kinds.index(Ascend) == measured


@pytest.mark.parametrize(
    ("gaps", "seen"),
    [
        ((0.9, 0.3, EARLIER * 0.05, 0.09, 0.05), 2),
        ((0.9, 0.05), 0),
        ((0.15, 0.05, 0.3, 0.05), 2),  # gaps of an iterate may grow again
        ((0.07, 0.06, 0.05), None),
        ((0.05,), None),
    ],
)
def test_the_last_iterate_is_given_whose_gap_was_so_many_times_the_one_that_was_reached(gaps, seen) -> None:
    """Each record is about the iterate that the round before ended with; the first about the start."""
    iterates = [np.full((2, 2), float(number)) for number in range(len(gaps) + 1)]
    glance = Glance(iterates[0])
    for gap, after in zip(gaps, iterates[1:], strict=True):
        glance(SimpleNamespace(relative_gap=gap), SimpleNamespace(W=after))
    found = glance.before(gaps[-1])
    assert (None if found is None else found[0, 0]) == seen


def test_a_start_from_zero_is_none_and_little_is_kept() -> None:
    glance = Glance(None)
    glance(SimpleNamespace(relative_gap=1.0), SimpleNamespace(W=np.ones((2, 2))))
    assert glance.before(0.1) is None
    for gap in np.logspace(-0.1, -3, 30):
        glance(SimpleNamespace(relative_gap=gap), SimpleNamespace(W=np.zeros((2, 2))))
    assert glance.before(1e-3) is not None
    assert len(glance._seen) <= 5


VALIDATION, FOLDS = 10_000, 2
TOP_2, OTHER = Variant("topk_hinge", 1, 0.0), Variant("softmax", None, 0.0)


def ended(one, mean):
    parts = tuple(
        Outcome(
            one.cell.C, fold, VALIDATION, mean * VALIDATION, 0, VALIDATION, 1.0, 0.01, 0.01, 5, 0.1, "solved"
        )
        for fold in range(FOLDS)
    )
    return replace(one, rounds=(parts,), state="finished")


def looked_at(curve, places, variant=TOP_2):
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
    assert found >= best - 0.5 * math.sqrt(0.9 * 0.1 / (FOLDS * VALIDATION))
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
    cells = [Standing(Cell(TOP_2, 10.0**place), FOLDS) for place in range(5)]
    assert due(cells, "race") == cells
    cells += [Standing(Cell(TOP_2, 10.0**place), FOLDS) for place in range(5, 45)]
    for rule in ("certificate", "none"):
        assert due(cells, rule) == cells
        done = [ended(one, 0.9 - 0.01 * place) if place < 5 else one for place, one in enumerate(cells)]
        assert skipped(done, rule) == done


def test_the_best_of_all_paths_counts_and_a_path_waits_for_what_it_has_begun() -> None:
    good = [ended(Standing(Cell(OTHER, 1.0), FOLDS), 0.95)]
    poor = [Standing(Cell(TOP_2, 10.0**place), FOLDS) for place in range(11)]
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


class ReadRows:
    """Rows that nobody reads."""

    def __init__(self, n: int, d: int, m: int) -> None:
        self.shape, self.nbytes = (n, d), 4 * n * d
        self.dataset = SimpleNamespace(info=SimpleNamespace(m=m))

    def __len__(self) -> int:
        return self.shape[0]


@pytest.mark.parametrize(
    ("limit", "n"), [("1500MiB", 40_000), ("2GiB", 200_000), ("3GiB", 400_000), ("4GiB", 200_000)]
)
def test_what_sweeps_open_of_every_cell_fits_beside_the_rest(limit: str, n: int) -> None:
    """Fifteen cells at once opened 48 MiB each that nobody had counted, and their worker was ended."""
    d, m = 1024, 100
    rows: Any = ReadRows(n, d, m)
    found, together = SharedMemory(rows, ClusterConfig(workers=1, memory_limit=limit), 1, 15).budgets()
    packed = most_open(found.dual_bytes, n, d, m) == 0
    held = found.cache_bytes < rows.nbytes or packed
    swept = together * swept_bytes(n, d, m, packed=packed) if held else 0
    taken = WORKER_BYTES + min(found.cache_bytes, rows.nbytes) + found.dual_bytes + swept
    assert taken <= FILLED * found.worker_bytes + MIB


@pytest.mark.parametrize(("limit", "least"), [("4GiB", 2), ("8GiB", 15)])
def test_cells_go_together_where_the_rows_and_their_arrays_fit(limit: str, least: int) -> None:
    """One cell at a time keeps one core at work; the plan kept room for rows that there were not."""
    n, d, m = 200_000, 1024, 100
    rows: Any = ReadRows(n, d, m)
    cluster = ClusterConfig(workers=1, threads_per_worker=2, memory_limit=limit)
    found, together = SharedMemory(rows, cluster, 1, 15).budgets()
    assert together >= least
    assert found.cache_bytes == rows.nbytes
    assert most_open(found.dual_bytes, n, d, m, 2) >= together
    assert WORKER_BYTES + found.cache_bytes + found.dual_bytes <= FILLED * found.worker_bytes
