"""Which cells of a path are looked at before others, and which need no look.

A path begins with a few C far apart and leaves out the largest, which take most passes.  Along log C the
accuracy rises and falls again: as far as it is concave, the mean m of a cell at x lies below the lines
through the nearest cells l, r on both sides and the next ones beyond,

    U = min( m_l + (m_l - m_ll) (x - x_l) / (x_l - x_ll),   m_r + (m_r - m_rr) (x_r - x) / (x_rr - x_r) )

Once the cells that were begun have ended, those whose U does not exceed the best mean by half a standard
error are skipped.  Of the others one half a stride above the largest C so far comes next, then the one with
the largest U between.  That is an assumption, as all of the race: a sweep names the cells that nobody has
looked at, and the other rules look at all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from topline.pipeline.options import Rule, Variant
from topline.pipeline.sweep.race import Standing

#: A path of so many cells begins with all of them, a longer one with about as many,
BEGINS_WITH = 5
#: none of them above this share of the grid.
BEGINS_BELOW = 0.75


def due(standings: Sequence[Standing], rule: Rule) -> list[Standing]:
    """Return the running cells that the next round asks for."""
    if rule != "race":
        return [one for one in standings if one.state == "running"]
    return [one for path in _paths(standings).values() for one in _due_on(path)]


def skipped(standings: Sequence[Standing], rule: Rule) -> list[Standing]:
    """End the cells that nobody has to look at, on paths where all that was begun has ended."""
    measured = [one for one in standings if one.rounds and one.state != "pruned"]
    if rule != "race" or not measured:
        return list(standings)
    leader = max(measured, key=lambda one: one.mean)
    out = {
        one.cell
        for path in _paths(standings).values()
        if not any(one.state == "running" and one.begun for one in path)
        for place, one in enumerate(path)
        if one.state == "running" and _most(path, place) <= leader.mean + leader.resolution
    }
    why = "race: no better than its neighbours"
    return [replace(one, state="skipped", why=why) if one.cell in out else one for one in standings]


def _paths(standings: Sequence[Standing]) -> dict[Variant, list[Standing]]:
    """Return the cells of each path, C ascending."""
    paths: dict[Variant, list[Standing]] = {}
    for one in standings:
        paths.setdefault(one.cell.variant, []).append(one)
    return {variant: sorted(path, key=lambda one: one.cell.C) for variant, path in paths.items()}


def _due_on(path: Sequence[Standing]) -> list[Standing]:
    """Return the cells of a path that were begun, else the next one, or the first."""
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
    between = [one for one in running if one.cell.C < path[seen[-1]].cell.C]
    return [max(between or running[:stride], key=lambda one: (_most(path, path.index(one)), -one.cell.C))]


def _most(path: Sequence[Standing], place: int) -> float:
    """Return the mean that a cell has at most where the curve is concave; infinite where nothing says so."""
    x = math.log(path[place].cell.C)
    below = [one for one in path[:place] if one.rounds][-2:]
    above = [one for one in path[place + 1 :] if one.rounds][:2]
    return min(_line(below[::-1], x), _line(above, x))


def _line(nearest: Sequence[Standing], x: float) -> float:
    """Return the height at `x` of the line through two cells, the nearer first."""
    if len(nearest) < 2:
        return math.inf
    near, far = nearest
    at, beyond = math.log(near.cell.C), math.log(far.cell.C)
    return near.mean + (near.mean - far.mean) * (x - at) / (at - beyond)
