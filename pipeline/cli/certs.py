"""`topline certs`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from topline.pipeline.cli.command import Call, Outcome
from topline.pipeline.cli.table import facts, following


def certs(
    call: Call,  # noqa: ARG001 - one shape for all
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
    after = following(
        ("export", f"DASK_CONFIG={made.config}"), hint="for the scheduler, the workers and topline"
    )
    return Outcome(payload, [*facts(shown), *after])
