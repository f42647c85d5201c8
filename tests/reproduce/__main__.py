"""`python -m tests.reproduce TABLE --data DIR`: a table of the papers, run again."""

from __future__ import annotations

import argparse
import json
import sys
import textwrap
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.reproduce import SOURCES, TABLES, DataFiles, Effort, Setting, reproduce, table_named
from tests.reproduce.page import write_page
from tests.reproduce.table import Figure, Reproduction, Table
from topline.pipeline.errors import ConfigError, PipelineError

WIDTH = 110


def main(words: Sequence[str] | None = None) -> int:
    """Run what the words ask for; 0, or 2 after a sentence on standard error about what was wrong."""
    options = _parser().parse_args(words)
    files = DataFiles(tuple(options.data))
    try:
        payload, lines = _listing(files) if options.list else _table(files, options)
    except PipelineError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(json.dumps(payload, default=str) if options.json else "\n".join(lines))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.reproduce", description=__doc__)
    add = parser.add_argument
    add("table", nargs="?", metavar="TABLE", help="which table; --list shows all")
    add(
        "--data",
        action="append",
        type=Path,
        default=[],
        help="folder of the data sets, or one file of them (repeat); --list shows the files expected",
    )
    add("--quick", action="store_true", help="about a minute: fewer splits, coarser grids")
    add("--seed", type=int, default=0, help="seed of the splits and draws (0)")
    add("--plot", type=Path, help="HTML page of the table, to be written")
    add("--list", action="store_true", help="show the tables and the data they need")
    add("--json", action="store_true", help="one JSON object on standard output")
    return parser  # fmt: skip


class _Stages:
    """The stages of the work, a line each on standard error."""

    def begin(self, stage: str, total: int | None = None, unit: str = "") -> None:
        self.left, self.every = total or 0, max((total or 0) // 10, 1)
        print(f"{stage}: {total} {unit}", file=sys.stderr, flush=True)

    def advance(self, amount: int = 1) -> None:
        self.left -= amount
        if self.left > 0 and self.left % self.every == 0:
            print(f"  {self.left} left", file=sys.stderr, flush=True)

    def note(self, facts: Mapping[str, Any]) -> None:
        """Facts of the moment are for those who watch one training."""


def _table(files: DataFiles, options: argparse.Namespace) -> tuple[dict[str, Any], list[str]]:
    """Run a table of the papers again on public data: the paper's figures beside ours."""
    if options.table is None:
        raise ConfigError("say which table to run, as in python -m tests.reproduce circle; --list shows all")
    if options.seed < 0:
        raise ConfigError(f"--seed is {options.seed}; give a number of at least 0")
    plot, quick = options.plot, options.quick
    if plot is not None and plot.suffix not in {".html", ".htm"}:
        raise ConfigError(f"--plot {plot} is not the name of an HTML page: let it end in .html")
    chosen = table_named(options.table)
    effort = Effort.QUICK if quick else Effort.FULL
    began = time.monotonic()
    found = reproduce(chosen, Setting(files, effort, options.seed, _Stages()))
    seconds = time.monotonic() - began
    lines = shown(chosen, found)
    lines += ["", *_facts({"time": f"{seconds:.0f} s{', --quick' if quick else ''}, seed {options.seed}"})]
    if plot is not None:
        write_page(chosen, found, plot)
        lines += _facts({"page": str(plot)})
    payload = {
        "table": chosen.name, "title": chosen.title, "source": chosen.source, "quick": quick,
        "seed": options.seed, "seconds": seconds, "figures": [figure.to_dict() for figure in found.figures],
        "protocol": dict(found.protocol), "notes": dict(found.notes), "plot": plot,
    }  # fmt: skip
    return payload, lines


def shown(chosen: Table, found: Reproduction) -> list[str]:
    """Lay out a table for a terminal: figures, how they were made, and why they differ."""
    head = ("row", "", "paper", "ours", "difference", "")
    rows = [_row(figure, found.number) for figure in found.figures]
    spread = (
        "+- standard deviation over splits or seeds; 'within': at most two of them, and the paper's rounding"
    )
    lines = [f"{chosen.title}", f"{chosen.source}", "", *_aligned([head, *rows]), "", f"  {spread}", ""]
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


def _listing(files: DataFiles) -> tuple[dict[str, Any], list[str]]:
    """Name the tables, what each needs and whether it is there."""
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
    lines += ["", "Data sets, below the folder of --data:", *_facts(origins)]
    return {"tables": payload, "data": origins}, lines


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lay out rows, the first of them their heads, with columns as wide as their widest entry."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    ruled = [rows[0], ["-" * width for width in widths], *rows[1:]]
    return ["  ".join(map(str.ljust, line, widths)).rstrip() for line in ruled]


def _facts(pairs: Mapping[str, str]) -> list[str]:
    """Lay out names and values, one pair a line."""
    width = max(map(len, pairs), default=0)
    return [f"  {name:<{width}}  {value}" for name, value in pairs.items()]


if __name__ == "__main__":
    sys.exit(main())
