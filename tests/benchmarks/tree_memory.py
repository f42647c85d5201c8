"""Memory of a tree of processes, and what a command of `topline` takes and answers."""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import psutil


@dataclass(frozen=True)
class Sample:
    """Bytes of all processes together: PSS counts a page that k of them share as 1/k in each, RSS as 1."""

    pss: int = 0
    rss: int = 0
    by_process: dict[str, int] = field(default_factory=dict)


class TreeMemory:
    """Samples the processes under `pid` every `seconds` while the context is open; `peak` has most PSS.

    `root_rss` is the most RSS of process `pid` alone.

    A look at shared pages walks through all memory of a process and makes it wait.  So it is taken only where
    RSS, which costs nothing and is never below PSS, is higher than ever, or once in `pss_seconds`.
    """

    def __init__(self, pid: int, seconds: float = 0.5, pss_seconds: float = 10.0) -> None:
        self._root, self._seconds, self._pss_seconds = pid, seconds, pss_seconds
        self.peak, self.peak_rss, self.root_rss = Sample(), 0, 0
        self._looked = -math.inf
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def _watch(self) -> None:
        while True:
            rss = resident(self._root)
            due = time.monotonic() - self._looked >= self._pss_seconds
            if rss > self.peak_rss * 1.01 or (due and rss > self.peak.pss):
                self._looked = time.monotonic()
                self.peak = max(self.peak, sample(self._root), key=lambda each: each.pss)
            self.peak_rss = max(self.peak_rss, rss)
            with contextlib.suppress(psutil.Error):
                self.root_rss = max(self.root_rss, psutil.Process(self._root).memory_info().rss)
            if self._stop.wait(self._seconds):
                return

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        self._thread.join()


def resident(pid: int) -> int:
    """Add up RSS of the processes that are there now."""
    total = 0
    for process in tree(pid):
        with contextlib.suppress(psutil.Error):
            total += process.memory_info().rss
    return total


def tree(pid: int) -> list[psutil.Process]:
    """Give a process and its descendants; nothing where it has ended."""
    try:
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def sample(pid: int) -> Sample:
    """Add up the processes that are there now; one that ends meanwhile counts for nothing."""
    pss = rss = 0
    by_process = {}
    for process in tree(pid):
        try:
            lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text(encoding="ascii").splitlines()[1:]
            name = " ".join(process.cmdline())[:60]
        except (OSError, psutil.Error):
            continue
        sizes = {line.split(":")[0]: int(line.split()[1]) << 10 for line in lines if line.endswith("kB")}
        pss += sizes.get("Pss", 0)
        rss += sizes.get("Rss", 0)
        by_process[f"{process.pid} {name}"] = sizes.get("Pss", 0)
    return Sample(pss, rss, by_process)


@dataclass(frozen=True)
class CommandCost:
    """What a command answered, CPU seconds and seconds it took, and its memory in bytes at the most.

    `own_bytes` is the share of the first process of that memory, `own_rss` the most that it alone had.
    """

    answer: dict[str, Any]
    cpu: float
    wall: float
    peak: Sample
    own_bytes: int
    own_rss: int

    @property
    def gib(self) -> float:
        """Memory of all its processes at the most: PSS in GiB."""
        return self.peak.pss / 2**30


def command_cost(words: Sequence[str]) -> CommandCost:
    """Run `topline WORDS --json` in a process of its own; RuntimeError with its answer where it fails."""
    began = time.monotonic()
    command = [sys.executable, "-m", "topline", *words, "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    with TreeMemory(process.pid) as memory, process.stdout or io.StringIO() as printing:
        printed = printing.read()
        _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}: {printed[-1000:]}")
    own = next(size for name, size in memory.peak.by_process.items() if name.startswith(f"{process.pid} "))
    cpu, wall = usage.ru_utime + usage.ru_stime, time.monotonic() - began
    return CommandCost(json.loads(printed), cpu, wall, memory.peak, own, memory.root_rss)
