"""`topline doctor`."""

from __future__ import annotations

from typing import Annotated

import typer

from topline.pipeline.cli.command import Call, Outcome
from topline.pipeline.cli.exits import FAILURE, SUCCESS
from topline.pipeline.cli.table import following


def doctor(
    call: Call,  # noqa: ARG001 - one shape for all
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
    lines += following(("topline", after), hint=hint)
    payload = {"ok": not failed, "checks": [check.to_dict() for check in checks]}
    return Outcome(payload, lines, code=FAILURE if failed else SUCCESS)
