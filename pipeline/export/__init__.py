"""Exporting models to files that other programs read, each proven against the model before it is kept.

`FORMATS` is the one list of formats, and `register_format` adds to it; `export_model` writes a stored model
in one of them, reads it back and compares scores and best classes.  `load_estimator` opens what the format
sklearn wrote.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from topline.pipeline.export.formats import (
    FORMATS,
    ExportFormat,
    chosen_format,
    export_format,
    register_format,
)

if TYPE_CHECKING:
    from topline.pipeline.export.estimator import load_estimator
    from topline.pipeline.export.writing import ExportReport, export_model

__all__ = [
    "FORMATS",
    "ExportFormat",
    "ExportReport",
    "chosen_format",
    "export_format",
    "export_model",
    "load_estimator",
    "register_format",
]

_LAZY = {"ExportReport": "writing", "export_model": "writing", "load_estimator": "estimator"}


def __getattr__(name: str) -> Any:
    """Return a name of a module that needs NumPy and scikit-learn, which is loaded when it is asked for."""
    if name in _LAZY:
        return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
