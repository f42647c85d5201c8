"""Which cells of a sweep are finished, which can no longer win, and which one is best.

Two kinds of reasons end a cell before its tolerance.

*Certificate.*  `topline.solvers.core.held_out` gives hits that the exact solution of every fold has at least
and at most; summed over the folds they bound the cross-validated accuracy.  A cell whose upper bound lies
below another's lower bound is out, and one whose bounds lie within half a standard error of each other is
finished.  Nothing is assumed.  As the radius is a share sqrt(gap) of |W|, this takes relative gaps of 1e-5
and less.

*Race.*  Long before, the accuracies themselves hardly move.  A cell is finished when a gap at least
`FACTOR` times smaller has moved its accuracy by half a standard error at most, from one round to the next or
on the way of the first, and out when some cell leads it by more than chance and both movements together
explain: with d_f the lead on fold f, J folds and the movements u, v of the two in their last rounds,

    mean(d) - u - v  >  t_{J-1} sd(d) sqrt(1/J + 1/(J - 1))

where 1/(J - 1), test rows per training row, makes up for training sets that overlap: Nadeau and Bengio,
"Inference for the generalization error", Machine Learning 52, 2003, section 3.  Races over paired folds:
Maron and Moore, "The racing algorithm", Artificial Intelligence Review 11, 1997.  That a movement bounds what
is to come is an assumption; the table says of each cell which of the two ended it.

Before all folds a cell is looked at on the first one alone.  It is out where some cell leads it there by more
than both have moved and chance explains, which is that of two unpaired shares p, q of r rows,

    d - u - v  >  z sqrt((p (1 - p) + q (1 - q)) / r)

looked at again with a smaller gap where d alone is as large, and taken to all folds where it is not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri, stdtrit

from topline.pipeline.options import Cell, Rule
from topline.pipeline.sweep.cells import EARLIER, Outcome
from topline.solvers.core.held_out import HitCount
from topline.solvers.core.stopping import Status

#: The relative gap of the first round, and by how much each further round makes a cell's own smaller.
FIRST_GAP, FACTOR = 0.1, EARLIER

State = Literal["running", "finished", "pruned", "skipped"]


@dataclass(frozen=True)
class Standing:
    """A cell and what all rounds found, one measurement a fold in each, with how it ended and why.

    `looks` are what the first fold alone said before: the last is part of the first round, and all of it of a
    cell that was out then.  A cell that was skipped was never measured.

    Where rows do not count alike, their accuracy is known as well as that of `effective_rows` that do.
    """

    cell: Cell
    rounds: tuple[tuple[Outcome, ...], ...] = ()
    state: State = "running"
    why: str = ""
    effective_rows: float | None = None
    looks: tuple[Outcome, ...] = ()

    @property
    def shares(self) -> NDArray[np.float64]:
        """Accuracy on each fold after the last round."""
        return np.array([part.hits / part.rows for part in self.rounds[-1]])

    @property
    def count(self) -> HitCount:
        """Hits of all folds after the last round, and between what they are for the exact solutions."""
        low, high = (sum(getattr(part, name) for part in self.rounds[-1]) for name in ("low", "high"))
        return HitCount(
            sum(part.rows for part in self.rounds[-1]), sum(p.hits for p in self.rounds[-1]), low, high
        )

    @property
    def mean(self) -> float:
        """Cross-validated accuracy: the share of all rows, each held out once."""
        return self.count.hits / self.count.rows

    @property
    def error(self) -> float:
        """Standard error of the mean, from the spread over folds; of one fold that of a share."""
        if len(self.shares) == 1:
            return 2.0 * self.resolution
        return float(self.shares.std(ddof=1)) / math.sqrt(len(self.shares))

    @property
    def resolution(self) -> float:
        """Half the standard error of a share of so many rows: smaller differences are ignored."""
        count = self.count
        share = (count.hits + 1.0) / (count.rows + 2.0)
        return 0.5 * math.sqrt(share * (1.0 - share) / (self.effective_rows or count.rows))

    @property
    def movement(self) -> float:
        """How far the last round moved the mean; the first one from a glance on its way, else infinitely."""
        if len(self.rounds) > 1:
            return abs(self.mean - replace(self, rounds=self.rounds[:-1]).mean)
        glances = [part.earlier for part in self.rounds[-1]]
        known = [hits for hits in glances if hits is not None]
        if len(known) < len(glances):
            return math.inf
        return abs(self.mean - sum(known) / self.count.rows)

    @property
    def relative_gap(self) -> float:
        """The largest of the folds."""
        return max(part.relative_gap for part in self.rounds[-1])

    @property
    def passes(self) -> int:
        """Passes over all rounds and folds, each over the training rows of its fold."""
        return sum(part.passes for part in self._parts)

    @property
    def seconds(self) -> float:
        """Seconds of solving over all rounds and folds."""
        return sum(part.seconds for part in self._parts)

    @property
    def _parts(self) -> list[Outcome]:
        """All that was measured; the last look is part of the first round too."""
        looks = self.looks[:-1] if self.rounds else self.looks
        return [*looks, *(part for round_ in self.rounds for part in round_)]

    @property
    def begun(self) -> bool:
        """Whether anything was measured."""
        return bool(self.rounds or self.looks)


def next_gap(standing: Standing, rule: Rule, tol: float) -> float:
    """Return the relative gap that a running cell is to reach in its next round."""
    if rule == "none":
        return tol
    if standing.rounds:
        return max(tol, standing.relative_gap / FACTOR)
    return max(tol, standing.looks[-1].relative_gap / FACTOR if standing.looks else FIRST_GAP)


def looked(standing: Standing, look: Outcome) -> Standing:
    """Add a look at the first fold, which knows where the one before was."""
    if standing.looks:
        look = replace(look, earlier=standing.looks[-1].hits)
    return replace(standing, looks=(*standing.looks, look))


def promoted(standing: Standing, others: Sequence[Outcome]) -> Standing:
    """Return a cell that was taken to the other folds after its looks at the first."""
    return replace(standing, rounds=((standing.looks[-1], *others),))


def judged(standings: Sequence[Standing], rule: Rule, tol: float, confidence: float) -> list[Standing]:
    """End those running cells that are finished or out after a round."""
    judged_ = [_ended_alone(one, rule, tol) for one in standings]
    if rule == "none":
        return judged_
    judged_ = _out_by_certificate(judged_)
    return _out_by_race(judged_, confidence) if rule == "race" else judged_


def looks_again(one: Standing, standings: Sequence[Standing], tol: float, confidence: float) -> bool:
    """Return whether a cell without a round is to be looked at on the first fold, and on no other."""
    if not one.looks:
        return True
    last = one.looks[-1]
    if last.relative_gap <= tol or last.status != Status.SOLVED.value:
        return False
    return any(_leads_at_first(other, one, math.inf, confidence) for other in _begun(standings))


def out_at_first_look(standings: Sequence[Standing], tol: float, confidence: float) -> list[Standing]:
    """End those running cells that the first fold alone shows to be behind."""
    others, why = _begun(standings), "race: behind on the first fold"
    return [
        replace(one, state="pruned", why=why, rounds=((one.looks[-1],),))
        if one.state == "running"
        and one.looks
        and not one.rounds
        and any(_leads_at_first(other, one, tol, confidence) for other in others)
        else one
        for one in standings
    ]


def best_cell(standings: Sequence[Standing]) -> Standing | None:
    """Return the finished cell with the highest mean, of equals the smallest C; None without one."""
    finished = [one for one in standings if one.state == "finished"]
    return max(finished, key=lambda one: (one.mean, -one.cell.C), default=None)


def simplest_cell(standings: Sequence[Standing], best: Standing) -> Standing:
    """Return the smallest C of the best one's path that is within one standard error of it."""
    near = [
        one
        for one in standings
        if one.cell.variant == best.cell.variant
        and one.rounds
        and len(one.rounds[-1]) == len(best.rounds[-1])
        and one.mean >= best.mean - best.error
    ]
    return min(near, key=lambda one: one.cell.C)


def _ended_alone(one: Standing, rule: Rule, tol: float) -> Standing:
    """End a cell for reasons of its own."""
    if one.state != "running" or not one.rounds:
        return one
    found = {part.status for part in one.rounds[-1]}
    if Status.NONFINITE.value in found:
        return replace(one, state="pruned", why="failed: the numbers overflowed")
    if one.relative_gap <= tol:
        return replace(one, state="finished", why="tolerance")
    if found - {Status.SOLVED.value}:
        return replace(one, state="finished", why=f"stopped short: {', '.join(sorted(found))}")
    count = one.count
    if rule != "none" and (count.high - count.low) / count.rows <= one.resolution:
        return replace(one, state="finished", why="certificate: no finer answer can matter")
    if rule == "race" and one.movement <= one.resolution:
        return replace(one, state="finished", why="settled")
    return one


def _out_by_certificate(standings: Sequence[Standing]) -> list[Standing]:
    floor = max((one.count.low / one.count.rows for one in _contenders(standings)), default=0.0)
    why = "certificate: cannot be the best"
    return [
        replace(one, state="pruned", why=why)
        if one.state == "running" and one.rounds and one.count.high / one.count.rows < floor
        else one
        for one in standings
    ]


def _out_by_race(standings: Sequence[Standing], confidence: float) -> list[Standing]:
    others = _contenders(standings)
    return [
        replace(one, state="pruned", why="race: behind the best")
        if one.state == "running" and any(_leads(other, one, confidence) for other in others)
        else one
        for one in standings
    ]


def _contenders(standings: Sequence[Standing]) -> list[Standing]:
    """Return the cells that are not out; the one of them that leads can never be put out by another."""
    return [one for one in standings if one.rounds and one.state != "pruned"]


def _leads(one: Standing, behind: Standing, confidence: float) -> bool:
    """Return whether one cell is ahead of another, beyond chance and what both may still move."""
    if not behind.rounds:
        return False
    lead = one.mean - behind.mean - one.movement - behind.movement
    leads = one.shares - behind.shares
    folds = len(leads)
    chance = float(stdtrit(folds - 1, confidence)) * float(leads.std(ddof=1))
    return lead > max(chance * math.sqrt(1.0 / folds + 1.0 / (folds - 1)), behind.resolution)


def _begun(standings: Sequence[Standing]) -> list[Standing]:
    return [one for one in standings if one.begun and one.state != "pruned"]


def _leads_at_first(one: Standing, behind: Standing, tol: float, confidence: float) -> bool:
    """Return whether one cell is ahead on the first fold, beyond chance and what gaps above `tol` move."""
    (p, u), (q, v) = _at_first(one, tol), _at_first(behind, tol)
    rows = behind.looks[-1].rows
    chance = float(ndtri(confidence)) * math.sqrt((p * (1.0 - p) + q * (1.0 - q)) / rows + 1.0 / rows**2)
    return p - q - u - v > chance


def _at_first(one: Standing, tol: float) -> tuple[float, float]:
    """Return the accuracy of a cell on the first fold, and how far it has moved."""
    last = one.rounds[-1][0] if one.rounds else one.looks[-1]
    share = last.hits / last.rows
    if last.relative_gap <= tol:
        return share, 0.0
    if one.rounds:
        return share, one.movement
    return share, math.inf if last.earlier is None else abs(share - last.earlier / last.rows)
