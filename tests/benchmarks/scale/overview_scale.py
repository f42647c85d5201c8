"""Pages of a store that is years old.

    python -m tests.benchmarks.scale.overview_scale [--runs 1000 --models 500]

A store of that many runs, models and decisions is made, the newest runs with histories of `--rounds` rounds,
all others with a hundred.  Prints the seconds of processor time of the overview and of a run's page at the
first look, and at looks after it, with every reading made again; and the bytes that are sent.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from tests.pipeline.dashboards import Story, decided, published
from topline.pipeline.dashboard.pages import overview_page, run_page
from topline.pipeline.dashboard.store_follower import NEWEST, StoreFollower
from topline.storage.runs import finish_run
from topline.storage.stores import Store, open_store

SHORT = 100
LOOKS = 5


@dataclass(frozen=True)
class Looked:
    """Seconds of the first look at a page, the median of later ones, and its size in bytes."""

    page: str
    cold: float
    warm: float
    size: int

    def __str__(self) -> str:
        return f"{self.page:<10} {self.cold:8.2f} {self.warm:8.3f} {self.size / 1024:10,.0f}"


class Clock:
    """Seconds that pass faster than the readings stay fresh."""

    now = 0.0

    def __call__(self) -> float:
        self.now += 100.0
        return self.now


def old_store(folder: Path, runs: int, models: int, rounds: int) -> Store:
    """Return a store of so many runs and models; every third was promoted, the others kept out."""
    store = open_store(folder, create=True)
    made = []
    for number in range(runs):
        long = rounds if number >= runs - NEWEST else SHORT
        story = Story(store, time.time() - 0.1 * long)
        story.rounds(0, long, decay=1 - 5 / long)
        story.end()
        outcome = {"status": "solved", "relative_gap": 9e-4, "passes": long, "seconds": 0.1 * long}
        finish_run(store, story.run, outcome)
        made.append(story.run)
    for number in range(models):
        name = published(store, 0.8 + 0.1 * number / models, made[number % len(made)])
        action = "promote" if number % 3 == 0 else "keep"
        when = f"2026-01-01T02:{number // 60:02d}:{number % 60:02d}+00:00"
        decided(store, action, name, "as the rule says", when)
    return store


def look(store: Store, page: str) -> Looked:
    """Return how long the looks at a page take, all files of the store in the system's cache."""
    follower, seconds, size = StoreFollower(store, Clock()), [], 0
    for _ in range(1 + LOOKS):
        begun = time.process_time()
        if page == "overview":
            shown = overview_page(store.url, follower.overview(time.time()), time.time())
        else:
            run = follower.overview(time.time()).runs[0].id
            shown = run_page(*follower.run(run), time.time())
        seconds.append(time.process_time() - begun)
        size = len(shown.html.encode())
    return Looked(page, seconds[0], sorted(seconds[1:])[LOOKS // 2], size)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--models", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=10_000)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        store = old_store(Path(folder) / "store", given.runs, given.models, given.rounds)
        print(f"{given.runs:,} runs, {given.models:,} models, {given.rounds:,} rounds in the newest runs")
        print(f"{'page':<10} {'cold s':>8} {'warm s':>8} {'KiB':>10}")
        for page in ("overview", "run"):
            print(look(store, page))


if __name__ == "__main__":
    main()
