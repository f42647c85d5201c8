"""Runs every check of an installation in a process of its own, with a deadline.

A check may hang, run out of memory or die in native code; each of these becomes a line of the report, and
the other checks run all the same.  `python -m
topline.pipeline.doctor.runner MODULE:FUNCTION` is that process.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.metadata import entry_points
from typing import Any

import psutil

logger = logging.getLogger(__name__)

ENTRY_POINTS = "topline.checks"
_MODULE, _OWN = "topline.pipeline.doctor.runner", "topline.pipeline.doctor.installation"


@dataclass(frozen=True)
class CheckResult:
    """Result of one check: what was seen, and the command or sentence that fixes it (empty when `ok`)."""

    name: str
    ok: bool
    detail: str
    fix: str
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return asdict(self)


class CheckFailedError(Exception):
    """A check found something wrong: the message says what, `fix` what to do about it."""

    def __init__(self, detail: str, fix: str) -> None:
        super().__init__(detail)
        self.fix = fix


@dataclass(frozen=True)
class Check:
    """A check and the seconds within which it must answer.

    `target` is "module:function"; the function returns a sentence or raises `CheckFailedError`, and takes
    the `arguments`.  `on_schedule` marks the slow checks, which run only on request.
    """

    name: str
    target: str
    timeout: float
    on_schedule: bool = False
    arguments: tuple[str, ...] = ()

    @property
    def command(self) -> str:
        """What runs it alone."""
        return shlex.join(["python", "-m", _MODULE, self.target, *self.arguments])


# A deadline is for what hangs, and not for a busy machine, on which a compiler alone takes minutes.
DEADLINE = 600.0
CHECKS: tuple[Check, ...] = tuple(
    Check(name, f"{_OWN}:{name}", DEADLINE)
    for name in ("versions", "threads", "solver", "store", "cluster", "space", "extras")
)


def run_checks(
    *, schedule: bool = False, checks: Sequence[Check] | None = None, store: str | None = None
) -> list[CheckResult]:
    """Run every check, including those that other rooms contribute as entry points "topline.checks".

    `schedule` adds the slow one: a Prefect server of its own on which a scheduled run really fires, and a
    `store` one of its place.  A check that fails, hangs or dies becomes a `CheckResult` with `ok` False and
    never stops the others.  `checks` replaces the built-in and contributed ones.
    """
    chosen, broken = _all_checks() if checks is None else (list(checks), [])
    if store is not None:
        chosen.append(Check("place", f"{_OWN}:place", DEADLINE, arguments=(store,)))
    return broken + [_run_check(check) for check in chosen if schedule or not check.on_schedule]


def _all_checks() -> tuple[list[Check], list[CheckResult]]:
    """Return the built-in and contributed checks, and a failure for each contribution that is broken."""
    checks, broken = list(CHECKS), []
    for contribution in entry_points(group=ENTRY_POINTS):
        try:
            checks.extend(contribution.load()())
        except Exception as error:  # noqa: BLE001  whatever a contribution raises is the finding
            broken.append(
                CheckResult(
                    contribution.name,
                    ok=False,
                    detail=f"{contribution.value} returned no checks: {type(error).__name__}: {error}",
                    fix="Install topline again: python -m pip install --force-reinstall topline",
                    seconds=0.0,
                )
            )
    return checks, broken


def _run_check(check: Check) -> CheckResult:
    """Run one check in a process of its own and end everything that it started."""
    begun = time.monotonic()
    with tempfile.TemporaryFile() as answer, tempfile.TemporaryFile() as noise:
        process = subprocess.Popen(
            [sys.executable, "-m", _MODULE, check.target, *check.arguments],
            stdin=subprocess.DEVNULL,
            stdout=answer,
            stderr=noise,
            start_new_session=True,
        )
        try:
            process.wait(check.timeout)
        except subprocess.TimeoutExpired:
            busy = "Try again while the machine is less busy; if it stays so, "
            fix = f"{busy}`{check.command}` shows where it hangs."
            found = _failed(f"no answer within {check.timeout:g} s", fix)
        else:
            answer.seek(0)
            noise.seek(0)
            found = _read_answer(check, process.returncode, answer.read(), noise.read())
        finally:
            _end_tree(process)
    return CheckResult(name=check.name, seconds=round(time.monotonic() - begun, 2), **found)


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
        with suppress(psutil.NoSuchProcess):
            descendant.kill()
    process.wait()


def _read_answer(check: Check, returncode: int, answer: bytes, noise: bytes) -> dict[str, Any]:
    """Return the result that the process printed, or say how it ended without one."""
    if returncode == 0 and answer:
        found: dict[str, Any] = json.loads(answer)
        return found
    how = f"signal {signal.Signals(-returncode).name}" if returncode < 0 else f"exit code {returncode}"
    last = noise.decode(errors="replace").strip().splitlines()[-1:] or ["nothing on standard error"]
    return _failed(f"the check ended with {how}: {last[0]}", f"Run `{check.command}` to see the whole error.")


def _failed(detail: str, fix: str) -> dict[str, Any]:
    return {"ok": False, "detail": detail, "fix": fix}


def examine(target: str, *arguments: str) -> dict[str, Any]:
    """Run the check "module:function" in this process and return its result as plain values."""
    module, _, function = target.partition(":")
    try:
        detail = getattr(importlib.import_module(module), function)(*arguments)
    except CheckFailedError as failure:
        return _failed(str(failure), failure.fix)
    except Exception as error:
        logger.exception("The check %s failed.", target)
        alone = Check("", target, 0.0, arguments=arguments).command
        return _failed(f"{type(error).__name__}: {error}", f"Run `{alone}` to see where it failed.")
    return {"ok": True, "detail": str(detail), "fix": ""}


def main(target: str, *arguments: str) -> None:
    """Print the result of one check as JSON; whatever else is printed goes to standard error."""
    answer = os.dup(1)
    os.dup2(2, 1)
    found = examine(target, *arguments)
    sys.stdout.flush()
    os.write(answer, json.dumps(found).encode())


if __name__ == "__main__":
    # By its name, so that the classes are those that the checks import.
    importlib.import_module(_MODULE).main(*sys.argv[1:])
