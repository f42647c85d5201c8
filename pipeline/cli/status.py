"""`topline status`: how a store stands, and whether its schedule is alive."""

from __future__ import annotations

from typing import Annotated

import typer

from topline.pipeline.cli.command import Call, Outcome
from topline.pipeline.cli.exits import FAILURE, SUCCESS
from topline.pipeline.cli.table import facts, following
from topline.pipeline.options import RUN_STORE


def status(
    call: Call,  # noqa: ARG001 - one shape for all
    store: Annotated[str, typer.Argument(metavar="[URL]", help="Store to look at")] = RUN_STORE,
) -> Outcome:
    """Show the state of a store: champion, last run, challenger, schedule, damaged models, disk space.

    Exits with 1 for what somebody must look at: damage, or a schedule that is dead, overdue, paused, failing,
    without its server or ended by an error.
    """
    from topline.pipeline.dashboard import store_status
    from topline.storage.stores import open_store

    found = store_status(open_store(store))
    payload = {"store": store, **found.health, "lines": dict(found.lines)}
    after: list[tuple[str, ...]] = [("topline", "dashboard", "--store", store)]
    if found.unfinished is not None:
        after.insert(0, ("topline", "train", "--store", store, "--resume", found.unfinished))
    lines = [*facts(found.lines), *following(*after)]
    return Outcome(payload, lines, code=SUCCESS if found.healthy else FAILURE)
