"""`python -m tests.mutation [--module M] [--most N]`: which changes do the tests not notice?"""

from __future__ import annotations

import argparse
import sys

from tests.mutation.runner import Outcome, mutants_of, sample, try_all
from tests.mutation.targets import TARGETS


def main(words: list[str] | None = None) -> int:
    """Print the survivors and a table; the exit code is 1 where a target falls short of --least."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("--module", action="append", choices=TARGETS, help="only this target; repeatable")
    parser.add_argument("--most", type=int, help="at most so many changes a target, drawn with the seed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", action="append", metavar="FILE:LINE", help="only changes there; repeatable")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--least", type=float, default=0.85, help="share that must be noticed (0.85)")
    options = parser.parse_args(words)
    rows = []
    for name in options.module or TARGETS:
        target = TARGETS[name]
        mutants = sample(mutants_of(target), options.most, options.seed)
        if options.only:
            mutants = [mutant for mutant in mutants if mutant.place in options.only]
        outcomes = try_all(target, mutants, options.processes, tell)
        rows.append((name, len(outcomes), sum(o.killed for o in outcomes), sum(o.seconds for o in outcomes)))
    print(f"\n{'target':<16}{'changes':>8}{'noticed':>8}{'share':>8}{'CPU s':>8}")
    for name, count, killed, seconds in rows:
        print(f"{name:<16}{count:>8}{killed:>8}{killed / max(count, 1):>8.1%}{seconds:>8.0f}")
    return int(any(killed < options.least * count for _, count, killed, _ in rows))


def tell(outcome: Outcome) -> None:
    if outcome.stopped or not outcome.killed:
        said = "took too long" if outcome.stopped else "survived"
        print(f"{said}: {outcome.mutant.place}  {outcome.mutant.text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
