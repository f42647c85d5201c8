"""Proof that an installation works: every check runs in a process of its own, with a deadline.

A process of its own, because what is to be found out may hang, run out of memory or die in native code; the
report has a line for each of these, and the other checks run all the same.  `python -m
topline.pipeline.doctor.probes MODULE:FUNCTION` is that process.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import entry_points
from typing import Any

import psutil

logger = logging.getLogger(__name__)

ENTRY_POINTS = "topline.checks"


@dataclass(frozen=True)
class Check:
    """Outcome of one check: what was seen, and the command or sentence that mends it (empty when `ok`)."""

    name: str
    ok: bool
    detail: str
    mend: str
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """Give plain values for JSON."""
        return asdict(self)


class CheckFailedError(Exception):
    """A check found something wrong: the message says what, `mend` what to do."""

    def __init__(self, detail: str, mend: str) -> None:
        super().__init__(detail)
        self.mend = mend


@dataclass(frozen=True)
class Probe:
    """A check that can be run within `timeout` seconds.

    `target` is "module:function", which gives a sentence or raises `CheckFailedError`; `on_schedule` marks
    the slow ones that run only when they are asked for.
    """

    name: str
    target: str
    timeout: float
    on_schedule: bool = False


PROBES: tuple[Probe, ...] = (
    Probe("versions", "topline.pipeline.doctor.checks:versions", 30.0),
    Probe("threads", "topline.pipeline.doctor.checks:threads", 60.0),
    Probe("solver", "topline.pipeline.doctor.checks:solver", 180.0),
    Probe("store", "topline.pipeline.doctor.checks:store", 60.0),
    Probe("cluster", "topline.pipeline.doctor.checks:cluster", 120.0),
    Probe("space", "topline.pipeline.doctor.checks:space", 30.0),
    Probe("extras", "topline.pipeline.doctor.checks:extras", 60.0),
)


def run_checks(
    *,
    schedule: bool = False,
    on_done: Callable[[Check], None] | None = None,
    probes: Sequence[Probe] | None = None,
) -> list[Check]:
    """Run every check, also those that other rooms contribute through the entry points "topline.checks".

    `schedule` adds the slow one: a Prefect server of its own on which a scheduled run really fires.
    A check that fails, hangs or dies gives a `Check` with `ok` False and never stops the others.  `on_done`
    is called with each outcome as it comes; `probes` replaces the built-in and contributed checks.
    """
    chosen, broken = (list(probes), []) if probes is not None else _all_probes()
    for check in broken:
        if on_done is not None:
            on_done(check)
    checks = broken
    for probe in chosen:
        if schedule or not probe.on_schedule:
            checks.append(_run_probe(probe))
            if on_done is not None:
                on_done(checks[-1])
    return checks


def _all_probes() -> tuple[list[Probe], list[Check]]:
    """Give the built-in and the contributed checks, and a failure for each contribution that is broken."""
    probes, broken = list(PROBES), []
    for contribution in entry_points(group=ENTRY_POINTS):
        try:
            probes.extend(contribution.load()())
        except Exception as error:  # noqa: BLE001  whatever a contribution raises is the finding
            broken.append(
                Check(
                    contribution.name,
                    ok=False,
                    detail=f"{contribution.value} gave no checks: {type(error).__name__}: {error}",
                    mend="Install it again: python -m pip install --force-reinstall topline",
                    seconds=0.0,
                )
            )
    return probes, broken


def _run_probe(probe: Probe) -> Check:
    """Run one check in a process of its own and end everything that it started."""
    begun = time.monotonic()
    with tempfile.TemporaryFile() as answer, tempfile.TemporaryFile() as noise:
        process = subprocess.Popen(
            [sys.executable, "-m", "topline.pipeline.doctor.probes", probe.target],
            stdin=subprocess.DEVNULL,
            stdout=answer,
            stderr=noise,
            start_new_session=True,
        )
        try:
            process.wait(probe.timeout)
        except subprocess.TimeoutExpired:
            _end_tree(process)
            found: dict[str, Any] = {
                "ok": False,
                "detail": f"no answer within {probe.timeout:g} s",
                "mend": "Try again while the machine is less busy; if it stays so, "
                f"`python -m topline.pipeline.doctor.probes {probe.target}` shows where it hangs.",
            }
        else:
            answer.seek(0)
            noise.seek(0)
            found = _read_answer(probe, process.returncode, answer.read(), noise.read())
        finally:
            _end_tree(process)
    return Check(name=probe.name, seconds=round(time.monotonic() - begun, 2), **found)


def _end_tree(process: subprocess.Popen[bytes]) -> None:
    """Kill what is left of a check: its process group and whatever left the group."""
    try:
        descendants = psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        descendants = []
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        descendants = []  # the whole group has ended by itself
    for descendant in descendants:
        try:
            descendant.kill()
        except psutil.NoSuchProcess:
            continue
    process.wait()


def _read_answer(probe: Probe, returncode: int, answer: bytes, noise: bytes) -> dict[str, Any]:
    """Give the outcome that the process printed, or say how it ended without one."""
    if returncode == 0 and answer:
        found: dict[str, Any] = json.loads(answer)
        return found
    how = f"signal {signal.Signals(-returncode).name}" if returncode < 0 else f"exit code {returncode}"
    last = noise.decode(errors="replace").strip().splitlines()[-1:] or ["nothing on standard error"]
    return {
        "ok": False,
        "detail": f"the check ended with {how}: {last[0]}",
        "mend": f"Run `python -m topline.pipeline.doctor.probes {probe.target}` to see the whole error.",
    }


def examine(target: str) -> dict[str, Any]:
    """Run the check "module:function" in this process and give its outcome as plain values."""
    module, _, function = target.partition(":")
    try:
        detail = getattr(importlib.import_module(module), function)()
    except CheckFailedError as failure:
        return {"ok": False, "detail": str(failure), "mend": failure.mend}
    except Exception as error:
        logger.exception("The check %s failed.", target)
        return {
            "ok": False,
            "detail": f"{type(error).__name__}: {error}",
            "mend": f"Run `python -m topline.pipeline.doctor.probes {target}` to see where it failed.",
        }
    return {"ok": True, "detail": str(detail), "mend": ""}


def main(target: str) -> None:
    """Print the outcome of one check as JSON; whatever else is printed goes to standard error."""
    answer = os.dup(1)
    os.dup2(2, 1)
    outcome = examine(target)
    sys.stdout.flush()
    os.write(answer, json.dumps(outcome).encode())


if __name__ == "__main__":
    # By its name, so that the classes are those that the checks import.
    importlib.import_module("topline.pipeline.doctor.probes").main(sys.argv[1])
