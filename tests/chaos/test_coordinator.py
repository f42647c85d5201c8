"""The coordinator killed, interrupted, and not alone."""

from __future__ import annotations

import random
import signal
import time

import pytest

from tests.chaos.harness import FREE, KEPT, TOL, Chaos, shorten

ENDLESS = ("--tol", 1e-9)


@pytest.mark.parametrize("moment", ["round", "checkpoint", "publication"])
def test_coordinator_killed_in_a(chaos: Chaos, rng: random.Random, moment: str) -> None:
    where, call = {
        "round": ("topline.solvers.executors:ThreadExecutor.run", rng.randrange(70, 90)),
        "checkpoint": ("topline.storage.runs.checkpoints:write_group", rng.randrange(2, 4)),
        "publication": ("topline.pipeline.training.run:save_model", 1),
    }[moment]
    fault = {"where": where, "call": call, "do": "kill", "delay": rng.uniform(0.0005, 0.01)}
    hold = {"where": "topline.storage.stores.local:_sync_folder", "call": 1, "always": True, "do": "nap"}
    words = (*KEPT, "--checkpoint-seconds", 0.1, *(ENDLESS if moment != "publication" else ()))
    job = chaos.train(*words, faults=[fault, *([hold] if moment == "checkpoint" else [])])
    ended = job.wait()
    assert ended.code == -signal.SIGKILL, ended.err
    chaos.row.saw = "nothing: it was killed"
    chaos.conclude(chaos.go_on("--tol", TOL))


@pytest.mark.parametrize("number", ["SIGINT", "SIGTERM"])
def test_coordinator_gets(chaos: Chaos, rng: random.Random, number: str) -> None:
    job = chaos.train(*KEPT, *ENDLESS)
    chaos.wait_for_rounds(rng.randrange(20, 60))
    job.send(signal.Signals[number])
    ended = job.wait()
    assert number in ended.sentence
    chaos.conclude(chaos.resume(ended, "--tol", TOL))
    assert chaos.row.repeated == 0


def test_coordinator_gets_sigint_twice(chaos: Chaos, rng: random.Random) -> None:
    """The second one in the midst of the checkpoint that the first one had asked for."""
    hold = {"where": "topline.pipeline.training.checkpointing:save_checkpoint", "call": 1, "do": "hold"}
    job = chaos.train(*KEPT, "--checkpoint-seconds", 100, *ENDLESS, faults=[hold])
    chaos.wait_for_rounds(rng.randrange(20, 60))
    job.send(signal.SIGINT)
    time.sleep(rng.uniform(0.1, 0.4))
    job.send(signal.SIGINT)
    ended = job.wait()
    assert "Traceback" not in ended.err
    chaos.conclude(chaos.resume(ended, "--tol", TOL))


def test_two_trainings_on_one_run(chaos: Chaos, rng: random.Random) -> None:
    first = chaos.train(*KEPT, *ENDLESS)
    chaos.wait_for_rounds(rng.randrange(20, 60))
    second = chaos.train(run="r0001").wait()
    assert second.code == 73
    assert "run r0001 is already being trained by process" in second.sentence
    assert str(first.pid) in second.sentence
    first.send(signal.SIGINT)
    chaos.row.saw = shorten(second.sentence)
    chaos.conclude(chaos.resume(first.wait(), "--tol", TOL))
    assert chaos.row.repeated == 0
    assert chaos.train("--tol", TOL, run="r0001").wait().code == 0, "the lock is gone with who held it"


def test_other_settings_on_resume(chaos: Chaos) -> None:
    job = chaos.train(*KEPT, *ENDLESS)
    chaos.wait_for_rounds(20)
    job.send(signal.SIGINT)
    ended = job.wait()
    refused = chaos.train("--C", 2, run="r0001").wait()
    assert refused.code == 2
    assert "C was 0.5, now 2.0" in refused.sentence
    chaos.row.saw = shorten(refused.sentence)
    chaos.conclude(chaos.resume(ended, "--tol", TOL))


def test_history_torn(chaos: Chaos, rng: random.Random) -> None:
    job = chaos.train(*FREE, "--checkpoint-seconds", 0.2, *ENDLESS)
    chaos.wait_for_checkpoints(1)
    job.end()
    history = chaos.store / "runs" / "r0001" / "history.jsonl"
    lines = history.read_bytes()
    history.write_bytes(lines[: len(lines) - rng.randrange(2, 40)])
    chaos.row.saw = "nothing"
    chaos.conclude(chaos.go_on("--tol", TOL), complete=False)
