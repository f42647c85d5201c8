"""Datasets in the store: images described by a backbone, or features imported from files.

`extract` and `import_features` write units (shards) that can be repeated, split rows into training and test
by content or id, and continue where they were interrupted.  Prediction describes its images by the same
`Describer`.
"""

from __future__ import annotations

from topline.pipeline.ingest.editing import (
    Edits,
    edited_dataset,
    forget,
    newest_edited,
    tell_edits,
    with_edits_of,
)
from topline.pipeline.ingest.extraction import ExtractResult, extract, names_line
from topline.pipeline.ingest.importing import ImportResult, import_features
from topline.pipeline.ingest.unit import Changes, Describer, ImageRow, changes_between, open_backbone
