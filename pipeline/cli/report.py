"""`topline report`: the report of a model that is there."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from topline.pipeline.cli.arguments import ModelArgument, find_model
from topline.pipeline.cli.command import Call, Outcome
from topline.pipeline.cli.table import facts, following


def report(
    call: Call,
    model: ModelArgument,
    output: Annotated[Path | None, typer.Option(help="Report to write (default: in the store)")] = None,
    training_sizes: Annotated[
        bool | None,
        typer.Option(
            "--training-sizes/--no-training-sizes",
            help="Say whether more images would help, by training on parts of them (default: if that is"
            " cheap)",
            show_default=False,
        ),
    ] = None,
) -> Outcome:
    """Write the report of a model: one HTML file with the answer, images, data, certificate and lineage.

    It shows the last evaluation; a model that was never evaluated is evaluated first, on its test rows.
    """
    from topline.pipeline.report import write_report
    from topline.storage.models import load_model

    url = find_model(model)
    evaluated = load_model(url).record.evaluation is not None
    if not evaluated:
        evaluated = _evaluate(url, call)
    place = write_report(url, output, call.progress, training_sizes=training_sizes)
    warnings = [] if evaluated else [f"{url} has no test rows: the report shows no accuracy"]
    lines = [*facts({"report": place}), *following(("topline", "inspect", url))]
    return Outcome({"model": url, "report": place}, lines, warnings)


def _evaluate(url: str, call: Call) -> bool:
    """Measure the model on its test rows, if it has any."""
    from topline.pipeline.evaluation.measurement import evaluate
    from topline.pipeline.rows import StoredModel

    if not len(StoredModel.open(url).rows("test")):
        return False
    evaluate(url, "test", call.progress)
    return True
