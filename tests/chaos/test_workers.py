"""Workers, connections and coordinators that die, freeze, are cut, come and go."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from typing import Any

import pytest

from tests.chaos.harness import FREE, KEPT, TOL, Chaos, Ended, shorten, until
from tests.chaos.proxy import Proxy

ORDER = "topline.pipeline.cluster.worker_blocks:run_request"
BLOCK = "topline.solvers.operations.base:RowBlock.run"


# Four blocks that agree after every 64th of their rows, hundreds of times before the answer.
PARTS = (*KEPT, "--method", "dual_ascent", "--blocks", 4, "--tol", 1e-3)
ADVANCE = "topline.solvers.methods.dual_ascent:DualAscent.advance"
SHORT = [{"where": ADVANCE, "call": 1, "do": "shorten rounds"}]


def once(chaos: Chaos, where: str, call: int, do: str, **more: Any) -> list[dict[str, Any]]:
    return [{"where": where, "call": call, "do": do, "mark": str(chaos.folder / "struck"), **more}]


def struck(chaos: Chaos) -> bool:
    return (chaos.folder / "struck").exists()


@pytest.mark.parametrize("how", ["kill", pytest.param("segfault", marks=pytest.mark.chaos_long)])
def test_worker_dies_in_a_product(chaos: Chaos, rng: random.Random, how: str) -> None:
    cluster = chaos.cluster().start(once(chaos, BLOCK, rng.randrange(100, 900), how))
    ended = chaos.train(*FREE, on=cluster).wait()
    result = chaos.conclude(ended)
    assert struck(chaos)
    assert any("its blocks are placed again" in line for line in ended.warnings)
    assert result["primal"] == chaos.undisturbed["primal"], "without duals nothing depends on who computes"
    chaos.row.repeated = cluster.extra_rounds()
    assert cluster.extra_rounds() < 2


def test_worker_killed_while_idle(chaos: Chaos, rng: random.Random) -> None:
    fault = once(chaos, ORDER, rng.randrange(10, 80), "kill", after=True, delay=rng.uniform(0.001, 0.02))
    cluster = chaos.cluster().start(fault)
    chaos.conclude(chaos.train(*FREE, on=cluster).wait())
    assert struck(chaos)
    chaos.row.repeated = cluster.extra_rounds()
    assert cluster.extra_rounds() < 2


@pytest.mark.parametrize("moment", ["product", pytest.param("checkpoint", marks=pytest.mark.chaos_long)])
def test_worker_with_duals_killed_in_a(chaos: Chaos, rng: random.Random, moment: str) -> None:
    """Its duals are gone: those of its blocks alone come from the last checkpoint, and the run goes on."""
    where, call = (ORDER, rng.randrange(50, 80))
    if moment == "checkpoint":
        where, call = "topline.pipeline.cluster.worker_blocks:map_duals", 2
    cluster = chaos.cluster().start(once(chaos, where, call, "kill"))
    ended = chaos.train(*KEPT, on=cluster).wait()
    chaos.conclude(ended)
    assert struck(chaos)
    lines = chaos.history()
    number, loss = next(item for item in enumerate(lines) if item[1].get("event") == "loss")
    assert loss["lost_blocks"]
    assert chaos.rounds() == list(range(len(chaos.rounds()))), "no round is done again"
    # What the lost blocks go back by; how many rounds Frank-Wolfe then takes to a tolerance is chance.
    done = sum("round" in line for line in lines[:number])
    chaos.row.repeated = done - (loss["saved_round"] or 0)


def conclude_in_parts(chaos: Chaos, ended: Ended, event: str) -> None:
    """Ask what must be true after an event in rounds of many parts, where W follows A from part to part."""
    result = chaos.conclude(ended)
    lines = chaos.history()
    number, told = next(item for item in enumerate(lines) if item[1].get("event") == event)
    assert told["moved_blocks"]
    bounds = [line["dual"] for line in lines[number:] if "round" in line]
    assert bounds
    # Each is D(A) of an A that exists, so that none is above the optimum.
    assert max(bounds) <= result["primal"], "W is not that of the dual variables"


@pytest.mark.parametrize("how", ["in one", "between two", "frozen"])
def test_worker_lost_in_parts(chaos: Chaos, rng: random.Random, how: str) -> None:
    """Its duals go back to a checkpoint or to 0 while those of others are in the midst of a round."""
    more: dict[str, Any] = {"after": True, "delay": rng.uniform(0.001, 0.02)} if how == "between two" else {}
    action = "freeze" if how == "frozen" else "kill"
    cluster = chaos.cluster().start(once(chaos, ORDER, rng.randrange(200, 350), action, **more))
    # Without a checkpoint the most is lost, and a W that still has it shows.
    words = ("--heartbeat-timeout", 20) if how == "frozen" else ("--checkpoint-seconds", 1000)
    job = chaos.train(*PARTS, *words, on=cluster, faults=SHORT)
    conclude_in_parts(chaos, job.wait(), "loss")
    assert struck(chaos)
    parts = [order for _, order, _ in cluster.orders() if order.startswith("Ascend")]
    assert len(parts) > 100 * len(chaos.rounds()), "rounds are short"


def test_worker_joins_in_parts(chaos: Chaos, rng: random.Random) -> None:
    cluster = chaos.cluster().start(workers=1)
    job = chaos.train(*PARTS, *ENDLESS, on=cluster, faults=SHORT)
    chaos.wait_for_orders(cluster, rng.randrange(100, 300))
    cluster.add_worker()
    until(lambda: any(line.get("event") == "rebalance" for line in chaos.history()), "the move of blocks")
    chaos.wait_for_rounds(len(chaos.rounds()) + 2)
    job.send(signal.SIGINT)
    conclude_in_parts(chaos, chaos.resume(job.wait(), "--tol", TOL), "rebalance")


@pytest.mark.parametrize("saved", ["nothing", pytest.param("checkpoints", marks=pytest.mark.chaos_long)])
def test_worker_killed_in_the_publication_with(chaos: Chaos, saved: str) -> None:
    """The duals of a solved run are gone: it goes back, to a checkpoint where there is one, and ends."""
    fault = once(chaos, "topline.storage.arrays.duals:DualWriter.write", 1, "kill", of="folder='models/")
    seconds = 1000.0 if saved == "nothing" else 0.3
    ended = chaos.train(*KEPT, "--checkpoint-seconds", seconds, on=chaos.cluster().start(fault)).wait()
    chaos.conclude(ended)
    assert struck(chaos)
    events = [line.get("event") for line in chaos.history()]
    assert events.count("rollback") == 1


def test_worker_frozen(chaos: Chaos, rng: random.Random) -> None:
    cluster = chaos.cluster().start(once(chaos, ORDER, rng.randrange(10, 80), "freeze"))
    ended = chaos.train(*FREE, "--heartbeat-timeout", 20, on=cluster).wait()
    chaos.conclude(ended)
    assert "has been silent for 20 s" in ended.err
    chaos.row.repeated = cluster.extra_rounds()


def test_worker_hangs(chaos: Chaos, rng: random.Random) -> None:
    """In a call that never ends, while its worker sends heartbeats."""
    cluster = chaos.cluster().start(once(chaos, ORDER, rng.randrange(10, 80), "hang"))
    ended = chaos.train(*FREE, "--heartbeat-timeout", 20, on=cluster).wait()
    assert chaos.conclude(ended)["primal"] == chaos.undisturbed["primal"]
    assert "is there, but has not computed, read or written anything for" in ended.err
    chaos.row.repeated = cluster.extra_rounds()
    assert cluster.extra_rounds() < 2


@pytest.mark.parametrize("workers", [2, pytest.param(1, marks=pytest.mark.chaos_long)])
def test_worker_paused_by_its_memory(chaos: Chaos, rng: random.Random, workers: int) -> None:
    """Calls go on beside the tasks that Dask holds back."""
    fault = once(chaos, ORDER, rng.randrange(10, 80), "fill")
    cluster = chaos.cluster().start(fault, workers=workers, memory_limit="700MB")
    chaos.conclude(chaos.train(*FREE, "--heartbeat-timeout", 20, "--worker-wait", 20, on=cluster).wait())
    assert struck(chaos)


@pytest.mark.chaos_long
def test_worker_slow(chaos: Chaos, rng: random.Random) -> None:
    """A worker that stands still half of the time gives no wrong number."""
    cluster = chaos.cluster().start()
    job = chaos.train(*FREE, on=cluster)
    chaos.wait_for_orders(cluster, 100)
    pid, over = cluster.pids()["w0"], threading.Event()

    def pulse() -> None:
        while not over.is_set():
            os.kill(pid, signal.SIGSTOP)
            over.wait(rng.uniform(0.05, 0.3))
            os.kill(pid, signal.SIGCONT)
            over.wait(0.2)

    thread = threading.Thread(target=pulse)
    thread.start()
    try:
        ended = job.wait()
    finally:
        over.set()
        thread.join()
    assert chaos.conclude(ended)["primal"] == chaos.undisturbed["primal"]
    assert chaos.row.saw == "nothing"


def test_all_workers_killed_and_restarted(chaos: Chaos, rng: random.Random) -> None:
    cluster = chaos.cluster().start()
    job = chaos.train(*FREE, on=cluster)
    chaos.wait_for_orders(cluster, rng.randrange(200, 800))
    for pid in cluster.pids().values():
        os.kill(pid, signal.SIGKILL)
    chaos.conclude(job.wait())
    chaos.row.repeated = cluster.extra_rounds()
    assert cluster.extra_rounds() < 2


def test_all_workers_gone_for_good(chaos: Chaos, rng: random.Random) -> None:
    cluster = chaos.cluster().start()
    job = chaos.train(*FREE, "--worker-wait", 10, on=cluster)
    chaos.wait_for_orders(cluster, rng.randrange(200, 800))
    cluster.kill_workers()
    ended = job.wait()
    assert "no worker for 10 s" in ended.sentence
    chaos.conclude(chaos.resume(ended))


def test_worker_out_of_memory_once(chaos: Chaos, rng: random.Random) -> None:
    fault = once(chaos, ORDER, rng.randrange(10, 80), "eat")
    cluster = chaos.cluster().start(fault, memory_limit="700MB")
    ended = chaos.train(*FREE, on=cluster).wait()
    chaos.conclude(ended)
    assert struck(chaos)
    assert "its blocks are placed again" in ended.err
    chaos.row.repeated = cluster.extra_rounds()
    assert cluster.extra_rounds() < 2


@pytest.mark.chaos_long
def test_worker_out_of_memory_always(chaos: Chaos) -> None:
    fault = {"where": ORDER, "call": 1, "always": True, "do": "eat"}
    cluster = chaos.cluster().start([fault], memory_limit="700MB", workers=1)
    ended = chaos.train(*FREE, on=cluster).wait()
    assert "--memory-limit" in ended.sentence
    chaos.conclude(chaos.resume(ended))


def test_worker_joins(chaos: Chaos, rng: random.Random) -> None:
    cluster = chaos.cluster().start(workers=1)
    job = chaos.train(*FREE, on=cluster)
    chaos.wait_for_orders(cluster, rng.randrange(100, 300))
    cluster.add_worker()
    assert chaos.conclude(job.wait())["primal"] == chaos.undisturbed["primal"]


@pytest.mark.chaos_long
def test_worker_joins_and_gets_blocks(chaos: Chaos, rng: random.Random) -> None:
    """With their duals, in a run that is long enough; who gave them away then dies."""
    cluster = chaos.cluster().start(workers=1)
    job = chaos.train(*KEPT, "--tol", 1e-9, on=cluster)
    chaos.wait_for_orders(cluster, rng.randrange(100, 300))
    cluster.add_worker()
    until(lambda: len({line[0] for line in cluster.orders() if len(line) == 3}) > 1, "orders of the second")
    cluster.processes[0].end()
    os.kill(cluster.pids()["w0"], signal.SIGKILL)
    until(lambda: any(line.get("event") == "loss" for line in chaos.history()), "the loss")
    job.send(signal.SIGINT)
    chaos.conclude(chaos.resume(job.wait(), "--tol", TOL))
    events = [line["event"] for line in chaos.history() if "event" in line]
    assert [event for event in events if event in ("rebalance", "loss")] == ["rebalance", "loss"], events


def test_worker_leaves(chaos: Chaos, rng: random.Random) -> None:
    """SIGTERM to a nanny: its worker takes its leave of the scheduler."""
    cluster = chaos.cluster().start()
    job = chaos.train(*FREE, on=cluster)
    chaos.wait_for_orders(cluster, rng.randrange(200, 800))
    cluster.processes[0].send(signal.SIGTERM)
    chaos.conclude(job.wait())
    chaos.row.repeated = cluster.extra_rounds()
    assert cluster.extra_rounds() < 2


def test_everything_killed(chaos: Chaos, rng: random.Random) -> None:
    """Coordinator, scheduler, nannies and workers at once: what is repeated is what no checkpoint holds."""
    cluster = chaos.cluster().start()
    job = chaos.train(*KEPT, "--tol", 1e-9, on=cluster)
    chaos.wait_for_checkpoints(2)
    chaos.wait_for_orders(cluster, len(cluster.orders()) + rng.randrange(200))
    job.end()
    cluster.close()
    chaos.row.saw = "nothing: it was killed"
    chaos.conclude(chaos.go_on("--tol", TOL))


# More than a starved machine takes to answer, and no more than a test can wait.
PATIENT = ("--heartbeat-timeout", 20, "--worker-wait", 20)
ENDLESS = ("--tol", 1e-9)


@pytest.mark.parametrize(
    "how", ["cut once", "cut for good", "swallowed", pytest.param("slow", marks=pytest.mark.chaos_long)]
)
def test_coordinator_to_scheduler(chaos: Chaos, rng: random.Random, how: str) -> None:
    cluster = chaos.cluster().start()
    goes_on = how in ("cut once", "slow")
    with Proxy(cluster.port) as proxy:
        words = (*FREE, *PATIENT, *(() if goes_on else ENDLESS))
        job = chaos.train(*words, on=cluster, address=proxy.address)
        chaos.wait_for_orders(cluster, rng.randrange(200, 800))
        {
            "cut once": proxy.cut,
            "cut for good": lambda: proxy.cut(refuse=True),
            "swallowed": proxy.swallow,
            "slow": lambda: proxy.slow_down(0.003),
        }[how]()
        ended = job.wait()
    if not goes_on:
        ended = chaos.resume(ended, "--tol", TOL)
    chaos.conclude(ended)


@pytest.mark.parametrize("how", ["cut", pytest.param("swallowed", marks=pytest.mark.chaos_long)])
def test_worker_to_scheduler(chaos: Chaos, rng: random.Random, how: str) -> None:
    cluster = chaos.cluster()
    with Proxy(cluster.port) as proxy:
        cluster.start(through=[proxy.address])
        job = chaos.train(*FREE, *PATIENT, on=cluster)
        chaos.wait_for_orders(cluster, rng.randrange(200, 800))
        if how == "cut":
            proxy.cut()
        else:
            proxy.swallow()
        ended = job.wait()
        chaos.conclude(ended)
        chaos.row.repeated = cluster.extra_rounds()
        cluster.close()


@pytest.mark.parametrize("how", ["killed", pytest.param("frozen", marks=pytest.mark.chaos_long)])
def test_scheduler(chaos: Chaos, rng: random.Random, how: str) -> None:
    cluster = chaos.cluster().start()
    job = chaos.train(*FREE, *PATIENT, *ENDLESS, on=cluster)
    chaos.wait_for_orders(cluster, rng.randrange(200, 800))
    cluster.scheduler.send(signal.SIGKILL if how == "killed" else signal.SIGSTOP)
    ended = job.wait()
    assert "scheduler" in ended.sentence
    chaos.conclude(chaos.resume(ended, "--tol", TOL))


@pytest.mark.parametrize(
    ("days", "whose"),
    [
        (400, "coordinator"),
        (400, "scheduler"),
        pytest.param(-400, "coordinator", marks=pytest.mark.chaos_long),
    ],
)
def test_clock_jumps(chaos: Chaos, rng: random.Random, days: int, whose: str) -> None:
    jump = (86400.0 * days, rng.randrange(100, 300))
    if whose == "coordinator":
        ended = chaos.train(*FREE, "--checkpoint-seconds", 0.2, clock=jump).wait()
    else:
        cluster = chaos.cluster().start(clock=jump)
        ended = chaos.train(*FREE, on=cluster).wait()
    assert chaos.conclude(ended)["primal"] == chaos.undisturbed["primal"]


@pytest.mark.chaos_long
def test_clock_of_the_scheduler_jumps_back(chaos: Chaos, rng: random.Random) -> None:
    """Dask then holds its messages back until the clock is where it was: calls are no such messages."""
    cluster = chaos.cluster().start(clock=(-86400.0 * 400, rng.randrange(30, 100)))
    chaos.conclude(chaos.train(*FREE, on=cluster).wait())


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
    hold = {"where": "topline.pipeline.training.run:save_checkpoint", "call": 1, "do": "hold"}
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
