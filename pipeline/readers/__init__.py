"""Files of features and labels that exist already, read row by row and never as a whole.

`open_features` opens any format by its suffix (NumPy, Parquet, CSV, HDF5, LIBSVM, ARFF, clip-retrieval
folders); labels, splits and class names come from small files or from inside, as words, one or several a row.
A new format is one file with a `FeatureFile` and a line in `READERS` of `formats.py`.
"""

from __future__ import annotations

from topline.pipeline.readers.arff import read_label_names
from topline.pipeline.readers.base import FeatureFile, Rows, check_columns, named
from topline.pipeline.readers.damage import reading
from topline.pipeline.readers.formats import ConcatenatedFeatures, open_features
from topline.pipeline.readers.label_sets import (
    LabelLists,
    label_lists,
    label_set_table,
    label_sets_for_solver,
    require_single_labels,
    split_labels,
)
from topline.pipeline.readers.labels import (
    label_words,
    read_class_names,
    read_column,
    read_labels,
    split_words,
)
from topline.pipeline.readers.libsvm import LibsvmFeatures
from topline.pipeline.readers.values import checked_rows, names_of_rows, row_name
