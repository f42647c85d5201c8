"""Files of features and labels that exist already, read row by row and never as a whole.

`open_features` opens every format of `FORMATS` (NumPy, Parquet, CSV, HDF5, safetensors, Zarr, LIBSVM, ARFF),
folders of parts and clip-retrieval's; labels, splits and class names come from small files or from inside, as
words, one or several a row.  A new format is a `FeatureFile` and a line in `FORMATS`.
"""

from __future__ import annotations

from topline.pipeline.readers.base import (
    FeatureFile,
    all_parts,
    check_columns,
    checked_rows,
    local_path,
    named,
    names_of_rows,
    parts_of,
    pick,
    pick_label,
    row_name,
    tell_coarse,
)
from topline.pipeline.readers.columns import TABLE_SUFFIXES, label_names, read_table
from topline.pipeline.readers.files import parquet_column, reading
from topline.pipeline.readers.formats import (
    FORMATS,
    LabelLists,
    Parts,
    label_lists,
    label_set_table,
    open_features,
    read_class_names,
    read_column,
    read_labels,
    split_labels,
)
from topline.pipeline.readers.texts import read_label_names
from topline.pipeline.readers.words import (
    SPLIT_NAMES,
    class_words,
    harmless,
    label_words,
    numbers_in,
    refuse_rows,
    row_weights,
    split_name,
    split_words,
    text_of,
    without_controls,
    word,
    words_of,
)
