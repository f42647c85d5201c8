"""Sweeps: C, k, losses and smoothings compared by cross-validation, each no further than it takes to tell.

Cells advance in rounds of ever smaller gaps, on all workers, until a bound or a race decides about them.
Every answer is stored, so that a sweep that stopped continues where it was.
"""

from __future__ import annotations

from topline.pipeline.sweep.choice import choose
from topline.pipeline.sweep.result import SweepCell, SweepResult
from topline.pipeline.sweep.search import sweep
