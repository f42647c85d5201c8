"""The result of a finished training run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from topline.pipeline.certification import Certificate
from topline.solvers.core.state import HasObjective, Objective, Status


@dataclass(frozen=True)
class TrainResult(HasObjective):
    """Result of a finished run; `to_dict` is the object that `topline train --json` prints.

    Without a convex loss, dual and gaps are NaN (null in JSON), `gap_kind` is "none" and `stationarity` says
    how far the gradient fell.  `average_top` is the number of largest losses that count, None for all;
    `collapsed` is that of `solve`'s result, `no_weights` says that W is 0.  `notes`
    are sentences about the run, such as why fewer workers were used than asked for; `method` and `why` say
    what solved it ("auto" is resolved); `chosen` is what a preceding search compared, None without one.
    """

    model: str
    run: str
    dataset: str
    status: str
    objective: Objective
    passes: int
    seconds: float
    n: int
    d: int
    m: int
    certificate: Certificate | None
    average_top: float | None = None
    collapsed: bool = False
    no_weights: bool = False
    notes: tuple[str, ...] = ()
    method: str = ""
    why: str = ""
    chosen: Mapping[str, Any] | None = None

    @property
    def solved(self) -> bool:
        """Whether the tolerance was reached."""
        return self.status == Status.SOLVED.value

    @property
    def relative_gap_text(self) -> str:
        """The relative gap as printed, with its kind if it is only a bound."""
        kind = "" if self.gap_kind == "true" else f" ({self.gap_kind}: an upper bound)"
        return f"{self.relative_gap:.2e}{kind}"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        values = {**asdict(self), **self.objective.to_dict()}
        del values["objective"]
        return {**values, "certificate": self.certificate.to_dict() if self.certificate else None}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TrainResult:
        """Read the result of `to_dict` from a run's record, which may hold more."""
        known: dict[str, Any] = {field.name: values.get(field.name) for field in fields(cls)}
        known["objective"] = Objective.from_dict(values)
        known |= {name: bool(known[name]) for name in ("collapsed", "no_weights")}
        known["notes"] = tuple(known["notes"] or ())
        known |= {name: known[name] or "" for name in ("method", "why")}
        certificate = values["certificate"]
        return cls(**{**known, "certificate": Certificate.from_dict(certificate) if certificate else None})
