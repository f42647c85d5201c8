"""All commands of `topline`, with an example each, in the order and groups of its help."""

from __future__ import annotations

from importlib.metadata import version
from typing import Annotated, Any

import typer

from topline.pipeline.cli import keeping, looking, making, models, using
from topline.pipeline.cli.command import Handler, add_command

app = typer.Typer(
    name="topline",
    help="Certified top-k classifiers, from a folder of images to a model with a duality gap.",
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
models_app = typer.Typer(name="models", help="List, show, compare, promote and delete the models of a store.")


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


#: Groups of `topline --help`.
STEPS, MODELS, FRESH, CHECKS = "From data to a model", "Models", "Keep a model fresh", "Look and check"


def _add(panel: str, handler: Handler, example: str, sections: str = "", **options: Any) -> None:
    parent = models_app if panel == "" else app
    add_command(parent, handler, f"topline {example}", sections.split(), panel=panel or None, **options)


# fmt: off
_add(STEPS, making.run, "run --images photos --store photos-store",
     "run search extract train cluster evaluate", hidden={"dataset", "resume", "certify"}, flow=True)
_add(STEPS, making.extract, "extract --images photos --store photos-store --backbone hog", "extract cluster",
     flow=True)
_add(STEPS, making.import_, "import --features embeddings.npy --labels labels.npy --store my-store", "import")
_add(STEPS, making.train, "train --store topline-run --auto", "search train cluster",
     flow=True)
_add(STEPS, making.sweep, "sweep --store topline-run --C 1e-3:1e2:11 --k 1,5 --topk 5", "sweep cluster",
     flow=True)
_add(MODELS, making.certify, "certify topline-run/models/m0001")
_add(MODELS, using.evaluate, "evaluate topline-run/models/m0001 --split test", "evaluate", flow=True)
_add(MODELS, using.report, "report topline-run/models/m0001 --output report.html")
_add(MODELS, using.predict, "predict topline-run/models/m0001 --images new-photos --top-k 5",
     "predict cluster")
_add(MODELS, using.inspect, "inspect topline-run/models/m0001 --output suspects.csv", "inspect")
_add(MODELS, using.suggest, "suggest topline-run/models/m0001 --images new-photos --page label.html",
     "suggest")
_add(MODELS, using.export, "export topline-run/models/m0001 --format onnx --output model.onnx",
     "export")
app.add_typer(models_app, rich_help_panel=MODELS)
_add("", models.list_, "models list --store topline-run")
_add("", models.show, "models show topline-run/models/m0001")
_add("", models.compare, "models compare topline-run/models/m0002 topline-run/models/m0001", "evaluate",
     hidden={"confused"})
_add("", models.promote, "models promote topline-run/models/m0002 --by-rule", "promote evaluate",
     hidden={"confused"})
_add("", models.rollback, "models rollback --store topline-run")
_add("", models.archive, "models archive topline-run/models/m0001")
_add("", models.delete, "models delete topline-run/models/m0001")
_add("", models.pin, 'models pin topline-run/models/m0001 --reason "the one in the paper"')
_add("", models.unpin, "models unpin topline-run/models/m0001")
_add(FRESH, keeping.retrain, "retrain --images photos --store photos-store", keeping.SECTIONS,
     hidden=keeping.HIDDEN, flow=True)
_add(FRESH, keeping.serve, 'serve --every "0 2 * * *" --images photos --store photos-store', keeping.SECTIONS,
     hidden=keeping.HIDDEN)
_add(CHECKS, looking.status, "status topline-run")
_add(FRESH, keeping.prune, "prune topline-run --keep 5 --days 7 --dry-run", "prune")
_add(FRESH, keeping.forget, 'forget photos-store --rows cats/0001.jpg --reason "asked to be deleted"',
     "cluster")
_add(CHECKS, looking.dashboard, "dashboard --store topline-run --port 8788")
_add(CHECKS, keeping.fsck, "fsck topline-run")
_add(CHECKS, looking.doctor, "doctor topline-run")
_add(CHECKS, looking.certs, "certs --out certs --host scheduler.example")
# fmt: on
