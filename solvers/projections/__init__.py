"""Exact single-example dual problems."""

from __future__ import annotations
