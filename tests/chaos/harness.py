"""Real processes to do harm to, and what is asked of a run afterwards."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import re
import shutil
import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Self

import psutil

from tests import processes
from tests.chaos.hooks import command
from tests.free_ports import free_port
from topline.pipeline.certification import certify
from topline.storage.runs import read_history
from topline.storage.stores import open_store
from topline.storage.verification import verify_store

ROOT = Path(__file__).resolve().parents[2]
TOL = 0.02
# Duals stay on the blocks and are stored with the model (KEPT), or nobody ever has them (FREE).
FREE = ("--no-keep-duals",)
KEPT = ("--keep-duals", "--checkpoint-seconds", "0.3")
PROBLEM = ("--method", "fw", "--k", "2", "--C", "0.5", "--tol", str(TOL), "--max-passes", "5000")
PATIENCE = 600.0
READY = "ready"
#: Moments lie close together.
until = partial(processes.until, pause=0.01)

_PATH = {"PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))}
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["tests.chaos.preloaded"])


@dataclass(frozen=True)
class Ended:
    """How a command ended, and when."""

    code: int
    out: str
    err: str
    seconds: float

    @property
    def sentence(self) -> str:
        """The error that the user saw."""
        return next((line for line in self.err.splitlines() if line.startswith("error: ")), "")

    @property
    def warnings(self) -> list[str]:
        return [line for line in self.err.splitlines() if line.startswith("warning: ")]

    @property
    def result(self) -> dict[str, Any]:
        assert self.code == 0, self.err
        return json.loads(self.out)


@dataclass
class Row:
    """A line of the table: a fault, `of` without its seed, and whether its test found a loss or an error."""

    fault: str
    saw: str = ""
    repeated: float | None = None
    primal: float | None = None
    undisturbed: float | None = None
    seconds: float = 0.0
    of: str = ""
    lost: bool = False


class Process:
    """`topline` or `dask` in a process and session of its own, forked from one that has imported all."""

    def __init__(
        self, program: str, words: Sequence[object], environment: Mapping[str, str], place: Path
    ) -> None:
        self.began = time.monotonic()
        self.out, self.err = place.with_suffix(".out"), place.with_suffix(".err")
        argv, files = [str(word) for word in words], (str(self.out), str(self.err))
        self._process = _CONTEXT.Process(
            target=command, args=(program, argv, {**_PATH, **environment}, *files)
        )
        self._process.start()
        self.pid = int(self._process.pid or 0)

    def wait(self, seconds: float = PATIENCE) -> Ended:
        """Give how it ended; what does not end has broken the one promise that it makes."""
        self._process.join(seconds)
        code = self._process.exitcode
        if code is None:
            self.end()
            raise AssertionError(f"it hangs: {self.err.read_text()}")
        return Ended(code, self.out.read_text(), self.err.read_text(), time.monotonic() - self.began)

    @property
    def ended(self) -> bool:
        return self._process.exitcode is not None

    def send(self, number: int) -> None:
        os.kill(self.pid, number)

    def end(self) -> None:
        """Kill it and its children."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.join(10)


class Cluster:
    """A scheduler and workers with nannies, each a process; `address` is where a job finds the scheduler."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "orders.log"
        self.log.touch()
        (folder / READY).mkdir()
        self.port = free_port()
        self.address = f"tcp://127.0.0.1:{self.port}"
        self.processes: list[Process] = []
        self.scheduler: Process | None = None

    def start(
        self,
        faults: Sequence[Mapping[str, Any]] = (),
        *,
        workers: int = 2,
        memory_limit: str = "0",
        through: Sequence[str] = (),
        clock: tuple[float, int] | None = None,
    ) -> Self:
        """Start everything; `faults` happen on the first worker, `through` are proxies for the workers."""
        extra = {} if clock is None else {"CHAOS_CLOCK": json.dumps(clock)}
        words = ("scheduler", "--host", "127.0.0.1", "--port", self.port, "--no-dashboard")
        self.scheduler = self._dask((*words, "--dashboard-address", "127.0.0.1:0"), extra)
        if through:
            # A proxy takes a connection that leads nowhere, and a nanny does not try again then.
            until(self._listens, "a scheduler")
        for number in range(workers):
            address = through[number] if number < len(through) else self.address
            self.add_worker(faults if number == 0 else (), memory_limit=memory_limit, address=address)
        return self

    def add_worker(
        self, faults: Sequence[Mapping[str, Any]] = (), *, memory_limit: str = "0", address: str = ""
    ) -> Process:
        name = f"w{len(self.processes)}"
        words = ("worker", address or self.address, "--nworkers", "1", "--nthreads", "1", "--no-dashboard")
        more = ("--host", "127.0.0.1", "--name", name, "--memory-limit", memory_limit)
        place = ("--local-directory", self.folder / name, "--dashboard-address", "127.0.0.1:0")
        nanny = self._dask((*words, *more, *place), {"CHAOS_FAULTS": json.dumps(list(faults))})
        self.processes.append(nanny)
        return nanny

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def pids(self) -> dict[str, int]:
        """Process ids of the workers at work, by name."""
        found = {}
        for path in (self.folder / READY).iterdir():
            if psutil.pid_exists(int(path.name)) and (name := path.read_text()):
                found[name] = int(path.name)
        return found

    def wait_for(self, workers: int) -> None:
        until(lambda: len(self.pids()) >= workers, f"{workers} workers")

    def orders(self) -> list[list[str]]:
        """What the workers began: process, order, block."""
        return [line.split() for line in self.log.read_text().splitlines()]

    def extra_rounds(self) -> float:
        """How much of that had been begun before, in rounds over all blocks."""
        begun = [(order, block) for _, order, block in self.orders()]
        return (len(begun) - len(set(begun))) / len({block for _, block in begun})

    def kill_workers(self) -> None:
        """All of them, their nannies first."""
        for process in self.processes:
            process.end()
        self._kill_strays()

    def close(self) -> None:
        for process in [*self.processes, *([self.scheduler] if self.scheduler else [])]:
            process.end()
        self._kill_strays()

    def _kill_strays(self) -> None:
        for pid in self.pids().values():
            # A child of the process that forked it, it is in no group of ours.
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _dask(self, words: Sequence[object], extra: Mapping[str, str]) -> Process:
        environment = {"CHAOS_LOG": str(self.log), "CHAOS_READY": str(self.folder / READY), **extra}
        name = f"dask{len(self.processes)}" if self.scheduler else "scheduler"
        return Process("dask", (*words, "--preload", "tests.chaos.hooks"), environment, self.folder / name)


@dataclass
class Chaos:
    """One disturbed run: its store, what it is compared with, its line of the table."""

    folder: Path
    store: Path
    undisturbed: Mapping[str, Any]
    row: Row
    jobs: list[Process] = field(default_factory=list)
    clusters: list[Cluster] = field(default_factory=list)

    def cluster(self) -> Cluster:
        folder = self.folder / f"cluster{len(self.clusters)}"
        folder.mkdir()
        self.clusters.append(Cluster(folder))
        return self.clusters[-1]

    def train(
        self,
        *words: object,
        on: Cluster | None = None,
        faults: Sequence[Mapping[str, Any]] = (),
        clock: tuple[float, int] | None = None,
        address: str = "",
        run: str = "",
        powerless: bool = False,
    ) -> Process:
        """Start a training (or the resumption of `run`), on a cluster once its workers are there."""
        go = self.folder / f"go{len(self.jobs)}"
        environment = {"CHAOS_FAULTS": json.dumps(list(faults)), "CHAOS_GO": str(go)}
        if clock is not None:
            environment["CHAOS_CLOCK"] = json.dumps(clock)
        if powerless:
            environment["CHAOS_POWERLESS"] = "1"
        where: tuple[object, ...] = ("--workers", 0)
        if on is not None:
            where = ("--scheduler", address or on.address)
        problem: tuple[object, ...] = ("--resume", run) if run else PROBLEM
        words = ("train", "--store", self.store, *problem, *where, *words, "--json")
        job = Process("topline", words, environment, self.folder / f"job{len(self.jobs)}")
        self.jobs.append(job)
        if on is not None:
            on.wait_for(len(on.processes))
        go.touch()
        job.began = time.monotonic()
        return job

    def resume(self, ended: Ended, *words: object, on: Cluster | None = None, code: int = 75) -> Ended:
        """Go on with the command that the sentence names, which must be there."""
        assert ended.code == code, (ended.code, ended.err)
        assert "Traceback" not in ended.err
        found = re.search(r"topline train --store (\S+) --resume (r\d+)", ended.sentence)
        assert found is not None, ended.err
        assert found[1] == str(self.store)
        self.row.saw = self.row.saw or shorten(ended.sentence)
        return self.train(*words, on=on, run=found[2]).wait()

    def go_on(self, *words: object, since: int | None = None) -> Ended:
        """Resume a run that was killed: it repeats what came after its last checkpoint and no more."""
        saved = [int(path.stem) for path in self.checkpoints()]
        since = max(saved) if since is None else since
        done = max(self.rounds())
        ended = self.train(*words, run="r0001").wait()
        rounds = self.rounds()
        self.row.repeated = len(rounds) - len(set(rounds))
        # The checkpoint of a round is the state that this round begins with.
        assert self.row.repeated <= max(0, done + 1 - since), (self.row.repeated, done, since)
        return ended

    def wait_for_checkpoints(self, number: int) -> None:
        self._until(lambda: len(self.checkpoints()) >= number, f"{number} checkpoints")

    def _until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait for something that a job brings about; where all of them have ended it will not come."""
        until(lambda: all(job.ended for job in self.jobs) or condition(), what)
        assert condition(), f"{what} did not come: {[job.err.read_text() for job in self.jobs]}"

    def history(self) -> list[dict[str, Any]]:
        runs = self.store / "runs" / "r0001"
        return read_history(open_store(self.store), "r0001") if runs.is_dir() else []

    def rounds(self) -> list[int]:
        return [int(line["round"]) for line in self.history() if "round" in line]

    def wait_for_rounds(self, rounds: int) -> None:
        self._until(lambda: len(self.rounds()) >= rounds, f"{rounds} rounds")

    def wait_for_orders(self, cluster: Cluster, orders: int) -> None:
        self._until(lambda: len(cluster.orders()) >= orders, f"{orders} orders")

    def checkpoints(self) -> list[Path]:
        return sorted((self.store / "runs" / "r0001" / "checkpoints").glob("*.json"))

    def conclude(self, ended: Ended, *, damaged: str = "//", complete: bool = True) -> dict[str, Any]:
        """Ask all that must be true at the end: the answer, its certificate, the store.

        `damaged` is what the paths of fsck's findings may hold; any other must be harmless.  `complete` asks
        for every round in the history.
        """
        result, row = ended.result, self.row
        assert "Traceback" not in ended.err
        row.saw = row.saw or shorten(" / ".join(ended.warnings) or "nothing")
        row.primal, row.undisturbed = result["primal"], self.undisturbed["primal"]
        rounds = self.rounds()
        if row.repeated is None:
            row.repeated = len(rounds) - len(set(rounds))
        if complete:
            assert set(range(min(rounds), max(rounds) + 1)) == set(rounds), "no round is missing"
        assert result["status"] == "solved"
        again = certify(result["model"])
        assert again.certified
        assert again.agrees
        assert result["certificate"]["certified"] is True
        assert abs(again.primal - self.undisturbed["primal"]) <= TOL * abs(self.undisturbed["primal"])
        found = [finding for finding in verify_store(open_store(self.store)) if not finding.harmless]
        assert all(damaged in finding.path for finding in found), found
        return result

    def close(self) -> None:
        for job in self.jobs:
            job.end()
        for cluster in self.clusters:
            cluster.close()


def shorten(text: str) -> str:
    """The sentence without what every one of them has."""
    text = re.sub(r"continue with: .*", "continue with ...", text.removeprefix("error: "))
    text = re.sub(r"tcp://127\.0\.0\.1:\d+", "<address>", text).replace("warning: ", "")
    return re.sub(r"/\S*/(?:disk/)?store(/)?", r"<store>\1", text)


def copy_store(source: Path, target: Path) -> Path:
    shutil.copytree(source, target)
    return target
