"""What a round costs on a network: seconds and bytes of workers behind slow links, beside a written model.

    python -m tests.benchmarks.scale.network --workers 2 4 8 16

starts workers of which each is reached over a link of --mbit a second and --delay one way, as the coordinator
is (`tests.benchmarks.scale.slow_links`), trains on a few rows with weights of d m numbers, and prints the
seconds and the coordinator's bytes of a round, those of the model, and the seconds of the same rounds where
links are as fast as the machine.  Then it prints what the model says of 64 and 256 workers for 14 million
rows of 2,048 features and 21,000 classes: as it is sent, with W from the coordinator alone, and with that
twice and all in float64.

The model: a part of a round of `dual_ascent`, of which a sweep has up to 64, sends W to every worker and gets
a sum of products back, d m numbers each. The copies of W for up to 8 workers pass the coordinator's link one
after the other; of more, each of 8 hands it on to half of those below it, to half of the rest, and so on
(`topline.pipeline.cluster.calls.by_tree`), and sums come back the same way. Every request takes some delays
(`DELAYS` a level), and the slowest worker's time: the mean one's times 1 + spread sqrt(2 ln K), the expected
largest of K normal numbers.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.benchmarks.datasets import relu_features
from tests.benchmarks.scale.slow_links import slow_cluster
from topline.pipeline.cluster import DaskExecutor, open_cluster
from topline.pipeline.cluster.calls import ROOTS
from topline.pipeline.options.train import ClusterConfig
from topline.solvers.core.state import IterationRecord, SolverState
from topline.solvers.losses import TopKHinge
from topline.solvers.operations import Ascend, Operation
from topline.solvers.operations.base import A
from topline.solvers.run import solve

#: Ways over a link that a request takes whatever its size, at each level: of the call and of its answer.
DELAYS = 2
#: Requests of a round that measures W and sweeps once, in one part.
REQUESTS = 2
#: Bits a second of links that limit nothing.
FREE = 1e13
WARM_ROUNDS = 2


@dataclass(frozen=True)
class Messages:
    """Bytes that go to a worker and come back in one round, for each of the d m numbers of the weights."""

    down: float
    up: float


#: W twice and the sums once, in float64; and W once and the sums, in float32.
IN_FLOAT64, AS_SENT = Messages(16.0, 8.0), Messages(4.0, 4.0)


@dataclass(frozen=True)
class Network:
    """Bytes a second of each link, seconds one way, and by what share workers' times differ."""

    bytes_per_second: float
    delay: float
    spread: float = 0.0


@dataclass(frozen=True)
class RoundCost:
    """Seconds of a round by what they are spent on, and bytes at the coordinator's link."""

    down: float
    up: float
    delays: float
    work: float
    nbytes: float

    @property
    def seconds(self) -> float:
        """Seconds of the whole round."""
        return self.down + self.up + self.delays + self.work


def round_cost(
    numbers: float, workers: int, messages: Messages, network: Network, work: float, *, handed_on: bool = True
) -> RoundCost:
    """Return what a round costs with `numbers` = d m, and `work` seconds of the mean worker.

    Down pass as many copies of W as follow each other, and up as many sums: min(K, 8) over the coordinator's
    link, and one for each of ceil(log2(K / 8)) levels.  Without `handed_on` the coordinator sends all K
    copies itself.
    """
    down, up = numbers * messages.down, numbers * messages.up
    roots = min(workers, ROOTS)
    levels = math.ceil(math.log2(workers / roots))
    copies = roots + levels if handed_on else workers
    slowest = 1.0 + network.spread * math.sqrt(2.0 * math.log(workers))
    return RoundCost(
        down=copies * down / network.bytes_per_second,
        up=(roots + levels) * up / network.bytes_per_second,
        delays=REQUESTS * DELAYS * (1 + levels) * network.delay,
        work=work * slowest,
        nbytes=(roots if handed_on else workers) * down + roots * up,
    )


@dataclass(frozen=True)
class Measured:
    """Medians over rounds: seconds, and bytes out of and into the coordinator's link."""

    seconds: float
    sent: float
    received: float


def measure(options: argparse.Namespace, workers: int, bytes_per_second: float, delay: float) -> Measured:
    """Train some rounds on workers behind such links."""
    X, y = relu_features(options.rows * workers, options.d, options.m)
    with (
        slow_cluster(workers, bytes_per_second, delay) as cluster,
        open_cluster(ClusterConfig(scheduler=cluster.address, worker_wait=300.0)) as client,
    ):
        assert client is not None
        client.wait_for_workers(workers, timeout=300)
        exchanges: list[NDArray[Any]] = []

        class Noted(DaskExecutor):
            """Notes what each exchange of weights and sums of changes takes."""

            def run(self, operation: Operation[A]) -> A:
                if isinstance(operation, Ascend) and operation.exact:
                    raise RuntimeError("dual ascent went over to float64; use fewer rounds")
                before = np.array([time.perf_counter(), *cluster.passed()[0]])
                answer = super().run(operation)
                if isinstance(operation, Ascend):
                    exchanges.append(np.array([time.perf_counter(), *cluster.passed()[0]]) - before)
                return answer

        def enough(record: IterationRecord, state: SolverState) -> bool:
            return len(exchanges) < WARM_ROUNDS + options.rounds

        with Noted(client, blocks=workers) as executor:
            lam = 1.0 / len(y)
            solve(
                X, y, TopKHinge(5), lam, method="dual_ascent", tol=1e-12, max_passes=10_000,
                executor=executor, callbacks=(enough,), m=options.m,
            )  # fmt: skip
            if len(executor.owners) != workers:
                raise RuntimeError(f"{len(executor.owners)} of {workers} workers had a part")
    steady = np.transpose(exchanges[WARM_ROUNDS:])
    return Measured(*(statistics.median(values) for values in steady.tolist()))


def measured_table(options: argparse.Namespace) -> list[tuple[int, Measured, RoundCost]]:
    """Measure every number of workers and print it beside the model."""
    print(f"d m = {options.d * options.m:,}, {options.mbit:g} Mbit/s, {options.delay * 1e3:g} ms one way")
    print(f"{'workers':>8}{'seconds':>10}{'model':>8}{'alone':>8}{'MB out':>10}{'in':>7}{'model':>10}")
    network, found = Network(options.mbit * 1e6 / 8, options.delay), []
    for workers in options.workers:
        alone = measure(options, workers, FREE, 0.0)
        slow = measure(options, workers, network.bytes_per_second, network.delay)
        model = round_cost(options.d * options.m, workers, AS_SENT, network, alone.seconds)
        found.append((workers, slow, model))
        print(
            f"{workers:>8}{slow.seconds:>10.3f}{model.seconds:>8.3f}{alone.seconds:>8.3f}"
            f"{slow.sent / 1e6:>10.1f}{slow.received / 1e6:>7.1f}{model.nbytes / 1e6:>10.1f}",
            flush=True,
        )
    return found


def model_table(options: argparse.Namespace) -> str:
    """Lay out what the model says of a large training."""
    n, d, m = 14e6, 2048, 21_000
    lines = [f"n = 14 M, d = {d:,}, m = {m:,}; workers of {options.gflops:g} GFLOP/s that differ by 10 %"]
    lines.append(
        f"{'workers':>8}{'Gbit/s':>8}{'messages':>10}{'down':>8}{'up':>7}{'work':>8}{'round':>8}   seconds"
    )
    for workers in (64, 256):
        # A round measures and sweeps: two products with W, and about as much as half of one beside them.
        work = 2.5 * 2.0 * n * d * m / workers / (options.gflops * 1e9)
        for gbit in (1, 10, 25):
            network = Network(gbit * 1e9 / 8, options.delay, spread=0.1)
            for name, messages, handed_on in (
                ("as sent", AS_SENT, True), ("from one", AS_SENT, False), ("float64", IN_FLOAT64, False)
            ):  # fmt: skip
                cost = round_cost(d * m, workers, messages, network, work, handed_on=handed_on)
                lines.append(
                    f"{workers:>8}{gbit:>8}{name:>10}{cost.down:>8.1f}{cost.up:>7.1f}{cost.work:>8.1f}"
                    f"{cost.seconds:>8.1f}"
                )
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> list[tuple[int, Measured, RoundCost]]:
    """Run the command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", type=int, nargs="*", default=[2, 4, 8, 16])
    parser.add_argument("--rows", type=int, default=64, help="rows of a worker")
    parser.add_argument("--d", type=int, default=1024)
    parser.add_argument("--m", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--mbit", type=float, default=1000.0, help="megabits a second of each link")
    parser.add_argument("--delay", type=float, default=0.005, help="seconds one way")
    parser.add_argument("--gflops", type=float, default=1000.0, help="float32 speed of a worker of the model")
    options = parser.parse_args(arguments)
    found = measured_table(options) if options.workers else []
    print(model_table(options))
    return found


if __name__ == "__main__":
    main(sys.argv[1:])
