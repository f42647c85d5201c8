"""Commits, leases and checkpoints in a bucket behind a bad network: python -m tests.chaos.s3_faults.

All requests go through `S3Proxy`, which delays, cuts, refuses, loses, doubles and replays one in five, to
moto or, with --server, to another server.  What was acknowledged must be there once, what was refused at most
once; one at a time holds a lease, and no tenure is nobody's; what is published has all its bytes; and of
checkpoints the newest acknowledged one or one after it is read back whole.  The store is then read on a quiet
network.  Prints how often each fault was met, and what was lost.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import pytest

from tests.chaos.s3_proxy import FAULTS, S3Proxy
from tests.storage.bucket import SERVERS, own_drivers, served_bucket
from topline.storage.arrays import ChunkPlan
from topline.storage.cache import PredictionsDraft, StoredPredictions
from topline.storage.errors import AccessError, ConflictError
from topline.storage.runs import (
    add_answer,
    create_run,
    create_sweep,
    latest_checkpoint,
    read_answers,
    save_checkpoint,
)
from topline.storage.stores import CommitLog, LeaseTerms, Store, held_lease, open_store
from topline.storage.verification import verify_store

TERMS = LeaseTerms(beat=0.4, expiry=20.0)
PATIENCE = 600.0
WRITERS = 3


@dataclass
class Trial:
    """What was tried on a store behind a proxy, and what went wrong."""

    store: Store
    proxy: S3Proxy
    each: int
    tried: int = 0
    refused: int = 0
    lost: list[str] = field(default_factory=list)

    def attempt(self, act: Callable[[], object]) -> bool:
        """Act; return whether it was acknowledged.  Only that a bucket is out of reach may be said."""
        self.tried += 1
        try:
            act()
        except AccessError:
            self.refused += 1
            return False
        return True

    def side_by_side(self, work: Callable[[int], None]) -> None:
        """Let several writers work at once; what one of them raises is a loss."""

        def guarded(number: int) -> None:
            try:
                work(number)
            except Exception as error:
                self.lost.append(f"{type(error).__name__}: {error}")

        threads = [threading.Thread(target=guarded, args=(number,)) for number in range(WRITERS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def commits(trial: Trial) -> None:
    """Racing writers append records."""
    log, sure = CommitLog(trial.store, "race"), []

    def work(writer: int) -> None:
        for n in range(trial.each):
            name = f"{writer} {n}"
            if trial.attempt(lambda name=name: log.append({"name": name})):
                sure.append(name)

    trial.side_by_side(work)
    with trial.proxy.quiet():
        counts = Counter(str(record["name"]) for record in log.records())
        trial.lost += [f"{name} was acknowledged, and is not there" for name in sure if not counts[name]]
        trial.lost += [f"{name} is there {count} times" for name, count in counts.items() if count > 1]
        if len(counts) > len(sure) + trial.refused:
            trial.lost.append("records that nobody wrote")
        trial.lost += [str(found) for found in log.findings("log") if not found.harmless]


def leases(trial: Trial) -> None:
    """Racing candidates hold a lease in turn."""
    inside: list[int] = []
    numbers: list[int] = []

    def hold(writer: int) -> None:
        with held_lease(trial.store, "retrain", f"writer {writer}", wait=PATIENCE, terms=TERMS) as lease:
            inside.append(writer)
            numbers.append(lease.number)
            lease.check()
            if len(inside) > 1:
                trial.lost.append(f"writers {inside} held it together")
            inside.remove(writer)

    def work(writer: int) -> None:
        for _ in range(trial.each):
            trial.attempt(lambda: hold(writer))

    trial.side_by_side(work)
    unknown = set(range(1, max(numbers, default=0) + 1)) - set(numbers)
    if len(unknown) > trial.refused or len(numbers) != len(set(numbers)):
        trial.lost.append(f"of tenures {sorted(numbers)} some were nobody's, or had by two")


def checkpoints(trial: Trial) -> None:
    """A run saves its state round after round, and is read as one that takes it over."""
    run, sure = create_run(trial.store, {}), 0
    for number in range(1, 2 * trial.each + 1):
        state = {"W": np.full((5, 3), number, np.float64)}
        if trial.attempt(
            lambda number=number, state=state: save_checkpoint(trial.store, run, number, state, None, meta={})
        ):
            sure = number
        with trial.proxy.quiet():
            found = latest_checkpoint(trial.store, run)
        if sure and (found is None or found.round < sure or (found.arrays["W"] != found.round).any()):
            trial.lost.append(f"checkpoint {sure} was acknowledged; {found and found.round} is read")


def publications(trial: Trial) -> None:
    """Racing writers publish results, each key more than once."""
    sure = []

    def work(writer: int) -> None:
        for n in range(trial.each):
            key = f"{n:016x}"

            def publish(key: str = key) -> None:
                draft = PredictionsDraft.begin(trial.store, key, ChunkPlan(8, 8, 8), 1)
                arrays = {"classes": np.full((8, 1), 3, np.int32), "scores": np.ones((8, 1), np.float32)}
                draft.publish(key, draft.write_unit(0, arrays), {"writer": writer})

            if trial.attempt(publish):
                sure.append(key)

    trial.side_by_side(work)
    with trial.proxy.quiet():
        for key in sorted(set(sure)):
            classes = StoredPredictions.load(trial.store, key).classes.rows(0, 8)
            if (classes != 3).any():
                trial.lost.append(f"{key} was acknowledged, and has other rows")


def answers(trial: Trial) -> None:
    """A sweep, alone, stores its answers: nobody else is to be blamed for one."""
    sweep, count = create_sweep(trial.store, {}, "d0001", ""), 0
    for number in range(2 * trial.each):
        try:
            if not trial.attempt(lambda number=number: add_answer(trial.store, sweep, number, {"n": number})):
                break
        except ConflictError as error:
            trial.lost.append(str(error))
            break
        count += 1
    with trial.proxy.quiet():
        found = [answer["n"] for answer in read_answers(trial.store, sweep)]
    if found[:count] != list(range(count)) or len(found) > count + trial.refused:
        trial.lost.append(f"{count} answers were acknowledged, {len(found)} are there")


TRIALS: dict[str, Callable[[Trial], None]] = {
    "commits": commits,
    "leases": leases,
    "checkpoints": checkpoints,
    "publications": publications,
    "answers": answers,
}  # fmt: skip


@contextmanager
def behind(proxy: S3Proxy, bucket: str, name: str) -> Iterator[Store]:
    """Yield a store that is reached through the proxy."""
    with pytest.MonkeyPatch.context() as patch, own_drivers():
        patch.setenv("AWS_ENDPOINT_URL", proxy.url)
        yield open_store(f"s3://{bucket}/{name}")


def run(
    what: str,
    seed: int,
    bucket: str,
    *,
    each: int,
    faults: tuple[str, ...] = FAULTS,
    puts_if_absent: bool = False,
) -> Trial:
    """Run one trial on a store of its own, and look at the store afterwards."""
    settings = {"seed": seed, "faults": faults, "puts_if_absent": puts_if_absent}
    with (
        S3Proxy(os.environ["AWS_ENDPOINT_URL"], **settings) as proxy,
        behind(proxy, bucket, f"{what}-{seed}-{'-'.join(faults)[:20]}") as store,
    ):
        trial = Trial(store, proxy, each)
        TRIALS[what](trial)
        with proxy.quiet():
            trial.lost += [str(found) for found in verify_store(store) if not found.harmless]
    return trial


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all trials, print the table; 1 if something was lost."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--each", type=int, default=6, help="what each writer does so many times")
    parser.add_argument("--only", nargs="*", default=list(TRIALS), choices=list(TRIALS))
    parser.add_argument("--server", default="moto", choices=list(SERVERS))
    options = parser.parse_args(arguments)
    print(f"{'':<14}{'seeds':>6}{'tried':>7}{'refused':>9}{'requests':>10}{'faults':>8}{'losses':>8}  met")
    losses = 0
    with served_bucket(options.server) as bucket:
        for what in options.only:
            trials = [run(what, seed, bucket, each=options.each) for seed in range(options.seeds)]
            met = sum((one.proxy.met for one in trials), Counter())
            lost = [text for one in trials for text in one.lost]
            losses += len(lost)
            sums = np.sum([(one.tried, one.refused, one.proxy.requests) for one in trials], axis=0)
            shown = ", ".join(f"{fault} {met[fault]}" for fault in FAULTS)
            numbers = f"{sums[0]:>7}{sums[1]:>9}{sums[2]:>10}{met.total():>8}{len(lost):>8}"
            print(f"{what:<14}{len(trials):>6}{numbers}  {shown}", flush=True)
            for text in lost:
                print(f"  {text}")
    return 1 if losses else 0


if __name__ == "__main__":
    sys.exit(main())
