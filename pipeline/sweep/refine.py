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
from topline.pipeline.sweep.race import Standing, lead

#: A path of so many cells begins with all of them, a longer one with about as many,
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
    """End the cells that nobody has to look at, on paths where all that was begun has ended."""
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
    """Return the cells of each path, C ascending."""
    paths: dict[Variant, list[Standing]] = {}
    for one in standings:
        paths.setdefault(one.cell.variant, []).append(one)
    return {variant: sorted(path, key=lambda one: one.cell.C) for variant, path in paths.items()}


def _leader(standings: Sequence[Standing]) -> Standing | None:
    """Return the best cell so far, of those that have seen all folds if there are any."""
    left = [one for one in standings if one.begun and one.state != "pruned"]
    return max(left, key=lambda one: (one.whole, one.mean), default=None)


def _due_on(path: Sequence[Standing], leader: Standing | None) -> list[Standing]:
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
    places = [place for place, one in enumerate(path) if one.state == "running" and place < seen[-1]]
    if leader is None or not places:
        return running[:1]
    most = max(places, key=lambda place: (_most(path, place, leader), -place))
    stretch = [
        place for place in places if not any(one.begun for one in path[min(place, most) : max(place, most)])
    ]
    return [path[stretch[len(stretch) // 2]]]


def _most(path: Sequence[Standing], place: int, leader: Standing) -> float:
    """Return the mean that a cell has at most where the curve is concave; infinite where nothing says so."""
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
