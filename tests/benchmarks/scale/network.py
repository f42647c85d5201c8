"""What a round costs on a network: seconds and bytes of workers behind slow links, beside a written model.

    python -m tests.benchmarks.scale.network --workers 2 4 8 16

starts workers of which each is reached over a link of --mbit a second and --delay one way, as the coordinator
is (`slow_cluster`), trains on a few rows with weights of d m numbers, and prints the seconds and the
coordinator's bytes of a round, those of the model, and the seconds of the same rounds where links are as fast
as the machine.  Then it prints what the models of a round and of shared work
(`topline.solvers.methods.shared_work`) say of 1 to 256 workers that train a top-5 hinge on 1.28 million rows
of 2,048 features in 1,000 classes and on 14 million in 21,000: parts of a sweep, passes, rounds of messages,
terabytes over the coordinator's link, hours, and how many times faster than one worker that is.

The model: a part of a round of `dual_ascent`, of which a sweep has up to 64, sends W to every worker and gets
a sum of products back, d m numbers each. The copies of W for up to 4 workers share the coordinator's link; of
more, each of 4 hands it on to 4 of those below it, and so on (`topline.pipeline.cluster.calls.by_tree`), and
sums come back the same way. Every request takes some delays (`DELAYS` a level), and the slowest worker's
time: the mean one's times 1 + spread sqrt(2 ln K), the expected largest of K normal numbers.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import math
import multiprocessing
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import psutil
from numpy.typing import NDArray

from tests.benchmarks.datasets import relu_features
from tests.benchmarks.harness import read_options
from tests.free_ports import free_port
from topline.pipeline.cluster import DaskExecutor, open_cluster
from topline.pipeline.cluster.calls import ROOTS
from topline.pipeline.options.train import ClusterConfig
from topline.solvers.core.state import IterationRecord, SolverState
from topline.solvers.losses import TopKHinge
from topline.solvers.methods.shared_work import SWEEP_WORK, SharedWork
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


#: W and the sums, in float32.
AS_SENT = Messages(4.0, 4.0)
#: Rows, features and classes of the trainings of the model.
TRAININGS = ((1_281_167, 2_048, 1_000), (14_000_000, 2_048, 21_000))


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


def round_cost(numbers: float, workers: int, messages: Messages, network: Network, work: float) -> RoundCost:
    """Return what a round costs with `numbers` = d m, and `work` seconds of the mean worker.

    Down pass as many copies of W as share the fullest link of each level, and up as many sums.
    """
    down, up = numbers * messages.down, numbers * messages.up
    roots, run, copies, levels = min(workers, ROOTS), workers, 0, 0
    while run > 0:
        copies, levels, run = copies + min(run, ROOTS), levels + 1, math.ceil(run / ROOTS) - 1
    slowest = 1.0 + network.spread * math.sqrt(2.0 * math.log(workers))
    return RoundCost(
        down=copies * down / network.bytes_per_second,
        up=copies * up / network.bytes_per_second,
        delays=REQUESTS * DELAYS * levels * network.delay,
        work=work * slowest,
        nbytes=roots * (down + up),
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
    """Lay out what sharing a training costs: parts, passes, bytes and hours of the model."""
    heads = ("rows", "classes", "Gbit/s", "workers", "parts", "passes", "rounds", "TB", "hours", "times")
    lines = [
        f"workers of one thread and {options.gflops:g} GFLOP/s that differ by 10 %",
        f"one block takes {options.one_block} passes",
        "".join(f"{head:>11}" for head in heads),
    ]
    for n, d, m in TRAININGS:
        work = SWEEP_WORK * 2.0 * n * d * m / (options.gflops * 1e9)
        for gbit, workers in itertools.product((1, 10), (1, 8, 16, 64, 256)):
            network = Network(gbit * 1e9 / 8, options.delay, spread=0.1)
            cost = round_cost(d * m, workers, AS_SENT, network, work)
            shared = SharedWork(workers, cost.work, cost.down + cost.up + cost.delays / REQUESTS)
            passes, parts = options.one_block * shared.passes, shared.parts if workers > 1 else 0
            terabytes = passes * parts * cost.nbytes / 1e12
            hours, times = options.one_block * shared.seconds / 3600, work / shared.seconds
            lines.append(
                f"{n:>11,}{m:>11,}{gbit:>11}{workers:>11}{parts:>11}{passes:>11.0f}"
                f"{passes * parts:>11,.0f}{terabytes:>11.2f}{hours:>11.2f}{times:>11.1f}"
            )
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> list[tuple[int, Measured, RoundCost]]:
    """Run the command."""
    options = read_options(
        __doc__, arguments, workers=[2, 4, 8, 16], rows=64, d=1024, m=1000, rounds=5, mbit=1000.0,
        delay=0.005, gflops=111.0, one_block=23,
    )  # fmt: skip
    found = measured_table(options) if options.workers else []
    print(model_table(options))
    return found


#: Bytes that wait for their turn together, and how many such parts a connection holds.
CHUNK, HELD = 1 << 17, 16
START_SECONDS = 60.0


class Direction:
    """One direction of a link: parts of messages pass one after the other."""

    def __init__(self, counts: Any, place: int, bytes_per_second: float) -> None:
        self._counts, self._place, self._rate, self._free = counts, place, bytes_per_second, 0.0

    def passed(self, size: int, ready: float) -> float:
        """Return when the last of `size` bytes that are there at the time `ready` has passed."""
        self._counts[self._place] += size
        self._free = max(self._free, ready) + size / self._rate
        return self._free


@dataclass(frozen=True)
class Routes:
    """Where the proxy listens for each worker: `inward` for others, `outward` to the scheduler."""

    scheduler: int
    workers: Sequence[int]
    inward: Sequence[int]
    outward: Sequence[int]


class Proxy:
    """Links 0 (the coordinator's) to K; `counts` are bytes out and in of each, `owners` the processes."""

    def __init__(
        self, routes: Routes, counts: Any, owners: Any, bytes_per_second: float, delay: float
    ) -> None:
        links = range(len(routes.workers) + 1)
        self._out = [Direction(counts, 2 * link, bytes_per_second) for link in links]
        self._in = [Direction(counts, 2 * link + 1, bytes_per_second) for link in links]
        self._routes, self._owners, self._delay = routes, owners, delay
        self._pumps: set[asyncio.Task[None]] = set()

    async def serve(self, ready: Any) -> None:
        """Listen at all ports, say so, and serve until the process is ended."""
        async with contextlib.AsyncExitStack() as stack:
            for link, (target, inward, outward) in enumerate(
                zip(self._routes.workers, self._routes.inward, self._routes.outward, strict=True), start=1
            ):
                for port, to, caller, called in (
                    (inward, target, None, link),
                    (outward, self._routes.scheduler, link, 0),
                ):
                    accept = self._acceptor(to, caller, called)
                    await stack.enter_async_context(await asyncio.start_server(accept, "127.0.0.1", port))
            ready.set()
            await asyncio.Event().wait()

    def _acceptor(self, port: int, caller: int | None, called: int) -> Any:
        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            here = self._link_of(writer.get_extra_info("peername")[1]) if caller is None else caller
            try:
                there_reader, there_writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                writer.close()
                return
            for source, target, sender, receiver in (
                (reader, there_writer, here, called),
                (there_reader, writer, called, here),
            ):
                pump = asyncio.create_task(self._pump(source, target, self._out[sender], self._in[receiver]))
                self._pumps.add(pump)
                pump.add_done_callback(self._pumps.discard)

        return accept

    def _link_of(self, port: int) -> int:
        """Return the link of the process that connects from a port; the coordinator's where it is none."""
        for place, pid in enumerate(self._owners):
            with contextlib.suppress(psutil.Error):
                connections = psutil.Process(pid).net_connections("tcp4") if pid else ()
                if any(each.laddr and each.laddr.port == port for each in connections):
                    return max(place - 1, 0)
        return 0

    async def _pump(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter, out: Direction, into: Direction
    ) -> None:
        parts: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(HELD)
        clock = asyncio.get_running_loop().time

        async def deliver() -> None:
            while True:
                due, part = await parts.get()
                await asyncio.sleep(max(due - clock(), 0.0))
                if not part:
                    break
                target.write(part)
                await target.drain()
            target.close()

        with contextlib.suppress(OSError):
            async with asyncio.TaskGroup() as group:
                group.create_task(deliver())
                while part := await source.read(CHUNK):
                    due = into.passed(len(part), out.passed(len(part), clock())) + self._delay
                    await parts.put((due, part))
                await parts.put((clock() + self._delay, b""))


def _run_proxy(
    routes: Routes, counts: Any, owners: Any, bytes_per_second: float, delay: float, ready: Any
) -> None:
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(Proxy(routes, counts, owners, bytes_per_second, delay).serve(ready))


@dataclass(frozen=True)
class SlowCluster:
    """The address of a scheduler whose workers are behind slow links, and what passed the links so far."""

    address: str
    workers: int
    counts: Any = field(repr=False)

    def passed(self) -> list[tuple[int, int]]:
        """Return bytes out of and into each link so far, the coordinator's first."""
        return [
            (int(self.counts[2 * link]), int(self.counts[2 * link + 1])) for link in range(self.workers + 1)
        ]


@contextmanager
def slow_cluster(workers: int, bytes_per_second: float, delay: float) -> Iterator[SlowCluster]:
    """Start a scheduler and workers of one thread behind links of that speed, and end them."""
    ports = [free_port() for _ in range(1 + 3 * workers)]
    scheduler, rest = ports[0], ports[1:]
    routes = Routes(scheduler, rest[:workers], rest[workers : 2 * workers], rest[2 * workers :])
    context = multiprocessing.get_context("spawn")
    counts = context.Array("d", 2 * (workers + 1), lock=False)
    owners, ready = context.Array("q", workers + 2, lock=False), context.Event()
    owners[0] = os.getpid()
    options = (routes, counts, owners, bytes_per_second, delay, ready)
    with ExitStack() as stack:
        proxy = context.Process(target=_run_proxy, args=options, daemon=True)
        proxy.start()
        stack.callback(proxy.terminate)
        if not ready.wait(START_SECONDS):
            raise TimeoutError(f"the proxy did not listen within {START_SECONDS:g} s")
        words = ["scheduler", "--host", "127.0.0.1", "--port", str(scheduler), "--no-dashboard"]
        owners[1] = stack.enter_context(dask_process(words)).pid
        for place in range(workers):
            words = ["worker", f"tcp://127.0.0.1:{routes.outward[place]}", "--no-nanny", "--nthreads", "1"]
            words += ["--listen-address", f"tcp://127.0.0.1:{routes.workers[place]}"]
            words += ["--contact-address", f"tcp://127.0.0.1:{routes.inward[place]}"]
            words += ["--memory-limit", "0", "--no-dashboard"]
            owners[place + 2] = stack.enter_context(dask_process(words)).pid
        yield SlowCluster(f"tcp://127.0.0.1:{scheduler}", workers, counts)


@contextmanager
def dask_process(words: Sequence[str]) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command of Dask with one thread for products, and end it."""
    environment = os.environ | dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    command = [sys.executable, "-m", "dask", *words]
    with subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL) as process:
        try:
            yield process
        finally:
            process.terminate()


if __name__ == "__main__":
    main(sys.argv[1:])
