"""`topline export`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from topline.pipeline.cli.arguments import ModelArgument, find_model
from topline.pipeline.cli.command import Call, Outcome
from topline.pipeline.cli.table import facts, following
from topline.pipeline.export import FORMATS, chosen_format
from topline.solvers.counts import how_many

if TYPE_CHECKING:
    from topline.pipeline.export.writing import Compression, ExportReport


def export(
    call: Call,  # noqa: ARG001 - one shape for all
    model: ModelArgument,
    format: Annotated[  # noqa: A002 - the word of the command line
        str | None,
        typer.Option(
            "--format",
            help=f"Kind of file: {', '.join(FORMATS)} (default: by the ending of --output, else npz)",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", help="File, or for sklearn folder, to write (default: the model's id)"),
    ] = None,
    top_k: Annotated[
        int | None, typer.Option("--top-k", min=1, help="Number of best classes that the ONNX graph returns")
    ] = None,
    compress: Annotated[
        float | None,
        typer.Option(
            "--compress",
            help="Write a model with the kernel rbf on the fewest rows found that lose at"
            " most this share of its objective, such as 0.01",
        ),
    ] = None,
) -> Outcome:
    """Write a model for other programs, and check that the file predicts the same."""
    from topline.pipeline.export.writing import export_model

    form = chosen_format(format, output)
    url = find_model(model)
    path = output or Path(url.rpartition("/")[2] + form.suffix)
    found = export_model(url, path, form.name, top_k=top_k, most_loss=compress)
    lines = facts(
        {
            "model": found.model,
            "file": f"{found.path} ({found.bytes:,} bytes, {found.format})",
            **({} if found.compression is None else {"compressed": _compression(found.compression)}),
            "scores": f"off by {found.largest_difference:.1e} at most",
            "best classes": _agreement(found),
            **({"in Python": form.load.format(path=repr(found.path))} if form.load else {}),
        }
    )
    lines += following(("topline", "models", "promote", url, "--reason", "WHY"))
    return Outcome(found.to_dict(), lines)


def _compression(found: Compression) -> str:
    return (
        f"{found.rows:,} of {found.of_rows:,} rows; objective {found.primal:.6g}, {100 * found.loss:+.2g}%"
        f" of the model's and at most {100 * found.relative_gap:.2g}% above the least (recomputed)"
    )


def _agreement(found: ExportReport) -> str:
    if not found.dataset_rows:
        return "not compared, as the model's dataset is gone"
    tied = f", {found.tied_rows} with ties in another order" if found.tied_rows else ""
    return f"the same top-{found.top_k} in {how_many(found.dataset_rows, 'rows')} of the dataset{tied}"
