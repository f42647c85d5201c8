"""`python -m tests.reproduce TABLE --data DIR`: a table of the papers, run again."""

from __future__ import annotations

import textwrap
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from topline.pipeline.cli.command import Call, Outcome, add_command
from topline.pipeline.cli.table import facts, table
from topline.pipeline.errors import ConfigError

if TYPE_CHECKING:
    from tests.reproduce.sources import DataFiles
    from tests.reproduce.table import Figure, Reproduction, Table

WIDTH = 110


def reproduce(
    call: Call,
    name: Annotated[
        str | None, typer.Argument(metavar="TABLE", help="Which table; --list shows all", show_default=False)
    ] = None,
    data: Annotated[
        list[Path] | None,
        typer.Option(
            "--data",
            help="Folder of the data sets, or one file of them (repeat); --list shows the files expected",
        ),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A minute: fewer splits, coarser grids")] = False,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of the splits and draws")] = 0,
    plot: Annotated[Path | None, typer.Option("--plot", help="HTML page of the table, to be written")] = None,
    list_: Annotated[bool, typer.Option("--list", help="Show the tables and the data they need")] = False,
) -> Outcome:
    """Run a table of the papers again on public data: the paper's figures beside ours."""
    from tests.reproduce import DataFiles, Effort, Setting, table_named
    from tests.reproduce import reproduce as run_table

    files = DataFiles(tuple(data or ()))
    if list_:
        return _listing(files)
    if name is None:
        raise ConfigError("say which table to run, as in python -m tests.reproduce circle; --list shows all")
    if plot is not None and plot.suffix not in {".html", ".htm"}:
        raise ConfigError(f"--plot {plot} is not the name of an HTML page: let it end in .html")
    chosen = table_named(name)
    effort = Effort.QUICK if quick else Effort.FULL
    began = time.monotonic()
    found = run_table(chosen, Setting(files, effort, seed, call.progress))
    seconds = time.monotonic() - began
    lines = shown(chosen, found)
    lines += ["", *facts({"time": f"{seconds:.0f} s{', --quick' if quick else ''}, seed {seed}"})]
    if plot is not None:
        from tests.reproduce.page import write_page

        write_page(chosen, found, plot)
        lines += facts({"page": str(plot)})
    payload = {
        "table": chosen.name, "title": chosen.title, "source": chosen.source, "quick": quick, "seed": seed,
        "seconds": seconds, "figures": [figure.to_dict() for figure in found.figures],
        "protocol": dict(found.protocol), "notes": dict(found.notes), "plot": plot,
    }  # fmt: skip
    return Outcome(payload, lines)


def shown(chosen: Table, found: Reproduction) -> list[str]:
    """Lay out a table for a terminal: figures, how they were made, and why they differ."""
    head = ("row", "", "paper", "ours", "difference", "")
    rows = [_row(figure, found.number) for figure in found.figures]
    spread = (
        "+- standard deviation over splits or seeds; 'within': at most two of them, and the paper's rounding"
    )
    lines = [f"{chosen.title}", f"{chosen.source}", "", *table(head, rows), "", f"  {spread}", ""]
    for name, text in found.protocol.items():
        lines += wrapped(f"  {name:<10}", text)
    for letter, text in found.notes.items():
        lines += wrapped(f"  ({letter}) ", text)
    return lines


def wrapped(head: str, text: str) -> list[str]:
    """Break a text into lines that hang below the end of its head."""
    lines = textwrap.wrap(text, WIDTH, initial_indent=head, subsequent_indent=" " * len(head))
    return lines or [head.rstrip()]


def _row(figure: Figure, number: str) -> tuple[str, ...]:
    paper = _with_spread(figure.paper, figure.paper_spread, number)
    difference = "" if figure.difference is None else f"{figure.difference:+{number}}"
    return (
        figure.row, figure.column, paper, _with_spread(figure.ours, figure.spread, number), difference,
        verdict(figure),
    )  # fmt: skip


def verdict(figure: Figure) -> str:
    """Say whether a difference is within the spread, or which note explains it."""
    if figure.difference is None or figure.within:
        return "within" if figure.within else ""
    return f"see ({figure.note})" if figure.note else "beyond the spread" if figure.within is False else ""


def _with_spread(value: float | None, spread: float | None, number: str) -> str:
    if value is None:
        return ""
    return f"{value:{number}}" + ("" if spread is None else f" +- {spread:{number}}")


def _listing(files: DataFiles) -> Outcome:
    """Name the tables, what each needs and whether it is there."""
    from tests.reproduce import SOURCES, TABLES

    lines: list[str] = []
    payload = []
    for chosen in TABLES.values():
        lines += [f"{chosen.name:<20} {chosen.title}", f"{'':<20} {chosen.source}"]
        needs = [file for name in chosen.needs for file in SOURCES[name].files]
        there = [name for name in chosen.needs if files.has(name)]
        if needs:
            some = "any of " if chosen.any_of and len(chosen.needs) > 1 else ""
            lines += wrapped(f"{'':<20} data: {some}", ", ".join(needs))
        else:
            lines.append(f"{'':<20} needs no data")
        payload.append(
            {
                "table": chosen.name, "title": chosen.title, "source": chosen.source, "files": needs,
                "any_of": chosen.any_of, "present": there,
            }
        )  # fmt: skip
    origins = {name: f"{', '.join(source.files)}; from {source.origin}" for name, source in SOURCES.items()}
    lines += ["", "Data sets, below the folder of --data:", *facts(origins)]
    return Outcome({"tables": payload, "data": origins}, lines)


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
add_command(app, reproduce, "python -m tests.reproduce circle --quick")

if __name__ == "__main__":
    app()
