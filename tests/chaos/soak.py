"""`topline serve` left alone with people and accidents: python -m tests.chaos.soak --minutes 120 --seed 0.

A script adds, deletes and spoils photographs, puts them into wrong classes, renames folders and kills
processes at seeded times, while a schedule of every 20 seconds retrains.  At the end every decision is
weighed again by arithmetic of its own on the evidence in the log, fsck looks at every file, and a local
webhook has been told of every kill.  Prints one JSON object, with memory and the size of the store.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from tests.e2e.served_store import END_SECONDS, ServedStore
from tests.pipeline.pictures import CLASSES, photograph, photographs
from topline.storage.models import load_model, read_standing
from topline.storage.stores import open_store
from topline.storage.verification import verify_store

LEAST_GAIN = 0.0


@dataclass
class Soak(ServedStore):
    """A served store, and what was done to its photographs."""

    seed: int = field(kw_only=True)
    done: Counter[str] = field(default_factory=Counter, kw_only=True)
    memory: list[int] = field(default_factory=list, kw_only=True)
    number: int = field(default=1000, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.rng = random.Random(self.seed)

    def run(self, seconds: float) -> dict[str, Any]:
        """Serve for so long while things happen; return what came of it."""
        photographs(self.photos, range(20))
        with self.hook() as address, self.served(address) as serving:
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                time.sleep(self.rng.uniform(2.0, 8.0))
                self.memory.append(psutil.Process(serving.pid).memory_info().rss)
                self.happens(serving)
            # What is under way ends, and the last photographs are taken in.
            quiet = len(self.events("finished"))
            deadline = time.monotonic() + END_SECONDS
            while len(self.events("finished")) == quiet and time.monotonic() < deadline:
                time.sleep(1.0)
        return self.judged()

    def happens(self, serving: subprocess.Popen[bytes]) -> None:
        """Let one thing happen."""
        things = {"add": 6, "delete": 1, "spoil": 1, "mislabel": 1, "rename": 1, "kill": 2}
        what = self.rng.choices(list(things), list(things.values()))[0]
        if getattr(self, what)(serving):
            self.done[what] += 1

    def add(self, _: object) -> bool:
        """Add a photograph to each class."""
        self.number += 1
        for label in range(CLASSES):
            photograph(self.photos, label, self.number)
        return True

    def files(self) -> list[Path]:
        return sorted(self.photos.rglob("*.png"))

    def delete(self, _: object) -> bool:
        """Delete a photograph."""
        self.rng.choice(self.files()).unlink()
        return True

    def spoil(self, _: object) -> bool:
        """Put rubbish in the place of a photograph."""
        self.rng.choice(self.files()).write_bytes(self.rng.randbytes(200))
        return True

    def mislabel(self, _: object) -> bool:
        """Put a photograph into the wrong class."""
        file = self.rng.choice(self.files())
        label = (int(file.parent.name[1]) + 1) % CLASSES
        file.rename(self.photos / f"c{label}" / f"moved-{self.number}-{file.name}")
        return True

    def rename(self, _: object) -> bool:
        """Rename a class and back, at a moment in which it may be listed."""
        folder = self.photos / f"c{self.rng.randrange(CLASSES)}"
        away = folder.with_name("renamed")
        folder.rename(away)
        time.sleep(self.rng.uniform(0.0, 1.0))
        shutil.copytree(away, folder, dirs_exist_ok=True)
        shutil.rmtree(away)
        return True

    def kill(self, serving: subprocess.Popen[bytes]) -> bool:
        """Kill the process of a run without a warning, if there is one."""
        for child in psutil.Process(serving.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                if "prefect.engine" in child.cmdline():
                    child.kill()
                    return True
        return False

    def judged(self) -> dict[str, Any]:
        """Return what was done, what was told, and what is wrong."""
        store = open_store(str(self.store))
        wrong = [
            *self.wrong_decisions(),
            *(str(found) for found in verify_store(store) if not found.harmless),
        ]
        told = Counter(one["title"].split(":")[0].removeprefix("topline ") for one in self.told)
        events = Counter(line["event"] for line in self.events())
        # A process that is killed when its run has ended has nothing to tell; one run may be under way.
        ended = events["finished"] + events["failed"] + events["failed again"]
        unended = events["started"] - ended
        if unended > 1 or told["failed"] < events["failed"]:
            wrong.append(
                f"{unended} runs ended without a word, {events['failed']} failed, {told['failed']} told"
            )
        decided = Counter(entry.action for entry in read_standing(store).entries)
        # What is kept for the same reason again is told in other words.
        if (told["promoted"], told["kept"] + told["kept again"]) != (decided["promote"], decided["keep"]):
            wrong.append(f"decided {dict(decided)}, told {dict(told)}")
        half = len(self.memory) // 2
        return {
            "done": dict(self.done),
            "events": dict(events),
            "told": dict(told),
            "decisions": len(read_standing(store).entries),
            "memory_MiB": [
                round(max(part) / 2**20) for part in (self.memory[:half], self.memory[half:]) if part
            ],
            "store_MiB": round(
                sum(f.stat().st_size for f in self.store.rglob("*") if f.is_file()) / 2**20, 1
            ),
            "prefect_KiB_a_run": round(
                (self.prefect / "prefect.db").stat().st_size / max(1, events["started"]) / 2**10
            ),
            "wrong": wrong,
        }

    def wrong_decisions(self) -> Iterator[str]:
        """Yield each decision that its own evidence does not bear out."""
        for entry in read_standing(open_store(str(self.store))).entries:
            if entry.action not in ("promote", "keep"):
                continue
            compared = (
                entry.evidence.get("accuracies") or entry.evidence.get("compared", {}).get("accuracies") or []
            )
            deciding = next((one for one in compared if one["k"] == 2), None)
            record = None
            with suppress(Exception):
                record = load_model(f"{self.store}/models/{entry.model}").record
            certified = record is None or bool((record.certificate or {}).get("certified"))
            if entry.action == "promote" and not certified:
                yield f"{entry.model} was promoted without a certificate"
            if deciding is None:
                continue
            gain = deciding["challenger"] - deciding["champion"]
            if entry.action == "promote" and gain < LEAST_GAIN - 1e-12:
                yield f"{entry.model} was promoted with a gain of {gain}"
            if (
                entry.action == "keep"
                and certified
                and gain >= LEAST_GAIN + 1e-12
                and "reaches" in entry.reason
            ):
                yield f"{entry.model} was kept out with a gain of {gain}: {entry.reason}"


def main() -> None:
    """Run it and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, help="where everything lies (default: a temporary folder)")
    given = parser.parse_args()
    folder = given.folder or Path(tempfile.mkdtemp(prefix="topline-soak-"))
    folder.mkdir(parents=True, exist_ok=True)
    found = Soak(folder.resolve(), seed=given.seed).run(60 * given.minutes)
    print(json.dumps(found, indent=1))
    sys.exit(1 if found["wrong"] else 0)


if __name__ == "__main__":
    main()
