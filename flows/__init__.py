"""Prefect flows over the pipeline's functions; the only room that imports Prefect.

A flow is a few lines: a task around each step of the pipeline, with progress, gaps and a summary as
artifacts that never block the work.  `from topline.flows import extract, train, retrain` gives flows to
combine with your own; `runners.run_flow` starts one from the command line, `serving` runs retraining on a
schedule, and `doctor_checks` verifies both on this machine.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

from topline.flows import environment

if TYPE_CHECKING:
    from topline.flows.definitions import evaluate, extract, run, sweep, train
    from topline.flows.retraining import retrain

__all__ = ["evaluate", "extract", "retrain", "run", "sweep", "train"]

environment.prepare(os.environ)


def __getattr__(name: str) -> Any:
    """Return a flow on first use: Prefect is only then imported, with its settings in place."""
    if name in __all__:
        module = "retraining" if name == "retrain" else "definitions"
        return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
