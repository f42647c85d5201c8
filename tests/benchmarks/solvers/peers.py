"""Seconds and passes to relative gap 1e-3 beside peers: python -m tests.benchmarks.solvers.peers.

Our methods run as a user would run them, to a certified gap of 1e-3, certificate included; `auto` is what a
user gets who names none.  A set with "/z" behind its name is standardised.  The peers, scikit-learn's
LinearSVC (LIBLINEAR, Crammer-Singer) and LogisticRegression, and cyanure where it is installed, are given
tolerances from loose to tight, and the time is that of the first fit whose primal value, computed here in
float64, is at most (1 + 1e-3) times the best one known (auto to 1e-5, or as far as --budget allows).
The fits before it are not counted, nor is what they certify looked at.  Ours and theirs alternate in one run;
figures are medians of --repeats, on the wall or, with --clock cpu, of all threads.
BLAS may use the same number of threads on both sides; LIBLINEAR uses one.  The tables at the end have the
best peer's seconds over those of auto, and say how many cases were not solved or slower than the best peer.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from tests.benchmarks.datasets import DATA_DIR, SETS, DataSet, load
from tests.benchmarks.solvers.peer_fits import CLOCKS, PEERS, TOLERANCES, PeerProcess
from topline import MaxHinge, Softmax, TopKHinge, solve
from topline.solvers.core.state import Status
from topline.solvers.losses import Loss
from topline.solvers.run import available_cores

GAP = 1e-3
TIGHT_GAP = 1e-5
MANY_PASSES = 10_000_000
OURS = {
    "max_hinge": ("auto", "dual_ascent", "newton", "fw", "sdca"),
    "topk_hinge": ("auto", "dual_ascent", "newton", "fw"),
    "softmax": ("auto", "dual_ascent", "newton", "lbfgs", "fw"),
}
THEIRS: dict[str, tuple[str, ...]] = {
    "max_hinge": ("liblinear",),
    "topk_hinge": (),
    "softmax": tuple(peer for peer in PEERS if peer != "liblinear"),
}
LOSSES: dict[str, Loss] = {"max_hinge": MaxHinge(), "topk_hinge": TopKHinge(5), "softmax": Softmax()}


@dataclass(frozen=True)
class Options:
    """What to run: seconds of the tight run (`budget`) and of any other single run (`cap`)."""

    folder: Path
    only: tuple[str, ...] = tuple(SETS)
    losses: tuple[str, ...] = ("max_hinge",)
    lam_n: tuple[float, ...] = (1.0, 10.0, 100.0)
    repeats: int = 1
    cap: float = 60.0
    budget: float = 60.0
    quick: bool = False
    methods: tuple[str, ...] = ()
    peers: tuple[str, ...] = tuple(PEERS)
    clock: str = "wall"


@dataclass(frozen=True)
class Outcome:
    """One run; where the goal was not reached within the cap, seconds and passes are lower bounds.

    `passes` of a peer are its iterations; `products` are the seconds of ours in products with the features.
    """

    seconds: float
    passes: int | None
    primal: float
    reached: bool
    products: float | None = None

    def line(self, name: str) -> str:
        """Lay it out."""
        over = " " if self.reached else ">"
        passes = "" if self.passes is None else f"{over}{self.passes}"
        spent = "" if self.products is None else f"  products {self.products:.3f} s"
        return f"  {name:<18}{over}{self.seconds:9.3f} s {passes:>9} passes  primal {self.primal:.6g}{spent}"


@dataclass(frozen=True)
class Case:
    """All outcomes on one problem, medians over the repeats."""

    data: str
    wide: bool
    loss: str
    lam_n: float
    outcomes: dict[str, Outcome]

    @property
    def seconds_ratio(self) -> float | None:
        """Seconds of the best peer over auto's; a lower bound where no peer came to the goal."""
        theirs = [one.seconds for name, one in self.outcomes.items() if name in PEERS]
        return min(theirs) / self.outcomes["auto"].seconds if theirs else None

    @property
    def no_peer_reached(self) -> bool:
        """Whether every peer met its cap."""
        return not any(one.reached for name, one in self.outcomes.items() if name in PEERS)

    def cell(self) -> str:
        """Lay it out for a table."""
        ours = self.outcomes["auto"]
        seconds = f"({'' if ours.reached else 'not solved, '}{ours.seconds:.2g} s)"
        if self.seconds_ratio is None:
            return seconds
        return f"{'>' if self.no_peer_reached else ''}{self.seconds_ratio:.2f} {seconds}"


def cases(options: Options) -> Iterator[Case]:
    """Run everything, printing as it goes."""
    threads = available_cores()
    for name in options.only:
        try:
            data = load(name, options.folder, quick=options.quick)
        except FileNotFoundError as missing:
            print(f"{name}: skipped, {missing.filename} is not there")
            continue
        print(f"{data.title}; products of a pass {bare_pass(data, options.clock):.4f} s")
        with PeerProcess(
            name, options.folder, quick=options.quick, threads=threads, clock=options.clock
        ) as peers:
            for loss in options.losses:
                wanted = options.methods or OURS[loss]
                methods = [method for method in OURS[loss] if method in ("auto", *wanted)]
                compile_jit_functions(data, LOSSES[loss], methods)
                for lam_n in options.lam_n:
                    yield run_case(data, loss, lam_n, methods, peers, options)


def bare_pass(data: DataSet, clock: str) -> float:
    """Return the least seconds of X W and X^T G, all that a pass of either side cannot do without."""
    now, W = CLOCKS[clock], np.ones((data.X.shape[1], int(data.y.max()) + 1), data.X.dtype)
    seconds = []
    for _ in range(3):
        began = now()
        np.asarray(data.X.T @ np.asarray(data.X @ W))
        seconds.append(now() - began)
    return min(seconds)


def compile_jit_functions(data: DataSet, loss: Any, methods: Sequence[str]) -> None:
    """Run every method on a few rows in both precisions, so that no compiling is timed."""
    rows = np.unique(data.y, return_index=True)[1]
    X, y = data.X[rows], data.y[rows]
    for values in (X, X.astype(np.float64)):
        for method in methods:
            solve(values, y, loss, 1.0 / len(y), method=method, max_passes=60, tol=1e-12)


def run_case(
    data: DataSet, loss: str, lam_n: float, methods: Sequence[str], peers: PeerProcess, options: Options
) -> Case:
    """Run every method and peer on one problem, in turns."""
    theirs = [name for name in THEIRS[loss] if name in options.peers]
    goal = goal_for(data, loss, lam_n, options) if theirs else np.inf
    print(f" {loss}, lam n = {lam_n:g}")
    runs: dict[str, list[Outcome]] = {name: [] for name in (*methods, *theirs)}
    tolerances: dict[str, float] = {}
    for _ in range(options.repeats):
        for name, outcomes in runs.items():
            if outcomes and not outcomes[0].reached:
                continue  # once beyond the cap is enough
            if name in OURS[loss]:
                outcomes.append(run_ours(data, LOSSES[loss], lam_n, name, options))
            else:
                outcomes.append(run_peer(data, loss, lam_n, name, peers, goal, tolerances, options))
    medians = {name: median(outcomes) for name, outcomes in runs.items()}
    for name, outcome in medians.items():
        print(outcome.line(name), flush=True)
    return Case(data.name, data.wide, loss, lam_n, medians)


def goal_for(data: DataSet, loss: str, lam_n: float, options: Options) -> float:
    """Return the primal value that counts as the goal."""
    tight = solve(
        data.X, data.y, LOSSES[loss], lam_n / len(data.y), tol=TIGHT_GAP, max_passes=MANY_PASSES,
        time_limit=options.budget,
    )  # fmt: skip
    return min(tight.primal, tight.state.best.primal) * (1.0 + GAP)


def run_ours(data: DataSet, loss: Any, lam_n: float, method: str, options: Options) -> Outcome:
    """Solve to the gap, certificate included."""
    limits: dict[str, Any] = {"max_passes": MANY_PASSES, "time_limit": options.cap}
    now = CLOCKS[options.clock]
    started = now()
    result = solve(data.X, data.y, loss, lam_n / len(data.y), method=method, tol=GAP, **limits)
    seconds, products = now() - started, sum(record.seconds_products for record in result.history)
    return Outcome(seconds, result.passes, result.primal, result.status is Status.SOLVED, products)


def run_peer(
    data: DataSet,
    loss: str,
    lam_n: float,
    peer: str,
    peers: PeerProcess,
    goal: float,
    tolerances: dict[str, float],
    options: Options,
) -> Outcome:
    """Go down the tolerances to the first fit that meets the goal, or repeat the one found before."""
    primal = np.inf
    for tol in [tolerances[peer]] if peer in tolerances else TOLERANCES:
        answer = peers.fit(peer, 1.0 / lam_n, tol, options.cap)
        if answer is None:
            break
        seconds, W, rounds = answer
        primal = primal_value(data, loss, lam_n / len(data.y), W)
        if primal <= goal:
            tolerances[peer] = tol
            return Outcome(seconds, rounds, primal, reached=True)
    return Outcome(options.cap, None, primal, reached=False)


def primal_value(data: DataSet, loss: str, lam: float, W: np.ndarray[Any, Any]) -> float:
    """P(W) in float64, from the definition of the loss alone."""
    total = 0.0
    for start in range(0, len(data.y), 4096):
        rows = slice(start, start + 4096)
        scores = np.asarray(data.X[rows].astype(np.float64) @ W)
        own = np.arange(len(scores)), data.y[rows]
        margins = scores - scores[own][:, None]
        if loss == "max_hinge":
            margins += 1.0
            margins[own] = 0.0
            total += margins.max(axis=1).sum()
        else:
            top = margins.max(axis=1)
            total += (top + np.log(np.exp(margins - top[:, None]).sum(axis=1))).sum()
    return 0.5 * lam * float(np.vdot(W, W)) + total / len(data.y)


def median(outcomes: Sequence[Outcome]) -> Outcome:
    """Give the run of median seconds, its seconds averaged where the number is even."""
    middle = sorted(outcomes, key=lambda outcome: outcome.seconds)[len(outcomes) // 2]
    seconds = statistics.median(outcome.seconds for outcome in outcomes)
    return replace(middle, seconds=seconds)


def summary(results: Sequence[Case]) -> str:
    """Return a table for every loss, and what the cases come to."""
    lines: list[str] = []
    for loss in dict.fromkeys(case.loss for case in results):
        lines += ["", *table(loss, [case for case in results if case.loss == loss])]
    unsolved = sum(not case.outcomes["auto"].reached for case in results)
    lines += ["", f"{len(results)} cases, {unsolved} of them not solved by auto"]
    with_peer = [case for case in results if case.seconds_ratio is not None]
    for name, wide in (("dense, d >= 256", True), ("shorter or sparse rows", False)):
        ratios = [case.seconds_ratio or 0.0 for case in with_peer if case.wide is wide]
        if ratios:
            slower = sum(ratio < 1.0 for ratio in ratios)
            lines.append(
                f"{name}: best peer's seconds / ours median {statistics.median(ratios):.2f}, "
                f"least {min(ratios):.2f}, below 1 in {slower} of {len(ratios)}"
            )
    return "\n".join(lines)


def table(loss: str, results: Sequence[Case]) -> list[str]:
    """Lay out a loss: the best peer's seconds / ours, in brackets ours; > where every peer met its cap."""
    columns = list(dict.fromkeys(case.lam_n for case in results))
    lines = [f"| {loss}, lam n | " + " | ".join(f"{lam_n:g}" for lam_n in columns) + " |"]
    lines.append("|---" * (len(columns) + 1) + "|")
    for name in dict.fromkeys(case.data for case in results):
        cells = {case.lam_n: case.cell() for case in results if case.data == name}
        lines.append(f"| {name} | " + " | ".join(cells.get(lam_n, "") for lam_n in columns) + " |")
    return lines


def read_options(arguments: Sequence[str]) -> Options:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data-dir", type=Path, default=DATA_DIR)
    parser.add_argument(
        "--only", default=",".join(SETS), help="sets, separated by commas; letter/z is letter standardised"
    )
    parser.add_argument("--loss", default="max_hinge", help=f"of {', '.join(OURS)}, separated by commas")
    parser.add_argument("--lam-n", default="1,10,100")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--cap", type=float, default=60.0, help="seconds of one run")
    parser.add_argument("--budget", type=float, default=60.0, help="seconds of the run to gap 1e-5")
    parser.add_argument("--methods", default="", help="ours to run beside auto; all by default")
    parser.add_argument("--peers", default=",".join(PEERS), help="theirs, of those that know the loss")
    parser.add_argument("--clock", choices=tuple(CLOCKS), default="wall", help="cpu: seconds of all threads")
    parser.add_argument("--quick", action="store_true", help="a few hundred rows of every set")
    given = parser.parse_args(arguments)
    losses = tuple(given.loss.split(","))
    if unknown := set(losses) - set(OURS):
        parser.error(f"there is no loss {', '.join(sorted(unknown))} here; use some of {', '.join(OURS)}")
    if unknown := set(given.peers.split(",")) - set(PEERS):
        parser.error(f"there is no peer {', '.join(sorted(unknown))}; use some of {', '.join(PEERS)}")
    return Options(
        folder=given.data_dir,
        only=tuple(given.only.split(",")),
        losses=losses,
        lam_n=tuple(float(value) for value in given.lam_n.split(",")),
        repeats=given.repeats,
        cap=given.cap,
        budget=given.budget,
        quick=given.quick,
        clock=given.clock,
        methods=tuple(given.methods.split(",")) if given.methods else (),
        peers=tuple(given.peers.split(",")),
    )


def main(arguments: Sequence[str]) -> int:
    """Run the command."""
    options = read_options(arguments)
    print(
        f"{', '.join(options.losses)}; {available_cores()} cores for either side; cap {options.cap:g} s a run"
    )
    print(summary(list(cases(options))))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
