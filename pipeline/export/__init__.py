"""Exporting models to files that other programs read, each proven against the model before it is kept.

`FORMATS` is the one list of formats, and `register_format` adds to it; `writing.export_model` writes a stored
model in one of them, reads it back and compares scores and best classes.  `estimator.load_estimator` opens
what the format sklearn wrote.
"""

from __future__ import annotations

from topline.pipeline.export.formats import (
    FORMATS,
    ExportFormat,
    chosen_format,
    export_format,
    register_format,
)
