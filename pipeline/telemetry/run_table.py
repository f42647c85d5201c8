"""The rounds of a run as a table of bounded length that keeps what a chart of all of them would show."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

#: Columns of which every stretch of rounds keeps the lowest and the highest value.
LEVELS: Final = (
    "primal",
    "dual",
    "relative_gap",
    "stationarity",
    "step",
    "active",
    "memory_bytes",
    "held_out",
)
#: Columns that are added up over the rounds for which a row stands.
SUMS: Final = (
    "seconds_products",
    "seconds_kernels",
    "seconds_waiting",
    "bytes_sent",
    "bytes_received",
    "bytes_read",
)
COLUMNS: Final = ("round", "passes", "seconds", "at", "best_gap", *LEVELS, *SUMS)

Table: TypeAlias = NDArray[np.float64]

_PLACES: Final = {name: number for number, name in enumerate(COLUMNS)}
_LEVELS: Final = [_PLACES[name] for name in LEVELS]
_SUMS: Final = [_PLACES[name] for name in SUMS]
_SHARED: Final = ("seconds_products", "seconds_kernels")


class RunTable:
    """Takes rounds and keeps at most about `most` rows.

    Beyond twice as many, the rounds are cut into stretches of one length, a power of two, of each of which
    those rounds stay that have the lowest or highest value of a level, besides the first and the last of all.
    What a dropped round took goes to the next one that stays.
    """

    def __init__(self, most: int = 2048) -> None:
        self._most = most
        self._rows: Table = np.empty((0, len(COLUMNS)))
        #: Rounds that were done again after a loss.
        self.repeated = 0

    def add(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Take records of rounds, in the order in which they were written."""
        batch: list[list[float]] = []
        reached = self._reached()
        for record in records:
            if record["round"] <= reached:
                self._append(batch)
                batch = []
                self._go_back(record["round"])
            reached = record["round"]
            batch.append(_row(record))
        self._append(batch)

    def columns(self) -> dict[str, NDArray[np.float64]]:
        """Return the columns by name, as copies."""
        rows = self._rows.copy(order="F")
        return {name: rows[:, place] for name, place in _PLACES.items()}

    def _reached(self) -> float:
        return float(self._rows[-1, 0]) if len(self._rows) else -1.0

    def _go_back(self, to: int) -> None:
        """Drop the rounds from `to` on, which come again."""
        self.repeated += int(self._reached()) - to + 1
        self._rows = self._rows[: np.searchsorted(self._rows[:, 0], to)]

    def _append(self, batch: list[list[float]]) -> None:
        if not batch:
            return
        rows = np.asarray(batch, np.float64)
        rows[:, _PLACES["best_gap"]] = _best(self._rows, rows)
        self._rows = np.concatenate([self._rows, rows])
        if len(self._rows) > 2 * self._most:
            self._rows = thinned(self._rows, self._most)


def thinned(rows: Table, most: int) -> Table:
    """Return at most about `most` of the rows: the ends, and the extremes of each stretch of rounds."""
    stretches = max(1, most // (2 * len(_LEVELS)))
    rounds = rows[:, 0].astype(np.int64)
    # Powers of two, so that stretches of now are made of whole stretches of before.
    width = 1 << max(0, int(rounds[-1] // stretches).bit_length())
    _, starts, stretch = np.unique(rounds // width, return_index=True, return_inverse=True)
    kept = np.zeros(len(rows), dtype=bool)
    kept[[0, -1]] = True
    for place in _LEVELS:
        _mark_extremes(rows[:, place], starts, stretch, kept)
    groups = np.concatenate([[0], np.cumsum(kept)[:-1]])
    thin = rows[kept]
    for place in _SUMS:
        thin[:, place] = np.bincount(groups, weights=rows[:, place], minlength=len(thin))
    return thin


def _mark_extremes(
    values: NDArray[np.float64],
    starts: NDArray[np.intp],
    stretch: NDArray[np.intp],
    kept: NDArray[np.bool_],
) -> None:
    """Mark the first lowest and the first highest value of each stretch; NaN is neither."""
    for sign in (1.0, -1.0):
        signed = np.where(np.isnan(values), np.inf, sign * values)
        is_lowest = (signed == np.minimum.reduceat(signed, starts)[stretch]) & ~np.isnan(values)
        places = np.flatnonzero(is_lowest)
        _, first = np.unique(stretch[places], return_index=True)
        kept[places[first]] = True


def _best(before: Table, rows: Table) -> NDArray[np.float64]:
    """Smallest gap so far, or the gradient where there is no gap."""
    gaps, gradients = rows[:, _PLACES["relative_gap"]], rows[:, _PLACES["stationarity"]]
    measures = np.where(np.isnan(gradients), gaps, gradients)
    last = before[-1, _PLACES["best_gap"]] if len(before) else np.nan
    best: NDArray[np.float64] = np.fmin.accumulate(np.concatenate([[last], measures]))[1:]
    return best


def _row(record: Mapping[str, Any]) -> list[float]:
    """Values of a record; work of all workers is made that of an average one."""
    workers = record.get("workers") or 1
    values = [_number(record.get(name), 0.0 if name in SUMS else math.nan) for name in COLUMNS]
    for name in _SHARED:
        values[_PLACES[name]] /= workers
    return values


def _number(value: Any, missing: float) -> float:
    return missing if value is None else float(value)
