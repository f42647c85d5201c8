"""The flows on a real Prefect server: states, artifacts, failures, and a server that freezes."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import cast
from uuid import UUID

import numpy as np
import pytest
from PIL import Image
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import LogFilter, LogFilterFlowRunId
from prefect.client.schemas.objects import Artifact, FlowRun
from prefect.deployments.runner import RunnerDeployment
from prefect.runtime import flow_run
from prefect.settings import PREFECT_API_REQUEST_TIMEOUT, temporary_settings
from prefect.states import Scheduled
from prefect.types.entrypoint import EntrypointType

from tests.flows.conftest import IN_PROCESS
from tests.processes import run_program, until
from topline.flows import definitions, reporting
from topline.flows.launching import FLOWS
from topline.flows.runners import run_flow
from topline.flows.tasks import fit_model, repeatable
from topline.pipeline.errors import ClusterError, InputError, InterruptedRunError
from topline.pipeline.options import EvaluateConfig, ExtractConfig, RetrainConfig, RunConfig, TrainConfig
from topline.pipeline.options.sweep import SweepConfig
from topline.pipeline.training import session, train
from topline.solvers.core.state import IterationRecord, SolveResult, SolverState
from topline.solvers.run import Task
from topline.storage.errors import NotFoundError
from topline.storage.runs import list_runs, read_history
from topline.storage.stores import open_store

pytestmark = [pytest.mark.prefect, pytest.mark.usefixtures("prefect_server", "_command_line")]


def newest_run() -> FlowRun:
    with get_client(sync_client=True) as client:
        return max(client.read_flow_runs(), key=lambda run: run.created or run.expected_start_time)


def artifacts_of(run_id: UUID) -> dict[str, Artifact]:
    with get_client(sync_client=True) as client:
        found = client.read_artifacts(limit=200)
    return {artifact.key: artifact for artifact in found if artifact.flow_run_id == run_id and artifact.key}


def wait_for_tasks(run_id: UUID, expected: dict[str, str]) -> None:
    """Task runs reach the server as events, a moment after the flow has ended."""

    def as_expected() -> bool:
        with get_client(sync_client=True) as client:
            runs = [run for run in client.read_task_runs() if run.flow_run_id == run_id]
        return {run.name.rpartition("-")[0]: run.state_name for run in runs} == expected

    until(as_expected, f"{expected} of the task runs")


def test_training_is_a_completed_run_with_its_progress_gaps_and_summary(training: TrainConfig) -> None:
    result = run_flow("train", {"config": training, "cluster": IN_PROCESS})
    run = newest_run()
    assert (run.state_name, run.tags) == ("Completed", ["topline"])
    assert run.name == f"train topk_hinge on {training.store}"
    # The parameters are plain JSON from which the run can be repeated.
    assert TrainConfig.model_validate(run.parameters["config"]) == training
    posted = artifacts_of(run.id)
    assert posted["train-progress"].data == 100.0
    assert posted["certify-progress"].data == 100.0
    assert f"topline dashboard --store {training.store}" in str(posted["dashboard"].data)
    rows = json.loads(str(posted["gaps"].data))
    rounds = [r for r in read_history(open_store(training.store), result.run) if "relative_gap" in r]
    assert [row["round"] for row in rows] == [r["round"] for r in rounds][-reporting.GAPS_SHOWN :]
    assert rows[-1]["gap"] == pytest.approx(rounds[-1]["gap"], rel=1e-5)
    assert result.model in str(posted["summary"].data)
    assert f"{result.relative_gap:.2e}" in str(posted["summary"].data)
    wait_for_tasks(run.id, {"train": "Completed", "certify": "Completed"})


def test_a_failure_is_a_failed_run_with_its_sentence_and_the_same_exception(
    training: TrainConfig, prefect_home: Path
) -> None:
    missing = training.model_copy(update={"dataset": "d9999"})
    with pytest.raises(NotFoundError) as plain:
        train(missing, IN_PROCESS)
    with pytest.raises(NotFoundError) as caught:
        run_flow("train", {"config": missing, "cluster": IN_PROCESS})
    assert str(caught.value) == str(plain.value)
    run = newest_run()
    assert run.state_name == "Failed"
    assert str(plain.value) in str(run.state.message)
    # Prefect keeps the exceptions of flows in any case; nothing of ours is pickled.
    kept = [json.loads(path.read_bytes()) for path in (prefect_home / "storage").iterdir()]
    assert str(plain.value) in json.dumps(kept, ensure_ascii=False)
    wait_for_tasks(run.id, {"train": "Failed"})


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Two classes of twelve small pictures: dark ones with a bright half, on the left or on the right."""
    rng = np.random.default_rng(0)
    for name, half in (("left", slice(0, 24)), ("right", slice(24, 48))):
        folder = tmp_path / "images" / name
        folder.mkdir(parents=True)
        for number in range(12):
            pixels = rng.integers(0, 60, size=(48, 48, 3), dtype=np.uint8)
            pixels[:, half] += 180
            Image.fromarray(pixels).save(folder / f"{number}.png")
    return tmp_path / "images"


@pytest.mark.parametrize("stage", ["_compile_jit_functions", "HeldOutRows.of", "finish_run"])
def test_sigterm_cancels_a_run_in_words_and_is_no_failure(
    training: TrainConfig, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    """While loops are compiled, before the first round, and once the model is stored."""

    def terminated(*_: object, **__: object) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(30.0)

    monkeypatch.setattr(f"topline.pipeline.training.session.{stage}", terminated)
    with pytest.raises((InterruptedRunError, KeyboardInterrupt), match="SIGTERM") as stopped:
        run_flow("train", {"config": training, "cluster": IN_PROCESS})
    run = newest_run()
    assert (run.state_name, run.state.message) == ("Cancelled", str(stopped.value))


def test_the_log_of_a_scheduled_run_is_on_its_page_and_with_its_model(
    images: Path, tmp_path: Path, prefect_server: str
) -> None:
    """What `topline models show --log` has, at Prefect's level INFO, of a run in a process of its own."""
    store = str(tmp_path / "store")
    config = RetrainConfig(
        store=store,
        extract=ExtractConfig(images=str(images), backbone="hog:size=24,cells=8"),
        train=TrainConfig(k=1, tol=1e-2),
    )
    planned = FLOWS["retrain"].to_deployment(
        "logged",
        parameters={"config": config.model_dump(mode="json", exclude_unset=True), "cluster": IN_PROCESS},
        entrypoint_type=EntrypointType.MODULE_PATH,
    )
    deployment = cast("RunnerDeployment", planned).apply()
    with get_client(sync_client=True) as client:
        run = client.create_flow_run_from_deployment(deployment, state=Scheduled())
        environ = {**os.environ, "PREFECT__FLOW_RUN_ID": str(run.id), "PREFECT_API_URL": prefect_server}
        done = run_program([sys.executable, "-m", "prefect.engine"], env=environ)
        assert done.returncode == 0, done.stderr
        assert client.read_flow_run(run.id).state_name == "Completed"
        of_run = LogFilter(flow_run_id=LogFilterFlowRunId(any_=[run.id]))
        said = {line.message for line in client.read_logs(of_run, limit=200) if line.level == logging.INFO}
        client.delete_deployment(deployment)
    kept = [
        event["reason"]
        for one in list_runs(open_store(store))
        for event in read_history(open_store(store), one.id)
        if event.get("event") == "log" and event["level"] == "info"
    ]
    assert kept
    assert set(kept) <= said


def test_the_whole_job_and_its_steps_run_as_flows(images: Path, tmp_path: Path) -> None:
    store = str(tmp_path / "store")
    config = RunConfig(
        store=store,
        extract=ExtractConfig(images=str(images)),
        train=TrainConfig(k=1, tol=1e-2),
        evaluate=EvaluateConfig(split="test"),
    )
    job = run_flow("run", {"config": config, "cluster": IN_PROCESS})
    run = newest_run()
    assert run.state_name == "Completed"
    posted = artifacts_of(run.id)
    assert posted["extract-progress"].data == 100.0
    assert posted["train-progress"].data == 100.0
    assert posted["report"].data == f"[{job.report}]({Path(job.report).as_uri()})"
    assert Path(job.report).is_file()
    assert "top-1" in str(posted["summary"].data)
    steps = ("extract", "train", "certify", "evaluate", "report")
    wait_for_tasks(run.id, dict.fromkeys(steps, "Completed"))

    extracted = run_flow("extract", {"config": config.extract.model_copy(update={"store": store})})
    assert extracted.reused
    assert extracted.dataset in str(artifacts_of(newest_run().id)["summary"].data)

    evaluation = run_flow("evaluate", {"model_url": job.train.model, "split": "test", "confused": 3})
    assert evaluation.topk == job.evaluation.topk
    assert f"{evaluation.topk[1]:.1%}" in str(artifacts_of(newest_run().id)["summary"].data)


def test_the_progress_artifact_moves_while_the_flow_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reporting, "POST_SECONDS", 0.05)
    monkeypatch.setattr(reporting, "PUBLISH_SECONDS", 0.0)
    seen: list[float] = []

    def shown(run_id: UUID, share: float) -> bool:
        posted = artifacts_of(run_id).get("train-progress")
        return posted is not None and posted.data == pytest.approx(share)

    @flow(name="moving", persist_result=False)
    def moving() -> None:
        with reporting.watched(tol=1e-2) as watch:
            watch.progress.begin("train", 100, "passes")
            run_id = UUID(flow_run.get_id())
            for number, gap in enumerate([1.0, 0.1, 0.01]):
                watch.progress.note({"round": number, "relative_gap": gap})
                until(partial(shown, run_id, 50.0 * number), f"a share of {50 * number} %")
                seen.append(gap)

    moving()
    assert seen == [1.0, 0.1, 0.01]


@contextmanager
def frozen_server() -> Iterator[None]:
    """Stop the server's process as a debugger would: connections are taken, nothing is answered."""
    # Imported here, as what a server consists of takes seconds, which every process of a run would wait for.
    from prefect.server.api.server import SubprocessASGIServer

    process = SubprocessASGIServer().server_process
    os.kill(process.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(process.pid, signal.SIGCONT)


def test_a_frozen_server_does_not_slow_training_and_catching_up_has_a_deadline(
    training: TrainConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Training ends while the server hangs, which thaws only before the flow's last state.

    Requests wait for an hour here: were training or its end to wait for one, the test would not end.
    """
    monkeypatch.setattr(reporting, "POST_SECONDS", 0.05)
    monkeypatch.setattr(reporting, "catch_up_seconds", lambda: 1.0)
    long = training.model_copy(update={"tol": 1e-12, "max_passes": 300, "certify": False})
    passes: list[int] = []
    seconds: list[float] = []

    @flow(name="frozen", persist_result=False)
    def frozen() -> None:
        with frozen_server():
            an_hour = temporary_settings({PREFECT_API_REQUEST_TIMEOUT: 3600.0})
            with an_hour, reporting.watched(long.tol) as watch:
                result = train(long, IN_PROCESS, watch.progress)
                passes.append(result.passes)
                watch.finish(result, "done")
                begun = time.monotonic()
            seconds.append(time.monotonic() - begun)

    frozen()
    assert passes[0] > 50
    assert seconds[0] > 0.9
    assert newest_run().state_name == "Completed"


def test_a_run_that_lost_its_scheduler_goes_on_from_its_checkpoint(
    training: TrainConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first attempt loses it when the certified gap is not reached yet; the second is the same run."""
    run_task, rounds_before = session.run_task, []

    def losing(task: Task) -> SolveResult:
        state, callbacks = task.state, task.callbacks
        rounds_before.append(0 if state is None else state.round)

        def lost_after_two_rounds(record: IterationRecord, state: SolverState) -> bool:
            if len(rounds_before) == 1 and record.round >= 2:
                callbacks[0].save(state)
                raise ClusterError("the connection to the scheduler is closed")
            return True

        return run_task(replace(task, callbacks=(*callbacks, lost_after_two_rounds)))

    monkeypatch.setattr(session, "run_task", losing)
    steps = replace(definitions.STEPS, fit=fit_model.with_options(retry_delay_seconds=0.0))
    monkeypatch.setattr(definitions, "STEPS", steps)
    result = run_flow("train", {"config": training, "cluster": IN_PROCESS})
    assert rounds_before[0] == 0
    assert rounds_before[1:] == [pytest.approx(2, abs=1)]
    assert [run.id for run in list_runs(open_store(training.store))] == [result.run]
    assert result.certificate.certified


def test_what_may_pass_is_tried_again_and_what_is_wrong_is_not() -> None:
    calls = {"flaky": 0, "wrong": 0}

    def flaky() -> str:
        calls["flaky"] += 1
        if calls["flaky"] == 1:
            raise ClusterError("no worker came")
        return "done"

    def wrong() -> None:
        calls["wrong"] += 1
        raise InputError("not a folder of images")

    @flow(name="retrying", persist_result=False, result_serializer="json")
    def retrying() -> str:
        done = repeatable(flaky).with_options(retry_delay_seconds=0.0)()
        with pytest.raises(InputError):
            repeatable(wrong).with_options(retry_delay_seconds=0.0)()
        return str(done)

    assert retrying() == "done"
    assert calls == {"flaky": 2, "wrong": 1}


def test_a_sweep_is_a_completed_run_that_shows_its_best_cell_and_links_its_page(store: str) -> None:
    config = SweepConfig(store=store, C=(0.1, 1.0), k=(2,), topk=1, folds=2, train_best=True)
    result = run_flow("sweep", {"config": config, "cluster": IN_PROCESS})
    run = newest_run()
    assert (run.state_name, run.name) == ("Completed", f"sweep on {store}")
    assert SweepConfig.model_validate(run.parameters["config"]) == config
    posted = artifacts_of(run.id)
    assert posted["sweep-progress"].data == 100.0
    assert f"C = {result.best.C:g}" in str(posted["summary"].data)
    assert result.trained.model in str(posted["summary"].data)
    assert result.page in str(posted["report"].data)
