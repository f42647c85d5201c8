"""Histories of a store, and the table of what they met: python -m tests.simulation --histories N --seed S.

Each seed is one history: processes of the product take turns on a simulated disk or bucket whose calls fail.
With --planted the product is changed in more than twenty ways, each of which a history finds.  The exit
status is 1 if an invariant was violated, or a planted fault was not found; histories are printed as short as
they get.
"""

from __future__ import annotations

import argparse
import gc
import logging
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Sequence

from tests.simulation.actors import THEMES
from tests.simulation.history import Lived, Plan, live, shortest, told
from tests.simulation.machine import simulated
from tests.simulation.planted import FOUND, find_all

_MOST_SHOWN = 5


def lived_through(seeds: Sequence[int]) -> tuple[list[Lived], Counter[str], Counter[str]]:
    """Live through the histories of seeds, until Ctrl-C; return those that fail, faults and counts."""
    failed, faults, counts = [], Counter[str](), Counter[str]()
    stopped = []
    signal.signal(signal.SIGINT, lambda *_: stopped.append(True))
    for seed in seeds:
        if stopped:
            break
        lived = live(Plan.of(seed))
        counts["histories"] += 1
        faults += lived.faults
        counts[f"{lived.plan.theme} on a {lived.plan.medium}"] += 1
        counts["of two versions"] += lived.plan.mixed
        counts["calls"] += lived.steps
        counts["invariants checked"] += lived.checked
        if lived.violation is not None:
            failed.append(lived)
        if seed % 100 == 0:
            gc.collect()
    return failed, faults, counts


def main(arguments: Sequence[str] | None = None) -> int:
    """Live through the histories that are asked for, print the table; 1 if one of them fails."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--histories", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1, help="the first one")
    parser.add_argument("--also", type=int, nargs="*", default=[], help="more seeds")
    parser.add_argument("--planted", action="store_true", help="find faults planted into the product")
    options = parser.parse_args(arguments)
    logging.disable(logging.CRITICAL)
    gc.freeze()
    gc.disable()
    if options.planted:
        with simulated():
            return find_all(options.histories)
    begun = time.process_time()
    with simulated():
        seeds = [*range(options.seed, options.seed + options.histories), *options.also]
        failed, faults, counts = lived_through(seeds)
        seconds = time.process_time() - begun
        stories = [told(shortest(lived)) for lived in failed[:_MOST_SHOWN]]
    lived = counts.pop("histories")
    print(f"{lived:,} histories, {lived / seconds * 60:,.0f} a minute of one core")
    two, calls, checked = (counts.pop(name) for name in ("of two versions", "calls", "invariants checked"))
    print(f"{two:,} of them of two versions, {calls:,} calls, {checked:,} invariants checked")
    print(
        f"{faults.total():,} faults: "
        + ", ".join(f"{kind} {number:,}" for kind, number in faults.most_common())
    )
    for theme in THEMES:
        shown = ", ".join(f"{of} {n:,}" for of, n in sorted(counts.items()) if of.startswith(f"{theme} "))
        print(f"  {shown}")
    print(f"{len(FOUND)} bugs found before:")
    print("\n".join(f"  {seed:<6} {what}" for seed, what in FOUND.items()))
    print(f"{len(failed)} violations: seeds {[lived.plan.seed for lived in failed]}")
    print("\n".join(stories), end="")
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
