"""Faults inside of our own processes, at a chosen call of a chosen function.

`command` is the whole life of a process: our command line, or one of Dask's that preloads this module.
Either has the faults that the environment names:

CHAOS_FAULTS   a JSON list of {"where": "module:name", "call": 7, "delay": 0.01, "after": false, "do": ...,
               "mark": path, "of": text}: at its 7th call, 10 ms after it began (or ended), this process does
               that to itself; `mark` is made first, and where it is there (a restarted process) nothing
               happens.  With `of`, calls count whose first argument shows that text.
CHAOS_CLOCK    a JSON list [seconds, call]: from the 7th look at the clock on, it is so many seconds wrong.
CHAOS_LOG      a file to which every order that a worker begins on a block adds a line.
CHAOS_READY    a folder in which every worker leaves its process id once it is at work.
CHAOS_GO       a file that the command line waits for.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import itertools
import json
import os
import signal
import sys
import threading
import time
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import psutil


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def segfault() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def freeze() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def eat() -> None:
    """Take memory until somebody objects."""
    eaten = []
    for _ in range(60):
        eaten.append(np.ones(4 << 20))
        time.sleep(0.02)
    time.sleep(20)


def hold() -> None:
    time.sleep(0.5)


def fill() -> None:
    """Take memory up to where Dask pauses a worker by default, and keep it."""
    from topline.pipeline.cluster.calls import this_worker

    worker = this_worker()
    while psutil.Process().memory_info().rss < 0.88 * worker.memory_manager.memory_limit:
        _filled.append(np.ones(1 << 20))
    while worker.status.name != "paused":
        time.sleep(0.02)


_filled: list[Any] = []


def shorten_rounds() -> None:
    """Let blocks agree as often as they can, whatever messages cost."""
    from topline.solvers.methods import shared_work

    shared_work.MORE = 1e6


ACTIONS: Mapping[str, Callable[[], None]] = {
    "kill": kill,
    "segfault": segfault,
    "freeze": freeze,
    "eat": eat,
    "fill": fill,
    "hang": lambda: threading.Event().wait(),
    "hold": hold,
    "nap": lambda: time.sleep(0.001),
    "shorten rounds": shorten_rounds,
}


def install() -> None:
    """Put the faults of the environment into this process."""
    for fault in json.loads(os.environ.get("CHAOS_FAULTS", "[]")):
        wrap(fault["where"], lambda function, fault=fault: at_call(function, fault))
    if "CHAOS_LOG" in os.environ:
        wrap("topline.solvers.operations.base:RowBlock.run", logged)
    if "CHAOS_CLOCK" in os.environ:
        jump(*json.loads(os.environ["CHAOS_CLOCK"]))


def wrap(where: str, wrapper: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    module, _, name = where.partition(":")
    owner: Any = importlib.import_module(module)
    *path, last = name.split(".")
    for part in path:
        owner = getattr(owner, part)
    setattr(owner, last, wrapper(getattr(owner, last)))


def at_call(function: Callable[..., Any], fault: Mapping[str, Any]) -> Callable[..., Any]:
    calls = itertools.count(1)

    def strike() -> None:
        with contextlib.suppress(FileExistsError):
            if fault.get("mark"):
                Path(fault["mark"]).touch(exist_ok=False)
            ACTIONS[fault["do"]]()

    def begin() -> None:
        if fault.get("delay"):
            threading.Timer(fault["delay"], strike).start()
        else:
            strike()

    @functools.wraps(function)
    def wrapped(*args: Any, **options: Any) -> Any:
        if fault.get("of", "") not in repr(args[:1]):
            return function(*args, **options)
        now = next(calls) >= fault["call"] if fault.get("always") else next(calls) == fault["call"]
        if now and not fault.get("after"):
            begin()
        result = function(*args, **options)
        if now and fault.get("after"):
            begin()
        return result

    return wrapped


def logged(run: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(run)
    def wrapped(block: Any, order: Any, *options: Any) -> Any:
        # At the end two orders of one kind may differ in their weights alone.
        at = zlib.crc32(np.ascontiguousarray(getattr(order, "W", 0.0)).tobytes())
        what = f"{type(order).__name__}:{getattr(order, 'round', '')}:{getattr(order, 'exact', '')}:{at}"
        with Path(os.environ["CHAOS_LOG"]).open("a") as log:
            log.write(f"{os.getpid()} {what} {block.index}\n")
        return run(block, order, *options)

    return wrapped


def jump(seconds: float, call: int) -> None:
    """From its so-manieth look on, this process reads another time."""
    looks, true_time = itertools.count(1), time.time

    def wrong() -> float:
        return true_time() + (seconds if next(looks) >= call else 0.0)

    time.time = wrong
    import distributed.metrics
    import distributed.scheduler

    distributed.metrics.time = distributed.scheduler.time = wrong


def dask_setup(process: Any) -> None:
    """Called by Dask in a scheduler or worker that it preloads this module into."""
    install()
    if "CHAOS_READY" in os.environ and hasattr(process, "nanny"):
        threading.Thread(target=_say_ready, args=(process,), daemon=True).start()


def _say_ready(worker: Any) -> None:
    while worker.status.name != "running":
        time.sleep(0.02)
    (Path(os.environ["CHAOS_READY"]) / str(os.getpid())).write_text(str(worker.name))


def drop_capabilities() -> None:
    """Leave root nothing that other users do not have: file modes bind it too."""
    header, none = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    if os.getuid() == 0 and ctypes.CDLL(None, use_errno=True).capset(header, none):
        raise OSError(ctypes.get_errno(), "capset")


def command(program: str, words: list[str], environment: dict[str, str], out: str, err: str) -> None:
    """Be `topline` or `dask` in this process, which was made for it, with a session and files of its own."""
    os.setsid()
    for path, number in ((out, 1), (err, 2)):
        opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(opened, number)
        os.close(opened)
    os.environ.update(environment)
    sys.argv = [program, *words]
    if program == "dask":
        import dask
        from dask.__main__ import main

        # Nannies fork their workers from where they were forked themselves: nothing is imported again.
        dask.config.set({"distributed.worker.multiprocessing-method": "forkserver"})
    else:
        from topline.pipeline.cli import main

        if "CHAOS_POWERLESS" in os.environ:
            drop_capabilities()
        install()
        while not Path(os.environ["CHAOS_GO"]).exists():
            time.sleep(0.02)
    main()
