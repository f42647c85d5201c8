"""Histories of a store, and the table of what they met: python -m tests.simulation --histories N --seed S.

Each seed is one history: processes of the product take turns on a simulated disk or bucket whose calls fail.
With --keep FILE what was lived through is kept there, a line for every thousand, and the same command goes on
after an interruption.  With --planted the product is changed in more than twenty ways, each of which a
history finds.  The exit status is 1 if an invariant was violated, or a planted fault was not found; histories
are printed as short as they get.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import reduce
from itertools import repeat
from operator import add
from pathlib import Path
from typing import NamedTuple, Self

from tests.simulation.history import MIXES, Plan, live, shortest, told
from tests.simulation.machine import simulated
from tests.simulation.planted import FOUND, find_all

_MOST_SHOWN = 5
_CHUNK = 1000


class Tally(NamedTuple):
    """What histories met: seeds that fail, faults by kind, counts, and CPU seconds."""

    failed: list[int]
    faults: Counter[str]
    counts: Counter[str]
    seconds: float

    def __add__(self, other: Self) -> Self:
        return type(self)(*(mine + its for mine, its in zip(self, other, strict=True)))

    @classmethod
    def of(cls, seeds: Sequence[int], mix: str) -> Self:
        """Live through the histories of some seeds."""
        begun, failed, faults, counts = time.process_time(), [], Counter[str](), Counter[str]()
        logging.disable(logging.CRITICAL)
        gc.collect()
        gc.freeze()
        gc.disable()
        with simulated():
            for seed in seeds:
                lived = live(Plan.of(seed, mix))
                faults.update(lived.faults)
                counts.update(
                    {
                        "histories": 1,
                        f"{lived.plan.theme} on a {lived.plan.medium}": 1,
                        "of two versions": lived.plan.mixed,
                        "calls": lived.steps,
                        "invariants checked": lived.checked,
                    }
                )
                failed += [seed] if lived.violation is not None else []
                if seed % 100 == 0:
                    gc.collect()
        return cls(failed, faults, counts, time.process_time() - begun)


def tallies(seeds: Sequence[int], mix: str, processes: int, kept: Path | None) -> Iterator[Tally]:
    """Yield a tally of every thousand seeds, from the file `kept` where it is there already."""
    chunks = [seeds[start : start + _CHUNK] for start in range(0, len(seeds), _CHUNK)]
    lines = kept.read_text().splitlines() if kept is not None and kept.exists() else []
    known = {tuple(line.pop("seeds")): line for line in map(json.loads, lines)}
    for chunk in chunks:
        if (line := known.get((chunk[0], chunk[-1]))) is not None:
            yield Tally(line["failed"], Counter(line["faults"]), Counter(line["counts"]), line["seconds"])
    chunks = [chunk for chunk in chunks if (chunk[0], chunk[-1]) not in known]
    with ProcessPoolExecutor(processes) as pool:
        for chunk, tally in zip(chunks, pool.map(Tally.of, chunks, repeat(mix)), strict=True):
            if kept is not None:
                with kept.open("a") as file:
                    print(json.dumps({"seeds": [chunk[0], chunk[-1]], **tally._asdict()}), file=file)
            yield tally


def main(arguments: Sequence[str] | None = None) -> int:
    """Live through the histories that are asked for, print the table; 1 if one of them fails."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--histories", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1, help="the first one")
    parser.add_argument("--also", type=int, nargs="*", default=[], help="more seeds")
    parser.add_argument("--mix", choices=MIXES, default="wide", help="what seeds are drawn from")
    parser.add_argument("--processes", type=int, default=1, help="how many work at once")
    parser.add_argument("--keep", type=Path, metavar="FILE", help="where what was lived through is kept")
    parser.add_argument("--planted", action="store_true", help="find faults planted into the product")
    parser.add_argument("--as-found", action="store_true", help="print their histories as they were found")
    options = parser.parse_args(arguments)
    if options.planted:
        logging.disable(logging.CRITICAL)
        with simulated():
            return find_all(options.histories, as_found=options.as_found)
    seeds = [*range(options.seed, options.seed + options.histories), *options.also]
    met = tallies(seeds, options.mix, options.processes, options.keep)
    failed, faults, counts, seconds = reduce(add, met)
    lived = counts.pop("histories")
    print(f"{lived:,} histories, {lived / seconds * 60:,.0f} a minute of one core")
    two, calls, checked = (counts.pop(name) for name in ("of two versions", "calls", "invariants checked"))
    print(f"{two:,} of them of two versions, {calls:,} calls, {checked:,} invariants checked")
    print(
        f"{faults.total():,} faults: "
        + ", ".join(f"{kind} {number:,}" for kind, number in faults.most_common())
    )
    for theme in MIXES[options.mix].themes:
        shown = ", ".join(f"{of} {n:,}" for of, n in sorted(counts.items()) if of.startswith(f"{theme} on "))
        print(f"  {shown}")
    print(f"{len(FOUND)} bugs found before:")
    print("\n".join(f"  {seed:<6} {what}" for seed, what in FOUND.items()))
    print(f"{len(failed)} violations: seeds {failed}")
    with simulated():
        for seed in failed[:_MOST_SHOWN]:
            print(told(shortest(live(Plan.of(seed, options.mix)))))
    return 1 if failed else 0


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":
        # Sets of names are passed through in the same order by every process.
        os.execve(
            sys.executable,
            [sys.executable, "-m", "tests.simulation", *sys.argv[1:]],
            {**os.environ, "PYTHONHASHSEED": "0"},
        )
    sys.exit(main())
