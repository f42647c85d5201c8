"""`topline fsck`, `prune` and `forget`: a store that is checked, kept small, and rid of what must go."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from topline.pipeline.cli.command import Call, Outcome
from topline.pipeline.cli.exits import FAILURE, SUCCESS
from topline.pipeline.cli.table import facts, following, table
from topline.pipeline.errors import ConfigError
from topline.pipeline.options import ClusterConfig, PruneConfig
from topline.solvers.counts import how_many

if TYPE_CHECKING:
    from topline.storage.retention import Going


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
        f"{store}: {how_many(len(serious), 'faults')},"
        f" {how_many(len(findings) - len(serious), 'harmless leftovers')}"
        if findings
        else f"{store}: everything is in order"
    )
    lines += following(
        ("topline", "prune", store, "--dry-run") if findings and not serious else ("topline", "status", store)
    )
    payload = {"store": store, "ok": not serious, "findings": [finding.to_json() for finding in findings]}
    return Outcome(payload, lines, code=FAILURE if serious else SUCCESS)


def prune(
    call: Call,
    store: Annotated[str, typer.Argument(metavar="STORE", help="Store to prune")],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be removed, and change nothing")
    ] = False,
) -> Outcome:
    """Remove models, runs, datasets and files that the retention rule does not keep and nobody is reading.

    Kept are the champion, the model that a rollback would restore, pinned models; the newest --keep
    of each kind and what is younger than --days; runs of these models; datasets of these models, runs and
    sweeps; and whatever is in use at the moment.
    """
    from datetime import UTC, datetime

    from topline.storage import retention
    from topline.storage.stores import open_store

    rule = call.config(PruneConfig)
    policy, opened = retention.RetentionPolicy(rule.keep, rule.days), open_store(store)
    if dry_run:
        plan = retention.plan_pruning(opened, policy, datetime.now(UTC))
        lines = [
            *_lines(plan.going),
            f"{how_many(len(plan.going), 'items')}, {plan.bytes:,} bytes would be removed from {store}",
        ]
        lines += following(("topline", "prune" if plan.going else "status", store))
        going = [item.to_json() for item in plan.going]
        payload = {"store": store, "would_go": going, "bytes": plan.bytes, "staying": plan.staying}
        return Outcome(payload, lines)
    done = retention.prune(opened, policy, datetime.now(UTC))
    lines = [
        *_lines(done.gone),
        f"{how_many(len(done.gone), 'items')}, {done.bytes:,} bytes were removed from {store}",
    ]
    lines += [f"in use, and left: {item}" for item in done.in_use]
    lines += following(("topline", "status", store))
    return Outcome({"store": store, **done.to_json()}, lines)


def _lines(items: Iterable[Going]) -> list[str]:
    rows = [(item.kind, item.name, f"{item.bytes:,}", item.why) for item in items]
    return [*table(("kind", "name", "bytes", "why"), rows), ""] if rows else []


def forget(
    call: Call,
    store: Annotated[str, typer.Argument(metavar="STORE", help="Store to remove rows from")],
    rows: Annotated[
        str,
        typer.Option(
            "--rows", help="Sample ids or SHA-256 of files, with commas, or a file with one per line"
        ),
    ],
    reason: Annotated[str, typer.Option("--reason", help="Why, for the log of datasets")] = "",
    delete_models: Annotated[
        bool, typer.Option("--delete-models", help="Delete the models that learned them, a champion too")
    ] = False,
    retrain: Annotated[
        bool,
        typer.Option(
            "--retrain", help="Train without the rows first, and promote that in a champion's place"
        ),
    ] = False,
) -> Outcome:
    """Remove rows, and all with the same content, from every dataset version, and check that they are gone.

    The newest dataset is stored again without them, and older ones that hold them are removed.  Models that
    learned them are named, and the exit code is 1 as long as there are any: --retrain trains with their
    settings without the rows and deletes them; --delete-models deletes them alone.  Models that did not learn
    the rows work on.  The images themselves are not touched.
    """
    from topline.pipeline.ingest import Edits
    from topline.pipeline.ingest import forget as remove
    from topline.pipeline.jobs import trained_without
    from topline.pipeline.registry import delete
    from topline.storage.stores.urls import join

    ids = Edits.read(rows, None).without
    if not ids:
        raise ConfigError("--rows names no row: give comma-separated sample ids, or a file of them")
    done = remove(store, ids, reason or "rows were to be forgotten")
    made = None
    if retrain and done.models:
        made = trained_without(done.store, done.models, call.config(ClusterConfig), call.progress)
    if delete_models or made is not None:
        for model in done.models:
            why = f"it learned rows that were to be forgotten: {reason}".removesuffix(": ")
            delete(join(done.store, "models", model), reason=why, force=True, at_once=True)
        done = replace(done, models=(), deleted_models=done.models)
    shown = {
        "rows": f"{done.rows:,} in {how_many(len(done.removed), 'versions')}",
        "removed": ", ".join(done.removed),
        "stored again": done.kept_as or "nothing",
        "freed": f"{done.bytes:,} bytes",
        "files that name them": ", ".join(done.mentions) or "none",
        "models that learned them": ", ".join(done.models) or "none",
    }
    if done.in_use:
        shown["in use"] = f"{', '.join(done.in_use)}: run topline prune once nobody reads them"
    if made is not None:
        shown["trained without them"] = made
    if done.deleted_models:
        shown["deleted models"] = ", ".join(done.deleted_models)
    verdict = "nothing is left of them" if done.clean else "traces of them are left"
    if done.models:
        verdict += ": run this again with --retrain, or with --delete-models"
    lines = [*facts(shown), "", verdict, *following(("topline", "status", store))]
    return Outcome({**done.to_dict(), "trained": made}, lines, code=SUCCESS if done.clean else FAILURE)
