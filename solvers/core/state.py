"""Values that a run passes along: P, D and their gap, when it ends, its state, its records and its result."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from numbers import Real
from typing import Any, Generic, Literal, TypeAlias, TypeVar

import numpy as np

from topline.solvers.core.codec import stored
from topline.solvers.core.dual_points import DualPoint, FoundAt, PendingStep
from topline.solvers.core.problem import Problem, positive_integer, positive_number
from topline.solvers.core.rows import is_sparse
from topline.solvers.counts import how_many
from topline.solvers.errors import CertificateError, InvalidProblemError
from topline.solvers.typing import Float64Array, FloatArray

#: "true" for P - D of the problem itself; "lifted" for its upper bound where smoothing > 0; "none" where the
#: loss is not convex: dual, gap and relative_gap are then NaN, and nothing bounds how far the optimum is.
GapKind: TypeAlias = Literal["true", "lifted", "none"]


#: The least |P| that a gap is a share of.
_TINY = float(np.finfo(np.float64).tiny)


def relative_gap(gap: float, primal: float) -> float:
    """Return gap / max(|P|, tiny)."""
    return gap / max(abs(primal), _TINY)


@dataclass(frozen=True)
class Objective:
    """An objective value P and a lower bound D of P and its minimum.

    Attributes
    ----------
    primal, dual : P and D.
    kind : which gap their difference is.
    stationarity : |grad P(W)| / |grad P(0)| where the loss is not convex and D is NaN, else None.
    rounding : a bound of what rounding may have taken from P - D.
    gap, relative_gap : P - D with its rounding, which bounds the distance from P to its minimum, and as a
        share of |P|.
    left : the value compared with a tolerance: the relative gap, or the stationarity if there is no gap.
    finite : whether P and `left` are finite.

    Examples
    --------
    >>> from topline.solvers.core.state import Objective
    >>> Objective(primal=2.0, dual=1.5).relative_gap
    0.25
    """

    primal: float
    dual: float
    kind: GapKind = "true"
    stationarity: float | None = None
    rounding: float = 0.0
    gap: float = field(init=False, repr=False, compare=False)
    relative_gap: float = field(init=False, repr=False, compare=False)
    left: float = field(init=False, repr=False, compare=False)
    finite: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        primal, dual, still = float(self.primal), float(self.dual), self.stationarity
        gap = primal - dual + self.rounding
        share = gap / max(abs(primal), _TINY)
        finite = math.isfinite(primal) and math.isfinite(dual if still is None else still)
        vars(self).update(gap=gap, relative_gap=share, left=share if still is None else still, finite=finite)

    @classmethod
    def checked(cls, primal: float, dual: float, size: float, share: float = 1e-9) -> Objective:
        """Return P with min(D, P), which is a bound as well: D may exceed P by rounding.

        Raises CertificateError if it exceeds P by more than `share` of the terms' size.
        """
        if primal - dual < -share * size:
            raise CertificateError(
                f"the dual value {dual:.17g} exceeds the primal value {primal:.17g}; do not use this result"
            )
        return cls(primal, min(dual, primal))

    @classmethod
    def without_dual(cls, primal: float, stationarity: float | None = None) -> Objective:
        """Return P where no D is known."""
        return cls(primal, math.nan, "true" if stationarity is None else "none", stationarity)

    def reaches(self, tol: float) -> bool:
        """Return whether P is within the tolerance."""
        return self.finite and self.left <= tol

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON, under the names of a result's attributes."""
        return {
            "primal": self.primal,
            "dual": self.dual,
            "gap": self.gap,
            "relative_gap": self.relative_gap,
            "gap_kind": self.kind,
            "stationarity": self.stationarity,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Objective:
        """Return the objective from a `to_dict` mapping, perhaps with more keys; JSON has null for NaN."""
        primal, dual = (math.nan if values[name] is None else values[name] for name in ("primal", "dual"))
        rounding = max((values.get("gap") or -math.inf) - (primal - dual), 0.0)
        return cls(primal, dual, values.get("gap_kind", "true"), values.get("stationarity"), rounding)


class HasObjective:
    """Base class of values with an objective, whose parts become attributes."""

    objective: Objective

    @property
    def primal(self) -> float:
        """P."""
        return self.objective.primal

    @property
    def dual(self) -> float:
        """D, a lower bound of P and its minimum."""
        return self.objective.dual

    @property
    def gap(self) -> float:
        """P - D, an upper bound of the distance from P to its minimum."""
        return self.objective.gap

    @property
    def relative_gap(self) -> float:
        """The gap as a share of |P|."""
        return self.objective.relative_gap

    @property
    def gap_kind(self) -> GapKind:
        """Which gap it is: "true", "lifted", or "none" where nothing bounds it."""
        return self.objective.kind

    @property
    def stationarity(self) -> float | None:
        """|grad P(W)| / |grad P(0)| where the loss is not convex, else None."""
        return self.objective.stationarity


class Status(Enum):
    """How a run ended.

    Examples
    --------
    >>> from topline import Status
    >>> Status("solved") is Status.SOLVED
    True
    """

    #: The relative gap is at most tol; where the loss is not convex, |grad P(W)| / |grad P(0)| is.
    SOLVED = "solved"
    #: The budget of passes was used up first.
    MAX_PASSES = "max_passes"
    #: The time limit was reached first.
    TIME_LIMIT = "time_limit"
    #: A callback returned False.
    INTERRUPTED = "interrupted"
    #: No step improves the dual any more at the working precision.
    NO_PROGRESS = "no_progress"
    #: NaN or infinity appeared in the iterates.
    NONFINITE = "nonfinite"


#: Smallest relative gap that float64 can tell from rounding; float32 is abandoned long before.
FINEST_TOL = 1e-14


@dataclass(frozen=True)
class StoppingCriteria:
    """Bounds of a run.

    Attributes
    ----------
    tol : relative gap to reach, at least 1e-14, the resolution of float64 sums; where the loss is not convex,
        |grad P(W)| / |grad P(0)|.
    max_passes : passes over the examples, over all resumptions, that the rounds do not exceed; the final
        certificate takes up to two more.
    time_limit : seconds of this call, None for no limit; sweeps stop at it, and no pass that measures W
        starts after it.
    of_duals : whether only W(A) of the blocks' last A counts, not the best W of all rounds.
    certified : whether the final values are certified.  Otherwise a solved run reports those of its last
        round, float64 sums of float32 products: enough for a gap well above their rounding.

    Raises InvalidProblemError for a value that is not positive, or a tol finer than float64 resolves.

    Examples
    --------
    >>> from topline import StoppingCriteria
    >>> StoppingCriteria(tol=1e-4, time_limit=60.0).max_passes
    1000
    """

    tol: float = 1e-3
    max_passes: int = 1000
    time_limit: float | None = None
    of_duals: bool = False
    certified: bool = True

    def __post_init__(self) -> None:
        if positive_number("tol", self.tol) < FINEST_TOL:
            raise InvalidProblemError(
                f"tol is {self.tol!r}, which float64 does not resolve; give at least {FINEST_TOL:g}"
            )
        positive_integer("max_passes", self.max_passes)
        limit: Any = self.time_limit
        if limit is not None and not (isinstance(limit, Real) and float(limit) > 0.0):
            raise InvalidProblemError(f"time_limit is {limit!r}; give a positive number of seconds or None")


#: Most rounds kept in a result.  A record takes about 1 kB, plus 0.2 kB per worker.
MOST_ROUNDS = 10_000

T = TypeVar("T")


@dataclass(eq=False)
class ThinnedHistory(Generic[T]):
    """A history with at most `most` entries, in order.

    When it is full, every second entry is dropped, and from then on only every second one is added, and so
    on.  The latest entry is always among the records.
    """

    most: int = MOST_ROUNDS
    _kept: list[T] = field(default_factory=list)
    _stride: int = 1
    _seen: int = 0
    _last: T | None = None

    def add(self, record: T) -> None:
        """Add the record of the next round."""
        self._last = record
        if self._seen % self._stride == 0:
            self._kept.append(record)
        self._seen += 1
        if len(self._kept) > self.most:
            self._kept = self._kept[::2]
            self._stride *= 2

    def records(self) -> tuple[T, ...]:
        """Return the kept records and the latest one, oldest first."""
        if self._last is None or self._kept[-1] is self._last:
            return tuple(self._kept)
        return (*self._kept, self._last)


Memory = TypeVar("Memory")


@stored
@dataclass(frozen=True, eq=False)
class Point:
    """The current weights of a run, and the sums of the dual variables A that belong to them.

    Attributes
    ----------
    round : number of the next round, which is also the number of rounds done.
    W : (d, m) float64, W(A) of eq. 2 where the method follows A.
    conjugate_mean : b = (1/n) sum -Phi*(-alpha_i), the linear term of the dual.
    mean_sq_dual : |A|_F^2 / n; 0 where no A is kept.
    pending_step : the step that blocks have not yet applied to A.
    exact : whether products are in float64.
    """

    round: int
    W: Float64Array
    conjugate_mean: float = 0.0
    mean_sq_dual: float = 0.0
    pending_step: PendingStep | None = None
    exact: bool = False


@stored
@dataclass(frozen=True, eq=False)
class Best:
    """The best values of a run: weights W (d, m) by their P, a dual point by its D.

    The two may come from different rounds: P - D is a gap for any W and any dual point.  W is None before a
    P is known, and `dual_point` is None where D belongs to the run's own A, or W and b.
    """

    primal: float = math.inf
    W: Float64Array | None = None
    dual: float = -math.inf
    dual_point: DualPoint | None = None

    def with_primal(self, primal: float, W: Float64Array) -> Best:
        """Return the best with these weights if their P is smaller."""
        return replace(self, primal=primal, W=W) if primal < self.primal else self

    def with_dual(self, dual: float, point: DualPoint | None) -> Best:
        """Return the best with this dual point if its D is larger."""
        return replace(self, dual=dual, dual_point=point) if dual > self.dual else self


@stored
@dataclass(frozen=True, eq=False)
class SolverState:
    """Everything that a run needs to continue, except A and the examples.

    With A (smoothing > 0 or keep_duals) a checkpoint also holds `executor.duals(state.pending_step)`.

    Attributes
    ----------
    point : the current point; its `round`, `W` and `pending_step` are also those of the state.
    best : the best weights and dual point so far.
    memory : the method's memory, a value of its own class; None at the start.
    passes : passes over the examples so far.
    seconds : seconds of solving so far, over all resumptions.
    loss_at_zero : mean loss at W = 0, not smoothed where smoothing goes through A; it bounds the ball of
        projected_gradient.  Known from the start, or after a first round at W = 0.
    primal_at_zero : P(0), an upper bound of the P of every result; None if not computed.
    left_behind : whether a run that starts here must move to a better point, however good this one is.
    problem_key : `problem.problem_key` of the state's problem; empty if its keeper vouches for it.

    Examples
    --------
    >>> from topline import MaxHinge
    >>> from topline.solvers.core.problem import Problem
    >>> from topline.solvers.core.state import SolverState
    >>> SolverState.start(Problem(MaxHinge(), n=10, d=4, m=3, lam=0.1)).W.shape
    (4, 3)
    """

    point: Point
    best: Best = Best()
    memory: object = None
    passes: int = 0
    seconds: float = 0.0
    loss_at_zero: float | None = None
    primal_at_zero: float | None = None
    left_behind: bool = False
    problem_key: str = ""

    @classmethod
    def start(cls, problem: Problem) -> SolverState:
        """Return the state with A = 0, which is dual feasible."""
        return cls(Point(0, np.zeros((problem.d, problem.m))))

    @classmethod
    def at(cls, W: Float64Array, conjugate_mean: float = 0.0, mean_sq_dual: float = 0.0) -> SolverState:
        """Return the state of a new run that starts at W (d, m), with b and |A|^2 / n of its A."""
        return cls(Point(0, W, conjugate_mean, mean_sq_dual))

    @property
    def round(self) -> int:
        """Number of the next round."""
        return self.point.round

    @property
    def W(self) -> Float64Array:  # noqa: N802 - as in the formulas
        """Weights (d, m)."""
        return self.point.W

    @property
    def pending_step(self) -> PendingStep | None:
        """The step that blocks have not yet applied to A."""
        return self.point.pending_step

    def recalled(self, kind: type[Memory]) -> Memory:
        """Return the memory of a method with this class: a new one if another method ran before."""
        return self.memory if isinstance(self.memory, kind) else kind()

    @property
    def exact(self) -> bool:
        """Whether products are in float64."""
        return self.point.exact

    def with_point(self, **changes: Any) -> SolverState:
        """Return the state with some fields of its point replaced."""
        return replace(self, point=replace(self.point, **changes))


_Number = TypeVar("_Number", int, float)


@dataclass(frozen=True, slots=True)
class WorkerActivity:
    """One worker: another process, or a thread of this one.

    Attributes
    ----------
    name : identifies the worker throughout the run, such as an address.
    rows : examples that it holds; for a thread, those of its last request.
    seconds_busy : seconds spent on requests.
    memory_bytes : its resident memory; 0 if shared with the coordinator.
    """

    name: str
    rows: int
    seconds_busy: float
    memory_bytes: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True)
class Traffic:
    """Totals of an executor since the problem was bound; memory, workers and rows are current values.

    Attributes
    ----------
    bytes_sent, bytes_received : by the coordinator to all workers, and from them; 0 within one process.
    bytes_read : of features outside memory, after decompression.
    memory_bytes : resident memory of the coordinator and all workers, summed.
    workers : the present workers, in a fixed order.
    """

    bytes_sent: int = 0
    bytes_received: int = 0
    bytes_read: int = 0
    memory_bytes: int = 0
    workers: tuple[WorkerActivity, ...] = ()

    def since(self, before: Traffic) -> Traffic:
        """Return the increase since `before`; a counter that was reset counts from 0."""
        busy = {worker.name: worker.seconds_busy for worker in before.workers}
        return Traffic(
            bytes_sent=_added(self.bytes_sent, before.bytes_sent),
            bytes_received=_added(self.bytes_received, before.bytes_received),
            bytes_read=_added(self.bytes_read, before.bytes_read),
            memory_bytes=self.memory_bytes,
            workers=tuple(
                replace(worker, seconds_busy=_added(worker.seconds_busy, busy.get(worker.name, 0.0)))
                for worker in self.workers
            ),
        )


def _added(now: _Number, before: _Number) -> _Number:
    return now - before if now >= before else now


@dataclass(frozen=True)
class IterationRecord(HasObjective):
    """One round, as callbacks and histories see it.

    Attributes
    ----------
    round, passes : number of this round from 0, and passes over the examples up to its end.
    seconds : seconds of solving up to its end.
    objective : the smallest P and the largest D of the rounds so far, whose difference is never negative;
        primal, dual, gap, relative_gap, gap_kind and stationarity are attributes too.
    step : step then taken towards the new vertex.
    active : share of examples with a non-zero loss direction.
    seconds_products, seconds_kernels : time of this round in products and per-row work, summed over blocks.
    seconds_waiting : time of this round outside both, per worker.
    bytes_sent, bytes_received : between the coordinator and its workers since the last record.
    bytes_read : of features outside memory, since the last record.
    memory_bytes : resident memory of the coordinator and its workers at the end of the round.
    workers : how many blocks ran at the same time.
    activity : each worker with its rows, its busy seconds since the last record, and its memory.

    Examples
    --------
    >>> import numpy as np
    >>> from topline import MaxHinge, solve
    >>> X, y = np.eye(3).repeat(4, axis=0), np.arange(3).repeat(4)
    >>> record = solve(X, y, MaxHinge(), lam=0.1).history[-1]
    >>> record.gap_kind, record.gap == record.primal - record.dual
    ('true', True)
    """

    round: int
    passes: int
    seconds: float
    objective: Objective
    step: float
    active: float
    seconds_products: float = 0.0
    seconds_kernels: float = 0.0
    seconds_waiting: float = 0.0
    bytes_sent: int = 0
    bytes_received: int = 0
    bytes_read: int = 0
    memory_bytes: int = 0
    workers: int = 1
    activity: tuple[WorkerActivity, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        # The copies of `asdict` take as long as a short round.
        values = {**vars(self), **self.objective.to_dict()}
        del values["objective"]
        return {**values, "activity": [worker.to_dict() for worker in self.activity]}


@dataclass(frozen=True, eq=False)
class FinalValues(HasObjective):
    """What a run comes to, certified in float64 or with a bound of the rounding of float32 products.

    Attributes
    ----------
    W : (d, m) float64, with the smallest measured P, W = 0 included; W(A) unless `W_dual` says otherwise.
    conjugate_mean : (1/n) sum b(alpha_i), linear term of the dual at A.
    objective : P(W) and D(A); primal, dual, gap, relative_gap, gap_kind and stationarity are attributes too.
        The gap is the true one, or "none" where the loss is not convex: D and gaps are then NaN and certify
        nothing, and stationarity is the only measure of W.
    smoothed_gap : the smoothed upper bound of the gap that the rounds reported; equal to `gap` if smoothing
        is 0.
    W_dual : (d, m) float64, the W(A) with dual value D if it is not W; else None.
    mean_sq_dual : |A|_F^2 / n of that A, where it is smoothed and not part of `conjugate_mean`.
    found_at : the weights at which that A is a share of minus the gradients, if it was found so.
    dual_share : that A as a multiple of the A that blocks keep.
    """

    W: Float64Array
    conjugate_mean: float
    objective: Objective
    smoothed_gap: float
    W_dual: Float64Array | None = None
    mean_sq_dual: float = 0.0
    found_at: FoundAt | None = None
    dual_share: float = 1.0


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class SolveResult(FinalValues):
    """The result of a run: its final values, and how it came to them.

    Attributes
    ----------
    A : (n, m) dual variables inside their domains, None if they were not kept or live in another process.
        After an interruption they are those to continue from, perhaps rounded to float32.
    status : how the run ended.
    passes, seconds : passes over the examples and seconds, over all resumptions.
    history : one record per round of this call; above 10,000 rounds an even selection, and the last.
    problem : the solved problem.
    state : state from which a further call continues exactly (with A as its duals).
    collapsed : whether W is 0, or under the average top-k risk no better, and 0 is within `tol` of the
        optimum: it separates no classes.  So it is with a small C, or with k below the examples that no W
        gets right.
    method, why : the method, for "auto" all methods used, and the reason.

    Examples
    --------
    >>> import numpy as np
    >>> from topline import MaxHinge, solve
    >>> X, y = np.eye(3).repeat(4, axis=0), np.arange(3).repeat(4)
    >>> result = solve(X, y, MaxHinge(), lam=0.1)
    >>> result.decision_function(X).argmax(axis=1)
    array([0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2])
    """

    A: FloatArray | None
    status: Status
    passes: int
    seconds: float
    history: tuple[IterationRecord, ...]
    problem: Problem
    state: SolverState
    collapsed: bool = False
    method: str = ""
    why: str = ""

    def __repr__(self) -> str:
        """Return one line with the status and the key values."""
        if self.stationarity is None:
            reached = f"relative gap {self.relative_gap:.1e}, primal {self.primal:.6g}, dual {self.dual:.6g}"
        else:
            reached = f"gradient at {self.stationarity:.1e} of its first size, primal {self.primal:.6g}"
        passes = how_many(self.passes, "passes")
        ended = f"{self.status.value}: {reached}; {passes}, {self.seconds:.1f} s, {self.method}"
        return f"{type(self).__name__}({ended}; W {self.W.shape})"

    def decision_function(self, X: Any) -> Float64Array:
        """Return the scores X W, shape (rows of X, m), in float64."""
        return np.asarray(scored_rows(X, self.problem.d) @ self.W)


def scored_rows(X: Any, d: int) -> Any:
    """Return rows X (r, d) to be scored, dense ones in float64; refuse another shape."""
    shape: tuple[int, ...] = tuple(getattr(X, "shape", ()))
    if len(shape) != 2 or shape[1] != d:
        raise InvalidProblemError(f"X has the shape {shape}; give rows of {d} features")
    return X if is_sparse(X) else np.asarray(X, dtype=np.float64)
