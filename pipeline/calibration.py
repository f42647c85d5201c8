"""What a stored model's held-out rows say of its scores: probabilities, and the rows behind sets of classes.

`calibration_of` finds it with the model, or makes it in one pass over the validation rows and one over the
calibration rows and stores it.  Without validation rows probabilities are those that a search fitted.

Ties of sets are settled by `row_draws`.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topline.pipeline.errors import InputError
from topline.pipeline.progress import Progress, begin
from topline.pipeline.rows import StoredModel, TrainingRows
from topline.solvers.calibration import (
    Calibration,
    CalibrationRows,
    GuessRule,
    ProbabilityMap,
    Weighings,
    fit_guesses,
    fit_labels,
    fit_probabilities,
    own_probabilities,
    tuned_weighings,
)
from topline.solvers.errors import InvalidProblemError
from topline.storage.errors import AccessError, DiskFullError
from topline.storage.models import Model, calibration_array, save_calibration
from topline.storage.records import now

logger = logging.getLogger(__name__)

VALIDATION, SEARCHED = "validation rows", "training rows that the search held out"
ROW_ARRAYS = ("labels", "ranks", "before", "own", "draws")


def stored_calibration(model: Model) -> Calibration:
    """Return what is stored with a model; the digests of its arrays are checked."""
    record: dict[str, Any] = {**(model.record.calibration or {})}
    rows = None
    if record.get("rows"):
        rows = CalibrationRows(*(calibration_array(model, name) for name in ROW_ARRAYS))
    if record.get("probabilities") is not None:
        slope, offset = calibration_array(model, "probabilities").tolist()
        record["probabilities"] = {**record["probabilities"], "slope": slope, "offset": offset}
    return calibration_of_facts(model.record.class_names, record, rows)


def calibration_of_facts(
    class_names: tuple[str, ...], facts: Mapping[str, Any], rows: CalibrationRows | None
) -> Calibration:
    """Return the calibration that a record describes; one of an earlier version has none."""
    fitted = facts.get("probabilities")
    return Calibration(
        class_names,
        None if fitted is None else ProbabilityMap(fitted["kind"], fitted["slope"], fitted["offset"]),
        int(facts.get("fitted_rows", 0)),
        tuple((coverage, *both) for coverage, *both in facts.get("penalties", ())),
        rows,
        facts.get("fitted_on", VALIDATION),
    )


def calibration_text(found: Calibration) -> str:
    """Return in words what the probabilities are."""
    how = found.probabilities
    if how is None:
        return "none: hold out rows to fit them on with --val-share, or give rows the split val"
    if not found.fitted_rows:
        return "the loss's own, not fitted: there are no validation rows"
    same = "every class equally probable"
    kinds = {
        "temperature": same if how.temperature is None else f"temperature {how.temperature:.4g}",
        "one_vs_all": f"normalised sigmoids of {how.slope:.4g} s {how.offset:+.4g}",
        "labels": f"a sigmoid of {how.slope:.4g} s {how.offset:+.4g} for each label",
    }
    return f"{kinds[how.kind]}, fitted on {found.fitted_rows:,} {found.fitted_on}"


def row_draws(ids: Sequence[str], seed: int) -> NDArray[np.float64]:
    """Return a number in [0, 1) for each row, by seed and id: the same in whatever batch a row comes."""
    # Splits are drawn by another hash of the same text, so that calibration rows have draws like all others.
    hashed = (hashlib.blake2b(f"{seed}:{name}".encode(), digest_size=8, person=b"sets") for name in ids)
    found = [int.from_bytes(one.digest(), "big") for one in hashed]
    # The upper 53 bits are what a double holds.
    return (np.array(found, dtype=np.uint64) >> np.uint64(11)).astype(np.float64) * 2.0**-53


# Two numbers are fitted on so many scores at most: more would not move them.
FITTED_SCORES = 1 << 23
# The draws of calibration rows; those of new rows have a seed of their own.
CALIBRATION_SEED = 0


def calibration_of(stored: StoredModel, progress: Progress | None = None) -> Calibration:
    """Return the calibration that is stored with the model, made now if it is not there yet.

    Probabilities are fitted on the validation rows and on nothing else; calibration rows are scored and not
    looked at otherwise.  Nothing is stored where the model has neither, or the store cannot be written.
    """
    record = stored.model.record
    if record.calibration is not None:
        return stored_calibration(stored.model)
    try:
        val, held = stored.rows("val"), stored.rows("calibration")
    except InputError:
        # Its dataset is gone: there is nothing to fit on.
        return Calibration(record.class_names, *_without_rows(stored))
    begin(progress, "calibrate", len(val) + len(held), "rows")
    made = _made(stored, val, held, progress)
    if len(val) or len(held):
        try:
            _save(stored, made)
        except (AccessError, DiskFullError) as error:
            logger.warning("the calibration is used and not stored: %s", error)
    return made


def _made(
    stored: StoredModel, val: TrainingRows, held: TrainingRows, progress: Progress | None
) -> Calibration:
    record = stored.model.record
    if record.multilabel:
        found, sets = None, val.solver_label_sets
        if len(val) and sets is not None:
            scores, numbers, _ = _scored(stored, val, progress)
            found = fit_labels(scores, sets.indicator(numbers))
        return Calibration(record.class_names, found, len(val) if found else 0)
    probabilities, fitted_rows, weighings, _, fitted_on = _without_rows(stored)
    if len(val):
        scores, labels, ids = _scored(stored, val, progress)
        one_vs_all = str(record.loss.get("name", "")).startswith("one_vs_all")
        probabilities = fit_probabilities(scores, labels, one_vs_all=one_vs_all)
        weighings = tuned_weighings(probabilities, scores, labels, row_draws(ids, CALIBRATION_SEED))
        fitted_rows, fitted_on = len(val), VALIDATION
    rows = _calibration_rows(stored, held, probabilities, progress) if len(held) else None
    return Calibration(record.class_names, probabilities, fitted_rows, weighings, rows, fitted_on)


def guesses_of(stored: StoredModel, price: float, progress: Progress | None = None) -> GuessRule:
    """Return the rule for the number of guesses at a price, fitted on the model's validation rows.

    Raises `InputError` without probabilities of them, or with too few rows.
    """
    probabilities, val = calibration_of(stored, progress).probabilities, stored.rows("val")
    if probabilities is None or not len(val):
        raise InputError(
            f"model {stored.model.record.id} has no validation rows to fit the number of guesses on:"
            " hold some out with --val-share, or ask for sets with --coverage"
        )
    scores, labels, _ = _scored(stored, val, progress)
    try:
        return fit_guesses(probabilities, scores, labels, price)
    except InvalidProblemError as error:
        raise InputError(f"{error}: hold out more with --val-share") from error


def _without_rows(stored: StoredModel) -> tuple[ProbabilityMap | None, int, Weighings, None, str]:
    """Return what a calibration without validation rows begins with: the search's, or the loss's own."""
    record = stored.model.record
    fitted = (record.config.get("chosen") or {}).get("probabilities")
    if fitted is not None:
        return ProbabilityMap(**fitted["map"]), fitted["rows"], (), None, SEARCHED
    return own_probabilities(str(record.loss.get("name"))), 0, (), None, VALIDATION


def _scored(
    stored: StoredModel, rows: TrainingRows, progress: Progress | None
) -> tuple[NDArray[np.float64], NDArray[np.int64], list[str]]:
    """Return scores (r, m), labels (r,) and ids of the rows, or of every second, third, ... of very many."""
    wanted = np.arange(0, len(rows), -(-len(rows) * stored.model.record.m // FITTED_SCORES))
    scores = stored.scores_of(rows, wanted, progress)
    ids = rows.dataset.sample_ids()
    return scores, rows.labels()[wanted].astype(np.int64), [ids[row] for row in rows.indices[wanted].tolist()]


def _calibration_rows(
    stored: StoredModel, rows: TrainingRows, found: ProbabilityMap | None, progress: Progress | None
) -> CalibrationRows:
    ids = rows.dataset.sample_ids()
    draws = row_draws([ids[row] for row in rows.indices.tolist()], CALIBRATION_SEED)
    labels, parts = rows.labels(), []
    for start, stop, X in rows.tiles(progress):
        scores = stored.scores(X)
        p = None if found is None else found.probabilities(scores)
        parts.append(CalibrationRows.of(scores, p, labels[start:stop], draws[start:stop]))
    return CalibrationRows(*(np.concatenate([getattr(part, name) for part in parts]) for name in ROW_ARRAYS))


def _save(stored: StoredModel, made: Calibration) -> None:
    """Store the numbers as arrays, and in the record what they are."""
    arrays: dict[str, NDArray[Any]] = {}
    if made.probabilities is not None:
        arrays["probabilities"] = np.array([made.probabilities.slope, made.probabilities.offset])
    if made.rows is not None:
        arrays |= {name: getattr(made.rows, name) for name in ROW_ARRAYS}
    facts = {
        "probabilities": None if made.probabilities is None else made.probabilities.to_dict(),
        "fitted_rows": made.fitted_rows,
        "fitted_on": made.fitted_on,
        "rows": 0 if made.rows is None else len(made.rows),
        "penalties": [list(tuned) for tuned in made.weighings],
        "seed": CALIBRATION_SEED,
        "created": now(),
    }
    save_calibration(stored.model, facts, arrays)
