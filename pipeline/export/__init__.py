"""Export of models to files for other programs, each verified against the model before it is kept.

`FORMATS` is the one list of formats, and `register_format` adds to it.  `writing.export_model` writes a
stored model, reads it back and compares scores and best classes; `estimator.load_estimator` opens the format
sklearn.
"""

from __future__ import annotations

from topline.pipeline.export.formats import (
    FORMATS,
    ExportFormat,
    chosen_format,
    export_format,
    register_format,
)
