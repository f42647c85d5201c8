"""`topline fsck`, `doctor` and `certs`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from topline.pipeline.cli.command import Call, Outcome
from topline.pipeline.cli.exits import FAILURE, SUCCESS
from topline.pipeline.cli.table import facts


def fsck(
    call: Call,  # noqa: ARG001 - one shape for all
    store: Annotated[str, typer.Argument(metavar="URL", help="Store to verify")],
    quick: Annotated[bool, typer.Option("--quick", help="Sizes only, without reading every byte")] = False,
) -> Outcome:
    """Verify a store: files, checksums, shapes, labels, runs and models whose data is gone."""
    from topline.storage.errors import NotFoundError
    from topline.storage.stores.opening import open_store
    from topline.storage.verification import verify_store

    opened = open_store(store)
    if not opened.list():
        raise NotFoundError(f"{store} is empty, so there is nothing to verify: check the path")
    findings = verify_store(opened, deep=not quick)
    serious = [finding for finding in findings if not finding.harmless]
    lines = [f"{'leftover' if finding.harmless else 'DAMAGE'}  {finding}" for finding in findings]
    lines.append(
        f"{store}: {len(serious)} faults, {len(findings) - len(serious)} harmless leftovers"
        if findings
        else f"{store}: everything is in order"
    )
    payload = {"store": store, "ok": not serious, "findings": [finding.to_json() for finding in findings]}
    return Outcome(payload, lines, code=FAILURE if serious else SUCCESS)


def doctor(
    call: Call,  # noqa: ARG001 - one shape for all
    schedule: Annotated[
        bool,
        typer.Option("--schedule", help="Also wait for a schedule of a Prefect server to fire (minutes)"),
    ] = False,
) -> Outcome:
    """Prove the installation: versions, threads, a model trained, a store written and read, a cluster."""
    from topline.pipeline.doctor.probes import run_checks

    checks = run_checks(schedule=schedule)
    width = max((len(check.name) for check in checks), default=0)
    lines = []
    for check in checks:
        lines.append(
            f"{'ok  ' if check.ok else 'FAIL'}  {check.name:<{width}}  {check.detail} ({check.seconds:.1f} s)"
        )
        if not check.ok:
            lines.append(f"      {'':<{width}}  mend: {check.mend}")
    failed = [check for check in checks if not check.ok]
    lines.append(f"{len(failed)} of {len(checks)} checks failed" if failed else "everything works")
    payload = {"ok": not failed, "checks": [check.to_dict() for check in checks]}
    return Outcome(payload, lines, code=FAILURE if failed else SUCCESS)


def certs(
    call: Call,  # noqa: ARG001 - one shape for all
    out: Annotated[Path, typer.Option("--out", help="New folder for the certificates and keys")],
    host: Annotated[
        list[str] | None, typer.Option("--host", help="Name or address of a machine of the cluster (repeat)")
    ] = None,
    days: Annotated[int, typer.Option("--days", min=1, max=3650, help="Days until they expire")] = 365,
) -> Outcome:
    """Make the certificates and keys for a Dask cluster over TLS, and Dask's configuration of them."""
    from topline.pipeline.cluster.tls import make_certificates

    made = make_certificates(out, host or [], days)
    until = made.expires.date().isoformat()
    payload = {"config": str(made.config), "hosts": list(made.hosts), "expires": made.expires.isoformat()}
    shown = {"certificates": f"{made.folder}, until {until}", "hosts": ", ".join(made.hosts)}
    following = f"  next: export DASK_CONFIG={made.config}   for the scheduler, the workers and topline"
    return Outcome(payload, [*facts(shown), "", following])
