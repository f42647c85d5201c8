"""`topline retrain`, `serve`, `prune`, `forget`, `fsck`, `status`, `dashboard`, `doctor` and `certs`.

They keep a classifier fresh and a store in order.
"""

from __future__ import annotations

import re
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from topline.pipeline.cli.command import Call, Outcome, StoreOption, flow_runner
from topline.pipeline.cli.models import disputed_line
from topline.pipeline.cli.table import FAILURE, SUCCESS, facts, following, metrics_line, table
from topline.pipeline.errors import ConfigError
from topline.pipeline.options import (
    DASHBOARD_PORT,
    RUN_STORE,
    ClusterConfig,
    EvaluateConfig,
    ExtractConfig,
    PromotionRule,
    PruneConfig,
    RetrainConfig,
    RetrainOptions,
    TrainConfig,
    refuse_label_sets,
)
from topline.solvers.counts import how_many

if TYPE_CHECKING:
    from topline.pipeline.jobs import RetrainResult

SECTIONS = "retrain extract train cluster promote evaluate prune"
HIDDEN = frozenset({"dataset", "resume", "certify", "start_from", "confused"})


def retrain(call: Call) -> Outcome:
    """Add new and changed images, retrain from the last model, and promote the result if the rule says so."""
    from topline.pipeline.jobs import retrain as bring_up_to_date

    config = config_of(call)
    result: RetrainResult = call.run(
        "retrain", bring_up_to_date, config=config, cluster=call.config(ClusterConfig)
    )
    return Outcome(result.to_dict(), retraining_lines(result), code=SUCCESS)


def serve(
    call: Call,
    every: Annotated[
        str, typer.Option("--every", help='Cron such as "0 2 * * *", or an interval such as 60s, 15m, 6h')
    ],
    timezone: Annotated[str, typer.Option("--timezone", help="Time zone of the cron schedule")] = "UTC",
    notify: Annotated[
        list[str] | None,
        typer.Option(
            "--notify",
            help="Address to notify of failures and decisions: https://... of a webhook or of Slack, mailto://...;"
            " may be repeated. Put addresses with secrets into TOPLINE_NOTIFY",
        ),
    ] = None,
    mlflow: Annotated[
        str,
        typer.Option(
            "--mlflow",
            help="Record decisions under this registered model of MLflow, on the server MLFLOW_TRACKING_URI",
        ),
    ] = "",
    log: Annotated[
        Path | None,
        typer.Option("--log", help="Log file, rotated, one line per event (default: STORE.serve.log)"),
    ] = None,
    keep_runs: Annotated[
        int,
        typer.Option(
            "--keep-runs",
            min=1,
            help="Runs that Prefect's own server keeps: all of the last hour, none older than 30 days",
        ),
    ] = 500,
) -> Outcome:
    """Retrain on a schedule until Ctrl-C, on its own Prefect server unless one is configured.

    Writes one line per event to standard output and to a file, as JSON with --json.
    """
    parameters = {
        "config": config_of(call),
        "cluster": call.config(ClusterConfig),
        "every": every,
        "timezone": timezone,
        "notify": notify or [],
        "mlflow": mlflow,
        "log": log,
        "as_json": call.json,
        "keep_runs": keep_runs,
        "out": call.out,
    }
    flow_runner()("serve", parameters, call.progress)
    store = call.config(RetrainOptions).store
    lines = ["the schedule has ended", *following(("status", store))]
    return Outcome({"served": every, "store": store}, lines)


def config_of(call: Call) -> RetrainConfig:
    """Return the options of a retraining, from those of its steps."""
    options, images = call.config(RetrainOptions), call.config(ExtractConfig)
    if images.images is None:
        raise ConfigError("--images is missing: name a folder with a folder for each class")
    refuse_label_sets(images)
    split = call.config(EvaluateConfig).split
    if split == "train":
        raise ConfigError("--split train cannot decide on a promotion: use held-out rows, val or test")
    return RetrainConfig(
        **options.model_dump(),
        extract=images,
        train=call.config(TrainConfig),
        promote=call.config(PromotionRule),
        retention=call.config(PruneConfig),
        split=split,
    )


def retraining_lines(result: RetrainResult) -> list[str]:
    """Return the lines that are printed at the end."""
    counts = result.changes.to_dict()
    shown = {
        "images": ", ".join(f"{count:,} {name}" for name, count in counts.items()),
        "dataset": f"{result.dataset} in {result.store}",
        "model": result.model,
    }
    if result.outcome != "unchanged":
        start = result.start
        origin = "zero" if start["from"] == "zero" else f"{start['from']} of {start['model']}"
        gap = "none" if result.relative_gap is None else f"{result.relative_gap:.2e}"
        shown["training"] = f"{how_many(result.passes, 'passes')} from {origin}, relative gap {gap}"
        if result.metrics:
            shown["accuracy"] = metrics_line(result.evaluation)
    shown["champion"] = result.champion or "none"
    if result.evidence.get("disputed"):
        shown["labels"] = disputed_line(result.evidence["disputed"]).removeprefix("labels: ")
    if result.pruned_bytes is not None:
        shown["pruned"] = f"{result.pruned_bytes:,} bytes"
    after = ("inspect", result.model) if result.outcome == "kept" else ("status", result.store)
    reasons = [f"  {reason}" for reason in result.reasons]
    return [*facts(shown), "", f"{result.outcome}:", *reasons, *following(after)]


def fsck(
    _: Call,
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
    harmless = how_many(len(findings) - len(serious), "harmless leftovers")
    verdict = f"{how_many(len(serious), 'faults')}, {harmless}" if findings else "everything is in order"
    lines.append(f"{store}: {verdict}")
    lines += following(("prune", store, "--dry-run") if findings and not serious else ("status", store))
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
        items, size, verb, left = plan.going, plan.bytes, "would be", []
        going = [item.to_json() for item in items]
        payload = {"store": store, "would_go": going, "bytes": size, "staying": plan.staying}
    else:
        done = retention.prune(opened, policy, datetime.now(UTC))
        items, size, verb, left = done.gone, done.bytes, "were", list(done.in_use)
        payload = {"store": store, **done.to_json()}
    rows = [(item.kind, item.name, f"{item.bytes:,}", item.why) for item in items]
    lines = [*table(("kind", "name", "bytes", "why"), rows), ""] if rows else []
    lines.append(f"{how_many(len(items), 'items')}, {size:,} bytes {verb} removed from {store}")
    lines += [f"in use, and left: {item}" for item in left]
    return Outcome(payload, [*lines, *following(("prune" if dry_run and items else "status", store))])


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
        shown["in use"] = f"{', '.join(done.in_use)}: once idle, in a bucket a day later, run topline prune"
    if made is not None:
        shown["trained without them"] = made
    if done.deleted_models:
        shown["deleted models"] = ", ".join(done.deleted_models)
    verdict = "nothing is left of them" if done.clean else "traces of them are left"
    if done.models:
        verdict += ": run this again with --retrain, or with --delete-models"
    lines = [*facts(shown), "", verdict, *following(("status", store))]
    return Outcome({**done.to_dict(), "trained": made}, lines, code=SUCCESS if done.clean else FAILURE)


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
