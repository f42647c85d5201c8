"""Apply a stored model to the features in a file, batch by batch; the rows may be labelled or not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from itertools import islice, pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from scipy.sparse import csr_matrix, issparse

from topline.pipeline.errors import ConfigError, InputError
from topline.pipeline.images import Pixels
from topline.pipeline.options import NewRowsConfig, PredictConfig
from topline.pipeline.prediction.answers import AnswerRule, NewRows, Predicted, summary
from topline.pipeline.prediction.files import table_of, table_schema, write_files
from topline.pipeline.progress import Progress, advance, begin
from topline.pipeline.readers import (
    FeatureFile,
    check_columns,
    checked_rows,
    label_lists,
    local_path,
    names_of_rows,
    open_features,
    reading,
    split_words,
    words_of,
)
from topline.pipeline.rows import StoredModel
from topline.storage.schema import SPLIT_OF

#: Most bytes of features, and rows, scored at once.
BATCH_BYTES, BATCH_ROWS = 1 << 26, 4096
#: Rows included in the result; a table has all of them.
FIRST = 20


@dataclass(frozen=True, kw_only=True)
class FeaturesResult(Predicted):
    """Predictions for the `rows` of a file; `first` has the first ones, as rows of the table."""

    features: str
    rows: int
    first: tuple[Mapping[str, Any], ...]


def predict_features(
    model_url: str, config: PredictConfig, progress: Progress | None = None
) -> FeaturesResult:
    """Predict the best classes of the rows in `config.features`, a file as for import.

    Labels and splits in the file are recorded without influence.  The table goes to `config.output` and the
    page to `config.page`, if given.  Raises `InputError` for features that the model cannot take, and
    `NotStoredError` with the result if the table or page cannot be written.
    """
    stored = StoredModel.open(model_url)
    rule = AnswerRule.of(stored, config, progress)
    schema = table_schema("sample_id", sets=rule.sets is not None)
    with opened_features(stored, config) as new:

        def tables(count: int, told: Progress | None = None) -> Iterator[pa.Table]:
            for start, block in new.blocks(count, told):
                columns: dict[str, Any] = {
                    "sample_id": block.names,
                    "label": new.labels[start : start + len(block.names)],
                    "split": block.splits,
                    **rule.answer(block.scores, block.names).columns(
                        stored.model.record.class_names, np.argsort(-block.scores, axis=1, kind="stable")
                    ),
                }
                yield table_of(schema, columns, several=rule.threshold is not None)

        path, n = local_path(str(config.features)), new.source.n
        result = FeaturesResult(
            model=stored.model.url,
            features=str(path),
            rows=n,
            probabilities=rule.calibration,
            coverage=config.coverage,
            first=tuple(islice((row for table in tables(FIRST) for row in table.to_pylist()), FIRST)),
        )
        labelled = any(label is not None for label in new.labels)
        if rule.threshold is None and (labelled or rule.sets is not None):
            new = new.placed() if labelled and new.source.splits() is None else new
            found = summary(tables(n, progress), stored.model.record.class_names, rule)
            result = replace(result, **found)
        return write_files(
            result, config, f"rows of {path.name}", schema, lambda: tables(n, progress), new.picture
        )


@contextmanager
def opened_features(stored: StoredModel, config: NewRowsConfig) -> Iterator[NewFeatures]:
    """Yield the rows of the file of `config`; raise `ConfigError` or `InputError` if it has none to use."""
    if config.features is None:
        raise ConfigError("--features is missing: name a file of features")
    path, made = local_path(config.features), stored.model.record.features
    # What said in training which rows belong together and how often they count is no feature here either.
    beside = tuple(made[name] for name in ("groups", "sample_weight") if name in made)
    names = (config.features_name, config.labels_name, None, beside)
    with closing(open_features(path, *names)) as source:
        taken = _column_order(stored, source)
        with reading(source.place):
            known = names_of_rows(source), _labels(stored, source), _splits(source)
        yield NewFeatures(stored, source, taken, *known)


@dataclass(frozen=True, eq=False)
class NewFeatures:
    """The rows of a file as a model takes them; `known` maps their contents to splits."""

    stored: StoredModel
    source: FeatureFile
    taken: list[int] | None
    names: Sequence[str]
    labels: Sequence[str | None]
    splits: Sequence[str | None]
    known: Mapping[bytes, str] = field(default_factory=dict)
    kind: str = "float32"

    def placed(self) -> NewFeatures:
        """Return the same rows with their splits in the model's dataset, whatever the file says of them."""
        known, kind = _splits_by_content(self.stored)
        return replace(self, splits=[None] * self.source.n, known=known, kind=kind)

    def blocks(self, count: int, progress: Progress | None = None) -> Iterator[tuple[int, NewRows]]:
        """Yield the first `count` rows in order, each block with the index of its first row."""
        count = min(count, self.source.n)
        step = max(1, min(BATCH_ROWS, BATCH_BYTES // (8 * max(self.source.d, self.stored.model.record.m))))
        begin(progress, "predict", count, "rows")
        for start in range(0, count, step):
            stop = min(start + step, count)
            yield start, self._block(start, stop)
            advance(progress, stop - start)

    def _block(self, start: int, stop: int) -> NewRows:
        with reading(f"{self.source.place}, rows {start}-{stop - 1}"):
            found = self.source.rows(start, stop)
        X = checked_rows(self.source, found, start, "float32")
        taken = X if self.taken is None else X[:, self.taken]
        # In a layout that the model's transforms and kernel take.
        stored, model_rows = self.stored, taken
        if stored.kernel is not None and issparse(stored.expansion.rows):
            model_rows = csr_matrix(taken)
        elif stored.kernel is not None or not all(step.keeps_sparse for step in stored.transforms.steps):
            model_rows = taken.toarray() if isinstance(taken, csr_matrix) else taken
        rows = stored.transforms.apply(model_rows)
        splits = self.splits[start:stop]
        if self.known:
            splits = [self.known.get(digest) for digest in _row_digests(taken, self.kind)]
        errors = [None] * (stop - start)
        return NewRows(self.names[start:stop], rows, stored.scores(rows), splits, errors)

    def picture(self, _: int, __: Mapping[str, Any] | None = None) -> Pixels:
        """Raise `InputError`: features have no picture."""
        raise InputError("a file of features has no pictures")


def _column_order(stored: StoredModel, source: FeatureFile) -> list[int] | None:
    """Return a file's columns in the order of training, None if equal; raise `InputError` for others."""
    record = stored.model.record
    if record.features.get("kind") == "images":
        raise InputError(
            f"model {record.id} describes images by a network or formula of its own: give --images, not"
            " --features"
        )
    source.as_trained(f"model {record.id}", record.features.get("first_column"), stored.input_width)
    trained, given = record.features.get("columns"), source.columns
    if trained is not None and given is not None:
        if set(trained) == set(given) and list(trained) != list(given):
            places = {name: place for place, name in enumerate(given)}
            return [places[name] for name in trained]
        check_columns(f"model {record.id}", trained, source.place, given)
    if stored.input_width != source.d:
        raise InputError(
            f"{source.place} has {source.d:,} features per row, and model {record.id} takes"
            f" {stored.input_width:,}: give the features that it was trained on"
        )
    return None


def _labels(stored: StoredModel, source: FeatureFile) -> Sequence[str | None]:
    """Return each row's label as text, several joined by semicolons, None without one."""
    found = source.labels()
    if found is None:
        return [None] * source.n
    # Class numbers are named by the --class-names given for training.
    record, names = stored.model.record, source.class_names
    if names is None and record.features.get("class_names"):
        names = record.class_names
    lists = label_lists(np.asarray(found), source.place, names)
    if lists is not None:
        return [";".join(labels) for labels in lists.rows]
    known = {} if names is None else {str(code): name for code, name in enumerate(names)}
    words = words_of(np.asarray(found).tolist())
    return [text if text is None else known.get(text, text) for text in words]


def _splits(source: FeatureFile) -> Sequence[str | None]:
    found = source.splits()
    return [None] * source.n if found is None else split_words(np.asarray(found), source.place)


def _splits_by_content(stored: StoredModel) -> tuple[Mapping[bytes, str], str]:
    """Return the splits of the model's dataset by row contents, empty if it is gone, and its feature type."""
    try:
        dataset = stored.dataset()
    except InputError:
        return {}, "float32"
    kind = dataset.info.dtype
    splits = dataset.split()
    found: dict[bytes, str] = {}
    for span in map(dataset.plan.bounds, range(dataset.plan.units)):
        here = splits[span.start : span.stop].tolist()
        for code, digest in zip(here, _row_digests(dataset.rows(span.start, span.stop), kind), strict=True):
            if found.get(digest) != "train":
                found[digest] = SPLIT_OF[code]
    return found, kind


def _row_digests(X: Any, kind: str) -> list[bytes]:
    """Return a digest of each row; dense rows are stored as the type `kind`."""
    if isinstance(X, csr_matrix):
        rows = csr_matrix(X, dtype=np.float32, copy=True)
    else:
        rows = csr_matrix(np.asarray(X).astype(kind).astype(np.float32))
    rows.sum_duplicates()
    rows.eliminate_zeros()
    entries = rows.indices.astype("<i4"), rows.data
    return [
        blake2b(b"".join(part[low:high].tobytes() for part in entries), digest_size=16).digest()
        for low, high in pairwise(rows.indptr.tolist())
    ]
