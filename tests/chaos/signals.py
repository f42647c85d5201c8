"""Signals to the process group of a command at seeded moments, `python -m tests.chaos.signals --moments 200`.

A moment is the n-th event of the main thread (a call or return of a function), or some milliseconds after it,
so that native code is met as well.  Whatever it meets, the command ends soon with one sentence and
the exit code of the signal, or with 75 and the command that resumes; or its work is done.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.pipeline.pictures import write_classes
from tests.pipeline.small_data import small_dataset

#: A process that strikes itself and its children; SIGINT acts as at a terminal, in a background job too.
STRUCK = """
import os, signal, sys, threading, time
given = [sys.argv.pop(1) for _ in range(4)]
events, number, delay, mark = int(given[0]), int(given[1]), float(given[2]), given[3]
signal.signal(signal.SIGINT, signal.default_int_handler)
def strike():
    time.sleep(delay)
    with open(mark, "w") as file:
        file.write(str(time.time()))
    os.killpg(os.getpgrp(), number)
def profile(*_):
    global events
    events -= 1
    if not events:
        sys.setprofile(None)
        threading.Thread(target=strike, daemon=True).start() if delay else strike()
from topline.pipeline.cli import main
sys.setprofile(profile)
main()
"""
HOG = "--backbone hog:size=24,cells=8"
COMMANDS = {
    "extract": f"extract --images photos --store new {HOG} --workers 0",
    "extract on processes": f"extract --images photos --store new {HOG} --workers 2",
    "train": "train --store rows --loss topk_hinge --k 2 --workers 0",
    "train on workers": "train --store rows --loss topk_hinge --k 2 --workers 2",
    "sweep": "sweep --store rows --C 0.1,1,10 --folds 3 --workers 0",
    "run": f"run --images photos --store new {HOG} --workers 0",
    "retrain": f"retrain --images photos --store new {HOG} --workers 0",
}
#: Decades of events from the start of a command to its end.
FIRST, LAST = 5.0, 7.2
DELAYS = (0.0, 0.002, 0.05, 0.3)
PATIENCE = 600.0
#: A command that goes on, and the exit codes of a command that a signal ended.
RESUMES = re.compile(r"topline \w+ .*--resume \w+")
CODES = {2: {130}, 15: {143}}


@dataclass(frozen=True)
class Moment:
    """A command, and when it is struck by which signal."""

    command: str
    events: int
    number: int
    delay: float


@dataclass(frozen=True)
class Ending:
    """How a command ended: its code, what it said, and the seconds after the strike; None without one."""

    code: int | None
    said: str
    seconds: float | None

    def fault(self, number: int) -> str:
        """Return what is wrong with it, nothing where it ended as it should."""
        errors = [line for line in self.said.splitlines() if line.startswith("error: ")]
        if self.code is None:
            return "it hangs"
        if "Traceback" in self.said or "a fault in topline" in self.said:
            return "it shows its insides"
        if self.code == 0:
            return ""
        if len(errors) != 1:
            return f"it says {len(errors)} sentences"
        if self.code == 75:
            known = RESUMES.search(errors[0]) or "run the same command again" in errors[0]
            return "" if known else "it does not say how to go on"
        return "" if self.code in CODES[number] else f"it ends with {self.code}"


def moments(count: int, seed: int) -> Iterator[Moment]:
    """Return moments, of each command in turn."""
    draw = random.Random(seed)
    for place in range(count):
        command = list(COMMANDS)[place % len(COMMANDS)]
        events = int(10 ** draw.uniform(FIRST, LAST))
        yield Moment(command, events, draw.choice((2, 2, 15)), draw.choice(DELAYS))


def prepare(folder: Path) -> Path:
    """Make images, and a store of rows."""
    write_classes(folder / "photos", classes=3, each=40)
    small_dataset(folder / "rows")
    return folder


def struck(moment: Moment, prepared: Path, folder: Path) -> Ending:
    """Run the command in a copy of what is prepared, and strike it."""
    shutil.copytree(prepared, folder)
    mark = folder / "mark"
    words = [moment.events, moment.number, moment.delay, mark, *shlex.split(COMMANDS[moment.command])]
    process = subprocess.Popen(
        [sys.executable, "-c", STRUCK, *map(str, words)],
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    try:
        _, said = process.communicate(timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        return Ending(None, process.communicate()[1], None)
    ended = time.time()
    return Ending(process.returncode, said, ended - float(mark.read_text()) if mark.exists() else None)


def main() -> None:
    """Print each ending that is not as it should be, and how long commands took to end."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--moments", type=int, default=200)
    asked.add_argument("--seed", type=int, default=1)
    options = asked.parse_args()
    wrong, seconds, codes = 0, [], dict[int | None, int]()
    with tempfile.TemporaryDirectory() as folder:
        prepared = prepare(Path(folder) / "prepared")
        for place, moment in enumerate(moments(options.moments, options.seed)):
            ending = struck(moment, prepared, Path(folder) / str(place))
            shutil.rmtree(Path(folder) / str(place))
            codes[ending.code] = codes.get(ending.code, 0) + 1
            seconds += [] if ending.seconds is None or not ending.code else [ending.seconds]
            fault = ending.fault(moment.number)
            if fault:
                wrong += 1
                sys.stdout.write(f"{moment}: {fault}\n{ending.said[-2000:]}\n")
                sys.stdout.flush()
    late = sum(second > 5.0 for second in seconds)
    sys.stdout.write(
        f"{options.moments} moments, {len(seconds)} stopped, exit codes {codes}: {wrong} wrong, {late} took"
        f" more than 5 s, the longest {max(seconds, default=0.0):.1f} s\n"
    )
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
