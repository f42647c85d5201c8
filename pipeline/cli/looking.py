"""`topline status`, `dashboard`, `doctor` and `certs`: look at a store and a machine, and check them."""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from topline.pipeline.cli.command import Call, Outcome, StoreOption
from topline.pipeline.cli.exits import FAILURE, SUCCESS
from topline.pipeline.cli.table import facts, following
from topline.pipeline.options import DASHBOARD_PORT, RUN_STORE


def status(
    _: Call, store: Annotated[str, typer.Argument(metavar="[URL]", help="Store to look at")] = RUN_STORE
) -> Outcome:
    """Show the state of a store: champion, last run, challenger, schedule, damaged models, disk space.

    Exits with 1 for what somebody must look at: damage, or a schedule that is dead, overdue, paused, failing,
    without its server or ended by an error.
    """
    from topline.pipeline.dashboard import store_status
    from topline.storage.stores import open_store

    found = store_status(open_store(store))
    payload = {"store": store, **found.health, "lines": dict(found.lines)}
    after: list[tuple[str, ...]] = [("dashboard", "--store", store)]
    if found.unfinished is not None:
        after.insert(0, ("train", "--store", store, "--resume", found.unfinished))
    lines = [*facts(found.lines), *following(*after)]
    return Outcome(payload, lines, code=SUCCESS if found.healthy else FAILURE)


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
    _: Call,
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
        from topline.pipeline.dashboard import write_page

        place = write_page(store, run, out)
        after = following(("dashboard", "--store", store), hint="shows it live")
        return Outcome({"store": store, "run": run, "page": place}, [*facts({"page": place}), *after])
    return _serve(store, run, host, port, allow_remote=allow_remote)


def _folder(name: str) -> str:
    """Return the folder of what has this name."""
    return {"m": "models", "s": "sweeps"}.get(name[:1], "runs")


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


def doctor(
    _: Call,
    store: Annotated[
        str | None,
        typer.Argument(metavar="[STORE]", help="Store whose place is tried too: a folder or a bucket"),
    ] = None,
    schedule: Annotated[
        bool,
        typer.Option("--schedule", help="Also wait for a schedule of a Prefect server to fire (minutes)"),
    ] = False,
) -> Outcome:
    """Check the installation: versions, threads, a small training, a cluster, the place of a store."""
    from topline.pipeline.doctor import run_checks

    checks = run_checks(schedule=schedule, store=store)
    width = max((len(check.name) for check in checks), default=0)
    lines = []
    for check in checks:
        lines.append(
            f"{'ok  ' if check.ok else 'FAIL'}  {check.name:<{width}}  {check.detail} ({check.seconds:.1f} s)"
        )
        if not check.ok:
            lines.append(f"      {'':<{width}}  fix: {check.fix}")
    failed = [check for check in checks if not check.ok]
    lines.append(f"{len(failed)} of {len(checks)} checks failed" if failed else "everything works")
    after, hint = ("doctor", "once that is fixed") if failed else ("run", "")
    lines += following((after,), hint=hint)
    payload = {"ok": not failed, "checks": [check.to_dict() for check in checks]}
    return Outcome(payload, lines, code=FAILURE if failed else SUCCESS)


def certs(
    _: Call,
    out: Annotated[Path, typer.Option("--out", help="New folder for the certificates and keys")],
    host: Annotated[
        list[str] | None, typer.Option("--host", help="Name or address of a machine of the cluster (repeat)")
    ] = None,
    days: Annotated[int, typer.Option("--days", min=1, max=3650, help="Days until they expire")] = 365,
) -> Outcome:
    """Create TLS certificates and keys for a Dask cluster, with Dask's configuration for them."""
    from topline.pipeline.cluster.tls import make_tls_files

    made = make_tls_files(out, host or [], days)
    until = made.expires.date().isoformat()
    payload = {"config": str(made.config), "hosts": list(made.hosts), "expires": made.expires.isoformat()}
    shown = {"certificates": f"{made.folder}, until {until}", "hosts": ", ".join(made.hosts)}
    hint = "for the scheduler, the workers and topline"
    after = following((f"DASK_CONFIG={made.config}",), hint=hint, program="export")
    return Outcome(payload, [*facts(shown), *after])
