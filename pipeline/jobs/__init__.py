"""Whole jobs, made of the steps that the other rooms do: from images to a report, and retraining.

`run` makes a certified and evaluated model and its report of a folder of images.  `retrain` brings a store up
to date with its images, and its champion with the promotion rule.  Both can be repeated after a failure: a
step that is stored already is found and not made again.  `Steps` are what they call, one after the other.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from topline.pipeline.jobs.end_to_end import JobResult, Steps, run, train_as_asked, training_facts
    from topline.pipeline.jobs.retraining import LEASE, RetrainResult, retrain, trained_without

__all__ = [
    "LEASE", "JobResult", "RetrainResult", "Steps", "retrain", "run", "train_as_asked", "trained_without",
    "training_facts",
]  # fmt: skip

_OF_RETRAINING = {"LEASE", "RetrainResult", "retrain", "trained_without"}


def __getattr__(name: str) -> Any:
    """Return a name of a job, whose module loads Dask and more, when it is first asked for."""
    if name in __all__:
        module = "retraining" if name in _OF_RETRAINING else "end_to_end"
        return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
