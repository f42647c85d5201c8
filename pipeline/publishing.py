"""Models as files that other programs read."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

ExportFormat = Literal["npz", "onnx", "safetensors"]


@dataclass(frozen=True)
class ExportReport:
    """What was written, and how far its scores are from ours on the rows that were tried."""

    model: str
    path: str
    format: str
    bytes: int
    rows_checked: int
    largest_difference: float

    def to_dict(self) -> dict[str, Any]:
        """Give plain values for JSON."""
        return asdict(self)


def export(
    model_url: str,
    path: Path,
    format: ExportFormat = "npz",  # noqa: A002 - the word of the command line
    *,
    top_k: int | None = None,
) -> ExportReport:
    """Write the model at `model_url` to `path`, read it back and compare its scores with ours."""
    raise NotImplementedError
