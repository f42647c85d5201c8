"""The certificate of a model, recomputed in float64 from what is stored.

One pass over the stored features gives everything: the scores for the primal, and X^T A for the dual.
Nothing is taken from the solver's loop and no code is shared with it (`pipeline.certificate_math`).  With
X (n x d, one example a row), W (d x m) and A (n x m),

    P(W) = lam/2 |W|^2 + (1/n) sum_i Phi_gamma(W^T x_i; y_i)            W(A) = X^T A / (lam n)
    D(A) = -lam/2 |W(A)|^2 - (1/n) sum_i <delta_i, alpha_i> - gamma/(2n) |A|^2

and P(W) - D(A) bounds how far W is from the optimum, whatever made W and A.
"""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.certificate_math import RankedLoss
from pipeline.errors import CertificateMismatchError
from pipeline.partition import TrainingRows
from pipeline.progress import Progress
from pipeline.stored_model import StoredModel
from storage.models import ModelRecord, update_record

# Rows that are multiplied in float64 at once.
TILE_ROWS = 4096
# Dual rows are convex combinations of vertices, kept up in the precision of their array.
FEASIBLE = {8: 1e-9, 4: 2e-5}
# Products were float32 while training ran, so W(A) and P may differ from what was recorded in the 7th digit.
AGREEMENT = 1e-6


@dataclass(frozen=True)
class Certificate:
    """P, D and their gap for a stored model, and what they were computed from.

    `rests_on` is "A" (the dual variables were stored: every row was checked and W(A) recomputed),
    "W and b", or "W, b and aa" where smoothing > 0.  `gap_kind` is "true"; `lifted_gap` is the upper bound
    that training watches where smoothing > 0, None where it is the same.  `infeasibility` is the largest
    share by which a dual row, or A as a whole, leaves its domain, and `w_difference` is |W - W(A)| / |W|;
    both None without A.  `agrees` says whether training recorded the same P and D to 1e-6, `valid` whether
    all these checks hold, and `certified` whether the relative gap is also within the tolerance `tol` asked
    for.
    """

    model: str
    dataset: str
    primal: float
    dual: float
    gap: float
    relative_gap: float
    gap_kind: str
    lifted_gap: float | None
    rests_on: str
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

    def to_dict(self) -> dict[str, Any]:
        """Give plain values for JSON."""
        return asdict(self)


def certify(model_url: str, progress: Progress | None = None, *, store: bool = True) -> Certificate:
    """Recompute the certificate of the model at `model_url`; with `store`, put it into the model's record.

    Raises `InputError` if the model's dataset is gone or is another one, `IntegrityError` for damaged files,
    and `CertificateMismatchError` if D exceeds P by more than rounding, which no sound computation gives.
    """
    started = time.perf_counter()
    stored = StoredModel.open(model_url)
    record = stored.model.record
    loss = RankedLoss.from_record(record.loss, record.m)
    sums = _Sums.zero(record, loss, with_duals=stored.model.has_duals)
    for X, y, A in _tiles(stored, stored.rows("train"), progress):
        sums.add(X, y, A, stored.W)
    certificate = _conclude(stored, sums, started)
    if store:
        update_record(model_url, certificate=certificate.to_dict())
    return certificate


@dataclass
class _Sums:
    """What one pass adds up; means are taken at the end."""

    loss: RankedLoss
    gamma: float
    rows: int = 0
    loss_sum: float = 0.0
    lifted_sum: float = 0.0
    linear: float = 0.0
    alpha_sq: float = 0.0
    infeasibility: float = 0.0
    outside: float = 0.0
    mass: float = 0.0
    tolerance: float = 0.0
    product: NDArray[np.float64] | None = field(default=None)

    @classmethod
    def zero(cls, record: ModelRecord, loss: RankedLoss, *, with_duals: bool) -> _Sums:
        product = np.zeros((record.d, record.m)) if with_duals else None
        return cls(loss, record.smoothing, product=product)

    def add(self, X: Any, y: NDArray[Any], A: NDArray[Any] | None, W: NDArray[np.float64]) -> None:
        """Add rows X (r, d) with labels y (r,) and, where they are kept, dual variables A (r, m)."""
        scores = np.asarray(X @ W)
        self.rows += len(y)
        if self.gamma > 0:
            self.loss_sum += float(self.loss.envelope(scores, y, self.gamma).sum())
        else:
            self.loss_sum += float(self.loss.values(scores, y).sum())
        if A is None or self.product is None:
            return
        self.tolerance = max(self.tolerance, FEASIBLE[A.dtype.itemsize])
        alpha = A.astype(np.float64)
        amounts = self.loss.violations(alpha, y)
        self.outside += float(amounts.sum())
        self.mass += 0.5 * float(np.abs(alpha).sum()) / float(self.loss.rho.sum())
        self.infeasibility = max(self.infeasibility, float(amounts.max(initial=0.0)))
        self.product += np.asarray(X.T @ alpha)
        self.linear += float(self.loss.linear(alpha, y).sum())
        self.alpha_sq += float(np.vdot(alpha, alpha))
        if self.gamma > 0:
            self.lifted_sum += float(self.loss.values(scores + self.gamma * alpha, y).sum())

    @property
    def largest_infeasibility(self) -> float:
        """The largest one of a row, or the share of all rows' mass outside.

        Where C is large all rows are tiny, and what is little beside the domain is much for them.
        """
        return max(self.infeasibility, self.outside / self.mass if self.mass > 0.0 else 0.0)


def _tiles(
    stored: StoredModel, rows: TrainingRows, progress: Progress | None
) -> Iterator[tuple[Any, NDArray[Any], NDArray[Any] | None]]:
    """All training rows in float64 with their labels and dual variables, a few thousand at a time."""
    labels = rows.labels()
    if progress is not None:
        progress.begin("certify", len(rows), "rows")
    for first, last, unit in rows.tiles():
        for start in range(first, last, TILE_ROWS):
            stop = min(last, start + TILE_ROWS)
            A = stored.model.duals(start, stop) if stored.model.has_duals else None
            yield unit[start - first : stop - first].astype(np.float64), labels[start:stop], A
        if progress is not None:
            progress.advance(last - first)


def _conclude(stored: StoredModel, sums: _Sums, started: float) -> Certificate:
    record, W = stored.model.record, stored.W
    if sums.rows != record.n:
        raise CertificateMismatchError(
            f"model {record.id} records {record.n} training rows, its dataset has {sums.rows}: train again"
        )
    lam, gamma, n = record.lam, record.smoothing, record.n
    if sums.product is None:
        b, aa = (float(stored.model.array("dual_sums")[i]) for i in (0, 1))
        W_dual, rests_on, w_difference = W, "W, b and aa" if gamma > 0 else "W and b", None
    else:
        b, aa = sums.linear / n, sums.alpha_sq / n
        W_dual, rests_on = sums.product / (lam * n), "A"
        w_difference = float(np.linalg.norm(W - W_dual) / max(float(np.linalg.norm(W)), 1e-300))
    primal = 0.5 * lam * float(np.vdot(W, W)) + sums.loss_sum / n
    dual = b - 0.5 * lam * float(np.vdot(W_dual, W_dual)) - 0.5 * gamma * aa
    lifted = None
    if gamma > 0 and sums.product is not None:
        lifted = 0.5 * lam * float(np.vdot(W, W)) + 0.5 * gamma * aa + sums.lifted_sum / n - dual
    gap = primal - dual
    _check_order(record, gap, lifted, primal)
    relative = max(gap, 0.0) / max(abs(primal), float(np.finfo(np.float64).tiny))
    recorded = {name: float(record.result[name]) for name in ("primal", "dual")}
    agrees = all(
        abs(found - recorded[name]) <= AGREEMENT * max(abs(primal), 1e-300)
        for name, found in (("primal", primal), ("dual", dual))
    )
    feasible = sums.largest_infeasibility <= sums.tolerance
    valid = agrees and feasible and (w_difference is None or w_difference <= AGREEMENT)
    tol = float(record.config["tol"])
    return Certificate(
        model=record.id,
        dataset=record.dataset,
        primal=primal,
        dual=dual,
        gap=gap,
        relative_gap=relative,
        gap_kind="true",
        lifted_gap=lifted,
        rests_on=rests_on,
        n=n,
        recorded_primal=recorded["primal"],
        recorded_dual=recorded["dual"],
        agrees=agrees,
        w_difference=w_difference,
        infeasibility=None if sums.product is None else sums.largest_infeasibility,
        valid=valid,
        tol=tol,
        certified=valid and relative <= tol,
        seconds=time.perf_counter() - started,
        created=dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
    )


def _check_order(record: ModelRecord, gap: float, lifted: float | None, primal: float) -> None:
    """D <= P <= P~ holds for every W(A) and A; a reversal means that numbers or files are wrong."""
    rounding = 1e-6 * max(abs(primal), 1e-300)
    if not gap >= -rounding:
        raise CertificateMismatchError(
            f"the duality gap of model {record.id} comes out as {gap:.3e}, below zero: its files do not"
            " belong together, so train again"
        )
    if lifted is not None and lifted < gap - rounding:
        raise CertificateMismatchError(
            f"the lifted gap of model {record.id} is {lifted:.3e}, below the true gap {gap:.3e}: its dual"
            " variables do not belong to its weights, so train again"
        )
