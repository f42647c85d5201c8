"""Sweeps: compare C, k, losses and smoothings by cross-validation, each only as far as the decision needs.

Cells advance in rounds of ever smaller gaps, on all workers, until a bound or a race decides them.  Every
answer is stored, so that an interrupted sweep continues.
"""

from __future__ import annotations

from topline.pipeline.sweep.choice import choose
from topline.pipeline.sweep.result import SweepCell, SweepResult
from topline.pipeline.sweep.search import sweep
