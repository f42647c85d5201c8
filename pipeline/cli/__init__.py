"""The `topline` command: options, progress, results and errors around the pipeline's functions.

Each module is one command: it reads options from flags and a TOML file, calls a function of another room and
returns an `Outcome`, which is printed as text or as one JSON object.  `main` turns errors into one sentence
and an exit code; nothing is computed here.
"""

from __future__ import annotations

from topline.pipeline.cli.entry import main

__all__ = ["main"]
