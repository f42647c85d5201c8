"""Where a training run starts when it continues an earlier model: its dual variables or its weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topline.pipeline.certification import DUAL_W
from topline.pipeline.errors import InputError
from topline.pipeline.options import TrainConfig
from topline.pipeline.rows import StoredModel, TrainingRows, Transforms
from topline.solvers.core.state import SolverState
from topline.solvers.losses import Loss
from topline.storage.arrays import StoredDuals
from topline.storage.errors import IntegrityError
from topline.storage.stores.urls import join

RUN_BYTES = 16 << 20
#: Share of common rows from which two trainings count as near.
_NEAR = 0.9
#: Settings that near trainings share.
_SAME = ("loss", "k", "C", "smoothing", "smoothing_kind")


@dataclass(frozen=True, eq=False)
class MovedDuals:
    """An earlier model's dual variables for other rows; pickles, so that each worker reads its own.

    Row i was row `places[i]` of the earlier model, and class j its class `columns[j]`; -1 for new ones, whose
    dual variables are 0, which is feasible for every loss.
    """

    stored: StoredDuals
    places: NDArray[np.int64]
    columns: NDArray[np.int64]

    def __iter__(self) -> Iterator[tuple[int, int, NDArray[Any]]]:
        return self.between(0, len(self.places))

    def between(self, start: int, stop: int) -> Iterator[tuple[int, int, NDArray[Any]]]:
        """Yield the rows [start, stop), a few megabytes at a time."""
        step = max(1, RUN_BYTES // (4 * len(self.columns)))
        for low in range(start, stop, step):
            high = min(low + step, stop)
            yield low, high, self._rows(self.places[low:high])

    def _rows(self, places: NDArray[np.int64]) -> NDArray[Any]:
        out = np.zeros((len(places), len(self.columns)), dtype=np.float32)
        here = np.flatnonzero(places >= 0)
        here = here[np.argsort(places[here], kind="stable")]
        if not len(here):
            return out
        wanted, known = places[here], self.columns >= 0
        for first, last, rows in self.stored.between(int(wanted[0]), int(wanted[-1]) + 1):
            part = slice(*np.searchsorted(wanted, [first, last]))
            out[np.ix_(here[part], known)] = rows[wanted[part] - first][:, self.columns[known]]
        return out


@dataclass(frozen=True, eq=False)
class StartingPoint:
    """The start of a run; `how` is "duals", "weights" or "zero", `why` the reason for zero.

    `rows` of the run's rows are in the earlier model with the same content and label; `near` says that they
    are nearly all, but not all, of them, trained with the same settings.
    """

    model: str
    how: str
    rows: int = 0
    why: str = ""
    duals: MovedDuals | None = None
    near: bool = False
    state: SolverState | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the record of it in a model's lineage."""
        return {"model": self.model, "from": self.how, "rows": self.rows, "why": self.why}


@dataclass(frozen=True, eq=False)
class Successor:
    """A run that starts from an earlier model; `keep_duals` says whether its blocks hold dual variables.

    `method` is the one that "auto" takes, if requested.
    """

    config: TrainConfig
    rows: TrainingRows
    transforms: Transforms
    loss: Loss
    method: str
    keep_duals: bool

    @property
    def moves_weights(self) -> bool:
        """Whether the method starts from any W, from which it makes the dual variables."""
        smooth = self.loss.form(self.rows.dataset.info.m).smooth
        return self.method == "lbfgs" or (self.method == "newton" and smooth)

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of its weights: features by classes."""
        return self.rows.shape[1], self.rows.dataset.info.m


def starting_point(run: Successor, model: str) -> StartingPoint:
    """Return the start that the model of id `model` gives a run; raise `NotFoundError` if there is none.

    A is feasible for any n, lam and features, so stored dual variables are taken if the method keeps them.
    W alone starts L-BFGS and Newton's method on a smooth loss, which step from any W, even one that learned
    from removed rows; Frank-Wolfe only with the sums of its A, while every row of that A is still there.
    """
    try:
        earlier = StoredModel.open(join(run.rows.dataset.store.url, "models", model))
        places, n_before = _places(run.rows, earlier)
    except (InputError, IntegrityError) as error:
        return StartingPoint(model, "zero", why=str(error))
    columns = _columns(run.rows.dataset.class_names, earlier.model.record.class_names)
    carried = int((places >= 0).sum())
    if _has_seen_calibration_rows(run.rows, earlier):
        why = f"{model} was trained on rows that are for calibration now"
        return StartingPoint(model, "zero", carried, why)
    problem = _weights_misfit(run, earlier)
    primal = run.moves_weights and not problem
    if run.keep_duals and earlier.model.has_duals and not primal:
        duals = MovedDuals(earlier.model.dual_blocks(), places, columns)
        # If every row stayed, the start may be the answer, so measure it first.
        most = max(n_before, len(run.rows))
        near = _NEAR * most <= carried < most and _same_settings(run, earlier)
        return StartingPoint(model, "duals", carried, duals=duals, near=near)
    if problem:
        return StartingPoint(model, "zero", carried, problem)
    record = earlier.model.record
    # The best W need not be W(A), to which b belongs.
    stored = earlier.W
    if not primal and DUAL_W in earlier.model.arrays:
        stored = np.asarray(earlier.model.array(DUAL_W))
    W = np.zeros(run.shape)
    W[:, columns >= 0] = stored[:, columns[columns >= 0]]
    if primal:
        state = replace(SolverState.at(W), left_behind=carried < n_before)
        return StartingPoint(model, "weights", carried, state=state)
    if carried < n_before or (columns < 0).any() or "dual_sums" not in earlier.model.arrays:
        why = f"rows or classes of {model} changed, and its dual variables are not stored"
        return StartingPoint(model, "zero", carried, why)
    # The same A with rows of zeros: means are over more rows, and W(A) = C X^T A has no n in it.
    conjugate_mean, mean_sq_dual = earlier.model.array("dual_sums") * (record.n / len(run.rows))
    state = SolverState.at(W * (run.config.C / record.C), float(conjugate_mean), float(mean_sq_dual))
    return StartingPoint(model, "weights", carried, state=state)


def _weights_misfit(run: Successor, earlier: StoredModel) -> str:
    record = earlier.model.record
    if run.config.kernel is not None or record.kernel is not None:
        return "a kernel has no weights to start from"
    if record.d != run.shape[0] or tuple(record.transforms) != tuple(run.transforms.record()):
        return f"{record.id} has other transforms"
    earlier_top = record.config.get("average_top") is not None
    if run.config.average_top is not None or (earlier_top and run.method == "fw"):
        return "the dual point of an average top-k risk is not carried over to other rows or risks"
    if not run.moves_weights and run.method != "fw":
        return f"the method {run.method} starts from dual variables, and {record.id} has none"
    if run.method == "fw" and record.loss != run.loss.to_dict():
        return f"{record.id} has another loss"
    return ""


def _has_seen_calibration_rows(rows: TrainingRows, earlier: StoredModel) -> bool:
    """Return whether a start from the earlier model would leak calibration rows into this one."""
    held = TrainingRows(rows.dataset, "calibration")
    return len(held) > 0 and not set(_keys(held)).isdisjoint(_keys(earlier.rows("train")))


def _same_settings(run: Successor, earlier: StoredModel) -> bool:
    before = earlier.model.record.config
    return all(
        before.get(name) == value
        for name, value in run.config.model_dump(mode="json", include=set(_SAME)).items()
    )


def _places(rows: TrainingRows, earlier: StoredModel) -> tuple[NDArray[np.int64], int]:
    """Return the earlier model's row of each row's content and label (-1 for none), and its row count."""
    before = earlier.rows("train")
    if before.dataset.info.d != rows.dataset.info.d:
        raise InputError(f"{earlier.model.record.id} has rows of other features")
    known = {key: place for place, key in enumerate(_keys(before))}
    found = [known.get(key, -1) for key in _keys(rows)]
    return np.array(found, dtype=np.int64), len(before)


def _keys(rows: TrainingRows) -> list[tuple[str, str]]:
    """Return the content (for imported features, the name) and class of each row."""
    table = rows.dataset.manifest().select(["sample_id", "sha256"]).take(rows.indices)
    names = rows.label_names()
    pairs = zip(table["sample_id"].to_pylist(), table["sha256"].to_pylist(), names.tolist(), strict=True)
    return [(digest or f"id {name}", label) for name, digest, label in pairs]


def _columns(names: Sequence[str], before: Sequence[str]) -> NDArray[np.int64]:
    known = {name: code for code, name in enumerate(before)}
    return np.array([known.get(name, -1) for name in names], dtype=np.int64)
