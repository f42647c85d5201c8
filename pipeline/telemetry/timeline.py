"""Which workers of a run were busy when, in bounded memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Workers that are kept; of more, the least recently active ones are dropped.
MOST_WORKERS = 256
# Stretches of time that are kept for each.
MOST_STRETCHES = 512


@dataclass(frozen=True, eq=False)
class WorkerTimeline:
    """One worker of a run.

    Attributes
    ----------
    name : such as its address, or that of a thread.
    rows, memory_bytes : what it held at its last activity.
    here : whether the last record that names workers names it.
    seconds_busy : seconds in which it worked, over all of the run.
    at, busy : ends of stretches of time, seconds since 1970, and the seconds of each in which it worked.
    """

    name: str
    rows: int
    memory_bytes: int
    here: bool
    seconds_busy: float
    at: NDArray[np.float64]
    busy: NDArray[np.float64]


@dataclass
class _Timeline:
    rows: int = 0
    memory_bytes: int = 0
    heard: int = 0
    at: list[float] = field(default_factory=list)
    busy: list[float] = field(default_factory=list)


class WorkerTimelines:
    """Takes the activity of rounds and gives one timeline a worker."""

    def __init__(self) -> None:
        self._timelines: dict[str, _Timeline] = {}
        self._taken = 0

    def add(self, at: float, activity: Sequence[Mapping[str, Any]]) -> None:
        """Take what workers did up to the time `at`."""
        self._taken += 1
        for worker in activity:
            line = self._timelines.setdefault(worker["name"], _Timeline())
            line.rows, line.memory_bytes, line.heard = (
                worker["rows"],
                worker["memory_bytes"],
                self._taken,
            )
            line.at.append(at)
            line.busy.append(worker["seconds_busy"])
            if len(line.at) > 2 * MOST_STRETCHES:
                line.at = line.at[1::2] if len(line.at) % 2 == 0 else [*line.at[1::2], line.at[-1]]
                line.busy = [sum(line.busy[i : i + 2]) for i in range(0, len(line.busy), 2)]
        while len(self._timelines) > MOST_WORKERS:
            del self._timelines[min(self._timelines, key=lambda name: self._timelines[name].heard)]

    def timelines(self) -> tuple[WorkerTimeline, ...]:
        """Return the workers in the order in which they came."""
        return tuple(
            WorkerTimeline(
                name,
                line.rows,
                line.memory_bytes,
                line.heard == self._taken,
                sum(line.busy),
                np.asarray(line.at),
                np.asarray(line.busy),
            )
            for name, line in self._timelines.items()
        )
