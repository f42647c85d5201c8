"""The `topline` command: options, progress, results and errors around the pipeline's functions.

Each module is one command: it reads options from flags and a TOML file, calls a function of another room and
returns an `Outcome`, which is printed as text or as one JSON object.  `main` turns errors into one sentence
and an exit code; nothing is computed here.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import NoReturn

from topline.pipeline.cli.exits import INTERRUPTED, TERMINATED
from topline.pipeline.interrupts import StopFlag, terminate_as_interrupt


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit; TOPLINE_DEBUG=1 shows the traceback of an error."""
    terminated = StopFlag() if arguments is not None else terminate_as_interrupt()
    try:
        # Takes the better part of a second, in which people who mistyped stop it.
        from topline.pipeline.cli.entry import run
    except KeyboardInterrupt as error:
        sys.stderr.write(f"error: {str(error) or 'stopped by Ctrl-C'}; nothing had begun\n")
        sys.exit(TERMINATED if terminated else INTERRUPTED)
    run(arguments, terminated)
