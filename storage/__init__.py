"""What is on disk and how it is found again."""

from __future__ import annotations
