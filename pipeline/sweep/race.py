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

*A cell on a fold* is solved to a smaller gap, wherever its rows and dual variables are.  It starts
from the dual variables of the next smaller C, which are feasible for every C
(`topline.solvers.run.task`).  Later it continues from its last state, or again from the smaller C, which is
more exact by then: the better start if the duals hardly depend on C, even at a slightly larger gap, because
the last digits of a coarse solution come slowest.

No pass computes what is known.  W(A), b and |A|^2 of a multiple of A follow from those of A; a continued cell
was measured when it stopped; P(0) and D(0) = 0 are known; and a gap above the tolerance and `COARSE` is not
measured again in float64, but includes the rounding of float32 products, at most `ROUNDED` of P.

For small C, P hardly falls below P(0), and a small relative gap means little: even W = 0 has it, which knows
no class.  Above the tolerance a cell therefore continues until its gap is at most `FALLEN` times P(0) - D,
the most by which P can fall.
"""

from __future__ import annotations

import math
import time
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtrin, gammaln

from topline.pipeline.options import Cell, Rule, TrainConfig, Variant
from topline.solvers.core.answers import LossAnswer
from topline.solvers.core.dual_points import best_share
from topline.solvers.core.held_out import HitCount, ball_radius
from topline.solvers.core.problem import Problem, squared_norm
from topline.solvers.core.state import IterationRecord, Objective, SolverState, Status, StoppingCriteria
from topline.solvers.executors import Executor
from topline.solvers.methods import Measurement, method_named
from topline.solvers.run import Callback, Run, iterate
from topline.solvers.run.shared import HeadExecutor

#: Hits are also counted when the gap was last this many times the final one.
EARLIER = 2.0
#: The smaller C is the start if its distance from the primal value is at most this many times the cell's own.
NEAR = 2.0
#: Above the tolerance, relative gaps from this size on are used as the rounds measure them,
COARSE = 5e-4
#: plus this share of P for rounding of float32 products, ten times the error seen in P and D.
ROUNDED = 1e-6
#: Entropies converge by a large factor per sweep, and are not measured at the start from a C smaller by this.
PASSED = 1.25
#: The gap is at most this share of P(0) - D.
FALLEN = 0.5


@dataclass(frozen=True)
class Outcome:
    """A cell on one fold after a round: its cost, its accuracy of solution, and its held-out hits.

    `passes` (including a last one in float64) and `seconds` are those of this round.  The exact solution has
    between `low` and `high` hits.  `earlier`, in a first round, are the hits when the gap was last at least
    `EARLIER` times `relative_gap`, None if it never was except at zero.  `by_group` are hits per group of
    rows (`topline.solvers.core.held_out.row_groups`), empty in answers of older versions.
    """

    C: float
    fold: int
    rows: float
    hits: float
    low: float
    high: float
    primal: float
    gap: float
    relative_gap: float
    passes: int
    seconds: float
    status: str
    earlier: float | None = None
    by_group: tuple[float, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return dict(self.__dict__)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Outcome:
        """Read the result of `to_dict`; JSON has null for overflowed numbers."""
        unknown = {name: math.nan for name in ("primal", "gap", "relative_gap") if values[name] is None}
        return cls(**{**values, **unknown, "by_group": tuple(values.get("by_group", ()))})


@dataclass(frozen=True, eq=False)
class Reached:
    """State of a cell (W, b and other sums); `duals` says where its A is, `measured` what is known of it."""

    C: float
    state: SolverState
    primal: float
    dual: float
    duals: Any
    measured: Measurement | None = None

    def best_multiple(self, problem: Problem) -> tuple[float, SolverState]:
        """Return the multiple of A with the largest dual value for `problem`, and its state."""
        W = (1.0 / (problem.lam * problem.n) / self.C) * self.state.W
        b, square = self.state.point.conjugate_mean, self.state.point.mean_sq_dual
        share = best_share(b, problem.lam * squared_norm(W) + problem.smoothing * square)
        return share, SolverState.at(share * W, share * b, share * share * square)

    def dual_for(self, problem: Problem) -> float:
        """Return the dual value of the best multiple of A for the C of `problem`."""
        point = self.best_multiple(problem)[1].point
        return problem.dual(point.W, point.conjugate_mean, point.mean_sq_dual)


@dataclass(eq=False)
class Path:
    """The states that the cells of a path have reached on one fold, by C."""

    cells: dict[float, Reached] = field(default_factory=dict)

    def smaller(self, C: float) -> Reached | None:
        """Return the state of the next smaller C."""
        return self.cells[max(below)] if (below := [one for one in self.cells if one < C]) else None

    def forget(self, waiting: Iterable[float]) -> list[Reached]:
        """Drop and return the cells that neither continue nor start one of those `waiting`."""
        needed = still_needed(self.cells, waiting)
        return [self.cells.pop(C) for C in [*self.cells] if C not in needed]


class CellRows(Protocol):
    """The rows of a fold with one cell's dual variables, accessed through `executor`."""

    #: Answers for the training rows.
    executor: Any

    def start_from(self, before: Reached, problem: Problem) -> SolverState:
        """Start from the best multiple of another cell's dual variables."""
        ...

    def go_on(self, known: Reached, problem: Problem) -> tuple[SolverState, Measurement | None]:
        """Return the cell's last state and its measurement."""
        ...

    def count(self, W: NDArray[np.float64], radius: float) -> HitCount:
        """Count the hits among the held-out rows."""
        ...

    def duals(self, state: SolverState) -> Any:
        """Return where A is, after the state's pending step, until the cell continues."""
        ...


def advance_cell(
    rows: CellRows,
    path: Path,
    problem: Problem,
    config: TrainConfig,
    aim: tuple[float, float, int],
    zero: float,
    callbacks: Sequence[Callback] = (),
) -> Outcome:
    """Solve a cell of a path to a gap: `aim` is its C, the gap and its fold, `zero` is P(0)."""
    (C, goal, fold), began = aim, time.perf_counter()
    known = path.cells.get(C)
    start = _start(rows, problem, known, path.smaller(C), zero)
    state = start.before if isinstance(start, Measurement) else start
    glance = Glance(state.W if state.W.any() else None)
    run, extra = _run_to(goal, rows.executor, problem, config, start, zero, (glance, *callbacks))
    final = run.final
    W = final.W
    if final.W_dual is not None and final.relative_gap > config.tol and not W.any():
        W = final.W_dual
    rounded = 0.0 if run.certified else ROUNDED
    gap = final.gap + rounded * abs(final.primal)
    count = rows.count(W, ball_radius(gap, final.primal, problem.lam, of_duals=final.W_dual is None))
    # Later rounds are compared with the one before.
    seen = None if known is not None else glance.before(final.relative_gap)
    earlier = None if seen is None else rows.count(seen, 0.0).hits
    path.cells[C] = _reached(C, run, rows.duals(run.state))
    return Outcome(
        C=C, fold=fold, rows=count.rows, hits=count.hits, low=count.low, high=count.high,
        primal=final.primal, gap=gap, relative_gap=final.relative_gap + rounded,
        passes=run.state.passes - state.passes + extra, seconds=time.perf_counter() - began,
        status=run.status.value, earlier=earlier, by_group=count.by_group,
    )  # fmt: skip


def _run_to(
    gap: float, executor: Executor | HeadExecutor, problem: Problem, config: TrainConfig,
    start: SolverState | Measurement, zero: float, callbacks: Sequence[Callback],
) -> tuple[Run, int]:  # fmt: skip
    """Solve to a gap, and on to `FALLEN` times P(0) - D; also return the passes for final values."""
    method = method_named(config.method).method_for(problem, executor.blocks, config.seed)
    extra = 0
    while True:
        criteria = StoppingCriteria(gap, config.max_passes, certified=gap <= max(config.tol, COARSE))
        run = iterate(problem, executor, method, criteria, start, callbacks)
        final, extra = run.final, extra + run.certified
        enough = FALLEN * (zero - final.dual)
        if run.status is not Status.SOLVED or final.gap <= enough or final.relative_gap <= config.tol:
            return run, extra
        gap = max(min(enough / abs(final.primal), 0.5 * gap), config.tol)
        start = run.measured or run.state


def _start(
    rows: CellRows, problem: Problem, known: Reached | None, before: Reached | None, zero: float
) -> SolverState | Measurement:
    """Return the start of a cell, its last state, the smaller C or zero, measured if that is known."""
    if known is not None and (before is None or not is_better(before, known, problem)):
        state, measured = rows.go_on(known, problem)
        state = replace(state, primal_at_zero=zero)
        return state if measured is None else replace(measured, before=state)
    if before is not None:
        state = replace(rows.start_from(before, problem), primal_at_zero=zero)
        # The first sweep improves on it far too much to measure it: P(0) bounds the optimum.
        times = 1.0 / (problem.lam * problem.n) / before.C
        passed = times >= PASSED and not problem.form.linear_conjugate
    else:
        state, passed = replace(SolverState.start(problem), primal_at_zero=zero), True
    # Several blocks need the measurement to find their common direction.
    if not passed or rows.executor.blocks > 1:
        return state
    point, W = state.point, np.zeros_like(state.W)
    dual = problem.dual(point.W, point.conjugate_mean, point.mean_sq_dual)
    return Measurement(Objective(zero, dual), state, LossAnswer(rows=problem.n), 0, W=W)


def _reached(C: float, run: Run, duals: Any) -> Reached:
    """Return the state that a run has reached, with its A at `duals`."""
    state, measured = run.state, run.measured
    if run.certified:
        final = run.final
        W = final.W if final.W_dual is None else final.W_dual
        state = state.with_point(W=W, conjugate_mean=final.conjugate_mean, mean_sq_dual=final.mean_sq_dual)
        # The weights differ by the drift of the rounds' sums.
        measured = None if measured is None else replace(measured, before=state)
    return Reached(C, state, run.final.primal, run.final.dual, duals, measured)


def still_needed(known: Iterable[float], waiting: Iterable[float]) -> set[float]:
    """Return the C of a path that continue, or from which one of those `waiting` would start."""
    known = sorted(known)
    places = [(C, bisect_left(known, C)) for C in waiting]
    below = {known[place - 1] for _, place in places if place > 0}
    return below | {C for C, place in places if known[place : place + 1] == [C]}


def is_better(before: Reached, known: Reached, problem: Problem) -> bool:
    """Return whether a cell should start from the smaller C rather than continue."""
    behind = known.primal - before.dual_for(problem)
    return behind <= NEAR * (known.primal - known.dual)


class Glance:
    """Keeps the iterates among which the last with `EARLIER` times the final gap will be found."""

    def __init__(self, start: NDArray[np.float64] | None) -> None:
        self._last = start
        self._seen: list[tuple[float, NDArray[np.float64]]] = []

    def __call__(self, record: IterationRecord, state: SolverState) -> None:
        """Keep the iterate that the record describes, with which the round before ended."""
        if self._last is not None:
            self._seen.append((record.relative_gap, self._last))
        enough = [place for place, (gap, _) in enumerate(self._seen) if gap >= EARLIER * record.relative_gap]
        del self._seen[: max(enough, default=0)]
        self._last = state.W

    def before(self, gap: float) -> NDArray[np.float64] | None:
        """Return the last iterate whose gap was at least `EARLIER` times `gap`, or None."""
        return next((W for seen, W in reversed(self._seen) if seen >= EARLIER * gap), None)


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
