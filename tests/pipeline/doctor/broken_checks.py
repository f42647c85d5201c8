"""Checks that go wrong in every way in which a check can."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from topline.pipeline.doctor import CheckFailedError


def fine() -> str:
    print("libraries may print")
    return "all is well"


def failing() -> str:
    raise CheckFailedError("the moon is missing", "Wait for the night.")


def raising() -> str:
    raise ZeroDivisionError("no denominator")


def dying() -> str:
    os.kill(os.getpid(), signal.SIGSEGV)
    return "unreachable"


def leaving() -> str:
    print("the last words", file=sys.stderr)
    raise SystemExit(7)


def hanging() -> str:
    """Start a child, note its id where the environment says, and hang."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    Path(os.environ["CHILD_NOTE"]).write_text(str(child.pid))
    time.sleep(600)
    return "unreachable"
