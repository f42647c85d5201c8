"""`topline dashboard`: pages of runs and models, served or written to a file."""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from topline.pipeline.cli.arguments import StoreOption
from topline.pipeline.cli.command import Call, Outcome
from topline.pipeline.cli.table import facts, following
from topline.pipeline.options import DASHBOARD_PORT, RUN_STORE

_NAME_IN_STORE = re.compile(r"[rms]\d+")

RunArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="RUN",
        help="A run such as r0001 or STORE/runs/r0001, a model such as m0001 or a sweep such as s0001"
        ", or a store (default: runs and models)",
    ),
]


def dashboard(
    call: Call,  # noqa: ARG001 - one shape for all
    run: RunArgument = None,
    store: StoreOption = RUN_STORE,
    port: Annotated[
        int | None,
        typer.Option(
            help=f"Port to serve at (default: {DASHBOARD_PORT}, or a free one); 0 takes a free one",
            min=0,
            max=65535,
        ),
    ] = None,
    host: Annotated[str, typer.Option(help="Address to serve at")] = "127.0.0.1",
    allow_remote: Annotated[
        bool,
        typer.Option("--allow-remote", help="Allow other machines: everybody who reaches the port may read"),
    ] = False,
    out: Annotated[Path | None, typer.Option(help="Write one page that needs no server to this file")] = None,
) -> Outcome:
    """Show live and finished runs, and the models they made, as pages; never writes to the store."""
    if run is not None and not _NAME_IN_STORE.fullmatch(run.rpartition("/")[2]):
        store, run = run, None
    elif run is not None and "/" in run:
        from topline.storage.stores import split_url

        store, run = split_url(run, _folder(run.rpartition("/")[2]))
    if out is not None:
        return _write(store, run, out)
    return _serve(store, run, host, port, allow_remote=allow_remote)


def _folder(name: str) -> str:
    """Return the folder of what has this name."""
    return {"m": "models", "s": "sweeps"}.get(name[:1], "runs")


def _write(store: str, run: str | None, out: Path) -> Outcome:
    from topline.pipeline.dashboard import write_page

    place = write_page(store, run, out)
    after = following(("topline", "dashboard", "--store", store), hint="shows it live")
    return Outcome({"store": store, "run": run, "page": place}, [*facts({"page": place}), *after])


def _serve(store: str, run: str | None, host: str, port: int | None, *, allow_remote: bool) -> Outcome:
    from topline.pipeline.dashboard import serve_dashboard
    from topline.pipeline.interrupts import stop_on_signals
    from topline.storage.models import load_model
    from topline.storage.runs import read_run, read_sweep
    from topline.storage.stores import open_store

    opened = open_store(store)
    folder = _folder(run or "")
    if run is not None and folder == "models":
        load_model(f"{opened.url}/models/{run}")
    elif run is not None:
        (read_sweep if folder == "sweeps" else read_run)(opened, run)
    with (
        stop_on_signals() as flag,
        serve_dashboard(opened, host=host, port=port, allow_remote=allow_remote) as url,
    ):
        address = url if run is None else f"{url}{folder}/{run}"
        if allow_remote:
            sys.stderr.write("warning: everybody who reaches this port can read it; there is no password\n")
        sys.stderr.write(f"{store} is shown at {address} until Ctrl-C\n")
        sys.stderr.flush()
        while not flag:
            time.sleep(0.2)
    return Outcome({"store": store, "run": run, "url": address}, [])
