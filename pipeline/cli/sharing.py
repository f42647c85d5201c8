"""`topline export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pipeline.cli.command import Call, Outcome
from pipeline.cli.models import ModelArgument, find_model
from pipeline.cli.table import facts

SUFFIXES = {"npz": ".npz", "onnx": ".onnx", "safetensors": ".safetensors"}


def export(
    call: Call,  # noqa: ARG001 - one shape for all
    model: ModelArgument,
    format: Annotated[  # noqa: A002 - the word of the command line
        str, typer.Option("--format", help="npz, onnx or safetensors")
    ] = "npz",
    output: Annotated[
        Path | None, typer.Option("--output", help="File to write (default: the model's id)")
    ] = None,
    top_k: Annotated[
        int | None, typer.Option("--top-k", min=1, help="Best classes that the ONNX graph gives")
    ] = None,
) -> Outcome:
    """Write a model as a file for other programs, read it back and compare its scores."""
    from pipeline.publishing import export as write

    url = find_model(model)
    path = output or Path(url.rpartition("/")[2] + SUFFIXES.get(format, ""))
    found = write(url, path, format, top_k=top_k)  # type: ignore[arg-type] - refused there by name
    lines = facts(
        {
            "model": found.model,
            "file": f"{found.path} ({found.bytes:,} bytes, {found.format})",
            "checked": f"scores of {found.rows_checked} rows, largest difference {found.largest_difference:.1e}",
        }
    )
    return Outcome(found.to_dict(), lines)
