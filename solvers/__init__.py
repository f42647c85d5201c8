"""Solvers of the top-k family: losses, projections, Frank-Wolfe; no files, no cluster."""

from __future__ import annotations
