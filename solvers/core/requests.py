"""What the coordinator asks of every block, once a round.

Requests are values: they can be sent to another machine, sent again, and compared.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TypeAlias

from topline.solvers.core.deflation import DeflatedDirection
from topline.solvers.core.dual_points import PendingStep
from topline.solvers.core.kernel_rows import KernelRequest
from topline.solvers.typing import Float64Array


@dataclass(frozen=True, eq=False)
class _RoundRequest:
    """What is asked once a round, at weights W (d, m), after `pending_step` has been applied."""

    round: int
    W: Float64Array
    pending_step: PendingStep | None = None


@dataclass(frozen=True, eq=False)
class AscentRequest(_RoundRequest):
    """Find a change dA of A that raises the dual, by sweeps of exact column updates that start at W (d, m).

    Attributes
    ----------
    round, W, pending_step : as for the other requests.
    sweeps : the first visits every row, a second one the rows that are not at rest; more than two ask for
        stages of so many sweeps over those, as many stages as pay.
    safety_factor : factor >= 1 on the curvature, for a block that moves while others do.
    seed : of the random orders; with the round and the block it fixes them.
    exact : products and A in float64, not in the precision of the features.
    shared, apart : the direction u (d,) along which examples are shrunk, and for every class (m,) what the
        weights have along it at the start besides W: a row scores W^T x + <x, u> apart.
    most_passes : visits, as a multiple of the rows, that are not exceeded.
    seconds : time after which no more rows are visited; None for no limit.
    warm : whether A is near the optimum already, so that most rows are at rest and stages over the others pay
        for longer.
    support : visit only rows whose alpha is not 0.
    enough : end the stages where the duality gaps of the rows that they visit sum to so little.
    alike : move rows together that look alike and have different labels.
    """

    sweeps: int = 1
    safety_factor: float = 1.0
    seed: int = 0
    exact: bool = False
    shared: DeflatedDirection | None = None
    apart: Float64Array | None = None
    most_passes: float = math.inf
    seconds: float | None = None
    warm: bool = False
    support: bool = False
    enough: float = 0.0
    alike: bool = False


@dataclass(frozen=True, eq=False)
class ColumnRequest(_RoundRequest):
    """Find a direction dA of A inside the active sets of the examples, at W (d, m), after the pending step.

    Attributes
    ----------
    round, W, pending_step : as for the other requests.
    pairwise : whether examples swap vertices, or go towards one or away from one.
    length : share of its own best step that an example takes.
    exact : products in float64, not in the precision of the features.
    """

    pairwise: bool = False
    length: float = 1.0
    exact: bool = False


@dataclass(frozen=True, eq=False)
class ProximalRequest(_RoundRequest):
    """Evaluate P, and the envelope of a proximal step on the dual, at W (d, m), after the pending step.

    U = -grad Phi_(gamma + sigma) at the scores W^T x_i - sigma alpha_i is left waiting to be mixed into A.  A
    smooth loss takes sigma = 0: U is then minus its gradient, and no A is needed.

    Attributes
    ----------
    round, W, pending_step : as for the other requests.
    sigma : weight >= 0 of the proximal term sigma/(2n) |A - A_t|^2.
    exact : products in float64, not in the precision of the features.
    last_step : the step from the point of the round before along the V of its SlopeRequests, which a block
        that still has their scores takes instead of products with W; NaN for products.
    stretched : whether the answer has the stretch of W at which a hinge vanishes.
    """

    sigma: float = 0.0
    exact: bool = False
    last_step: float = math.nan
    stretched: bool = False


@dataclass(frozen=True, eq=False)
class CurvatureRequest(ProximalRequest):
    """Multiply the generalised Hessian of the envelopes at the point of a ProximalRequest with V (d, m)."""

    V: Float64Array = field(kw_only=True)


@dataclass(frozen=True, eq=False)
class GramRequest(ProximalRequest):
    """Sum x_i x_i^T, weighted by the curvature of every class, at the point of a ProximalRequest.

    `whole` asks for all pairs of classes, class by class and feature by feature: the Hessian of the sum
    of envelopes.  Else one curved row in `stride` takes part, for all.
    """

    whole: bool = field(default=False, kw_only=True)
    stride: int = field(default=1, kw_only=True)


@dataclass(frozen=True, eq=False)
class SlopeRequest(ProximalRequest):
    """Find the slope of the envelopes `step` along V (d, m) away from the point of a ProximalRequest."""

    V: Float64Array = field(kw_only=True)
    step: float = field(kw_only=True)


#: Everything that `Block.run` understands.
Request: TypeAlias = (
    AscentRequest
    | ColumnRequest
    | ProximalRequest
    | CurvatureRequest
    | GramRequest
    | SlopeRequest
    | KernelRequest
)
