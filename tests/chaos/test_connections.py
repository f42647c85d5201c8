"""Connections that are cut, slow or dead, and a scheduler that dies or stands still."""

from __future__ import annotations

import random
import signal

import pytest

from tests.chaos.harness import FREE, TOL, Chaos
from tests.chaos.proxy import Proxy

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
    assert cluster.scheduler is not None
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
