"""The figures that the papers print, of `printed.toml`."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path
from typing import Any


def printed(section: str) -> dict[str, Any]:
    """Return the rows of a section such as "thesis.letter", by name: tuples of figures, or rows of them."""
    found = _whole()
    for name in section.split("."):
        found = found[name]
    return {row: _fixed(figures) for row, figures in found.items()}


@cache
def _whole() -> dict[str, Any]:
    return tomllib.loads((Path(__file__).parent / "printed.toml").read_text(encoding="utf-8"))


def _fixed(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _fixed(part) for name, part in value.items()}
    return tuple(_fixed(part) for part in value) if isinstance(value, list) else value
