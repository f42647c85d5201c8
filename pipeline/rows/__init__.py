"""Rows of a dataset as training sees them: in blocks, transformed, cached, scored by a model.

`TrainingRows` are the rows of one split, read in batches that follow from the data alone; `Transforms` are
fitted on them and stored with the model; a `StoredModel` applies both to any rows.  A new transform is a
frozen class, entered in `TRANSFORMS`.
"""

from __future__ import annotations

from topline.pipeline.rows.partition import (
    CachedRows,
    ClassWeight,
    TrainingRows,
    class_of_groups,
    class_weights,
    example_weights,
    require_single_labels,
)
from topline.pipeline.rows.stored_model import (
    LEARNED,
    LEARNED_LABELS,
    StoredModel,
    digests_of,
    learned_labels,
    learned_rows,
    record_if_possible,
)
from topline.pipeline.rows.transforms import (
    PCA,
    TRANSFORMS,
    Bias,
    ChiSquared,
    Fourier,
    Hellinger,
    L2Normalize,
    Power,
    Standardize,
    Transforms,
    parse_transforms,
)
