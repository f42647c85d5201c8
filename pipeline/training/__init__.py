"""Training: one run from a stored dataset to a stored, certified model, on any number of workers.

A plan is resolved and checked as a value; then the run begins or resumes on disk.  It writes its history, and
checkpoints from which a run that stopped continues.
"""

from __future__ import annotations

from topline.pipeline.training.plan import (
    check_options,
    checked_spec,
    continued,
    dataset_loss,
    handed_on,
    resolve_options,
    resume_options,
    settings_of_model,
    spec_of,
    spec_of_model,
)
from topline.pipeline.training.run import TrainResult, already_solved, resuming, runs_of, unfinished_run
from topline.pipeline.training.session import Fitted, fit, train
