"""The small search before training: `topline.solvers.run.search` on the training rows of a dataset.

Its comparison is stored in the training options as `chosen`, and with them in the model, whose report shows
it; a later search with the same options and data finds it there.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from topline.pipeline.cluster import memory_limit, room_for_rows
from topline.pipeline.cluster.memory_plan import ALONE_READING_BYTES, WHOLE_DUALS
from topline.pipeline.errors import ConfigError, InputError
from topline.pipeline.options import ClusterConfig, SearchConfig, TrainConfig
from topline.pipeline.options.problem import chosen_loss
from topline.pipeline.progress import Progress, advance, begin
from topline.pipeline.rows import TrainingRows
from topline.pipeline.sweep.plan import FoldSource, fold_data, forget_folds, warn_of_unseen_classes
from topline.solvers.calibration import fit_probabilities
from topline.solvers.counts import how_many
from topline.solvers.run.search import FITS, SECONDS, Found, Goal, Part, Search, Trial
from topline.storage.datasets import Dataset
from topline.storage.models import list_models
from topline.storage.stores import open_store

logger = logging.getLogger(__name__)

#: Most rows to search on, and bytes of their features.
MOST_ROWS, MOST_BYTES = 50_000, 1 << 28
FOLDS = 5
#: Copies of the rows besides the kept folds: the source rows, and one fold being read in parts.
COPIES_ON_THE_WAY = 4
#: Scalings tried on imported columns besides the default; the other scaling is for images alone.
SCALINGS = (("standardize", "bias"),)
#: Largest share of a time limit for the search.
SHARE = 0.5
#: Options that do not influence the choice.
_BESIDE = {
    "store",
    "chosen",
    "time_limit",
    "certify",
    "checkpoint_seconds",
    "keep_duals",
    "max_passes",
    "blocks",
}


def choose(
    config: TrainConfig,
    search: SearchConfig,
    progress: Progress | None = None,
    cluster: ClusterConfig | None = None,
) -> TrainConfig:
    """Return `config` with its open loss, C and transforms set to those that do best, found in this process.

    Raises `InputError` or `ConfigError` for data on which nothing can be compared.
    """
    dataset = Dataset.open(open_store(config.store), config.dataset)
    options = config.model_dump(mode="json", exclude=_BESIDE)
    given = sorted({"loss", "C", "k", "transforms"} & config.model_fields_set)
    asked = {"for": search.goal, "given": given, "options": {**options, "dataset": dataset.info.id}}
    for record in reversed(list_models(dataset.store)):
        known = record.config.get("chosen")
        if known is not None and all(known.get(name) == value for name, value in asked.items()):
            return _with(config, dict(known))
    rows = len(TrainingRows(dataset, "train"))
    if rows < 2 * FOLDS and search.auto is None:
        logger.info("not searched, as %d training rows are too few: one fit of %s", rows, config.loss)
        return config
    limit = memory_limit(None if cluster is None else cluster.memory_limit)
    task = _Task(config, search, dataset, None if limit is None else room_for_rows(limit, 0, 0))
    logger.info("%s", task.plan_text())
    began = time.monotonic()
    try:
        found = task.find(progress)
    finally:
        forget_folds()
    chosen = {**asked, **found, "seconds": time.monotonic() - began}
    return _with(config, chosen)


class _Task:
    """A search on the training rows of a dataset, within `room` bytes."""

    def __init__(
        self, config: TrainConfig, search: SearchConfig, dataset: Dataset, room: int | None = None
    ) -> None:
        info, rows = dataset.info, TrainingRows(dataset, "train")
        if info.label_sets is not None:
            raise ConfigError(
                f"dataset {info.id} has several labels a row, for which --auto compares nothing: leave it out"
            )
        self.config, self._dataset, self._n = config, dataset, len(rows)
        if self._n < 2 * FOLDS:
            raise InputError(
                f"dataset {info.id} has {self._n} training rows, too few to search on: leave --auto out"
            )
        self.goal = Goal(search.guesses(info.m), search.goal == "macro")
        open_scaling = "transforms" not in config.model_fields_set and info.features.get("kind") == "imported"
        self._scalings = [config.transforms, *(SCALINGS if open_scaling and info.layout == "dense" else ())]
        # For sparse rows, count their entries, in float32.
        self._width = max(1, rows.nbytes // (4 * self._n))
        most = min(MOST_ROWS, MOST_BYTES // (4 * self._width))
        if room is not None:
            copies = FOLDS * len(self._scalings) + COPIES_ON_THE_WAY
            room -= min(ALONE_READING_BYTES, 3 * rows.nbytes)
            most = min(most, room // (4 * self._width * copies + 2 * WHOLE_DUALS * info.m))
        self._sample = max(min(most, Search.rows(self._n, self._width, info.m)), 2 * FOLDS)
        # Only if it uses all four fifths of the rows: scores of a fit to a sample differ in size.
        self._calibrates = self._n <= most and not info.counts.get("val", 0)

    @property
    def _trials(self) -> list[Trial]:
        m = self._dataset.info.m
        losses = self.goal.losses(m)
        if {"loss", "k"} & self.config.model_fields_set:
            losses = [(chosen_loss(self.config, m), 0.0)]
        return [Trial(",".join(names), *loss) for loss in losses for names in self._scalings]

    def plan_text(self) -> str:
        """Return what is searched and its largest cost, as a sentence."""
        losses = (f"{'smooth ' if trial.smoothing else ''}{trial.loss.name}" for trial in self._trials)
        C = f"C {self.config.C:g}" if "C" in self.config.model_fields_set else "C"
        scalings = " or ".join(",".join(names) or "none" for names in self._scalings)
        return (
            f"searching {', '.join(dict.fromkeys(losses))}, {C} and transforms {scalings} on"
            f" {self._sample:,} of {self._n:,} training rows, the work of {FITS} trainings at most, or"
            f" {SECONDS:g} seconds of computing where that is more"
        )

    def find(self, progress: Progress | None) -> dict[str, Any]:
        """Search, fit the probabilities of the best, and return the result as plain values."""
        config, info = self.config, self._dataset.info
        rows = None if self._sample >= self._n else self._sample
        warn_of_unseen_classes(self._dataset, FOLDS, config.seed, rows)
        begin(progress, "search", None, "trials")

        def part(scaling: str, fold: int, rows: int | None = rows) -> Part:
            source = FoldSource(config.store, info.id, FOLDS, config.seed, rows, _names(scaling))
            data = fold_data(source, fold)
            return Part(data.X, data.y, data.held_out, data.held_out_y, data.weights(config.class_weight))

        search = Search(
            part, self._trials, self._n, info.m, self.goal, config.C,
            (config.C,) if "C" in config.model_fields_set else (), FOLDS, config.tol, config.seed,
            None if config.time_limit is None else SHARE * config.time_limit,
            lambda: advance(progress),
        )  # fmt: skip
        found = search.find()
        record = self._record(found)
        if self._calibrates:
            whole, loss = part(found.best.trial.scaling, 0, None), found.best.trial.loss.name
            # Rows of a class that the fold's training rows miss, one group or one row, say nothing of scores.
            known = np.isin(whole.held_out_y, whole.y)
            scores, y = search.scores(found.best, whole)[known], whole.held_out_y[known]
            fitted = fit_probabilities(scores, y, one_vs_all=loss.startswith("one_vs_all"))
            record["probabilities"] = {"map": fitted.to_dict(), "rows": len(scores)}
        return record

    def _record(self, found: Found) -> dict[str, Any]:
        tops = sorted({1, self.goal.k, min(5, self._dataset.info.m - 1)})
        return {
            "rows": self._sample, "folds": found.folds, "fits": found.fits, "ended": found.ended,
            "cells": [
                {
                    "loss": cell.trial.loss.name, "k": getattr(cell.trial.loss, "k", None), "C": cell.C,
                    "smoothing": cell.trial.smoothing, "transforms": list(_names(cell.trial.scaling)),
                    "accuracy": found.share(cell, self.goal),
                    "topk": {str(k): found.share(cell, Goal(k)) for k in tops},
                    "folds": len(cell.ranks), "passes": sum(cell.passes), "relative_gap": cell.relative_gap,
                    "best": cell is found.best, "default": cell is found.default,
                }
                for cell in found.cells
            ],
        }  # fmt: skip


def chosen_text(chosen: Mapping[str, Any]) -> str:
    """Return one line: the choice, its accuracy and the default's, and the duration of the search."""
    best, default = (next(cell for cell in chosen["cells"] if cell[which]) for which in ("best", "default"))
    beside = "" if best is default else f", {_cell_text(default)} {default['accuracy']:.1%}"
    return (
        f"{_cell_text(best)}: {best['accuracy']:.1%} {chosen['for']} on held-out folds{beside} (the best of"
        f" {len(chosen['cells'])} tried on up to {how_many(chosen['folds'], 'folds')}, in"
        f" {chosen['seconds']:.1f} s: the work of {chosen['fits']:.1f} trainings)"
    )


def _cell_text(cell: Mapping[str, Any]) -> str:
    k = "" if cell["k"] is None else f" k={cell['k']}"
    smoothing = f" smoothing={cell['smoothing']:g}" if cell["smoothing"] else ""
    return f"{cell['loss']}{k}{smoothing} C={cell['C']:g} {','.join(cell['transforms'])}"


def _with(config: TrainConfig, chosen: Mapping[str, Any]) -> TrainConfig:
    best = next(cell for cell in chosen["cells"] if cell["best"])
    update = {name: best[name] for name in ("loss", "k", "C", "smoothing")}
    return config.model_copy(update={**update, "transforms": tuple(best["transforms"]), "chosen": chosen})


def _names(scaling: str) -> tuple[str, ...]:
    """Return the transforms of a scaling; none for an empty one."""
    return tuple(name for name in scaling.split(",") if name)
