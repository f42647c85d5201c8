"""Workers of Dask behind links of so many bits a second, which a proxy on this machine makes of local ones.

Every worker has one link, and the coordinator with its scheduler has one, each with both directions apart.  A
worker tells others the address of the proxy as its own and reaches the scheduler through it, so that all that
goes in or out of a worker passes.  A byte waits for its turn on the link of the sender, then on that of the
receiver, and then for the delay.  Who connects, the proxy finds out from the port: workers that fetch
from each other load their own links and not the coordinator's.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import psutil

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
    ports = free_ports(1 + 3 * workers)
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


def free_ports(count: int) -> list[int]:
    """Return ports that nobody listens at now."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
