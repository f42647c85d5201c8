"""Workers that die, freeze, starve, come and go."""

from __future__ import annotations

import os
import random
import signal
import threading
from typing import Any

import pytest

from tests.chaos.harness import FREE, KEPT, TOL, Chaos, until

ORDER = "topline.pipeline.cluster.worker_blocks:run_request"
BLOCK = "topline.solvers.blocks.block:Block.run"


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
