"""The `topline` command: options, progress, results and errors around the pipeline's functions.

Each command is one function: it reads options from flags and a TOML file, calls a function of another room
and returns an `Outcome`, which is printed as text or as one JSON object.  `main` turns errors into one
sentence and an exit code; nothing is computed here.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import NoReturn

from topline.pipeline.cli.table import INTERRUPTED, TERMINATED
from topline.pipeline.interrupts import StopFlag, stop_on_signals, terminate_as_interrupt


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit; TOPLINE_DEBUG=1 shows the traceback of an error."""
    terminated = StopFlag() if arguments is not None else terminate_as_interrupt()
    # A library that is interrupted while it is imported raises what it likes.
    with stop_on_signals() as asked:
        from topline.pipeline.cli.entry import run
    if asked:
        by = "Ctrl-C" if asked.reason == "SIGINT" else asked.reason
        sys.stderr.write(f"error: stopped by {by}; nothing had begun\n")
        sys.exit(INTERRUPTED if asked.reason == "SIGINT" else TERMINATED)
    run(arguments, terminated)
