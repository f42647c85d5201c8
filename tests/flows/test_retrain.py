"""Retraining as a flow: schedules, missed runs, overlaps, and the automation for runs that were killed."""

from __future__ import annotations

import asyncio
import io
import json
import os
import signal
import threading
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import httpx
import pytest
from prefect import flow, task
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import DeploymentFilter, DeploymentFilterId
from prefect.client.schemas.objects import StateType
from prefect.deployments.runner import RunnerDeployment
from prefect.flow_engine import run_flow
from prefect.states import Cancelled, Completed, Crashed, Running, Scheduled
from prefect.types.entrypoint import EntrypointType

from tests.flows.endless import endless
from tests.pipeline.pictures import photographs
from topline.flows import retraining, serving, tasks
from topline.flows.following import server_lost
from topline.flows.local_server import LocalServer
from topline.flows.retraining import coalesce_missed_runs, retrain
from topline.flows.serving import OrderlyRunner, schedule_of
from topline.pipeline.errors import ConfigError, InputError
from topline.pipeline.jobs import LEASE
from topline.pipeline.options import ClusterConfig, ExtractConfig, PromotionRule, RetrainConfig, TrainConfig
from topline.pipeline.registry import Decision, Evidence, Weighing
from topline.pipeline.telemetry import ANCHOR, next_time
from topline.storage.models import Standing, read_standing
from topline.storage.served_schedule import read_schedule
from topline.storage.stores import LeaseHeldError, held_lease, holder, open_store

HERE = ClusterConfig(workers=0)


@task
def step() -> None:
    """Stand for a step of a run."""


@pytest.mark.parametrize(("every", "seconds"), [("60s", 60), ("15m", 900), (" 6 h", 21600), ("1d", 86400)])
def test_times_are_intervals_that_a_restart_does_not_move(every: str, seconds: int) -> None:
    schedule = schedule_of(every)
    assert (schedule.interval, schedule.anchor_date) == (timedelta(seconds=seconds), ANCHOR)


def test_anything_else_is_cron_or_refused() -> None:
    night = schedule_of("0 2 * * *", "Europe/Berlin")
    assert (night.cron, night.timezone) == ("0 2 * * *", "Europe/Berlin")
    for every, timezone in (
        ("nightly", "UTC"),
        ("0 2 * *", "UTC"),
        ("0 0 2 * * *", "UTC"),
        ("0 2 31 2 *", "UTC"),
        ("0 2 L * *", "UTC"),
        ("0 2 * * fri#2", "UTC"),
        ("61 * * * *", "UTC"),
        ("0 2 * * *", "Mars/Base"),
        ("0 2 * * *", ""),
    ):
        with pytest.raises(ConfigError, match=r"is not a schedule: .*; write cron such as"):
            schedule_of(every, timezone)
    with pytest.raises(ConfigError, match="is too often: give 10s or more"):
        schedule_of("1s")


#: Zones, each with days before their clocks change.
CLOCKS = {
    "UTC": ["2026-01-01"],
    "Asia/Kolkata": ["2026-01-01"],
    "Europe/Berlin": ["2026-03-28", "2026-10-24"],
    "Europe/London": ["2026-03-28", "2026-10-24"],
    "America/Havana": ["2026-03-07", "2026-10-31"],
    "Australia/Lord_Howe": ["2026-04-04", "2026-10-03"],
}


@pytest.mark.parametrize("timezone", CLOCKS)
@pytest.mark.parametrize(
    "every",
    [
        "30 2 * * *", "*/20 * * * *", "0 1-3 * * *", "15 0 * * *", "45 1 * * *", "30 1 31 * *",
        "*/7 3,5 * * mon-fri", "0 2 */2 * 1", "0 2 1 * mon", "0 2 1-31 * 1", "0 2 * * 7", "0 0 13 * 5",
        "@daily", "6h", "45s",
    ],
)  # fmt: skip
def test_the_page_tells_the_times_that_prefect_keeps(every: str, timezone: str) -> None:
    """Where clocks skip hours and repeat them, by Prefect's own arithmetic."""
    # Imported here, as what a server consists of takes seconds, which every process of a run would wait for.
    from prefect.server.schemas.schedules import CronSchedule, IntervalSchedule

    schedule = schedule_of(every, timezone)
    kept = (
        CronSchedule(cron=schedule.cron, timezone=timezone, day_or=schedule.day_or)
        if schedule.cron
        else IntervalSchedule(interval=schedule.interval, anchor_date=schedule.anchor_date, timezone=timezone)
    )
    for day in CLOCKS[timezone]:
        now = datetime.fromisoformat(day).replace(hour=12, second=3, tzinfo=UTC)
        # In UTC, as times that a zone has twice equal none of another class.
        expected = [date.astimezone(UTC) for date in asyncio.run(kept.get_dates(20, start=now))]
        found = [now]
        for _ in expected:
            found.append((next_time(every, timezone, found[-1]) or now).astimezone(UTC))
        assert found[1:] == expected


def test_who_serves_a_store_leaves_word_of_the_schedule(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nowhere = LocalServer("http://127.0.0.1:1/api", "user:word", tmp_path / "password")
    monkeypatch.setattr(serving, "_serve", lambda *_, **__: None)
    monkeypatch.setattr(serving, "local_server", lambda _: nullcontext(nowhere))
    config = RetrainConfig(store=str(tmp_path / "store"), extract=ExtractConfig(images=str(tmp_path)))
    serving.serve_retraining(config, HERE, serving.Serving("0 2 * * *", "Europe/Berlin"))
    left = read_schedule(open_store(config.store))
    assert (left.every, left.timezone) == ("0 2 * * *", "Europe/Berlin")
    assert left.ended
    lines = (tmp_path / "store.serve.log").read_text().splitlines()
    assert lines[-1].endswith("ended: by SIGTERM: the schedule is not served any more")


def test_a_server_that_is_lost_is_waited_for_and_a_fault_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nowhere = LocalServer("http://127.0.0.1:1/api", "user:word", tmp_path / "password")
    monkeypatch.setattr(serving, "local_server", lambda _: nullcontext(nowhere))
    monkeypatch.setattr(serving.time, "sleep", lambda _: None)
    said: list[object] = []
    monkeypatch.setattr(serving, "server_lost", lambda *told: said.append(told) or server_lost(*told))
    config = RetrainConfig(store=str(tmp_path / "store"), extract=ExtractConfig(images=str(tmp_path)))
    refused = httpx.ConnectError("refused")
    ends: list[Exception | None] = [ExceptionGroup("tasks", [refused, refused]), refused, None]
    lost: list[str] = []

    def serve(*_: object) -> None:
        found = read_schedule(open_store(config.store))
        lost.append(found.lost)
        error = ends.pop(0)
        if error is not None:
            raise error

    monkeypatch.setattr(serving, "_serve", serve)
    serving.serve_retraining(config, HERE, serving.Serving("6h", out=io.StringIO()))
    assert [bool(when) for when in lost] == [False, True, True]
    assert len(said) == 1
    ends = [ExceptionGroup("tasks", [refused, ZeroDivisionError("a fault")])]
    with pytest.raises(ExceptionGroup):
        serving.serve_retraining(config, HERE, serving.Serving("6h", out=io.StringIO()))
    left = read_schedule(open_store(config.store))
    assert left.error.startswith("ExceptionGroup: tasks")


def test_a_store_that_somebody_serves_is_refused_to_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = RetrainConfig(store=str(tmp_path / "store"), extract=ExtractConfig(images=str(tmp_path)))

    def serve_beside(*_: object) -> None:
        with pytest.raises(
            LeaseHeldError, match=r"topline serve \(process \d+ on .* holds .*store for serve:"
        ):
            serving.serve_retraining(config, HERE, serving.Serving("6h", out=io.StringIO()))
        schedule = read_schedule(open_store(config.store))
        assert (schedule.every, schedule.ended) == ("1h", ""), "the first one's word stands"

    monkeypatch.setattr(serving, "_serve_somewhere", serve_beside)
    serving.serve_retraining(config, HERE, serving.Serving("1h", out=io.StringIO()))
    assert holder(open_store(config.store), "serve") is None


@pytest.mark.prefect
def test_stores_of_the_same_name_have_schedules_of_their_own(prefect_server: str, tmp_path: Path) -> None:
    first, second = (RetrainConfig(store=str(tmp_path / room / "nights")) for room in "ab")
    assert serving.deployment_name(first) == "nights"
    made = retrain.to_deployment("nights", parameters={"config": first.model_dump(mode="json")}).apply()
    try:
        assert serving.deployment_name(first) == "nights", "as it was called before"
        other = serving.deployment_name(second)
        assert (other.rpartition("-")[0], len(other)) == ("nights", len("nights-01234567"))
    finally:
        with get_client(sync_client=True) as client:
            client.delete_deployment(made)


def test_an_observer_of_prefects_that_was_cancelled_is_not_reported(caplog: pytest.LogCaptureFixture) -> None:
    class Ending(OrderlyRunner):
        async def start(self, run_once: bool = False, webserver: bool | None = None) -> None:
            loop = asyncio.get_running_loop()
            for error in (asyncio.CancelledError(), ValueError("a bug")):
                loop.call_soon(raise_error, error)
            await asyncio.sleep(0)

    Ending(name="ending").run()
    assert [str(record.exc_info and record.exc_info[1]) for record in caplog.records] == ["a bug"]


def raise_error(error: BaseException) -> None:
    raise error


def raise_signal(number: int) -> None:
    os.kill(os.getpid(), number)


@pytest.mark.prefect
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_runner_in_order(
    prefect_server: str, number: int, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes once the runner has begun."""

    class Signalled(OrderlyRunner):
        async def __aenter__(self) -> OrderlyRunner:
            entered = await super().__aenter__()
            asyncio.get_running_loop().call_soon(raise_signal, number)
            return entered

    before = {each: signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)}
    # Importing dask_jobqueue, as another test of this process may have, leaves a SIGINT that exits.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    runner = Signalled(name="ended")
    try:
        with nullcontext() if number == signal.SIGTERM else pytest.raises(KeyboardInterrupt):
            runner.run()
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
    assert not runner.started
    assert "Traceback" not in capfd.readouterr().err


def test_a_second_interrupt_within_task_groups_is_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    raised: list[BaseException] = [KeyboardInterrupt(), ValueError("a bug")]

    async def served(runner: OrderlyRunner) -> None:
        raise BaseExceptionGroup("unhandled errors in a TaskGroup", [raised.pop(0)])

    monkeypatch.setattr(OrderlyRunner, "_served", served)
    runner = OrderlyRunner(name="interrupted")
    with pytest.raises(KeyboardInterrupt):
        runner.run()
    assert runner.ended_by == "Ctrl-C"
    with pytest.raises(ExceptionGroup) as found:
        OrderlyRunner(name="broken").run()
    assert found.group_contains(ValueError)


@pytest.mark.prefect
@pytest.mark.parametrize(("number", "name"), [(signal.SIGTERM, "SIGTERM"), (signal.SIGINT, "Ctrl-C")])
def test_a_run_that_ends_with_the_serving_is_cancelled_at_once(
    prefect_server: str, number: int, name: str
) -> None:
    """The run itself sends the signal, so that it is under way for certain."""
    before = {each: signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    runner = OrderlyRunner(name=f"endless-{name}", limit=1, pause_on_shutdown=False, query_seconds=1)
    planned = endless.to_deployment(runner.name, entrypoint_type=EntrypointType.MODULE_PATH)
    deployment = cast("UUID", runner.add_deployment(cast("RunnerDeployment", planned)))
    with get_client(sync_client=True) as client:
        run, waiting = (
            client.create_flow_run_from_deployment(
                deployment, parameters={"number": int(number)}, state=state
            )
            for state in (Scheduled(), Scheduled(scheduled_time=datetime.now(UTC) + timedelta(hours=1)))
        )
        try:
            with nullcontext() if number == signal.SIGTERM else pytest.raises(KeyboardInterrupt):
                runner.run()
        finally:
            for each, handler in before.items():
                signal.signal(each, handler)
        assert runner.interrupted == {run.id}
        assert client.read_flow_run(run.id).state_type == StateType.RUNNING, "Prefect leaves it so"
        assert serving.cancel_interrupted_runs(runner.interrupted, runner.ended_by) == 1
        ended = client.read_flow_run(run.id).state
        assert (ended.type, ended.message) == (
            StateType.CANCELLED,
            f"interrupted: the serving was ended by {name}; the next run does its work",
        )
        assert serving.cancel_interrupted_runs([run.id, waiting.id], name) == 0
        assert client.read_flow_run(waiting.id).state_type == StateType.SCHEDULED
        client.delete_deployment(deployment)


@pytest.mark.prefect
def test_tasks_of_runs_that_were_cut_off_crash_and_others_do_not(prefect_server: str) -> None:
    deployment = nightly.to_deployment("orphans").apply()
    ends = {"crashed": Crashed(), "cancelled": Cancelled(), "completed": Completed(), "running": Running()}
    tasks: dict[str, UUID] = {}
    with get_client(sync_client=True) as client:
        for name, end in ends.items():
            run = client.create_flow_run_from_deployment(deployment, state=Running())
            made = client.create_task_run(step, flow_run_id=run.id, dynamic_key="0", state=Running())
            tasks[name] = made.id
            client.set_flow_run_state(run.id, end, force=True)
        assert serving.crash_orphaned_tasks(deployment) == 2
        states = {name: client.read_task_run(number).state_type for name, number in tasks.items()}
        assert states == {
            "crashed": StateType.CRASHED,
            "cancelled": StateType.CRASHED,
            "completed": StateType.RUNNING,
            "running": StateType.RUNNING,
        }
        assert serving.crash_orphaned_tasks(deployment) == 0
        client.delete_deployment(deployment)


@pytest.mark.parametrize(
    ("every", "runs", "kept"),
    [
        ("20s", 500, timedelta(seconds=10_000)),
        ("20s", 1, serving.SHORTEST_KEPT),
        ("0 2 * * *", 500, timedelta(days=30)),
        ("*/10 * * * *", 600, timedelta(minutes=6000)),
        ("0 0 30 2 *", 500, timedelta(days=30)),
        # Ten a day in two minutes: whenever it is asked, a hundred are ten days.
        ("0-9 12 * * *", 100, timedelta(days=10)),
    ],
)
def test_prefects_server_remembers_so_many_runs(every: str, runs: int, kept: timedelta) -> None:
    assert serving.kept_for(every, "UTC", runs) == kept


@pytest.mark.prefect
def test_serving_cancels_what_its_runner_cut_off(
    prefect_server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut: list[UUID] = []
    left: list[UUID] = []

    def run(runner: OrderlyRunner) -> None:
        with get_client(sync_client=True) as client:
            (deployment,) = runner._deployment_registry.get_deployment_ids()
            cut.append(client.create_flow_run_from_deployment(deployment, state=Running()).id)
            made = client.create_task_run(step, flow_run_id=cut[0], dynamic_key="0", state=Running())
            left.append(made.id)
        runner.interrupted, runner.ended_by = frozenset(cut), "Ctrl-C"
        raise KeyboardInterrupt

    monkeypatch.setattr(OrderlyRunner, "run", run)
    config = RetrainConfig(store=str(tmp_path / "cut"), extract=ExtractConfig(images=str(tmp_path)))
    with pytest.raises(KeyboardInterrupt):
        serving.serve_retraining(config, HERE, serving.Serving("6h", out=io.StringIO()))
    with get_client(sync_client=True) as client:
        ended = client.read_flow_run(cut[0]).state
        assert client.read_task_run(left[0]).state_type == StateType.CRASHED
    assert (ended.type, str(ended.message).partition(":")[0]) == (StateType.CANCELLED, "interrupted")


def test_images_that_are_not_there_are_refused_before_anything_is_served(tmp_path: Path) -> None:
    images = str(tmp_path / "phtos")
    config = RetrainConfig(store=str(tmp_path / "store"), extract=ExtractConfig(images=images))
    with pytest.raises(InputError, match="phtos is not there"):
        serving.serve_retraining(config, HERE, serving.Serving("6h", out=io.StringIO()))
    assert not (tmp_path / "store").exists()


def test_an_address_that_cannot_be_told_is_refused_before_anything_is_served(tmp_path: Path) -> None:
    config = RetrainConfig(store=str(tmp_path / "store"), extract=ExtractConfig(images=str(tmp_path)))
    with pytest.raises(ConfigError, match="--notify nowhere is not an address"):
        serving.serve_retraining(config, HERE, serving.Serving("6h", notify=["nowhere"]))
    assert not (tmp_path / "store").exists()


@flow(name="nightly")
def nightly() -> int:
    return len(coalesce_missed_runs())


@pytest.mark.prefect
def test_one_run_stands_in_for_all_that_were_missed(prefect_server: str) -> None:
    deployment = nightly.to_deployment("missed").apply()
    now = datetime.now(UTC)
    with get_client(sync_client=True) as client:
        runs = [
            client.create_flow_run_from_deployment(
                deployment, state=Scheduled(scheduled_time=now + timedelta(hours=hours))
            )
            for hours in (-3, -2, -1, 1)
        ]
        due, later = runs[:3], runs[3:]
        assert run_flow(nightly, flow_run=due[0]) == len(due) - 1
        found = {run.id: run.state for run in client.read_flow_runs(limit=200) if run.state is not None}
        states = {number: state.name for number, state in found.items()}
        said = {found[run.id].message for run in due[1:]}
    assert states[due[0].id] == "Completed"
    assert {states[run.id] for run in due[1:]} == {"Cancelled"}
    assert len(said) == 1, "they are told as one"
    assert str(said.pop()).startswith("missed: 2 runs coalesced into the run ")
    assert {states[run.id] for run in later} == {"Scheduled"}
    assert nightly() == 0  # by hand, without a deployment


@pytest.mark.prefect
def test_of_thousands_of_missed_runs_the_oldest_are_deleted(
    prefect_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request a run would take minutes after some days of `--every 60s`, before the work begins."""
    monkeypatch.setattr(retraining, "MISSED_KEPT", 2)
    monkeypatch.setattr(retraining, "_DELETED_AT_ONCE", 3)
    deployment = nightly.to_deployment("backlog", schedule=schedule_of("6h")).apply()
    today = datetime.now(UTC)
    of_it = DeploymentFilter(id=DeploymentFilterId(any_=[deployment]))
    with get_client(sync_client=True) as client:
        asked_for = client.create_flow_run_from_deployment(
            deployment, state=Scheduled(scheduled_time=today - timedelta(days=9))
        )
        client.request(
            "POST",
            "/deployments/{id}/schedule",
            path_params={"id": deployment},
            json={
                "start_time": (today - timedelta(hours=48)).isoformat(),
                "end_time": today.isoformat(),
                "min_runs": 8,
            },
        )
        late = [run for run in client.read_flow_runs(deployment_filter=of_it) if run.auto_scheduled]
        assert len(late) == 8
        late.sort(key=lambda run: run.expected_start_time or today)
        assert retraining.renew_waiting_runs(deployment, {"first": "due"}) == 2
        assert run_flow(nightly, flow_run=late[0]) == 8
        for thread in threading.enumerate():
            if thread.name == retraining.DELETING:
                thread.join()
        left = {
            run.id: str(run.state and run.state.message)
            for run in client.read_flow_runs(deployment_filter=of_it)
        }
        assert set(left) == {asked_for.id, late[0].id, late[-2].id, late[-1].id}
        for run in (asked_for, *late[-2:]):
            assert left[run.id].startswith("missed: 8 runs coalesced into the run ")
        client.delete_deployment(deployment)


@pytest.mark.prefect
def test_runs_that_an_earlier_serving_left_take_the_options_of_the_one_that_runs(
    prefect_server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder of the first serving is gone when the second begins, and its run that is late waits."""
    deployments: list[UUID] = []

    def run(runner: OrderlyRunner) -> None:
        deployments.extend(runner._deployment_registry.get_deployment_ids())

    def serve(images: Path) -> dict[str, Any]:
        config = RetrainConfig(store=str(tmp_path / "renewed"), extract=ExtractConfig(images=str(images)))
        serving.serve_retraining(config, HERE, serving.Serving("6h", out=io.StringIO()))
        given = config.model_dump(mode="json", exclude_unset=True)
        return {"config": given, "cluster": HERE.model_dump(mode="json")}

    monkeypatch.setattr(OrderlyRunner, "run", run)
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    before = serve(first)
    today = datetime.now(UTC)
    with get_client(sync_client=True) as client:
        asked_for = client.create_flow_run_from_deployment(deployments[0])
        client.request(
            "POST",
            "/deployments/{id}/schedule",
            path_params={"id": deployments[0]},
            json={"start_time": (today - timedelta(hours=18)).isoformat(), "end_time": today.isoformat()},
        )
        first.rmdir()
        now = serve(second)
        assert deployments == [deployments[0]] * 2
        waiting = client.read_flow_runs(
            deployment_filter=DeploymentFilter(id=DeploymentFilterId(any_=[deployments[0]]))
        )
        late = [run for run in waiting if run.auto_scheduled and (run.expected_start_time or today) < today]
        assert [(run.state_type, run.parameters) for run in late] == [(StateType.SCHEDULED, now)] * 3
        assert client.read_flow_run(asked_for.id).parameters == before
        assert retraining.renew_waiting_runs(deployments[0], now) == 0
        client.delete_deployment(deployments[0])
    # What nobody gave is open to the champion's settings in the process of the run.
    assert retrain.validate_parameters(now)["config"].train.model_fields_set == set()


@pytest.mark.prefect
def test_a_retraining_beside_another_one_is_cancelled_and_says_who(
    prefect_server: str, tmp_path: Path
) -> None:
    photographs(tmp_path / "photos", range(8))
    config = RetrainConfig(
        store=str(tmp_path / "store"),
        extract=ExtractConfig(images=str(tmp_path / "photos"), backbone="hog:size=24,cells=8"),
        train=TrainConfig(k=2, tol=1e-2),
        promote=PromotionRule(k=1),
    )
    with held_lease(open_store(tmp_path / "store", create=True), LEASE, "a neighbour"):
        state = retrain(config, HERE, return_state=True)
        assert state.is_cancelled()
        assert "a neighbour" in str(state.message)
    result = retrain(config, HERE)
    assert (result.outcome, result.champion) == ("promoted", "m0001")
    ended = retrain(config, HERE, return_state=True)
    assert str(ended.message).startswith("unchanged: there is nothing new since")
    assert read_by(tmp_path / "store").startswith("flow run ")


def test_a_decision_is_an_event_for_automations(monkeypatch: pytest.MonkeyPatch) -> None:
    emitted: list[dict[str, Any]] = []
    monkeypatch.setattr(tasks, "emit_event", lambda event, **rest: emitted.append({"event": event, **rest}))
    standing = Standing(champion="m0002")
    for promote in (True, False):
        decision = Decision(promote, ("as the rule says",))
        weighed = Weighing("store/models/m0002", "store/models/m0001", decision, Evidence(), standing)
        tasks.model_decided("store/models/m0002", weighed)
    assert [one["event"] for one in emitted] == ["topline.model.promoted", "topline.model.kept"]
    assert emitted[0]["resource"]["prefect.resource.id"] == "topline.model.store/models/m0002"
    assert emitted[0]["payload"]["champion_before"] == "store/models/m0001"
    json.dumps(emitted)


def read_by(store: Path) -> str:
    return read_standing(open_store(store)).entries[-1].by
