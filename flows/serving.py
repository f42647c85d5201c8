"""`topline serve`: the flow `retrain` on a schedule, one run at a time, for one machine.

It also tells Prefect's server which runs have lost their process, and which tasks these left.  An automation
of the server marks a run as crashed when its heartbeat stops, whoever serves it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TextIO, cast
from uuid import UUID

import httpx
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import TaskRunFilter, TaskRunFilterState, TaskRunFilterStateType
from prefect.client.schemas.objects import State, StateType
from prefect.deployments.runner import RunnerDeployment
from prefect.exceptions import ObjectNotFound
from prefect.runner import Runner
from prefect.schedules import Cron, Interval, Schedule
from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings
from prefect.states import Cancelled, Crashed
from prefect.types.entrypoint import EntrypointType

from topline.flows.deploying import CRASH_SILENT_RUNS, ensure_automation
from topline.flows.environment import remembering
from topline.flows.following import (
    UNREACHABLE,
    Follower,
    followed,
    in_states,
    of_deployment,
    pauses_of,
    runs_of,
    server_lost,
)
from topline.flows.launching import refuse_credentials, require_server
from topline.flows.local_server import local_server
from topline.flows.retraining import renew_waiting_runs, retrain
from topline.pipeline.errors import ConfigError
from topline.pipeline.images import check_images_exist
from topline.pipeline.jobs import LEASE
from topline.pipeline.notices import Kind, Notice, NoticeLog, addresses, told
from topline.pipeline.options import ClusterConfig, RetrainConfig
from topline.pipeline.progress import Progress, begin
from topline.pipeline.telemetry import ANCHOR, CronLine, Note, interval_of, next_time, pulse, zone_of
from topline.storage.records import digest_bytes
from topline.storage.stores import DEFAULT_TERMS, Lease, LeaseHeldError, Store, held_lease, open_store

logger = logging.getLogger(__name__)

_ALIVE = [StateType.RUNNING, StateType.PENDING, StateType.CANCELLING]
# In these states a process has not reported the outcome of its tasks.
_CUT_OFF = [StateType.CRASHED, StateType.CANCELLED]


def crash_killed_runs(deployment: UUID, store_url: str) -> int:
    """Mark a deployment's runs without a process as crashed, and return their number."""
    died: State[Any] = Crashed(message="its process died; noticed when the schedule was served again")
    try:
        with (
            held_lease(open_store(store_url, create=True), LEASE, "topline serve"),
            get_client(sync_client=True) as client,
        ):
            found = client.read_flow_runs(
                flow_run_filter=in_states(_ALIVE), deployment_filter=of_deployment(deployment)
            )
            for run in found:
                client.set_flow_run_state(run.id, died, force=True)
            return len(found)
    except LeaseHeldError as error:
        logger.warning("%s", error)
        return 0


def cancel_interrupted_runs(runs: Iterable[UUID], ended_by: str) -> int:
    """Mark the runs interrupted by the end of serving as cancelled, and return their number."""
    why = f"interrupted: the serving was ended by {ended_by}; the next run does its work"
    cancelled: State[Any] = Cancelled(message=why)
    count = 0
    with _marking("interrupted runs"), get_client(sync_client=True) as client:
        for number in runs:
            before = client.read_flow_run(number).state
            if before is not None and before.type in _ALIVE:
                client.set_flow_run_state(number, cancelled, force=True)
                count += 1
    return count


def crash_orphaned_tasks(deployment: UUID) -> int:
    """Mark running tasks of crashed and cancelled runs as crashed, and return their number."""
    wanted: dict[str, Any] = {
        "flow_run_filter": in_states(_CUT_OFF),
        "task_run_filter": TaskRunFilter(state=TaskRunFilterState(type=TaskRunFilterStateType(any_=_ALIVE))),
        "deployment_filter": of_deployment(deployment),
    }
    gone: State[Any] = Crashed(message="its run has ended, and its process is gone")
    marked: set[UUID] = set()
    with _marking("tasks of runs that were cut off"), get_client(sync_client=True) as client:
        # The server answers in pages without marked tasks, though a slow one may repeat them.
        while fresh := {task.id for task in client.read_task_runs(**wanted, offset=0)} - marked:
            for task in fresh:
                client.set_task_run_state(task, gone, force=True)
            marked |= fresh
    return len(marked)


@contextmanager
def _marking(what: str) -> Iterator[None]:
    """Warn if the server does not answer: the next serving marks what is left."""
    try:
        yield
    except UNREACHABLE as error:
        logger.warning("%s are not marked as such: %s", what, error)


LEAST_SECONDS = 10

# First pause before a lost server is asked again, doubled each time up to the longest.
FIRST_PAUSE, LONGEST_PAUSE = 5.0, 300.0

#: Runs that Prefect's server remembers, within an hour to 30 days.
KEPT_RUNS = 500
LONGEST_KEPT, SHORTEST_KEPT = timedelta(days=30), timedelta(hours=1, seconds=1)


@dataclass(frozen=True, eq=False)
class Serving:
    """How a schedule is served: when, who is told, and what is kept.

    Every event is a line on `out` and in the file `log` (default: `log_file` of the store), JSON if
    `as_json`; important ones go to the addresses `notify` and those of the environment, and decisions to the
    registered model `mlflow` of MLflow, if named.  Our own server remembers `keep_runs` runs.
    """

    every: str
    timezone: str = "UTC"
    notify: Sequence[str] = ()
    mlflow: str = ""
    log: Path | None = None
    as_json: bool = False
    keep_runs: int = KEPT_RUNS
    out: TextIO | None = None


def serve_retraining(
    config: RetrainConfig, cluster: ClusterConfig, how: Serving, progress: Progress | None = None
) -> None:
    """Run the flow `retrain` on its schedule until Ctrl-C or SIGTERM.

    Without a configured server, starts our own.  The schedule stays active afterwards: runs missed in the
    meantime are coalesced into the next one.  Raises `LeaseHeldError` if another process serves the store.
    """
    schedule = schedule_of(how.every, how.timezone)
    # The processes that Prefect starts have another working directory.
    images, url = config.extract.images, config.store
    extract = config.extract.model_copy(update={"images": images and str(Path(images).absolute())})
    url = url if "://" in url else str(Path(url).absolute())
    config = config.model_copy(update={"extract": extract, "store": url})
    refuse_credentials({"config": config, "cluster": cluster})
    to = addresses(how.notify, os.environ)
    # A mistyped path would fail every night.
    check_images_exist(str(config.extract.images))
    store = open_store(config.store, create=True)
    log = NoticeLog(how.out or sys.stdout, how.log or log_file(config.store), as_json=how.as_json)
    alone, told_to = _alone(store), told(to, how.mlflow)
    with closing(log), told_to as tell, alone, pulse(store, how.every, how.timezone) as note:

        def say(notice: Notice) -> None:
            log.write(notice)
            tell(notice)
            note_of(notice, note)

        kept = kept_for(how.every, how.timezone, how.keep_runs)
        served = _Served(config, cluster, schedule, how.every, kept, say)
        with _reporting_end(served, store):
            _serve_somewhere(served, progress)


def note_of(notice: Notice, note: Note) -> None:
    """Record in the store what an event says about its schedule."""
    when, facts = notice.when, notice.facts
    if "reachable" in facts:
        note(lambda known: replace(known, lost="" if facts["reachable"] else known.lost or when))
    if "paused" in facts:
        note(lambda known: replace(known, paused=when if facts["paused"] else ""))
    if "flow_run" in facts and notice.kind in (Kind.FAILED, Kind.FAILED_AGAIN, Kind.FINISHED):
        failure = "" if notice.kind is Kind.FINISHED else notice.text[:300] or "a run failed"
        note(lambda known: known.after(when, failure))


def _alone(store: Store) -> AbstractContextManager[Lease]:
    """Serve a store exclusively; after a kill, a lease without locks is free within `wait`."""
    wait = 0.0 if store.locks else DEFAULT_TERMS.beat + DEFAULT_TERMS.expiry
    return held_lease(store, "serve", "topline serve", wait=wait)


@dataclass(frozen=True, eq=False)
class _Served:
    """The served retraining, and the recipients of its notices."""

    config: RetrainConfig
    cluster: ClusterConfig
    schedule: Schedule
    every: str
    kept_for: timedelta
    say: Callable[[Notice], None]


@contextmanager
def _reporting_end(served: _Served, store: Store) -> Iterator[None]:
    """Report how serving ended: by SIGTERM, by Ctrl-C or by an error."""
    by = "an error"
    try:
        yield
        by = "SIGTERM"
    except KeyboardInterrupt:
        by = "Ctrl-C"
        raise
    except Exception as error:
        served.say(Notice(Kind.FAILED, store.url, f"serving ended: {type(error).__name__}: {error}"))
        raise
    finally:
        served.say(Notice(Kind.ENDED, store.url, f"by {by}: the schedule is not served any more"))


def _serve_somewhere(served: _Served, progress: Progress | None) -> None:
    """Serve on the configured server, or on our own, which is restarted whenever it ends."""
    server = PREFECT_API_URL.value()
    if server:
        require_server(server)
        return _serve_persistently(served, progress, server)
    begin(progress, "start a Prefect server on this machine")
    with local_server(remembering(os.environ, served.kept_for)) as own:
        reached = {PREFECT_API_URL: own.url, PREFECT_API_AUTH_STRING: own.password}
        with temporary_settings(reached):
            return _serve_persistently(served, progress, own.url, own.kept_in)


def _serve_persistently(
    served: _Served, progress: Progress | None, server: str, password_in: Path | None = None
) -> None:
    """Serve on a server that answers, and retry a lost one with growing pauses."""
    pause = 0.0
    while True:
        begun = time.monotonic()
        try:
            _serve(served, progress, server, password_in)
        except Exception as error:
            if not is_lost_server(error):
                raise
            again = pause > 0.0 and time.monotonic() - begun <= LONGEST_PAUSE
            if not again:
                # Once per loss, not at every try.
                served.say(server_lost(served.config.store, error))
        else:
            return
        pause = min(2 * pause, LONGEST_PAUSE) if again else FIRST_PAUSE
        time.sleep(pause)


def is_lost_server(error: BaseException) -> bool:
    """Return whether an error, or every one of a group, means that a server does not answer."""
    if isinstance(error, BaseExceptionGroup):
        return all(is_lost_server(one) for one in error.exceptions)
    return isinstance(error, (httpx.HTTPError, *UNREACHABLE))


def _serve(served: _Served, progress: Progress | None, server: str, password_in: Path | None = None) -> None:
    """Serve on a server; our own keeps its password in the file `password_in`."""
    config = served.config
    name = deployment_name(config)
    runner = OrderlyRunner(name=name, limit=1, pause_on_shutdown=False)
    ensure_automation(CRASH_SILENT_RUNS)
    parameters = {
        # Unset options are taken from the champion at the time of the run.
        "config": config.model_dump(mode="json", exclude_unset=True),
        "cluster": served.cluster.model_dump(mode="json"),
    }
    planned = retrain.to_deployment(
        name,
        schedule=served.schedule,
        parameters=parameters,
        description=f"Retrains {config.store} from {config.extract.images}: {served.every}",
        tags=["topline"],
        entrypoint_type=EntrypointType.MODULE_PATH,
    )
    # `add_flow` would pickle the flow for its processes, where its parameters' types are missing.
    deployment = cast("UUID", runner.add_deployment(cast("RunnerDeployment", planned)))
    renew_waiting_runs(deployment, parameters)
    if password_in is not None:
        # Nobody else runs the flow: a run that seems alive while nobody holds the store was killed.
        crash_killed_runs(deployment, config.store)
    page = server.removesuffix("/api")
    password = "" if password_in is None else f" (password in {password_in})"
    # On its own line: a progress bar truncates to the terminal's width, and a log file has no bar.
    sys.stderr.write(f"serving {config.store}; {page}{password} shows its runs; Ctrl-C ends it\n")
    sys.stderr.flush()
    facts = {"server": page, "every": served.every, "reachable": True, "paused": False}
    text = f"{config.store} is retrained from {config.extract.images}: {served.every}; {page} shows its runs"
    served.say(Notice(Kind.SERVING, config.store, text, facts))
    begin(progress, "serve")
    crash_orphaned_tasks(deployment)

    def say(notice: Notice) -> None:
        served.say(notice)
        if notice.kind in (Kind.FAILED, Kind.FAILED_AGAIN, Kind.CANCELLED):
            crash_orphaned_tasks(deployment)

    follower = Follower(open_store(config.store), runs_of(deployment), pauses_of(deployment))
    with followed(follower, say):
        try:
            runner.run()
        finally:
            cancel_interrupted_runs(runner.interrupted, runner.ended_by)
            crash_orphaned_tasks(deployment)


def log_file(store_url: str) -> Path:
    """Return the log file of a served store: beside it, or here for an object store."""
    name = f"{_last_name(store_url)}.serve.log"
    return Path(name) if "://" in store_url else Path(store_url).with_name(name)


def schedule_of(every: str, timezone: str = "UTC") -> Schedule:
    """Return the schedule of "0 2 * * *", "60s", "15m", "6h" or "1d"; raise `ConfigError` for others."""
    text = every.strip()
    interval = interval_of(text)
    if interval is not None:
        if interval.total_seconds() < LEAST_SECONDS:
            raise ConfigError(f"--every {every} is too often: give {LEAST_SECONDS}s or more")
        return Interval(interval, anchor_date=ANCHOR)
    try:
        zone_of(timezone)
        line = CronLine.of(text)
    except ConfigError as error:
        raise ConfigError(
            f"--every {every!r} with --timezone {timezone!r} is not a schedule: {error}; write cron such as"
            ' "0 2 * * *", or an interval such as 60s, 15m or 6h'
        ) from error
    return Cron(line.plain, timezone=timezone, day_or=line.day_or)


def kept_for(every: str, timezone: str, runs: int) -> timedelta:
    """Return how long Prefect's server must remember runs to know the last `runs` of a schedule."""
    first = time = next_time(every, timezone, datetime.now(UTC))
    for _ in range(runs):
        time = None if time is None else next_time(every, timezone, time)
        if first is None or time is None or time - first >= LONGEST_KEPT:
            return LONGEST_KEPT
    return LONGEST_KEPT if first is None or time is None else max(SHORTEST_KEPT, time - first)


def deployment_name(config: RetrainConfig) -> str:
    """Return the name of a store's deployment: the last part of its URL, and a digest if that is taken."""
    name = _last_name(config.store)
    try:
        with get_client(sync_client=True) as client:
            taken = client.read_deployment_by_name(f"{retrain.name}/{name}").parameters
    except ObjectNotFound:
        return name
    other = taken.get("config", {}).get("store", config.store)
    return name if other == config.store else f"{name}-{digest_bytes(config.store.encode())[:8]}"


def _last_name(url: str) -> str:
    return url.rstrip("/").rpartition("/")[2] or "store"


class OrderlyRunner(Runner):
    """A runner whose loop SIGTERM cancels, and which knows what it interrupted.

    Prefect's own handler raises inside the loop, which asyncio reports at length.  Prefect kills the runs of
    a cancelled loop, but leaves them running on the server.
    """

    #: Flow runs in progress when serving ended.
    interrupted: frozenset[UUID] = frozenset()
    #: What ended the serving.
    ended_by = "an error"

    _cancel: Any = None
    _terminated = False

    def run(self) -> None:
        """Serve until SIGTERM, then return; Ctrl-C raises as usual."""
        try:
            asyncio.run(self._served())
            self.ended_by = "SIGTERM"
        except (KeyboardInterrupt, BaseExceptionGroup) as error:
            # A second Ctrl-C is raised inside the loop's task groups, which wrap it in a group.
            if isinstance(error, BaseExceptionGroup) and error.subgroup(KeyboardInterrupt) is None:
                raise
            self.ended_by = "Ctrl-C"
            raise KeyboardInterrupt from error

    def handle_sigterm(self, *args: Any, **kwargs: Any) -> None:  # noqa: ARG002 - the signature of Prefect's
        """Handle the signal; `start` installs this."""
        self._terminated = True
        self._cancel()

    async def __aexit__(self, *exc_info: object) -> None:
        """Leave as Prefect does, ending the processes of the runs."""
        self.interrupted = frozenset(self._scheduled_run_poller._submitting_flow_run_ids)
        await super().__aexit__(*exc_info)

    async def _served(self) -> None:
        loop, serving = asyncio.get_running_loop(), asyncio.ensure_future(self.start())
        loop.set_exception_handler(_report_unhandled)
        self._cancel = lambda: loop.call_soon_threadsafe(serving.cancel)
        try:
            await serving
        except asyncio.CancelledError:
            if not self._terminated:
                raise


def _report_unhandled(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Report asyncio's unhandled errors, except that of Prefect's observer about its own end."""
    if not isinstance(context.get("exception"), asyncio.CancelledError):
        loop.default_exception_handler(context)
