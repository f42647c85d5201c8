"""The memory of a process and all its descendants, sampled while it runs."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import psutil


@dataclass(frozen=True)
class Sample:
    """Bytes of all processes together: PSS counts a page that k of them share as 1/k in each, RSS as 1."""

    pss: int = 0
    rss: int = 0
    by_process: dict[str, int] = field(default_factory=dict)


class TreeMemory:
    """Samples the processes under `pid` every `seconds` while the context is open; `peak` has most PSS."""

    def __init__(self, pid: int, seconds: float = 0.5) -> None:
        self._root, self._seconds = pid, seconds
        self.peak, self.peak_rss = Sample(), 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def _watch(self) -> None:
        while True:
            found = sample(self._root)
            self.peak = max(self.peak, found, key=lambda each: each.pss)
            self.peak_rss = max(self.peak_rss, found.rss)
            if self._stop.wait(self._seconds):
                return

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        self._thread.join()


def sample(pid: int) -> Sample:
    """Add up the processes that are there now; one that ends meanwhile counts for nothing."""
    try:
        root = psutil.Process(pid)
        processes = [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return Sample()
    pss = rss = 0
    by_process = {}
    for process in processes:
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
