"""What a command of `topline` takes: CPU time and memory of all its processes, and what it answers."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tests.benchmarks.tree_memory import Sample, TreeMemory


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
