"""Which cells of a sweep are finished, which can no longer win, and which one is best.

Two kinds of reasons end a cell before its tolerance.

*Certificate.* `topline.solvers.core.held_out` bounds the hits of every fold's exact solution; summed over the
folds they bound the cross-validated accuracy.  A cell whose upper bound lies below another's lower bound is
out; one whose bounds lie within half a standard error of each other is finished.  This assumes nothing, but
since the radius is sqrt(gap) relative to |W|, it needs relative gaps of 1e-5 or less.

*Race.*  The accuracies stop moving long before.  A cell is measured on the first fold, each time at a gap at
least `FACTOR` times smaller, until it has settled: the last look moved its accuracy by at most half the
standard error of a share of these rows.  Then the number of its folds doubles repeatedly, directly at the gap
of the second to last look.  After each step it is out if another cell leads it, beyond chance and both cells'
movements (0 once settled), on a share s of the N rows, those of the folds seen by both.  Were it better by
e N rows in all, the other had (M - e N)/2 of the M rows on which exactly one of the two is right, and a
hypergeometric number of the k among them that were seen: a lead is chance if as many or more are likely.
Here e is half the standard error of a share of all rows, for smaller leads are not pursued; k is the sum of
squares of the leads in random groups of rows; and M is the largest that leaves no more than k to a share s,
but for half the chance.  The tests of a cell share its chance of being lost evenly (one for each other cell
and number of folds), so that no more searches lose the best.

A cell that has seen all folds is finished; those within e of the best that moved by more than e take one
more round on all folds, once no cell is running.  Two assumptions: a movement bounds those to come, and later
folds resemble earlier ones.  Races over paired rows: Maron and Moore, "The racing algorithm", Artificial
Intelligence Review 11, 1997.

*Order.*  A path begins with a few C far apart, without the largest, which take the most passes.  Along log C
the accuracy rises and falls; where it is concave, the mean m of a cell at x lies below the lines through the
nearest cells l, r on both sides and the next ones beyond,

    U = min( m_l + (m_l - m_ll) (x - x_l) / (x_l - x_ll),   m_r + (m_r - m_rr) (x_r - x) / (x_rr - x_r) )

Once the cells begun so far have ended, those whose U exceeds the best mean by less than half a standard error
are skipped.  Of the others, the one half a stride above the largest C so far comes next, then the one with
the largest U.  Concavity is an assumption too: a sweep names the cells that it skipped, and the other rules
measure all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtrin, gammaln

from topline.pipeline.options import Cell, Rule, Variant
from topline.pipeline.sweep.cells import EARLIER, Outcome
from topline.solvers.core.held_out import HitCount
from topline.solvers.core.state import Status

#: The relative gap of the first round, and the factor by which each further round reduces a cell's own.
FIRST_GAP, FACTOR = 0.1, EARLIER

State = Literal["running", "finished", "pruned", "skipped"]

#: Why a cell is finished whose accuracy is not expected to move any more.
SETTLED = "settled"


@dataclass(frozen=True)
class Standing:
    """A cell and the findings of all rounds, with how it ended and why.

    `rounds` have one measurement per fold measured by then, out of `folds`; `looks` are earlier measurements
    of the first fold alone, the last of which is part of the first round.  A skipped cell has none.
    Weighted rows tell as much as `effective_rows` rows of equal weight.
    """

    cell: Cell
    folds: int
    rounds: tuple[tuple[Outcome, ...], ...] = ()
    state: State = "running"
    why: str = ""
    effective_rows: float | None = None
    looks: tuple[Outcome, ...] = ()

    @property
    def parts(self) -> tuple[Outcome, ...]:
        """The last measurement of each fold, from the first."""
        return self.rounds[-1] if self.rounds else self.looks[-1:]

    @property
    def whole(self) -> bool:
        """Whether all folds were measured."""
        return len(self.parts) == self.folds

    @property
    def shares(self) -> NDArray[np.float64]:
        """Accuracy on each measured fold."""
        return np.array([part.hits / part.rows for part in self.parts])

    @property
    def count(self) -> HitCount:
        """Hits on these folds, with bounds for the exact solutions."""
        rows, hits, low, high = (
            sum(getattr(part, name) for part in self.parts) for name in ("rows", "hits", "low", "high")
        )
        return HitCount(rows, hits, low, high)

    @property
    def mean(self) -> float:
        """Accuracy over these folds; over all folds it is the cross-validated one."""
        return self.count.hits / self.count.rows

    @property
    def error(self) -> float:
        """Standard error of the mean, from the spread over folds; with one fold, that of a share."""
        if len(self.parts) == 1:
            return 2.0 * self._half_error(self.count.rows)
        return float(self.shares.std(ddof=1)) / math.sqrt(len(self.parts))

    @property
    def resolution(self) -> float:
        """Half the standard error of a share of all folds' rows: smaller differences are ignored."""
        return self._half_error(self.count.rows * self.folds / len(self.parts))

    @property
    def movement(self) -> float:
        """Change of the mean since the last look, or within the first round; infinite if known on no fold."""
        moved, rows = self._moved
        return moved / rows if rows else math.inf

    def settled(self, tol: float) -> bool:
        """Return whether the cell needs further folds rather than a smaller gap."""
        first, (_, rows) = self.parts[0], self._moved
        if first.relative_gap <= tol or first.status != Status.SOLVED.value:
            return True
        return bool(rows) and self.movement <= self._half_error(rows)

    @property
    def relative_gap(self) -> float:
        """The largest relative gap over the folds."""
        return max(part.relative_gap for part in self.parts)

    @property
    def passes(self) -> int:
        """Passes over all rounds and folds, each over the training rows of its fold."""
        return sum(part.passes for part in self._all)

    @property
    def seconds(self) -> float:
        """Seconds of solving over all rounds and folds."""
        return sum(part.seconds for part in self._all)

    @property
    def begun(self) -> bool:
        """Whether anything was measured."""
        return bool(self.parts)

    @property
    def _all(self) -> list[Outcome]:
        """All measurements; the last look is part of the first round too."""
        looks = self.looks[:-1] if self.rounds else self.looks
        return [*looks, *(part for round_ in self.rounds for part in round_)]

    @property
    def _moved(self) -> tuple[float, float]:
        known = [(part.hits - part.earlier, part.rows) for part in self.parts if part.earlier is not None]
        return abs(sum(moved for moved, _ in known)), sum(rows for _, rows in known)

    def _half_error(self, rows: float) -> float:
        """Return half the standard error of a share of `rows` of the rows."""
        count = self.count
        share = (count.hits + 1.0) / (count.rows + 2.0)
        all_rows = count.rows * self.folds / len(self.parts)
        worth = 1.0 if self.effective_rows is None else self.effective_rows / all_rows
        return 0.5 * math.sqrt(share * (1.0 - share) / (rows * worth))


def next_step(one: Standing, rule: Rule, tol: float) -> tuple[range, float]:
    """Return the folds on which a running cell is measured next, and the relative gap to reach."""
    if rule != "race" or one.whole:
        if rule == "none":
            return range(one.folds), tol
        return range(one.folds), max(tol, one.relative_gap / FACTOR if one.begun else FIRST_GAP)
    if not one.begun:
        return range(1), max(tol, FIRST_GAP)
    first = one.parts[0]
    if not one.rounds and not one.settled(tol):
        return range(1), max(tol, first.relative_gap / FACTOR)
    seen = len(one.parts)
    before = one.looks[-2].relative_gap if len(one.looks) > 1 else first.relative_gap * EARLIER
    return range(seen, min(2 * seen, one.folds)), max(tol, min(before, FIRST_GAP))


def grown(one: Standing, parts: Sequence[Outcome], rule: Rule) -> Standing:
    """Add a step's findings: another round, a look at the first fold, or more folds of the first round."""
    if rule != "race" or one.whole:
        return replace(one, rounds=(*one.rounds, tuple(parts)))
    if parts[0].fold > 0:
        return replace(one, rounds=((*one.parts, *parts),))
    look = parts[0]
    if one.looks:
        # The look before gives the earlier hits.
        look = replace(look, earlier=one.looks[-1].hits)
    return replace(one, looks=(*one.looks, look))


def judged(standings: Sequence[Standing], rule: Rule, tol: float, confidence: float) -> list[Standing]:
    """End the running cells that are finished or out after a round."""
    ended = [
        replace(one, state="pruned", why="failed: the numbers overflowed", rounds=one.rounds or (one.parts,))
        if one.state == "running" and any(part.status == Status.NONFINITE.value for part in one.parts)
        else one
        for one in standings
    ]
    if rule == "race":
        ended = _out_by_race(ended, tol, confidence)
    ended = [_ended_alone(one, rule, tol) for one in ended]
    return ended if rule == "none" else _out_by_certificate(ended)


def may_go_on(one: Standing, rule: Rule) -> bool:
    """Return whether a cell is running or may still be `contested`."""
    if one.state == "running" or rule != "race" or one.why != SETTLED or len(one.rounds) > 1:
        return one.state == "running"
    return one.movement > one.resolution


def contested(standings: Sequence[Standing], rule: Rule) -> list[Standing]:
    """Give one more round, after all others, to the cells that may be as good as the best."""
    best = best_cell(standings)
    if rule != "race" or best is None or any(one.state == "running" for one in standings):
        return list(standings)
    near = [one for one in standings if one.state == "finished" and lead(best, one) <= best.resolution]
    again = {one.cell for one in near if len(near) > 1 and may_go_on(one, rule)}
    return [replace(one, state="running") if one.cell in again else one for one in standings]


def best_cell(standings: Sequence[Standing]) -> Standing | None:
    """Return the finished cell with the highest mean, the smallest C among equals, or None."""
    finished = [one for one in standings if one.state == "finished"]
    return max(finished, key=lambda one: (one.mean, -one.cell.C), default=None)


def simplest_cell(standings: Sequence[Standing], best: Standing) -> Standing:
    """Return the smallest C on the best cell's path within one standard error of it."""
    near = [
        one
        for one in standings
        if one.cell.variant == best.cell.variant and one.whole and one.mean >= best.mean - best.error
    ]
    return min(near, key=lambda one: one.cell.C)


def lead(one: Standing, behind: Standing) -> float:
    """Return a cell's lead over another on the folds that both have seen."""
    both = _both(one, behind)
    return sum(left.hits - right.hits for left, right in both) / sum(part.rows for part, _ in both)


def _ended_alone(one: Standing, rule: Rule, tol: float) -> Standing:
    """End a cell on its own merits, once it has seen all folds."""
    if one.state != "running" or not one.whole:
        return one
    found = {part.status for part in one.parts}
    if one.relative_gap <= tol:
        return replace(one, state="finished", why="tolerance")
    if found - {Status.SOLVED.value}:
        return replace(one, state="finished", why=f"stopped short: {', '.join(sorted(found))}")
    count = one.count
    if rule != "none" and (count.high - count.low) / count.rows <= one.resolution:
        return replace(one, state="finished", why="certificate: no finer answer can matter")
    return replace(one, state="finished", why=SETTLED) if rule == "race" else one


def _out_by_certificate(standings: Sequence[Standing]) -> list[Standing]:
    whole = [one for one in standings if one.whole and one.state != "pruned"]
    floor = max((one.count.low / one.count.rows for one in whole), default=0.0)
    why = "certificate: cannot be the best"
    return [
        replace(one, state="pruned", why=why)
        if one.state == "running" and one.whole and one.count.high / one.count.rows < floor
        else one
        for one in standings
    ]


def _out_by_race(standings: Sequence[Standing], tol: float, confidence: float) -> list[Standing]:
    """End the cells led by others, one at a time, since three may lead each other in a circle."""
    left = [one for one in standings if one.begun and one.state != "pruned"]
    out: dict[Cell, Standing] = {}
    for one in sorted(left, key=lambda one: len(one.parts)):
        others = [other for other in left if other.cell not in (*out, one.cell)]
        tests = (len(standings) - 1) * (one.folds - 1).bit_length()
        if one.state != "running" or one.whole:
            continue
        if not any(_leads(other, one, tol, (1.0 - confidence) / tests) for other in others):
            continue
        why = f"race: behind after {len(one.parts)} of {one.folds} folds"
        out[one.cell] = replace(one, state="pruned", why=why, rounds=(one.parts,))
    return [out.get(one.cell, one) for one in standings]


def _leads(one: Standing, behind: Standing, tol: float, chance: float) -> bool:
    """Return whether a cell leads another, beyond a chance and both movements."""
    ahead, both = lead(one, behind), _both(one, behind)
    # Of two equals the one with more folds leads, then the smaller C.
    mine, others = ((-len(each.parts), each.cell.C, each.cell.variant.name) for each in (one, behind))
    if ahead < 0.0 or (ahead == 0.0 and mine >= others):
        return False
    if not all(left.by_group and right.by_group for left, right in both):
        return False
    rows = sum(part.rows for part, _ in both)
    moves = sum(0.0 if each.settled(tol) else each.movement for each in (one, behind))
    by_group = np.concatenate([np.subtract(left.by_group, right.by_group) for left, right in both])
    share = len(both) / one.folds
    one_row = 1.0 if one.effective_rows is None else rows / share / one.effective_rows
    discordant = float(by_group @ by_group) / one_row**2
    lead_in_rows, ignored = (ahead - moves) * rows / one_row, one.resolution * rows / share / one_row
    return moves < math.inf and _is_rare(lead_in_rows, discordant, share, ignored, chance)


def _is_rare(ahead: float, discordant: float, share: float, ignored: float, chance: float) -> bool:
    """Return whether a lead is rare if the other leads by `ignored`, given the rows that are `discordant`."""
    seen = round(max(discordant, abs(ahead)))
    most = math.ceil(bdtrin(seen, chance / 2.0, share))
    own, wins = math.floor((most - ignored) / 2.0), max(math.floor((seen + ahead) / 2.0), 0)
    if wins > own:
        return True
    drawn = np.arange(wins, min(seen, own) + 1)
    tail = np.exp(_log_choose(own, drawn) + _log_choose(most - own, seen - drawn) - _log_choose(most, seen))
    return float(tail.sum()) <= chance / 2.0


def _log_choose(n: float, k: Any) -> Any:
    return gammaln(n + 1.0) - gammaln(k + 1.0) - gammaln(n - k + 1.0)


def _both(one: Standing, other: Standing) -> list[tuple[Outcome, Outcome]]:
    """Return both cells' findings on the folds that both have seen."""
    return list(zip(one.parts, other.parts, strict=False))


#: A path of up to this many cells begins with all of them, a longer one with about as many,
BEGINS_WITH = 5
#: none of them above this share of the grid.
BEGINS_BELOW = 0.6


def due(standings: Sequence[Standing], rule: Rule) -> list[Standing]:
    """Return the running cells that the next round asks for."""
    if rule != "race":
        return [one for one in standings if one.state == "running"]
    leader = _leader(standings)
    return [one for path in _paths(standings).values() for one in _due_on(path, leader)]


def skipped(standings: Sequence[Standing], rule: Rule) -> list[Standing]:
    """End the cells that need no measurement, on paths where all that began have ended."""
    leader = _leader(standings)
    if rule != "race" or leader is None:
        return list(standings)
    out = {
        one.cell
        for path in _paths(standings).values()
        if not any(one.state == "running" and one.begun for one in path)
        for place, one in enumerate(path)
        if one.state == "running" and _most(path, place, leader) <= leader.mean + leader.resolution
    }
    why = "race: no better than its neighbours"
    return [replace(one, state="skipped", why=why) if one.cell in out else one for one in standings]


def _paths(standings: Sequence[Standing]) -> dict[Variant, list[Standing]]:
    """Return the cells of each path, by ascending C."""
    paths: dict[Variant, list[Standing]] = {}
    for one in standings:
        paths.setdefault(one.cell.variant, []).append(one)
    return {variant: sorted(path, key=lambda one: one.cell.C) for variant, path in paths.items()}


def _leader(standings: Sequence[Standing]) -> Standing | None:
    """Return the best cell so far, among those that have seen all folds if there are any."""
    left = [one for one in standings if one.begun and one.state != "pruned"]
    return max(left, key=lambda one: (one.whole, one.mean), default=None)


def _due_on(path: Sequence[Standing], leader: Standing | None) -> list[Standing]:
    """Return the cells of a path that have begun, else the next one, or the first ones."""
    running = [one for one in path if one.state == "running"]
    begun = [one for one in running if one.begun]
    if begun or not running or len(path) <= BEGINS_WITH:
        return begun or running
    last, stride = len(path) - 1, 1
    while last // (2 * stride) >= BEGINS_WITH:
        stride *= 2
    seen = [place for place, one in enumerate(path) if one.begun]
    if not seen:
        return list(path[: int(BEGINS_BELOW * last) + 1 : stride])
    above = path[min(seen[-1] + max(stride // 2, 1), last)]
    if above in running:
        return [above]
    places = [place for place, one in enumerate(path) if one.state == "running" and place < seen[-1]]
    if leader is None or not places:
        return running[:1]
    most = max(places, key=lambda place: (_most(path, place, leader), -place))
    stretch = [
        place for place in places if not any(one.begun for one in path[min(place, most) : max(place, most)])
    ]
    return [path[stretch[len(stretch) // 2]]]


def _most(path: Sequence[Standing], place: int, leader: Standing) -> float:
    """Return the largest mean of a cell if the curve is concave; infinite if nothing bounds it."""
    x = math.log(path[place].cell.C)
    below = [one for one in path[:place] if one.rounds][-2:]
    above = [one for one in path[place + 1 :] if one.rounds][:2]
    return min(_line(below[::-1], x, leader), _line(above, x, leader))


def _line(nearest: Sequence[Standing], x: float, leader: Standing) -> float:
    """Return the height at `x` of the line through two cells, the nearer first."""
    if len(nearest) < 2:
        return math.inf
    at, beyond = (math.log(one.cell.C) for one in nearest)
    near, far = (leader.mean - lead(leader, one) for one in nearest)
    return near + (near - far) * (x - at) / (at - beyond)
