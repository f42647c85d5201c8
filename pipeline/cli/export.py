"""`topline export`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from topline.pipeline.cli.arguments import ModelArgument, find_model
from topline.pipeline.cli.command import Call, Outcome
from topline.pipeline.cli.table import facts, following
from topline.pipeline.export import chosen_format
from topline.pipeline.options import ExportConfig, ExportOptions
from topline.solvers.counts import how_many

if TYPE_CHECKING:
    from topline.pipeline.export.writing import Compression, ExportReport


def export(call: Call, model: ModelArgument) -> Outcome:
    """Write a model for other programs, and check that the file predicts the same."""
    from topline.pipeline.export.writing import export_model

    config = call.config(ExportConfig)
    form = chosen_format(config.format, config.output)
    url = find_model(model)
    path = config.output or Path(url.rpartition("/")[2] + form.suffix)
    asked = config.model_dump(include=config.model_fields_set & set(ExportOptions.model_fields))
    found = export_model(url, path, form.name, ExportOptions(**asked), most_loss=config.compress)
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
