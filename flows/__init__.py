"""Prefect flows over the pipeline's functions; the only room that imports Prefect.

A flow is a few lines: a task around a whole step of the pipeline, with progress, gaps and a summary as
artifacts that never hold up the work.  `runners.run_flow` starts one from the command line, `serving` runs
retraining on a schedule, and `doctor_checks` proves that both work on this machine.
"""

from __future__ import annotations

import os

from topline.flows import environment

environment.prepare(os.environ)
