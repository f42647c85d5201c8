"""The `topline` command: options, progress, results and errors around the pipeline's functions."""

from __future__ import annotations

from topline.pipeline.cli.entry import main

__all__ = ["main"]
