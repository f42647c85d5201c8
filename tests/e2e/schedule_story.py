"""A classifier kept fresh by `topline serve`, for real: python -m tests.e2e.schedule_story FOLDER.

A schedule of every minute fires three times on a Prefect server of its own.  Between the runs photographs are
added, then spoiled; then everything but the server is killed in the middle of a run, the schedule misses some
minutes, and is served again.  Takes about twelve minutes, which is why no test calls it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import httpx
import psutil

from tests.pipeline.fresh_photos import photographs, spoil
from topline.pipeline.options.train import ClusterConfig, TrainConfig
from topline.pipeline.registry import rollback
from topline.pipeline.training import train
from topline.storage.datasets import Dataset, list_datasets
from topline.storage.models import list_models, read_standing
from topline.storage.stores import held_lease, holder, open_store
from topline.storage.verification import verify_store

TOPLINE = [sys.executable, "-m", "topline"]
TRAINED = {"k": 2, "C": 1.0, "tol": 1e-3}
WAIT_SECONDS = 400.0

Found = TypeVar("Found")


class Story:
    """Photographs, a store, a Prefect home and what the server knows."""

    def __init__(self, folder: Path) -> None:
        self.photos, self.store, self.home = folder / "photos", folder / "store", folder / "prefect"
        self.environ = {**os.environ, "PREFECT_HOME": str(self.home), "HOME": str(folder)}
        self.environ.pop("PREFECT_API_URL", None)
        self.begun = time.monotonic()

    def say(self, text: str) -> None:
        print(f"[{time.monotonic() - self.begun:6.1f} s] {text}", flush=True)

    @contextmanager
    def served(self) -> Iterator[subprocess.Popen[bytes]]:
        options = ["--images", str(self.photos), "--store", str(self.store), "--workers", "0"]
        options += ["--backbone", "hog:size=24,cells=8", "--k", "2", "--tol", "1e-3"]
        options += ["--most-feature-drift", "10"]
        with (self.home.parent / "serve.log").open("ab") as log:
            serving = subprocess.Popen(
                [*TOPLINE, "serve", "--every", "60s", *options],
                env=self.environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        try:
            yield serving
        finally:
            if serving.poll() is None:
                os.killpg(serving.pid, signal.SIGINT)
                try:
                    serving.wait(60.0)
                except subprocess.TimeoutExpired:
                    os.killpg(serving.pid, signal.SIGKILL)
                    serving.wait()

    def api(self, path: str, body: dict[str, Any] | None = None) -> Any:
        url = (self.home / "topline-server.url").read_text()
        user, _, word = (self.home / "topline-server.password").read_text().partition(":")
        answer = httpx.post(f"{url}{path}", json=body or {}, timeout=30.0, auth=(user, word))
        return answer.raise_for_status().json()

    def runs(self, *states: str) -> list[dict[str, Any]]:
        """Runs of the flow, oldest first."""
        try:
            found = self.api("/flow_runs/filter", {"sort": "EXPECTED_START_TIME_ASC"})
        except (httpx.HTTPError, OSError):
            return []
        return [run for run in found if not states or run["state_type"] in states]

    def counts(self, run: dict[str, Any]) -> dict[str, str]:
        """What the summary of a run says, by name."""
        found = self.api("/artifacts/filter", {"artifacts": {"flow_run_id": {"any_": [run["id"]]}}})
        text = next(str(one["data"]) for one in found if one["key"] == "summary")
        return dict(re.findall(r"^\| (.+?) \| (.+?) \|$", text, re.MULTILINE))

    def until(self, what: str, look: Callable[[], Found], seconds: float = WAIT_SECONDS) -> Found:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            found = look()
            if found:
                self.say(what)
                return found
            time.sleep(1.0)
        raise AssertionError(f"not within {seconds:g} s: {what}; runs: {self.runs()}")

    def completed(self, number: int) -> dict[str, str]:
        runs = self.until(
            f"run {number} has ended",
            lambda: len(found := self.runs("COMPLETED", "FAILED", "CRASHED")) >= number and found,
        )
        assert runs[number - 1]["state_type"] == "COMPLETED", runs[number - 1]["state"]
        summary = self.counts(runs[number - 1])
        self.say(json.dumps(summary))
        return summary

    def champion(self) -> str | None:
        return read_standing(open_store(self.store)).champion


def three_nights(story: Story) -> None:
    """New photographs are promoted, spoiled labels are kept out, and the way back works."""
    with story.served():
        first = story.completed(1)
        assert (first["outcome"], first["images described"]) == ("promoted", "160")
        photographs(story.photos, range(40, 48))
        second = story.completed(2)
        while second["outcome"] == "unchanged":  # it began before the photographs were there
            second = story.completed(len(story.runs("COMPLETED")) + 1)
        assert (second["outcome"], second["images described"]) == ("promoted", "32")
        seen = Dataset(open_store(story.store), list_datasets(open_store(story.store))[-1]).manifest()
        train_rows = {row["sha256"] for row in seen.to_pylist() if row["split"] == "train"}
        story.say(f"{spoil(story.photos, train_rows)} photographs are moved into wrong folders")
        done = len(story.runs("COMPLETED"))
        third = story.completed(done + 1)
        while third["outcome"] == "unchanged":
            third = story.completed(len(story.runs("COMPLETED")) + 1)
        assert (third["outcome"], third["images described"]) == ("kept", "0"), third
        assert "top-" in third["because"]
        assert story.champion() == "m0002"
    passes = {record.id: record.result["passes"] for record in list_models(open_store(story.store))}
    copy = story.store.with_name("copy")
    shutil.copytree(story.store, copy)
    dataset = list_datasets(open_store(copy))[1].id
    cold = train(TrainConfig(store=str(copy), dataset=dataset, **TRAINED), ClusterConfig(workers=0))
    story.say(f"passes of the second version: {passes['m0002']} from the first, {cold.passes} from zero")
    assert passes["m0002"] < cold.passes
    assert rollback(str(story.store), reason="a drill").champion == "m0001"
    story.say("rolled back to m0001")


def killed_in_the_middle(story: Story) -> None:
    """Serve and its run are killed; the run is marked crashed, and one run makes up for what was missed."""
    photographs(story.photos, range(48, 300))
    with story.served() as serving:
        running = story.until("a run is at work", lambda: at_work(story))
        os.killpg(serving.pid, signal.SIGKILL)
        killed = time.monotonic()
        story.say(f"killed in run {running['name']}, which holds the store")
        serving.wait()
        with held_lease(open_store(story.store), "retrain", "whoever comes next", wait=WAIT_SECONDS):
            story.say("the store is free again")
        assert story.champion() == "m0001"

        def crashed() -> dict[str, Any] | None:
            found = [run for run in story.runs("CRASHED") if run["id"] == running["id"]]
            return found[0] if found else None

        marked = story.until("the run is marked", crashed)
    story.say(f"crashed {time.monotonic() - killed:.0f} s after the kill: {marked['state']['message']}")
    before = len(story.runs("COMPLETED", "FAILED", "CRASHED"))
    due = story.until("three runs are late", lambda: len(late := late_runs(story)) >= 3 and late)
    with story.served():
        summary = story.completed(before + 1)
        assert summary["outcome"] in ("promoted", "kept")
        assert story.champion() is not None
        story.until("no run is late", lambda: not late_runs(story))
        states = {run["id"]: run for run in story.runs()}
        ends = [states[run["id"]]["state"] for run in due]
        story.say(str([(end["type"], end["message"]) for end in ends]))
        assert sum(end["type"] == "CANCELLED" for end in ends) == len(due) - 1
    findings = verify_store(open_store(story.store))
    assert all(finding.harmless for finding in findings), findings


def end_server(story: Story) -> None:
    """End the server, which outlives the serving process that was killed."""
    port = (story.home / "topline-server.url").read_text().rpartition(":")[2].removesuffix("/api")
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        with contextlib.suppress(psutil.Error):
            if port in words and process.environ().get("PREFECT_HOME") == str(story.home):
                process.kill()


def at_work(story: Story) -> dict[str, Any] | None:
    """The run that holds the store."""
    who = holder(open_store(story.store), "retrain") or ""
    return next((run for run in story.runs("RUNNING") if run["id"] in who), None)


def late_runs(story: Story) -> list[dict[str, Any]]:
    now = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime())
    return [run for run in story.runs("SCHEDULED") if str(run["expected_start_time"])[:19] <= now]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", choices=["nights", "kill"])
    arguments = parser.parse_args()
    story = Story(arguments.folder.absolute())
    if arguments.only != "kill":
        photographs(story.photos, range(40))
        three_nights(story)
    if arguments.only != "nights":
        try:
            killed_in_the_middle(story)
        finally:
            end_server(story)
    story.say("done")


if __name__ == "__main__":
    main()
