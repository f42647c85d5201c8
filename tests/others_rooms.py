"""Folders that somebody else gave the names of our rooms."""

from __future__ import annotations

from pathlib import Path

ROOMS = ("flows", "pipeline", "solvers", "storage")


def others_rooms(folder: Path) -> None:
    """Make packages in `folder`, created where it is missing, that fail wherever one is imported for ours."""
    for room in ROOMS:
        (folder / room).mkdir(parents=True)
        (folder / room / "__init__.py").write_text("raise RuntimeError('imported by mistake')\n")
