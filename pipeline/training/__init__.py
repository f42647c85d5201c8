"""Training: one run from a stored dataset to a stored, certified model, on any number of workers.

A plan is resolved and checked first, and is a value; beginning or resuming the run on disk is the next step.
From then on a history and checkpoints are written, from which a run that stopped continues.
"""

from __future__ import annotations

from topline.pipeline.training.continued import settings_of_model
from topline.pipeline.training.plan import resolve_options, resume_options
from topline.pipeline.training.problem_checks import check_options
from topline.pipeline.training.run import runs_of
from topline.pipeline.training.session import TrainResult, train

__all__ = [
    "TrainResult",
    "check_options",
    "resolve_options",
    "resume_options",
    "runs_of",
    "settings_of_model",
    "train",
]
