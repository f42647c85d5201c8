"""`topline fsck`."""

from __future__ import annotations

from typing import Annotated

import typer

from topline.pipeline.cli.command import Call, Outcome
from topline.pipeline.cli.exits import FAILURE, SUCCESS


def fsck(
    call: Call,  # noqa: ARG001 - one shape for all
    store: Annotated[str, typer.Argument(metavar="URL", help="Store to verify")],
    quick: Annotated[bool, typer.Option("--quick", help="Sizes only, without reading every byte")] = False,
) -> Outcome:
    """Verify a store: files, checksums, shapes, labels, runs, and models whose data is gone."""
    from topline.storage.errors import NotFoundError
    from topline.storage.stores import open_store
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
