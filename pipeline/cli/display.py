"""Progress on standard error: a live bar where a person watches, a line a stage where it goes to a file."""

from __future__ import annotations

import datetime as dt
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TextIO

from rich.console import Console
from rich.progress import BarColumn, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as RichProgress

from topline.pipeline.progress import Progress
from topline.pipeline.telemetry import time_text
from topline.solvers.counts import how_many

# A line a stage is enough for a log; a stage that takes longer than this says how far it is.
LOG_SECONDS = 30.0
# Columns of a window that has room for a bar and for all that is to be said beside it.
WIDE_ENOUGH = 130


class LineDisplay:
    """One line when a stage begins, one every half a minute, one when it ends."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._stage = ""
        self._unit = ""
        self._total: int | None = None
        self._done = 0
        self._begun = self._said = time.monotonic()
        self._facts: Mapping[str, Any] = {}

    def begin(self, stage: str, total: int | None = None, unit: str = "") -> None:
        """Begin a stage; ends the one before."""
        self.end()
        self._stage, self._total, self._unit, self._done = stage, total, unit, 0
        self._facts = {}
        self._begun = self._said = time.monotonic()

    def advance(self, amount: int = 1) -> None:
        """Count units."""
        self._done += amount
        if time.monotonic() - self._said >= LOG_SECONDS:
            self._say("")

    def note(self, facts: Mapping[str, Any]) -> None:
        """Remember the facts of the moment."""
        self._facts = facts

    def end(self) -> None:
        """End the stage that has begun, if any; one that was only announced has nothing to say."""
        if self._stage and (self._done or time.monotonic() - self._begun >= 1.0):
            self._say("done")
        self._stage = ""

    def _say(self, word: str) -> None:
        self._said = time.monotonic()
        total = f"/{self._total:,}" if self._total and not word else ""
        counted = _amount(self._done, total, self._unit) if self._done else ""
        text = ", ".join(part for part in (counted, fact_text(self._facts, ended=bool(word)), word) if part)
        self._stream.write(f"{self._stage}: {text or 'working'} ({self._said - self._begun:.1f} s)\n")
        self._stream.flush()


class BarDisplay:
    """A live bar with speed, time left or gap, in fewer words if `narrow`; finished stages stay above."""

    def __init__(self, bars: RichProgress, *, narrow: bool = False) -> None:
        self._bars, self._narrow = bars, narrow
        self._task: TaskID | None = None
        self._unit = ""
        self._begun = 0.0
        self._facts: Mapping[str, Any] = {}

    def begin(self, stage: str, total: int | None = None, unit: str = "") -> None:
        """Begin a stage; ends the one before."""
        self.end()
        self._begun, self._unit, self._facts = time.monotonic(), unit, {}
        self._task = self._bars.add_task(stage, total=total, detail="")

    def advance(self, amount: int = 1) -> None:
        """Count units."""
        if self._task is not None:
            self._bars.update(self._task, advance=amount)
            self._bars.update(self._task, detail=self._detail())

    def note(self, facts: Mapping[str, Any]) -> None:
        """Show the facts of the moment."""
        self._facts = facts

    def end(self) -> None:
        """End the stage that has begun, if any: its bar stands full, with what was done in the end."""
        if self._task is None:
            return
        task = self._bars.tasks[-1]
        if task.completed or time.monotonic() - self._begun >= 1.0:
            done = task.completed or 1
            detail = self._detail(finished=True) if task.completed else ""
            self._bars.update(self._task, total=done, completed=done, detail=detail)
            self._bars.stop_task(self._task)
        else:
            self._bars.remove_task(self._task)
        self._task = None

    def _detail(self, *, finished: bool = False) -> str:
        """Return the amount, and the gap where there is one, otherwise the speed and the time left."""
        task = self._bars.tasks[-1]
        seconds = time.monotonic() - self._begun
        facts = fact_text(self._facts, ended=finished, short=self._narrow)
        total = f"/{task.total:,.0f}" if task.total and not finished and not (self._narrow and facts) else ""
        parts = [_amount(task.completed, total, self._unit), facts]
        if not facts and seconds > 0.5 and task.completed:
            speed = task.completed / seconds
            parts.append(f"{speed:,.0f}/s")
            if task.total and not finished:
                left = dt.timedelta(seconds=round((task.total - task.completed) / speed))
                parts.append(f"{left} left")
        return ", ".join(part for part in parts if part)


def _amount(done: float, total: str, unit: str) -> str:
    """Return how much is done, of a total if there is one."""
    return f"{done:,.0f}{total} {unit}".rstrip() if total else how_many(done, unit, ".0f").rstrip()


def fact_text(facts: Mapping[str, Any], *, ended: bool = False, short: bool = False) -> str:
    """Return the facts worth a place beside a bar; once it has ended, no time is left."""
    if "relative_gap" in facts:
        gap, stationarity = facts["relative_gap"], facts.get("stationarity")
        after = ("" if ended else time_text(facts.get("left"))) + held_out_text(facts, short=short)
        if isinstance(stationarity, float):
            return f"gradient at {stationarity:.2e}{'' if short else ' of its first size'}{after}"
        return f"{'' if short else 'relative '}gap {gap:.2e}{after}" if isinstance(gap, float) else ""
    return ", ".join(f"{name} {value}" for name, value in facts.items() if isinstance(value, (int, str)))


def held_out_text(facts: Mapping[str, Any], *, short: bool = False) -> str:
    """Return the accuracy on held-out rows at the last look, as it stands behind a gap; "" before that."""
    share = facts.get("held_out")
    if not isinstance(share, float):
        return ""
    if short:
        return f", top-1 {100 * share:.1f}%"
    rows = f"{facts['held_out_split']} rows"
    return f", top-1 {100 * share:.1f}% of {how_many(facts['held_out_rows'], rows)}"


@contextmanager
def show_progress() -> Iterator[Progress]:
    """Return a display on standard error that suits its reader."""
    if not sys.stderr.isatty():
        lines = LineDisplay(sys.stderr)
        yield lines
        lines.end()
        return
    console = Console(stderr=True)
    narrow = console.width < WIDE_ENOUGH
    columns = (
        SpinnerColumn(finished_text="[green]✓[/]"),
        TextColumn("{task.description:<8}"),
        *(() if narrow else (BarColumn(bar_width=16),)),
        TimeElapsedColumn(),
        TextColumn("[dim]{task.fields[detail]}[/]"),
    )
    with RichProgress(*columns, console=console) as bars:
        display = BarDisplay(bars, narrow=narrow)
        yield display
        display.end()
