"""Existing features, from the usual file formats, to a stored dataset."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix

from topline.pipeline.errors import ConfigError, InputError
from topline.pipeline.ingest.editing import warn_of_edits_not_made
from topline.pipeline.ingest.splits import HeldOut, Ingested, RowSplits, parts_stored, split_rows
from topline.pipeline.interrupts import stop_on_signals
from topline.pipeline.options import ImportConfig
from topline.pipeline.progress import Progress, advance, begin
from topline.pipeline.readers import (
    FeatureFile,
    Parts,
    checked_rows,
    label_lists,
    label_words,
    local_path,
    named,
    names_of_rows,
    open_features,
    parts_of,
    read_class_names,
    read_column,
    read_label_names,
    read_labels,
    reading,
    row_weights,
    split_words,
    tell_coarse,
    text_of,
)
from topline.storage.arrays import ChunkPlan
from topline.storage.datasets import CsrDatasetWriter, Dataset, DatasetWriter, empty_manifest
from topline.storage.records import digest_json
from topline.storage.stores import open_store

logger = logging.getLogger(__name__)

# A CSR entry takes twice the room of a dense one and its products are slower: above this, dense wins.
DENSE_SHARE = 0.25
# The names of so many features are kept, by which features to predict are checked.
NAMED_FEATURES = 4096
# Columns that tables have for the numbers of their rows, which say nothing of a class.
COUNTING_NAMES = frozenset({"id", "index", "row", "row_id", "unnamed: 0"})
# What the only column, or one of several, of a file of groups or of weights is called.
GROUP_NAMES, WEIGHT_NAMES = ("group", "groups"), ("sample_weight", "weight", "weights")


@dataclass(frozen=True)
class ImportResult(Ingested):
    """The dataset; `label_sets` are the distinct ones of rows with several labels, None of others."""

    layout: str
    label_sets: int | None


def import_features(config: ImportConfig, progress: Progress | None = None) -> ImportResult:
    """Store the features that `config` names as a dataset of `config.store`, block by block.

    The same files and options give the dataset that is there; an interrupted import continues where it
    stopped.  `InputError` names file and rows of NaN or infinity, and of labels that are missing or unknown.
    """
    begun = time.monotonic()
    if config.features is None:
        raise ConfigError("--features is missing: name a file of features")
    begin(progress, "read labels")
    with closing(_source(config, local_path(config.features))) as source:
        with reading(source.place):
            ids = names_of_rows(source)
            rows = _row_splits(config, source, ids)
        _tell(source, rows)
        writer = _begin(config, source)
        info, reused = writer.committed, writer.committed is not None
        if info is None:
            _write(config, source, writer, ids, progress)
            info = rows.commit(writer)
            warn_of_edits_not_made(Dataset(writer.store, info))
    more = {"layout": info.layout, "label_sets": info.label_sets}
    return ImportResult.of(writer.store, info, begun, reused=reused, **more)


def _source(config: ImportConfig, path: Path) -> FeatureFile:
    """Return the features at `path`, followed by those of the test rows where they have their own file."""
    inside = _are_inside(config)
    attributes = read_label_names(config.labels) if inside and config.labels is not None else None
    beside = tuple(name for name in (config.groups, config.sample_weight) if name is not None)
    names = (config.features_name, config.labels_name if inside else None, attributes, beside)
    if config.test_features is None:
        return open_features(path, *names)
    if config.split is not None:
        raise ConfigError("--split and --test-features both say which rows are held out: give one of them")
    with ExitStack() as stack:
        source = stack.enter_context(closing(open_features(path, *names)))
        test = stack.enter_context(closing(open_features(config.test_features.absolute(), *names)))
        both = Parts(source.path, (source, test), ("train", "test"))
        # From here on it is `both` that closes them.
        stack.pop_all()
    return both


def _row_splits(config: ImportConfig, source: FeatureFile, ids: Sequence[str]) -> RowSplits:
    """Return labels and splits of all rows, from the options' files before the features' own."""
    inside = _are_inside(config)
    known = source.ids()
    labels = Path(str(config.labels))
    if inside:
        found = source.labels()
    else:
        found = read_labels(labels, source.n, config.labels_name, known, config.label_separator)
    place = source.place if inside else str(config.labels)
    if found is None:
        columns = source.left_out()
        raise InputError(
            f"{source.place} has no labels: name the column or array that holds them with --labels-name"
            + (f" ({named(columns)})" if columns else "")
            + ", or their file with --labels (npy, csv or a line a row; the XML of an ARFF file of several)"
        )
    _check_length(place, "labels", len(found), source)
    names = source.class_names if config.class_names is None and inside else None
    if config.class_names is not None:
        names = read_class_names(config.class_names)
    lists = label_lists(np.asarray(found), place, names, config.label_separator)
    splits = (
        source.splits() if config.split is None else read_column(config.split, ("split",), source.n, known)
    )
    given: Sequence[str | None] = [None] * source.n
    if splits is not None:
        place = str(config.split or source.place)
        _check_length(place, "splits", len(splits), source)
        given = split_words(np.asarray(splits), place)
    usable = np.ones(source.n, dtype=bool)
    words = lists or label_words(np.asarray(found), place, names)
    groups = _beside(config.groups, GROUP_NAMES, source, known)
    weights = _beside(config.sample_weight, WEIGHT_NAMES, source, known)
    return split_rows(
        ids,
        words,
        given,
        usable,
        held_out=HeldOut.of(config),
        class_names=names,
        groups=None if groups is None else [text_of(value) for value in groups],
        weights=None if weights is None else row_weights(weights, str(config.sample_weight)).tolist(),
    )


def _beside(
    name: str | None, usual: Sequence[str], source: FeatureFile, ids: Sequence[str] | None
) -> list[object] | None:
    """Return the value of each row in a column beside the features, or in a file of its own."""
    if name is None:
        return None
    path = local_path(name)
    own = name not in source.names and path.is_file()
    values = read_column(path, usual, source.n, ids) if own else source.column(name)
    _check_length(name, "values", len(values), source)
    return list(np.asarray(values).tolist())


def _tell(source: FeatureFile, rows: RowSplits) -> None:
    """Say what may not be meant: columns that are not taken, one-hot labels, classes of one row."""
    out = source.left_out()
    if out:
        logger.info("not taken, as they are no numbers, labels or names of rows: %s", named(out))
    counting = [name for name in source.columns or () if name.strip().lower() in COUNTING_NAMES]
    if counting:
        logger.warning(
            "%s is taken as a feature, and its name says that it numbers the rows: leave it out of the table,"
            " or call it sample_id",
            named(counting),
        )
    if rows.label_sets is not None:
        if (np.diff(rows.label_sets.indptr)[rows.labels] == 1).all():
            logger.warning(
                "every row has one label and is stored as one of several: for top-k accuracy give numbers,"
                " labels.argmax(axis=1)"
            )
        return
    counts = np.bincount(rows.labels[rows.labels >= 0], minlength=len(rows.class_names))
    single = [rows.class_names[code] for code in np.flatnonzero(counts == 1).tolist()]
    if len(rows.class_names) == 1:
        logger.warning("every label is %s, and training needs at least two classes", rows.class_names[0])
    if single:
        logger.info("classes of one row, too few to train on and to measure: %s", named(single))


def _are_inside(config: ImportConfig) -> bool:
    """Return whether labels are beside the features: --labels gives none, or names those of an ARFF file."""
    return config.labels is None or config.labels.suffix.lower() == ".xml"


def _check_length(place: str, what: str, count: int, source: FeatureFile) -> None:
    if count != source.n:
        raise InputError(
            f"{place} has {count:,} {what} for the {source.n:,} rows of {source.place}: give one for each row"
        )


def _begin(config: ImportConfig, source: FeatureFile) -> DatasetWriter:
    """Return the writer of the dataset in the layout that suits it, begun now or before."""
    sparse = source.nonzeros is not None and source.nonzeros < DENSE_SHARE * source.n * source.d
    if config.layout != "auto":
        sparse = config.layout == "csr"
    kind = CsrDatasetWriter if sparse else DatasetWriter
    attributes: dict[str, Any] = {
        "kind": "imported",
        "features": source.place,
        "features_name": config.features_name,
        "labels_name": config.labels_name,
        **HeldOut.of(config).facts(),
        **config.row_facts(),
    }
    for name in ("labels", "split", "class_names", "test_features"):
        file = getattr(config, name)
        if file is not None or name != "test_features":
            attributes[name] = None if file is None else str(file.absolute())
    options = (config.labels, config.split, config.class_names, config.groups, config.sample_weight)
    given = [Path(path) for path in options if path is not None and path not in source.names]
    found = [path if path.is_file() else local_path(str(path)) for path in given]
    files = [*source.files(), *(file for path in found for file in parts_of(path, ("",)))]
    stamps = [[str(path), path.stat().st_size, path.stat().st_mtime_ns] for path in files]
    key = {**attributes, "files": stamps, "layout": kind.layout, "dtype": config.dtype}
    if source.columns is not None and len(source.columns) <= NAMED_FEATURES:
        attributes["columns"] = list(source.columns)
    if source.first_column is not None:
        attributes["first_column"] = source.first_column
    itemsize = np.dtype(config.dtype).itemsize
    width = source.d
    if sparse:
        entries = source.n * source.d if source.nonzeros is None else source.nonzeros
        # An entry is a value and a column of four bytes.
        width = max(1, entries * (itemsize + 4) // (source.n * itemsize))
    plan = ChunkPlan.choose(source.n, width, itemsize)
    store = open_store(config.store, create=True)
    return kind.begin(store, "import-" + digest_json(key), source.d, config.dtype, plan, attributes)


def _write(
    config: ImportConfig,
    source: FeatureFile,
    writer: DatasetWriter,
    ids: Sequence[str],
    progress: Progress | None,
) -> None:
    """Write the units that are not there yet."""
    plan, done, coarse = writer.plan, writer.done_units(), False
    begin(progress, "import", plan.n_rows, "rows")
    with stop_on_signals() as flag:
        for unit in range(plan.units):
            span = plan.bounds(unit)
            if unit not in done:
                with reading(f"{source.place}, rows {span.start}-{span.stop - 1}"):
                    found = source.rows(span.start, span.stop)
                X = checked_rows(source, found, span.start, config.dtype)
                coarse = coarse or tell_coarse(source, found, X)
                if writer.layout == "dense" and isinstance(X, csr_matrix):
                    X = X.toarray()
                elif writer.layout == "csr":
                    X = csr_matrix(X)
                writer.write_unit(unit, X, empty_manifest(ids[span.start : span.stop]))
            advance(progress, span.rows)
            if flag:
                raise parts_stored(writer, f"stopped by {flag.reason}")
