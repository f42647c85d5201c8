"""Apply a stored model to new images: with its own backbone, transforms and classifier."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Any

import numpy as np

from topline.pipeline.backbones import Backbone, backbone_of_spec
from topline.pipeline.errors import ConfigError, InputError
from topline.pipeline.images import ImageItem, ImageListing, Pixels, Wanted, decode, list_images
from topline.pipeline.ingest import Describer, ImageRow, open_backbone
from topline.pipeline.options import NewRowsConfig, PredictConfig
from topline.pipeline.prediction.answers import AnswerRule, NewRows, Predicted, summary
from topline.pipeline.prediction.files import Prediction, table_of, table_schema, write_files
from topline.pipeline.progress import Progress, advance, begin
from topline.pipeline.rows import StoredModel


@dataclass(frozen=True)
class KnownTruth:
    """Labels from a table or folders, and splits from the contents of the model's dataset.

    A folder is a label if the model has a class of its name, or of one at its `level`: 0 for those in the
    listed one, `folder`, 1 for those in its test/, None if none is.  `splits` maps SHA-256 to split.
    """

    folder: str
    classes: frozenset[str]
    level: int | None
    splits: Mapping[str, str]

    @classmethod
    def of(cls, stored: StoredModel, listing: ImageListing) -> KnownTruth:
        """Return the truth from the model's dataset and the listing; no splits if the dataset is gone."""
        classes = frozenset(stored.model.record.class_names)
        folders = {PurePosixPath(item.path).parent.parts for item in listing.items}
        levels = [level for level in (0, 1) if any("/".join(parts[level:]) in classes for parts in folders)]
        found = listing.root.name, classes, min(levels, default=None)
        try:
            manifest = stored.dataset().manifest().select(["sha256", "split"])
        except InputError:
            return cls(*found, {})
        pairs = zip(manifest["sha256"].to_pylist(), manifest["split"].to_pylist(), strict=True)
        splits = {digest: split for digest, split in pairs if digest and split != "rejected"}
        return cls(*found, splits)

    def label(self, item: ImageItem) -> str | None:
        """Return an image's label from a table, or the class its folder is named after."""
        if item.label is not None:
            return item.label
        parts = PurePosixPath(item.path).parent.parts
        # A class is a folder below the listed one, possibly below train/ and so on, or the listed one itself.
        names = ("/".join(parts), "/".join(parts[1:]), "" if parts else self.folder)
        other = None if self.level is None else "/".join(parts[self.level :]) or None
        return next((name for name in names if name in self.classes), other)

    def split(self, row: ImageRow) -> str | None:
        """Return the split of an image with the same content in the model's dataset, None for a new one."""
        return self.splits.get(row.sha256 or "")


@dataclass(frozen=True, kw_only=True)
class PredictResult(Predicted):
    """Predictions of a model, in the order of the images; `ignored` files were excluded by rule."""

    predictions: tuple[Prediction, ...]
    ignored: int

    @property
    def rejected(self) -> int:
        """Number of images that could not be read."""
        return sum(prediction.status == "rejected" for prediction in self.predictions)

    def to_dict(self) -> dict[str, Any]:
        """Return the object that `topline predict --json` prints."""
        return {**super().to_dict(), "images": len(self.predictions), "rejected": self.rejected}


def predict(model_url: str, config: PredictConfig, progress: Progress | None = None) -> PredictResult:
    """Return the predictions of the model at `model_url` for the images that `config` names.

    Labels from a table or folders are recorded without influence.  An unreadable image keeps its place with
    status "rejected".  The table goes to `config.output` and the page to `config.page`, if given.  Raises
    `InputError` for a model of imported features or a changed backbone, and `NotStoredError` with the
    predictions if the table or page cannot be written.
    """
    stored = StoredModel.open(model_url)
    new = NewImages.of(stored, config)
    rule = AnswerRule.of(stored, config, progress)
    blocks = [_columns(new, start, block, rule) for start, block in new.blocks(len(new.names), progress)]
    found = tuple(
        Prediction.of_row(dict(zip(block, row, strict=True)), "path")
        for block in blocks
        for row in zip(*block.values(), strict=True)
    )
    result = PredictResult(
        model=stored.model.url, predictions=found, ignored=len(new.listing.ignored),
        probabilities=rule.calibration, coverage=config.coverage,
    )  # fmt: skip
    schema = table_schema("path", sets=rule.sets is not None)
    tables = [table_of(schema, block, several=rule.threshold is not None) for block in blocks]
    if rule.threshold is None:
        result = replace(result, **summary(tables, stored.model.record.class_names, rule))
    return write_files(result, config, f"images of {config.images}", schema, lambda: tables, new.picture)


@dataclass(frozen=True, eq=False)
class NewImages:
    """Images from outside any store, described by a model's own backbone."""

    stored: StoredModel
    config: NewRowsConfig
    backbone: Backbone
    listing: ImageListing
    truth: KnownTruth

    @classmethod
    def of(cls, stored: StoredModel, config: NewRowsConfig) -> NewImages:
        """List the images of `config`; raise `ConfigError` or `InputError` if there are none to take."""
        if config.images is None:
            raise ConfigError(
                "--images is missing: name a folder of images, a file of features with --features, or the"
                " rows of a store with --dataset latest"
            )
        backbone = _backbone(stored)
        follow = config.follow_links or bool(stored.model.record.features.get("follow_links"))
        listing = list_images(config.images, Wanted(labelled=False, follow_links=follow))
        return cls(stored, config, backbone, listing, KnownTruth.of(stored, listing))

    @property
    def names(self) -> Sequence[str]:
        """The paths of all images."""
        return [item.path for item in self.listing.items]

    def blocks(self, count: int, progress: Progress | None = None) -> Iterator[tuple[int, NewRows]]:
        """Yield the first `count` images in order, each block with the index of its first image."""
        network, items = open_backbone(self.backbone), self.listing.items[:count]
        describer = Describer(self.listing.root, self.backbone, self.config.limits)
        begin(progress, "predict", len(items), "images")
        for start in range(0, len(items), self.config.batch):
            rows = [ImageRow(item) for item in items[start : start + self.config.batch]]
            X = np.asarray(self.stored.transforms.apply(describer.describe(network, rows)), dtype=np.float64)
            splits, errors = [self.truth.split(row) for row in rows], [row.error for row in rows]
            ids = [row.item.sample_id for row in rows]
            yield start, NewRows(ids, X, self.stored.scores(X), splits, errors)
            advance(progress, len(rows))

    def picture(self, place: int, _: Mapping[str, Any] | None = None) -> Pixels:
        """Return the pixels of an image by index."""
        data = self.listing.items[place].read(self.listing.root, self.config.limits.max_bytes)
        return decode(data, self.config.limits)


def _backbone(stored: StoredModel) -> Backbone:
    """Return the backbone of the features on which the model was trained."""
    record = stored.model.record
    spec: Any = record.features.get("backbone")
    if record.features.get("kind") != "images" or not isinstance(spec, Mapping):
        raise InputError(
            f"model {record.id} was trained on imported features, so it cannot take images: give features of"
            " the same kind with --features"
        )
    backbone = backbone_of_spec(spec)
    width = stored.transforms.apply(np.zeros((1, backbone.dim), dtype=np.float32)).shape[1]
    if width != stored.W.shape[0]:
        raise InputError(
            f"the backbone {spec['name']} gives {backbone.dim} features, which do not fit model {record.id}"
            f" of {stored.W.shape[0]} rows: restore the backbone that it was trained with"
        )
    return backbone


def _columns(new: NewImages, start: int, block: NewRows, rule: AnswerRule) -> dict[str, Sequence[Any]]:
    """Return the columns of the table for a block of images."""
    items = new.listing.items[start : start + len(block.names)]
    answers = rule.answer(block.scores, block.names)
    exact = np.take_along_axis(block.scores, np.maximum(answers.classes, 0), axis=1)
    return {
        "path": [item.path for item in items],
        "label": [new.truth.label(item) for item in items],
        "split": block.splits,
        "error": block.errors,
        **replace(answers, scores=exact).columns(
            new.stored.model.record.class_names,
            np.argsort(-block.scores, axis=1, kind="stable"),
            np.array([error is None for error in block.errors]),
        ),
    }
