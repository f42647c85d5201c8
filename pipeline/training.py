"""One training run from a stored dataset to a published, certified model."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from pipeline.certification import Certificate
from pipeline.train_config import ClusterConfig, TrainConfig

if TYPE_CHECKING:
    from distributed import Client

    from pipeline.progress import Progress


@dataclass(frozen=True)
class TrainResult:
    """What a finished run reached; `to_dict` is the object that `topline train --json` prints."""

    model: str
    run: str
    dataset: str
    status: str
    primal: float
    dual: float
    gap: float
    relative_gap: float
    gap_kind: str
    passes: int
    seconds: float
    n: int
    d: int
    m: int
    certificate: Certificate | None

    @property
    def solved(self) -> bool:
        """Whether the tolerance was reached."""
        return self.status == "solved"

    def to_dict(self) -> dict[str, Any]:
        """Give plain values for JSON."""
        return {**asdict(self), "certificate": self.certificate.to_dict() if self.certificate else None}


def train(
    config: TrainConfig,
    cluster: ClusterConfig | None = None,
    progress: Progress | None = None,
    client: Client | None = None,
) -> TrainResult:
    """Train, publish and certify one model.

    `cluster` says where it runs (default: one worker a core); an open `client` is used instead.
    Raises `InterruptedRunError` after Ctrl-C or SIGTERM, once a checkpoint is stored; its message holds the
    command that resumes the run.
    """
    raise NotImplementedError
