"""The certificate of a model, recomputed from what is stored.

One pass over the stored features gives everything: the scores for the primal, and X^T A for the dual.
Nothing is taken from the solver's loop.  Losses, their domains, conjugates, gradients and envelopes, kernel
values and all sums are this room's own: their modules import nothing of the solvers, directly or through
others.  This module alone reads what is stored, with code that training shares: it opens the model, reads its
rows through the fitted transforms, and asks the options how many losses count.

With X (n x d, one example a row), W (d x m), A (n x m) and the weights w_i of the examples,

    P(W) = lam/2 |W|^2 + (1/n) sum_i w_i Phi_gamma(W^T x_i)             W(A) = X^T A / (lam n)
    D(A) = -lam/2 |W(A)|^2 + (1/n) sum_i w_i (-Phi*(-beta_i) - gamma/2 |beta_i|^2),   alpha_i = w_i beta_i

and P(W) - D(A) bounds how far W is from the optimum, whatever made W and A: W need not be W(A).  Where no A
was stored and W was not made from one (L-BFGS), beta_i = -grad Phi_gamma(W^T x_i) serves, for then
P(W) - D(A) = |grad P(W)|^2 / (2 lam).  Everything is in float64, except that products of large ones may be in
float32: the gap then includes a bound of their rounding.
"""

from __future__ import annotations

import datetime as dt
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass, fields
from itertools import cycle
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from topline.pipeline.certification.formulas import certified_loss, curvature
from topline.pipeline.certification.sums import (
    CUT_POINTS,
    CUT_SHARES,
    CUTS,
    DUAL_W,
    FEASIBLE,
    PRECOMPUTED,
    CertificateSums,
    KernelRows,
    Parts,
    Rounding,
    add_top,
    passes,
    unit_rows,
)
from topline.pipeline.errors import CertificateMismatchError
from topline.pipeline.options.problem import top_count
from topline.pipeline.progress import Progress, begin
from topline.pipeline.rows import StoredModel, TrainingRows, record_if_possible
from topline.solvers.crew import available_cores, one_blas_thread
from topline.storage.models import ModelRecord
from topline.storage.records import reading

# Largest tolerance of a certified model; a looser one may be requested.
LOOSEST_TOL = 0.05
#: Sources of a certificate, the strongest first.  A and W give everything; the last trusts b and |A|^2 / n of
#: the training run, which nothing stored can prove.
SOURCES = {"A": "A", "W": "W alone", "any": "sums of the run"}
# Fields stored under another name.
_STORED = {"smoothed_gap": "lifted_gap", "basis": "rests_on"}


@dataclass(frozen=True)
class Certificate:
    """P, D and their gap for a stored model, and what they were computed from.

    `gap` exceeds P - D by a bound of the rounding of products in float32, if there were any.
    `basis` is "A" (the dual variables were stored: every row was checked and W(A) recomputed),
    "W and b", "W, b and aa" where smoothing > 0, "W" (A is the gradient at W), or for the average top-k risk
    "W and its cuts" (A and p are made again where training found them) or, where these were too many to
    keep, "W, W(A) and b".  The mean risk has these two where the best W and the best dual point are two: A is
    a share of the gradients at another W, or b belongs to another W.  `gap_kind` is "true"; `smoothed_gap` is
    the smoothed upper bound that training watches where smoothing > 0, None where it is the same.
    `infeasibility` is the largest share by which a dual row, or A as a whole, leaves its domain, and
    `w_difference` is |W - W(A)| / |W|, rounding where the best W was made from the last A and anything where
    it was not, None where W is 0; both None without A.  `agrees` says whether training recorded the same P
    and D to 1e-6, `valid` whether these checks hold, and `certified` whether the relative gap is also within
    the tolerance `tol` asked for, and within 0.05, and W is not 0, which is no better than no model.
    """

    model: str
    dataset: str
    primal: float
    dual: float
    gap: float
    relative_gap: float
    gap_kind: str
    smoothed_gap: float | None
    basis: str
    n: int
    recorded_primal: float
    recorded_dual: float
    agrees: bool
    w_difference: float | None
    infeasibility: float | None
    valid: bool
    tol: float
    certified: bool
    seconds: float
    created: str

    @property
    def source(self) -> str:
        """The certificate's source, as in `SOURCES`."""
        return source_of(self.basis)

    @property
    def objection(self) -> str:
        """Why a gap within the tolerance is still not certified, or ""."""
        if self.too_loose:
            return f"a gap above {LOOSEST_TOL:g} is not called certified, whatever the tolerance"
        return "W is 0, which is no better than no model" if self.no_weights else ""

    @property
    def reason(self) -> str:
        """Why a model is not certified, as a phrase; "" if it is."""
        if self.certified or self.objection:
            return self.objection
        if not self.agrees:
            return "training recorded other values than what is stored gives"
        if not self.valid:
            return f"its dual variables leave their domain by {self.infeasibility:.1e}"
        return f"the relative gap is {self.relative_gap:.2e}, above the tolerance {self.tol:g}"

    @property
    def text(self) -> str:
        """The verdict in a line."""
        verdict = "certified" if self.certified else "NOT certified"
        objection = f" ({self.objection})" if self.objection else ""
        recomputed = "" if self.basis == self.source else f" recomputed from {self.basis},"
        return (
            f"{verdict} from {self.source}: relative gap {self.relative_gap:.2e},{recomputed} tolerance"
            f" {self.tol:g}{objection}"
        )

    @property
    def too_loose(self) -> bool:
        """Whether the gap is within a tolerance that is too loose for a certified model."""
        return self.valid and LOOSEST_TOL < self.relative_gap <= self.tol

    @property
    def no_weights(self) -> bool:
        """Whether W = 0 is the only objection."""
        return self.valid and not self.certified and self.relative_gap <= min(self.tol, LOOSEST_TOL)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        values = {_STORED.get(name, name): value for name, value in asdict(self).items()}
        return {**values, "from": self.source}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Certificate:
        """Read the result of `to_dict`, ignoring unknown fields; raise `FormatError` if one is missing."""
        with reading("a certificate"):
            return cls(**{part.name: values[_STORED.get(part.name, part.name)] for part in fields(cls)})


def source_of(basis: str) -> str:
    """Return the source of a certificate of a basis, as in `SOURCES`."""
    return SOURCES["A" if basis == "A" else "W" if basis in {"W", CUTS} else "any"]


def sums_of(stored: StoredModel, shape: tuple[int, ...] | None) -> CertificateSums:
    """Return the sums over no rows; the `shape` of W is given if they must find a dual point as well."""
    record, sets = stored.model.record, stored.dataset().label_sets()
    loss = certified_loss(record.loss, record.m, sets)
    gamma_own = 0.0 if record.smoothing_kind == "others" else record.smoothing
    weights = stored.rows("train").weights(record.class_weights)
    product = None if shape is None else np.zeros(shape)
    return CertificateSums(loss, record.smoothing, gamma_own, weights, product=product)


def objective(stored: StoredModel) -> float:
    """Return P of the mean risk at a model's W, over its transformed training rows."""
    sums, rows = sums_of(stored, None), stored.rows("train")
    _add_tiles(
        sums, _tiles(stored, rows, None, None, with_duals=False), stored.W, _tile_bytes(rows, stored.W)
    )
    return 0.5 * stored.model.record.lam * float(np.vdot(stored.W, stored.W)) + sums.loss_sum / sums.rows


#: Some rows as floats, their labels, and their dual variables if they are stored.
Tile: TypeAlias = tuple[Any, NDArray[Any], NDArray[Any] | None]

# Most rows multiplied at once, most bytes of dense ones in float64, since a training within a memory limit is
# certified in the same process, and fewest rows.
TILE_ROWS, TILE_BYTES, LEAST_ROWS = 4096, 1 << 23, 64
# Multiplications of a product X W from which float32 is tried: fewer take a second in float64.
MANY_PRODUCTS = 1 << 35
# The share of a gap above the tolerance that rounding may be.
SMALL_SHARE = 0.01
# Rows that carry a kernel model stay in memory up to this size; beyond they are read again.
HELD_BYTES = 1 << 28
# Most bytes that the sums and the tiles of all cores take.
PARTS_BYTES = 1 << 28
# Training multiplies in float32, so W(A) and P may differ from the record in the 7th digit.
AGREEMENT = 1e-6


def certify(model_url: str, progress: Progress | None = None, *, store: bool = True) -> Certificate:
    """Recompute the certificate of the model at `model_url`; with `store`, save it in the model's record.

    Raises `InputError` if the dataset is gone or has changed, or the loss has no dual problem;
    `IntegrityError` for damaged files; `NotStoredError` with the certificate if there is no room; and
    `CertificateMismatchError` if D exceeds P by more than rounding.
    """
    started = time.perf_counter()
    stored = StoredModel.open(model_url)
    # No sum needs it, but the certificate is for the dataset as committed.
    stored.dataset().check_manifest()
    certificate = _certificate(stored, progress, started)
    if store:
        record_if_possible(model_url, certificate, certificate=certificate.to_dict())
    return certificate


def _certificate(
    stored: StoredModel, progress: Progress | None, started: float, *, narrow: bool = True
) -> Certificate:
    """Return the certificate; `narrow` allows float32 products as long as their rounding decides nothing."""
    rows = stored.rows("train")
    kernel = None if stored.model.record.kernel is None else _kernel_rows(stored, rows)
    # For a kernel model the scores are the features, with weights 1 unless there are no scores.
    W = stored.W if kernel is None else np.eye(kernel.m) * any(len(C) for _, C in kernel.parts)
    # If b and |A|^2 / n replace an A that was not stored, W is W(A); otherwise the pass finds an A.
    has_dual_sums = not stored.model.has_duals and "dual_sums" in stored.model.arrays
    sums = sums_of(stored, None if has_dual_sums else W.shape)
    k = top_count(stored.model.record.config, len(rows))
    if k is not None:
        _add_top(sums, stored, k, rows, progress)
    else:
        begin(progress, "certify", len(rows), "rows")
        if CUT_POINTS in stored.model.arrays:
            # The dual point where training found it; its share may be wrong, so it is checked.
            points, shares = _stored_cuts(stored)
            sums.point, sums.share = points[0], float(shares[0])
            sums.infeasibility, sums.tolerance = max(0.0, sums.share - 1.0, -sums.share), FEASIBLE[8]
        if narrow and sums.product is not None and kernel is None:
            sums.rounding = _rounding(stored, rows, W, sums)
        dtype = np.float64 if sums.rounding is None else np.float32
        tiles = _tiles(stored, rows, kernel, progress, dtype=dtype)
        _add_tiles(sums, tiles, W.astype(dtype, copy=False), None if kernel else _tile_bytes(rows, W))
    certificate = _conclude(stored, W, sums, started)
    return certificate or _certificate(stored, progress, started, narrow=False)


def _rounding(
    stored: StoredModel, rows: TrainingRows, W: NDArray[np.float64], sums: CertificateSums
) -> Rounding | None:
    """Return what bounds the rounding of float32 products; None for small ones or where nothing does."""
    curved = curvature(sums.loss)
    from_gradients = not stored.model.has_duals and sums.point is None
    large = len(rows) * W.size >= MANY_PRODUCTS and rows.dataset.info.layout == "dense"
    return Rounding(W, curved) if curved is not None and from_gradients and large else None


def _add_tiles(sums: CertificateSums, tiles: Iterable[Tile], W: NDArray[Any], tile_bytes: int | None) -> None:
    """Add all rows, on every core: tiles take turns among sums of which each has a thread.

    Each core needs `tile_bytes` for its tiles; None for scores of a kernel, whose making takes all cores and
    most of the time.
    """
    cores = 1
    if tile_bytes is not None:
        cores = max(1, min(available_cores(), PARTS_BYTES // (W.nbytes + tile_bytes)))
    parts, first = [sums.part() for _ in range(cores)], 0
    adding: deque[Future[None]] = deque()
    with ExitStack() as stack:
        if cores > 1:
            stack.enter_context(one_blas_thread())
        threads = [stack.enter_context(ThreadPoolExecutor(1)) for _ in parts]
        turns = cycle(zip(threads, parts, strict=True))
        for (thread, part), (X, y, A) in zip(turns, tiles, strict=False):
            # Every thread has a tile waiting, and no more are read.
            if len(adding) == 2 * cores:
                adding.popleft().result()
            adding.append(thread.submit(part.add, first, X, y, A, W))
            first += len(y)
        for each in adding:
            each.result()
    for part in parts:
        sums.take(part)


def _kernel_rows(stored: StoredModel, training: TrainingRows) -> KernelRows:
    """Return the rows of a kernel model that have dual variables, read on demand."""
    record, model = stored.model.record, stored.model
    spans = (training.batch_span(batch) for batch in range(training.batches))
    filled = [batch for batch, (start, stop) in enumerate(spans) if start < stop]

    def read(number: int) -> tuple[Any, NDArray[np.float64]]:
        batch = filled[number]
        A = np.asarray(model.duals(*training.batch_span(batch)), dtype=np.float64)
        carry = np.flatnonzero(A.any(axis=1))
        C = A[carry] / (record.lam * record.n)
        if (record.kernel or {}).get("name") == PRECOMPUTED:
            return unit_rows(training.batch_span(batch)[0] + carry, record.n), C
        return training.read_batch(batch)[carry].astype(np.float64), C

    return KernelRows(dict(record.kernel or {}), Parts(read, len(filled), HELD_BYTES), record.m)


def _stored_cuts(stored: StoredModel) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the points and shares of a model's dual point; its W alone if none are stored."""
    if CUT_POINTS not in stored.model.arrays:
        return stored.W[None], np.ones(1)
    points, shares = (np.asarray(stored.model.array(name)) for name in (CUT_POINTS, CUT_SHARES))
    return points, shares


def _add_top(
    sums: CertificateSums, stored: StoredModel, k: float, rows: TrainingRows, progress: Progress | None
) -> None:
    """Add the average top-k risk at W, and a dual point, infeasible only by shares, unless b replaces it."""
    n = len(rows)
    points, shares = _stored_cuts(stored) if sums.product is not None else (stored.W[None][:0], np.ones(0))
    begin(progress, "certify", n * passes(len(points), n, smoothed=sums.gamma > 0), "rows")

    add_top(sums, k, n, lambda: _tiles(stored, rows, None, progress), stored.W, points, shares)
    if sums.product is not None:
        sums.infeasibility = max(0.0, float(shares.sum()) - 1.0, -float(shares.min(initial=0.0)))
        sums.tolerance = FEASIBLE[8]


def _tile_rows(rows: TrainingRows) -> int:
    """Return how many rows of features are multiplied at once."""
    if rows.dataset.info.layout != "dense":
        return TILE_ROWS
    return min(TILE_ROWS, max(LEAST_ROWS, TILE_BYTES // (8 * rows.shape[1])))


def _tile_bytes(rows: TrainingRows, W: NDArray[np.float64]) -> int:
    """Return the bytes of two tiles of features and dual variables, and one of scores and gradients."""
    width = 2 * rows.shape[1] if rows.dataset.info.layout == "dense" else 0
    return 8 * _tile_rows(rows) * (width + 4 * int(W.shape[1]))


def _tiles(
    stored: StoredModel,
    rows: TrainingRows,
    kernel: KernelRows | None,
    progress: Progress | None,
    *,
    with_duals: bool = True,
    dtype: type[np.floating[Any]] = np.float64,
) -> Iterator[Tile]:
    """Yield all training rows as floats, or their kernel scores, with labels and any dual variables."""
    labels, step = rows.labels(), TILE_ROWS if kernel is not None else _tile_rows(rows)
    for first, last, unit in rows.tiles(progress):
        for start in range(first, last, step):
            stop = min(last, start + step)
            A = stored.model.duals(start, stop) if with_duals and stored.model.has_duals else None
            X = unit[start - first : stop - first].astype(dtype, copy=False)
            yield X if kernel is None else kernel.scores(X), labels[start:stop], A
            del X
        del unit  # before the next one is read


def _conclude(
    stored: StoredModel, W: NDArray[np.float64], sums: CertificateSums, started: float
) -> Certificate | None:
    """Return the certificate; None if the rounding of float32 products leaves open what float64 would say."""
    record = stored.model.record
    if sums.rows != record.n:
        raise CertificateMismatchError(
            f"model {record.id} records {record.n} training rows, its dataset has {sums.rows}: train again"
        )
    lam, gamma, n = record.lam, record.smoothing, record.n
    linear, penalty, W_dual, basis = _dual_side(stored, W, sums)
    square, dual_square = float(np.vdot(W, W)), float(np.vdot(W_dual, W_dual))
    if record.kernel is not None:
        # W is the identity and W_dual the sum of scores times coefficients: both squares are its trace.
        square = dual_square = float(np.vdot(W, W_dual))
    primal = 0.5 * lam * square + sums.loss_sum / n
    dual = linear - 0.5 * lam * dual_square - penalty
    smoothed_gap = None
    if gamma > 0 and sums.product is not None and top_count(record.config, n) is None:
        smoothed_gap = 0.5 * lam * square + penalty + sums.shifted_sum / n - dual
    rounding = 0.0
    if sums.rounding is not None:
        apart, rounding = sums.rounding.gap(sums.loss_sum - sums.conjugate, W_dual, lam, n)
        dual = primal - apart
    gap = primal - dual + rounding
    if sums.rounding is not None and not np.isfinite(gap):
        return None
    _check_order(record, gap, smoothed_gap, primal)
    relative = max(gap, 0.0) / max(abs(primal), float(np.finfo(np.float64).tiny))
    recorded = float(record.result["primal"]), float(record.result["dual"])
    agrees = _agree((primal, dual), recorded)
    distance = float(np.linalg.norm(W - W_dual) / np.linalg.norm(W)) if W.any() else None
    valid = agrees and sums.largest_infeasibility <= sums.tolerance
    tol = float(record.config["tol"])
    limit = min(tol, LOOSEST_TOL)
    if rounding > 0.0 and not (agrees and _decides(gap, rounding, limit * abs(primal))):
        return None
    return Certificate(
        model=record.id,
        dataset=record.dataset,
        primal=primal,
        dual=dual,
        gap=gap,
        relative_gap=relative,
        gap_kind="true",
        smoothed_gap=smoothed_gap,
        basis=basis,
        n=n,
        recorded_primal=recorded[0],
        recorded_dual=recorded[1],
        agrees=agrees,
        w_difference=distance if basis in {"A", CUTS} and record.kernel is None else None,
        infeasibility=sums.largest_infeasibility if basis in {"A", CUTS} else None,
        valid=valid,
        tol=tol,
        certified=valid and relative <= limit and bool(W.any()),
        seconds=time.perf_counter() - started,
        created=dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
    )


def _dual_side(
    stored: StoredModel, W: NDArray[np.float64], sums: CertificateSums
) -> tuple[float, float, NDArray[np.float64], str]:
    """Return b and the smoothing's part of D, W(A), and the basis of these."""
    record, arrays = stored.model.record, stored.model.arrays
    if sums.product is None:
        conjugate_mean, mean_sq_dual = (float(stored.model.array("dual_sums")[i]) for i in (0, 1))
        penalty = 0.5 * record.smoothing * mean_sq_dual
        if DUAL_W in arrays:
            return conjugate_mean, penalty, np.asarray(stored.model.array(DUAL_W)), "W, W(A) and b"
        return conjugate_mean, penalty, W, "W, b and aa" if record.smoothing > 0 else "W and b"
    basis = "A" if stored.model.has_duals else CUTS if CUT_POINTS in arrays else "W"
    W_dual = sums.product / (record.lam * record.n)
    return sums.conjugate / record.n, sums.penalty / record.n, W_dual, basis


def _agree(found: tuple[float, float], recorded: tuple[float, float]) -> bool:
    """Return whether P and D are those that training recorded, up to rounding."""
    tolerance = AGREEMENT * max(abs(found[0]), 1e-300)
    return all(abs(ours - theirs) <= tolerance for ours, theirs in zip(found, recorded, strict=True))


def _decides(gap: float, rounding: float, limit: float) -> bool:
    """Return whether a gap with its bound of rounding says if the exact one is within a limit.

    The exact one is at least this one less twice the bound.
    """
    return gap <= limit or (gap - 2.0 * rounding > limit and rounding <= SMALL_SHARE * gap)


def _check_order(record: ModelRecord, gap: float, smoothed_gap: float | None, primal: float) -> None:
    """Raise unless D <= P <= P~, which holds for every W and A: otherwise numbers or files are wrong."""
    rounding = 1e-6 * max(abs(primal), 1e-300)
    if not gap >= -rounding:
        raise CertificateMismatchError(
            f"the duality gap of model {record.id} comes out as {gap:.3e}, below zero: its files do not"
            " belong together, so train again"
        )
    if smoothed_gap is not None and smoothed_gap < gap - rounding:
        raise CertificateMismatchError(
            f"the smoothed upper bound of model {record.id} is {smoothed_gap:.3e}, below the true gap"
            f" {gap:.3e}: its dual variables do not belong to its weights, so train again"
        )
