"""The `topline` command."""

from __future__ import annotations


def main() -> None:
    """Run the command line."""
