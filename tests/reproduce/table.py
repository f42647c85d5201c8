"""What a table of a paper is here: a value that says what it needs and how it is run, and what came of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

import numpy as np

if TYPE_CHECKING:
    from markupsafe import Markup

    from tests.reproduce.kept import Kept
    from tests.reproduce.sources import DataFiles
    from topline.pipeline.progress import Progress


from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait

from topline.solvers.crew import one_blas_thread
from topline.solvers.run import available_cores

T = TypeVar("T")
Better: TypeAlias = Literal["higher", "lower", ""]

#: Standard deviations, the paper's and ours together, within which a difference counts as chance.
WITHIN = 2.0


@dataclass(frozen=True)
class Figure:
    """One entry of a table, the paper's beside ours.

    Attributes
    ----------
    row, column : where it stands, in the paper's words.
    ours : mean over splits or seeds.
    spread : standard deviation over them, None where there is only one.
    paper, paper_spread : what the paper prints; None for an entry that it does not have.
    note : key of the note that explains a difference beyond the spread.
    digits : how many the paper prints after the point; half a unit of the last is no difference.
    count, paper_count : splits or seeds that the spreads are of.
    better : whether a higher or a lower figure is the better one; empty where neither is.
    counts : whether the paper's figure is of the same data and protocol; others are shown and not counted.
    """

    row: str
    column: str
    ours: float
    spread: float | None = None
    paper: float | None = None
    paper_spread: float | None = None
    note: str = ""
    digits: int = 1
    count: int = 1
    paper_count: int = 1
    better: Better = "higher"
    counts: bool = True

    @property
    def difference(self) -> float | None:
        """Ours minus the paper's."""
        return None if self.paper is None else self.ours - self.paper

    @property
    def within(self) -> bool | None:
        """Whether the difference is at most two standard deviations; None without a paper's or a spread."""
        if self.difference is None or (self.spread is None and self.paper_spread is None):
            return None
        spread = math.hypot(self.spread or 0.0, self.paper_spread or 0.0)
        return abs(self.difference) <= WITHIN * spread + 0.5 * 10.0**-self.digits

    @property
    def standard_errors(self) -> float | None:
        """The difference in standard errors of it, beyond the paper's rounding; None without a spread.

        A figure of the paper without a spread is one split, whose spread is taken to be ours.
        """
        if self.difference is None or (self.spread is None and self.paper_spread is None):
            return None
        own = (self.spread or 0.0) / math.sqrt(self.count)
        theirs = self.spread if self.paper_spread is None else self.paper_spread
        error = math.hypot(own, (theirs or 0.0) / math.sqrt(self.paper_count))
        beyond = max(abs(self.difference) - 0.5 * 10.0**-self.digits, 0.0)
        if error == 0.0:
            return math.copysign(math.inf, self.difference) if beyond > 0.0 else 0.0
        return math.copysign(beyond / error, self.difference)

    def to_dict(self) -> dict[str, Any]:
        """Give plain values for JSON."""
        return {
            "row": self.row, "column": self.column, "paper": self.paper, "paper_spread": self.paper_spread,
            "ours": self.ours, "spread": self.spread, "difference": self.difference, "within": self.within,
            "standard_errors": self.standard_errors, "note": self.note, "better": self.better,
            "counts": self.counts,
        }  # fmt: skip


def over_splits(
    row: str,
    column: str,
    values: Sequence[float],
    paper: float | None = None,
    paper_spread: float | None = None,
    note: str = "",
    digits: int = 1,
    paper_count: int = 1,
    better: Better = "higher",
    *,
    counts: bool = True,
) -> Figure:
    """Make a figure of the values of several splits or seeds."""
    spread = float(np.std(values, ddof=1)) if len(values) > 1 else None
    return Figure(
        row, column, float(np.mean(values)), spread, paper, paper_spread, note, digits, len(values),
        paper_count, better, counts,
    )  # fmt: skip


@dataclass(frozen=True, eq=False)
class Reproduction:
    """What came of a table.

    Attributes
    ----------
    figures : entries, in the order of the paper.
    protocol : how it was run, by name: data, splits, grids, selection.
    notes : by a letter, where data or protocol differ from the paper's and what that does to the figures.
    number : format of a figure, such as ".1f".
    charts : titles, axes and drawings for the page.
    """

    figures: tuple[Figure, ...]
    protocol: Mapping[str, str]
    notes: Mapping[str, str] = field(default_factory=dict)
    number: str = ".1f"
    charts: tuple[tuple[str, str, Markup], ...] = ()


class Effort(Enum):
    """How much of a table is run: all of it, about a minute of it, or just enough to see that it runs."""

    FULL = 0
    QUICK = 1
    TINY = 2


@dataclass(frozen=True, eq=False)
class Setting:
    """With what a table is run: its data, how much, with which seed, who watches, where pieces are kept.

    A copy in another process, and what a piece is known by, has neither of the last two.
    """

    data: DataFiles
    effort: Effort = Effort.FULL
    seed: int = 0
    progress: Progress | None = None
    kept: Kept | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Leave out who watches and where pieces are kept."""
        return {**vars(self), "progress": None, "kept": None}

    def of(self, full: T, quick: T, tiny: T) -> T:
        """Choose by the effort."""
        return (full, quick, tiny)[self.effort.value]

    def begin(self, stage: str, total: int, unit: str) -> None:
        """Tell whoever watches that a stage begins."""
        if self.progress is not None:
            self.progress.begin(stage, total, unit)

    def advance(self) -> None:
        """Count one more unit as done."""
        if self.progress is not None:
            self.progress.advance()

    def rng(self, *keys: int) -> np.random.Generator:
        """Give the generator of one part of the work, independent of those of the other parts."""
        return np.random.default_rng([self.seed, *keys])


@dataclass(frozen=True)
class Table:
    """A table or figure of a paper.

    Attributes
    ----------
    name : as people say it on the command line.
    title : what it shows.
    source : paper and number of the table or figure.
    needs : names of the data sets that it reads.
    any_of : whether one of them is enough; the others are then named in a note.
    optional : names of data sets that add rows where they are there.
    run : makes it.
    """

    name: str
    title: str
    source: str
    run: Callable[[Setting], Reproduction]
    needs: tuple[str, ...] = ()
    any_of: bool = False
    optional: tuple[str, ...] = ()


def run_all(
    setting: Setting, stage: str, jobs: Sequence[Callable[[], T]], unit: str = "trainings", *, cores: int = 0
) -> list[T]:
    """Run jobs and give their results in order; the first error ends the rest.

    `cores` is 1 where the jobs are timed; 0 stands for all.
    """
    setting.begin(stage, len(jobs), unit)
    pool = ThreadPoolExecutor(max_workers=cores or available_cores(), thread_name_prefix="reproduce")
    try:
        with one_blas_thread():
            begin = pool.submit if setting.kept is None else partial(pool.submit, setting.kept.done)
            waiting = {begin(job): place for place, job in enumerate(jobs)}
            futures = sorted(waiting, key=waiting.__getitem__)
            left = set(futures)
            while left:
                done, left = wait(left, return_when=FIRST_COMPLETED)
                for future in done:
                    future.result()
                    setting.advance()
        return [future.result() for future in futures]
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
