"""Dual ascent on one block: a sweep over all rows, many over those not at rest, and extrapolation.

A round's first sweep of exact column updates visits every row in a random order: it is the full check.  A row
that it leaves unchanged at a vertex of its domain rests for the round.  The others, often a small part, are
swept repeatedly while that pays: until a stage of sweeps gains less than a share of the first sweep's gain,
or the visits reach a multiple of the rows of the block.

Sweeps approach the optimum along a few directions, slowly for a large C.  So the changes of the last stages
are kept, with their images in W, and after each stage the best point of their span is computed: D is
quadratic there, which gives a system of a few equations.  That point may lie outside the domain.  Its
projection, row by row, does not, and the best point of the segment to it is exact again.

On request, rows that look alike and have different labels are also moved together, before the stages and
after each (`topline.solvers.blocks.ascent.alike_rows`).

If several blocks ascend at the same time, a round has many parts, and the blocks synchronise after each: a
block visits a share of its rows once, in the random order of a sweep.  Its stages have a fixed number of
sweeps, and no extrapolation (`topline.solvers.methods.dual_ascent`).

Stages also end once the gap of their rows is as small as the request asks.  From nearly optimal dual
variables the first sweep may leave out the rows with alpha_i = 0.

Large weights are swept tile by tile, on several threads (`topline.solvers.blocks.ascent.shared_tiles`), and
packed dual rows are opened slab by slab.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import ClassVar

import numpy as np

from topline.solvers.blocks.ascent.alike_rows import Groups, ascend_groups, find_groups
from topline.solvers.blocks.ascent.extrapolation import Extrapolation, PassRows
from topline.solvers.blocks.ascent.passes import AscentPass, AscentPlan, AscentSums, Turn
from topline.solvers.blocks.ascent.rows import MIXED, BlockRows, DualWindow, RowFeed, rows_with_mass
from topline.solvers.blocks.ascent.sweeps import ALL_CLASSES, STILL, tile_of
from topline.solvers.blocks.block import BlockDuals
from topline.solvers.core.dual_rows import DualStore, PackedStore
from topline.solvers.crew import ALONE, Crew
from topline.solvers.typing import Float64Array, Int64Array

#: Up to this many requested sweeps are plain sweeps; a larger number is the sweeps per stage.
_PLAIN_SWEEPS = 2
#: Most visits after a round's first sweep, in rows of the block, and most stages.
_MOST_VISITS = 8.0
_MOST_STAGES = 24
#: A stage whose last sweep gains less than this share of the first one's gain ends the round.
_STAGE_PAYS = 0.1
#: From nearly optimal dual variables stages over the few moving rows are cheap, and go on for longer.
_STAGE_PAYS_WARM = 0.02
_MOST_VISITS_WARM = 16.0
#: The gap of the rows is computed once the last sweep gains less than this share of the target, or the second
#: if already near the optimum, where a stage that gains less than the third is also the last.
_LOOKS, _LOOKS_WARM, _SETTLED = 0.1, 5e-3, 2.5e-4
#: Entropies converge by a large factor per sweep, and would overshoot the target: they take one sweep at a
#: time, and a look once the last one gains less than the target gap.
_LOOKS_SMOOTH = 1.0
#: The next look comes at this multiple of the gain expected at the target, if the gap falls like the gains.
_LOOKS_EARLY = 1.3
#: Upper bound of the (negative) rise of a row at rest.
_RESTS = -0.5
#: Sweeps of a stage in turns: its first one visits every row not at rest, the others only rows that moved.
#: Rows that hardly moved move again once others have: without that visit D rose less than half as fast.
_STAGE = 6
#: Joint moves that gain less than this share of the first sweep's gain are not repeated in a round.
_JOINT_PAYS = 0.05
#: Cost of the search for alike rows, in products of all rows with a class, and its limit in passes.
_SEARCH_CLASSES, _SEARCH_PASSES = 16.0, 1.0


class BlockAscent(BlockRows):
    """Sweeps over the rows of one block."""

    lasting: ClassVar[str] = "rows"
    _feed: RowFeed | None = None
    _looked = False
    _found: Groups | None = None
    #: The sweep in turns: the key of its order, the rows of each share, and the classes that it touches.
    _sweep: tuple[int, ...] | None = None
    _shares: Sequence[Int64Array] = ()
    _lists = ALL_CLASSES
    #: Rise above which a row counts as moving; by default every row not at rest.
    _still = _RESTS

    @cached_property
    def _rises(self) -> Float64Array:
        """Rise of the dual at each row's last visit in a turn; inf before."""
        return np.full(len(self.y), np.inf)

    def run(self, request: AscentPlan, A: DualStore, delta: DualStore, crew: Crew = ALONE) -> AscentSums:
        """Write the change of A (rows, m) found by the sweeps to `delta` (rows, m), which is 0, and sum it.

        The result depends on the request and A only, not on the number of threads.
        """
        work = AscentPass(self, request, DualWindow(A, delta, MIXED), crew)
        feed = self.feed_for(A)
        rows = np.flatnonzero(self.weights)
        if request.support:
            rows = rows[rows_with_mass(A)[rows]]
        first = work.sweep(feed.shuffled(work.allowed(rows), work.random)).last
        busy = np.flatnonzero(work.rises >= 0.0)
        groups = self._groups(feed, work) if request.alike else None
        if groups is not None:
            if _move_together(work, groups) < _JOINT_PAYS * first:
                groups = None
            else:
                busy = np.union1d(busy, groups.rows)
        if request.sweeps > _PLAIN_SWEEPS and len(busy):
            left = _stages(work, feed.held(busy), busy, first, request, groups)
            return replace(work.stats(feed), left=left)
        for _ in range(request.sweeps - 1):
            busy = work.allowed(busy[work.moved(busy)])
            work.sweep(feed.shuffled(busy, work.random))
        # After plain sweeps the gap is unknown; if no row can move it is 0.
        return replace(work.stats(feed), left=math.inf if len(busy) else 0.0)

    def run_turn(self, request: AscentPlan, turn: Turn, duals: BlockDuals, crew: Crew = ALONE) -> AscentSums:
        """Keep the change of A found in a turn, and sum it; a repeated request finds the same change."""
        feed = self.feed_for(duals.A)
        rows = self._rows_of(turn, request, feed)
        self._lists = self._lists if turn.sweep else ALL_CLASSES
        change = duals.no_change(rows, self._lists)
        work = AscentPass(self, request, DualWindow(duals.A, change, MIXED), crew, self._rises)
        self._restrict(work, turn, feed)
        groups, changed = None, rows
        if request.alike and turn.sweep == 0 and turn.ends_sweep:
            groups = self._groups(feed, work)
        if groups is not None:
            changed = np.union1d(rows, groups.rows)
            duals.no_change(changed)
        visited = work.allowed(rows)
        work.sweep(feed.drawn(visited) if feed.whole else feed.shuffled(visited, work.random))
        if groups is not None and _move_together(work, groups) > 0.0:
            self._rises[groups.rows] = np.maximum(self._rises[groups.rows], 0.0)
        sums = replace(work.stats(feed, changed), filled=len(self._shares))
        if not turn.ends_sweep:
            return sums
        swept = np.concatenate([rows[:0], *self._shares])
        risen = float(np.maximum(self._rises[swept], 0.0).sum())
        ends_stage = turn.sweep % _STAGE == 0
        self._still = _RESTS if ends_stage else STILL * risen / max(len(swept), 1)
        return replace(sums, moving=len(self._moving_rows()))

    def _restrict(self, work: AscentPass, turn: Turn, feed: RowFeed) -> None:
        """Restrict sweeps after a round's first one to a few classes of every row that did not rest then."""
        if turn.sweep > 0 and turn.share == 0 and not len(self._lists.classes):
            work.restrict_classes(feed, np.flatnonzero((self.weights > 0.0) & (self._rises > _RESTS)))
            self._lists = work.lists
        work.lists = self._lists

    def _rows_of(self, turn: Turn, request: AscentPlan, feed: RowFeed) -> Int64Array:
        """Return the rows of a turn; the first turn requested of a sweep fixes its order."""
        sweep = request.seed, request.round, self.index, turn.sweep
        if self._sweep != sweep:
            rows = self._moving_rows() if turn.sweep else np.flatnonzero(self.weights)
            self._sweep, self._shares = sweep, feed.dealt(rows, turn.shares, np.random.default_rng(sweep))
        return self._shares[turn.share] if turn.share < len(self._shares) else np.empty(0, dtype=np.int64)

    def _moving_rows(self) -> Int64Array:
        """Return the rows that a further sweep visits; rows of weight 0 never move."""
        return np.flatnonzero((self.weights > 0.0) & (self._rises > self._still))

    def _groups(self, feed: RowFeed, work: AscentPass) -> Groups | None:
        """Return the rows of the block to move together, searched for in the first call."""
        if not self._looked and len(work.allowed(np.arange(len(self.y)))) == len(self.y):
            self._looked = True
            problem = self.problem
            # Requires that D is a parabola in them, and that their dual rows are in memory.
            if problem.form.linear_conjugate and problem.smoothing == 0.0 and feed.opened is None:
                rows = np.flatnonzero((self.weights > 0.0) & (self.norms > 0.0))
                self._found = find_groups(feed, rows, self.y, problem.d)
                work.visited += min(_SEARCH_CLASSES / problem.m, _SEARCH_PASSES) * len(self.y)
        return self._found

    def feed_for(self, A: DualStore) -> RowFeed:
        """Return the rows of the block in slabs whose dual rows, if packed, can be opened whole."""
        opened = A.shape[1] if isinstance(A, PackedStore) else None
        if self._feed is None or opened != self._feed.opened:
            self._feed = RowFeed(self.X, self.dtype, opened=opened)
        return self._feed


def _stages(
    work: AscentPass,
    held: RowFeed,
    rows: Int64Array,
    first: float,
    request: AscentPlan,
    groups: Groups | None,
) -> float:
    """Sweep in stages, extrapolating after each; return the rows' gap if it ended them, otherwise inf."""
    budget = (_MOST_VISITS_WARM if request.warm else _MOST_VISITS) * len(work.rises)
    least = first * (_STAGE_PAYS_WARM if request.warm else _STAGE_PAYS)
    if request.warm:
        least = min(least, _SETTLED * request.enough)
    look = (_LOOKS_WARM if request.warm else _LOOKS if work.linear else _LOOKS_SMOOTH) * request.enough
    sweeps = request.sweeps if work.linear or request.warm else 1
    # Computing the gap takes a visit of every row.
    if sweeps == 1 and first < look and len(work.allowed(rows)) == len(rows):
        gap = work.gap(held, rows)
        if gap <= request.enough:
            return gap
        look = _next_look(look, first, request.enough, gap)
    extrapolation = Extrapolation(PassRows(work, held, rows)) if PassRows.fits(work, rows) else None
    work.restrict_classes(held, rows)
    for _ in range(_MOST_STAGES):
        rise, last, cost = work.sweeps(held, rows, sweeps, budget)
        budget -= cost
        # Visiting all rows takes that many remaining visits.
        whole = len(work.allowed(rows)) == len(rows)
        if whole and last < look:
            gap = work.gap(held, rows)
            if gap <= request.enough:
                return gap
            look = _next_look(look, last, request.enough, gap)
        # Sweeps come last, because joint moves leave the primal objective far from its minimum.
        if budget <= 0 or work.over or last < least:
            break
        if extrapolation is not None and len(work.allowed(rows)) == len(rows):
            extrapolation.step(rise)
        if groups is not None:
            _move_together(work, groups)
    return math.inf


def _move_together(work: AscentPass, groups: Groups) -> float:
    """Move alike rows together; return the rise of the dual.

    Does nothing while sweeps are restricted to a few classes: joint moves would give mass to others.
    """
    block, duals = work.block, work.duals
    X, rows, starts, grams = groups
    may = not work.over and len(work.allowed(rows)) == len(rows)
    if not may or work.restricted or not work.W.size or not duals.open_whole():
        return 0.0
    form = block.problem.form
    part = work.part(tile_of(X, work.W), np.arange(len(rows)), rows, (0, len(block.y)))
    rise = ascend_groups(part, block.column, form.conjugate, starts, grams, form.margin_rows(block.y[rows]))
    work.visited += len(rows)
    duals.close()
    return float(rise)


def _next_look(look: float, last: float, enough: float, gap: float) -> float:
    """Return the gain below which the gap is computed again, after it was too large at a gain of `last`."""
    return min(look, _LOOKS_EARLY * last * enough / gap)
