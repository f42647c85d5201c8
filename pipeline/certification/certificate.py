"""What a certificate says of a model, and why one that does not hold does not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from topline.storage.records import reading

# A looser tolerance may be asked for, and what it gives is no certified model.
LOOSEST_TOL = 0.05
# Fields whose stored name is another.
_STORED = {"smoothed_gap": "lifted_gap", "basis": "rests_on"}


@dataclass(frozen=True)
class Certificate:
    """P, D and their gap for a stored model, and what they were computed from.

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
    def objection(self) -> str:
        """Why a gap within the tolerance is not certified all the same, else nothing."""
        if self.too_loose:
            return f"a gap above {LOOSEST_TOL:g} is not called certified, whatever the tolerance"
        return "W is 0, which is no better than no model" if self.no_weights else ""

    @property
    def reason(self) -> str:
        """Why a model is not certified, in words; nothing where it is."""
        if self.certified or self.objection:
            return self.objection
        if not self.agrees:
            return "training recorded other values than what is stored gives"
        if not self.valid:
            return f"its dual variables leave their domain by {self.infeasibility:.1e}"
        return f"the relative gap is {self.relative_gap:.2e}, above the tolerance {self.tol:g}"

    @property
    def too_loose(self) -> bool:
        """Whether the gap is within the tolerance, which is looser than what is called certified."""
        return self.valid and LOOSEST_TOL < self.relative_gap <= self.tol

    @property
    def no_weights(self) -> bool:
        """Whether all is as it should be but that W is 0."""
        return self.valid and not self.certified and self.relative_gap <= min(self.tol, LOOSEST_TOL)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {_STORED.get(name, name): value for name, value in asdict(self).items()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Certificate:
        """Return what `to_dict` wrote, leaving unknown fields out; `FormatError` if a field is missing."""
        with reading("a certificate"):
            return cls(**{part.name: values[_STORED.get(part.name, part.name)] for part in fields(cls)})
