"""All commands of `topline`, with an example each."""

from __future__ import annotations

from importlib.metadata import version
from typing import Annotated

import typer

from topline.pipeline.cli import (
    certs,
    dashboard,
    doctor,
    evaluate,
    export,
    fsck,
    ingest,
    models,
    predict,
    retrain,
    run,
    sweep,
    train,
)
from topline.pipeline.cli.command import add_command

app = typer.Typer(
    name="topline",
    help="Certified top-k classifiers, from a folder of images to a model with a duality gap.",
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
models_app = typer.Typer(name="models", help="The models of a store.")


@app.callback(invoke_without_command=True)
def _top(
    context: typer.Context,
    show_version: Annotated[bool, typer.Option("--version", help="Show the version and exit")] = False,
) -> None:
    if show_version:
        typer.echo(f"topline {version('topline')}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(2)


add_command(
    app,
    run.run,
    name="run",
    sections=("run", "extract", "train", "cluster", "evaluate"),
    hidden=frozenset({"dataset", "resume", "certify"}),
    flow=True,
    example="topline run --images photos --store photos-store --k 5",
)
add_command(
    app,
    retrain.retrain,
    name="retrain",
    sections=retrain.SECTIONS,
    hidden=retrain.HIDDEN,
    flow=True,
    example="topline retrain --images photos --store photos-store",
)
add_command(
    app,
    retrain.serve,
    name="serve",
    sections=retrain.SECTIONS,
    hidden=retrain.HIDDEN,
    example='topline serve --every "0 2 * * *" --images photos --store photos-store',
)
add_command(
    app,
    ingest.extract,
    name="extract",
    sections=("extract", "cluster"),
    flow=True,
    example="topline extract --images photos --store photos-store --backbone hog",
)
add_command(
    app,
    ingest.import_,
    name="import",
    sections=("import",),
    example="topline import --features embeddings.npy --labels labels.npy --store my-store",
)
add_command(
    app,
    train.train,
    name="train",
    sections=("train", "cluster"),
    flow=True,
    example="topline train --store topline-run --loss topk_hinge --k 5 --C 1.0",
)
add_command(
    app,
    sweep.sweep,
    name="sweep",
    sections=("sweep", "cluster"),
    flow=True,
    example="topline sweep --store topline-run --C 1e-3:1e2:11 --k 1,5 --topk 5",
)
add_command(app, train.certify, name="certify", example="topline certify topline-run/models/m0001")
add_command(
    app,
    evaluate.evaluate,
    name="evaluate",
    sections=("evaluate",),
    flow=True,
    example="topline evaluate topline-run/models/m0001 --split test",
)
add_command(
    app,
    predict.predict,
    name="predict",
    sections=("predict", "cluster"),
    example="topline predict topline-run/models/m0001 --images new-photos --top-k 5",
)
add_command(
    app,
    export.export,
    name="export",
    example="topline export topline-run/models/m0001 --format onnx --output model.onnx",
)
add_command(models_app, models.list_, name="list", example="topline models list --store topline-run")
add_command(models_app, models.show, name="show", example="topline models show topline-run/models/m0001")
add_command(
    models_app,
    models.compare,
    name="compare",
    sections=("evaluate",),
    hidden=frozenset({"confused"}),
    example="topline models compare topline-run/models/m0002 topline-run/models/m0001",
)
add_command(
    models_app,
    models.promote,
    name="promote",
    sections=("promote", "evaluate"),
    hidden=frozenset({"confused"}),
    example="topline models promote topline-run/models/m0002 --by-rule",
)
add_command(
    models_app, models.rollback, name="rollback", example="topline models rollback --store topline-run"
)
add_command(
    models_app, models.archive, name="archive", example="topline models archive topline-run/models/m0001"
)
add_command(
    models_app, models.delete, name="delete", example="topline models delete topline-run/models/m0001"
)
app.add_typer(models_app)
add_command(
    app, dashboard.dashboard, name="dashboard", example="topline dashboard --store topline-run --port 8788"
)
add_command(app, fsck.fsck, name="fsck", example="topline fsck topline-run")
add_command(app, doctor.doctor, name="doctor", example="topline doctor --schedule")
add_command(app, certs.certs, name="certs", example="topline certs --out certs --host scheduler.example")
