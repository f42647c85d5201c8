"""`python -m tests.reproduce TABLE --data DIR`: a table of the papers, run again."""

from __future__ import annotations

import argparse
import json
import sys
import textwrap
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.reproduce import SOURCES, TABLES, DataFiles, Effort, Setting, registry, reproduce, table_named
from tests.reproduce.kept import Kept
from tests.reproduce.page import Part, write_page
from tests.reproduce.score import Score, verdict
from tests.reproduce.table import Figure, Reproduction, Table
from topline.pipeline.errors import ConfigError, InputError, PipelineError

WIDTH = 110


def main(words: Sequence[str] | None = None) -> int:
    """Run what the words ask for; 0, or 2 after a sentence on standard error about what was wrong."""
    options = _parser().parse_args(words)
    files = DataFiles(tuple(options.data))
    try:
        run = _listing if options.list else _every_table if options.all else _table
        payload, lines = run(files, options)
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
    add(
        "--resume",
        type=Path,
        metavar="FOLDER",
        help="keep finished pieces there; the same command goes on with what is missing",
    )
    add("--all", action="store_true", help="every table whose data is there, on one page")
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
        raise ConfigError(
            "say which table to run, as in python -m tests.reproduce circle; --list shows all, --all runs all"
        )
    setting = _setting(files, options)
    part = _run(table_named(options.table), setting)
    lines = shown(part.table, part.found)
    quick = ", --quick" if options.quick else ""
    kept = f", {setting.kept.seconds:.0f} of them in earlier runs" if setting.kept else ""
    spent = f"{part.seconds:.0f} processor seconds{kept}{quick}, seed {options.seed}"
    lines += ["", *_facts({"time": spent})]
    if options.plot is not None:
        write_page([part], options.plot)
        lines += _facts({"page": str(options.plot)})
    return {**_payload(part), "quick": options.quick, "seed": options.seed, "plot": options.plot}, lines


def _every_table(files: DataFiles, options: argparse.Namespace) -> tuple[dict[str, Any], list[str]]:
    """Run every table whose data is there; the page grows with each."""
    if options.table is not None:
        raise ConfigError(f"--all runs every table, and {options.table} was named besides: give one of both")
    setting = _setting(files, options)
    parts: list[Part] = []
    left_out: dict[str, str] = {}
    for table in registry.TABLES.values():
        try:
            parts.append(_run(table, setting))
        except InputError as error:
            left_out[table.name] = str(error)
            continue
        if options.plot is not None:
            write_page(parts, options.plot, left_out)
    lines = [line for part in parts for line in [*shown(part.table, part.found), "", ""]]
    lines += _summary(parts, left_out)
    if options.plot is not None:
        write_page(parts, options.plot, left_out)
        lines += _facts({"page": str(options.plot)})
    payload = {"tables": [_payload(part) for part in parts], "left_out": left_out}
    return {**payload, "quick": options.quick, "seed": options.seed, "plot": options.plot}, lines


def _summary(parts: Sequence[Part], left_out: Mapping[str, str]) -> list[str]:
    """Lay out a line a table: figures compared, wins, losses, and seconds."""
    head = (
        "table",
        "compared",
        "better",
        "worse",
        "clearly better",
        "clearly worse",
        "within",
        "processor s",
    )
    rows = [
        (
            part.table.name, str(score.compared), str(score.wins), str(score.losses), str(score.clear_wins),
            str(score.clear_losses), f"{part.within} of {part.compared}", f"{part.seconds:.0f}",
        )
        for part, score in ((part, part.score) for part in parts)
    ]  # fmt: skip
    whole = Score.of([figure for part in parts for figure in part.found.figures])
    lines = [*_aligned([head, *rows]), "", *wrapped("  ", str(whole)), ""]
    for name, reason in left_out.items():
        lines += wrapped(f"  {name:<22}", f"not run: {reason}")
    total = sum(part.seconds or 0.0 for part in parts)
    return [*lines, "", *_facts({"time": f"{total:.0f} processor seconds"})]


def _setting(files: DataFiles, options: argparse.Namespace) -> Setting:
    if options.seed < 0:
        raise ConfigError(f"--seed is {options.seed}; give a number of at least 0")
    plot = options.plot
    if plot is not None and plot.suffix not in {".html", ".htm"}:
        raise ConfigError(f"--plot {plot} is not the name of an HTML page: let it end in .html")
    kept = None
    if options.resume is not None:
        try:
            options.resume.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"--resume {options.resume} cannot be a folder ({error.strerror})") from error
        kept = Kept(options.resume)
    return Setting(files, Effort.QUICK if options.quick else Effort.FULL, options.seed, _Stages(), kept)


def _run(table: Table, setting: Setting) -> Part:
    print(f"{table.name}", file=sys.stderr, flush=True)
    began, earlier = time.process_time(), setting.kept.seconds if setting.kept else 0.0
    found = reproduce(table, setting)
    saved = setting.kept.seconds - earlier if setting.kept else 0.0
    return Part(table, found, time.process_time() - began + saved)


def _payload(part: Part) -> dict[str, Any]:
    table, found = part.table, part.found
    return {
        "table": table.name, "title": table.title, "source": table.source, "seconds": part.seconds,
        "figures": [figure.to_dict() for figure in found.figures], "protocol": dict(found.protocol),
        "notes": dict(found.notes), "score": asdict(part.score), "tally": str(part.score),
    }  # fmt: skip


def shown(chosen: Table, found: Reproduction) -> list[str]:
    """Lay out a table for a terminal: figures, how they were made, and why they differ."""
    head = ("row", "", "paper", "ours", "difference", "s.e.", "")
    rows = [_row(figure, found.number) for figure in found.figures]
    spread = (
        "+- standard deviation over splits or seeds; s.e.: the difference in standard errors; 'within': at"
        " most two standard deviations, and the paper's rounding"
    )
    lines = [
        f"{chosen.title}",
        f"{chosen.source}",
        "",
        *_aligned([head, *rows]),
        "",
        *wrapped("  ", spread),
        "",
    ]
    lines += [*wrapped("  ", str(Score.of(found.figures))), ""]
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
        _errors(figure), verdict(figure),
    )  # fmt: skip


def _errors(figure: Figure) -> str:
    return "" if figure.standard_errors is None else f"{figure.standard_errors:+.1f}"


def _with_spread(value: float | None, spread: float | None, number: str) -> str:
    if value is None:
        return ""
    return f"{value:{number}}" + ("" if spread is None else f" +- {spread:{number}}")


def _listing(files: DataFiles, _options: argparse.Namespace) -> tuple[dict[str, Any], list[str]]:
    """Name the tables, what each needs and whether it is there."""
    lines: list[str] = []
    payload = []
    for chosen in TABLES.values():
        lines += [f"{chosen.name:<20} {chosen.title}", f"{'':<20} {chosen.source}"]
        needs = [file for name in chosen.needs for file in SOURCES[name].files]
        more = [file for name in chosen.optional for file in SOURCES[name].files]
        there = [name for name in chosen.needs if files.has(name)]
        if needs:
            some = "any of " if chosen.any_of and len(chosen.needs) > 1 else ""
            lines += wrapped(f"{'':<20} data: {some}", ", ".join(needs))
        else:
            lines.append(f"{'':<20} needs no data")
        if more:
            lines += wrapped(f"{'':<20} more rows with: ", ", ".join(more))
        payload.append(
            {
                "table": chosen.name, "title": chosen.title, "source": chosen.source, "files": needs,
                "optional": more,
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
