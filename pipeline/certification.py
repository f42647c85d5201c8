"""The certificate of a model, recomputed in float64 from what is stored."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipeline.progress import Progress


@dataclass(frozen=True)
class Certificate:
    """P, D and their gap for a stored model, and what they were computed from.

    `rests_on` is "A" (the dual variables were stored: W is W(A), every row was found feasible) or "W and b".
    `gap_kind` is "true", or "lifted" where smoothing > 0 and only the lifted problem can be judged
    (erratum d).  `agrees` tells whether the values recorded by training are the same to 1e-6 relative.
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
    tol: float
    certified: bool
    seconds: float
    created: str

    def to_dict(self) -> dict[str, Any]:
        """Give plain values for JSON."""
        return asdict(self)


def certify(model_url: str, progress: Progress | None = None, *, store: bool = True) -> Certificate:
    """Recompute the certificate of the model at `model_url`; with `store`, put it into the model's record."""
    raise NotImplementedError
