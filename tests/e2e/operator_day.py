"""An operator's day, and what each place says of it: python -m tests.e2e.operator_day.

A store is served, and one thing after the other happens to it: runs fail and succeed, Prefect's server is
lost, the schedule is paused, images go, the process dies.  Runs and clock are scripted; what looks at them is
the product.  One table has for each state what `topline status`, its exit code, the page, /health, /metrics,
the notices and Prometheus' alerts say.  A second one has what else an operator met, what is said of it now,
and the tests that show it, which are run (`--no-tests`: not).
"""

from __future__ import annotations

import html
import io
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import httpx
import yaml
from prefect.client.schemas.objects import FlowRun, State
from prefect.states import Completed, Failed, Running
from prometheus_client.parser import text_string_to_metric_families

from tests.pipeline.conftest import exit_code
from tests.pipeline.dashboard.test_dashboard import answer
from tests.processes import run_program
from topline.flows.following import Follower
from topline.flows.serving import note_of
from topline.pipeline.dashboard import store_status
from topline.pipeline.notices import Kind, Notice
from topline.pipeline.telemetry import Note, deployed_run, pulse
from topline.storage.models import DecisionRecord, read_standing, record_decision
from topline.storage.served_schedule import note_schedule, read_schedule
from topline.storage.stores import Store, open_store

ROOT = Path(__file__).resolve().parents[2]
ALERTS = ROOT / "deploy" / "alerts.yaml"
IMAGES = {"seen": 50, "new": 4, "changed": 0, "gone": 246, "rejected": 6, "described": 4}


@dataclass
class Row:
    """What is said in one state."""

    state: str
    exit: object
    status: str
    health: str
    metric: str
    notices: list[str]
    alerts: list[str]
    on_the_page: bool


@dataclass
class Day:
    """A served store, Prefect's runs as the script has them, and what was told since the last look."""

    store: Store
    note: Note
    runs: dict[UUID, FlowRun] = field(default_factory=dict)
    lost: Exception | None = None
    paused: bool = False
    ahead: timedelta = timedelta()
    told: list[Notice] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.follower = Follower(self.store, self._read, lambda: self.paused)
        self.follower.poll()

    def _read(self) -> list[FlowRun]:
        if self.lost is not None:
            raise self.lost
        return list(self.runs.values())[::-1]

    def say(self, notice: Notice) -> None:
        self.told.append(notice)
        note_of(notice, self.note)

    def run(self, state: State[Any]) -> None:
        """Let a run begin and end."""
        number = uuid4()
        for one in (Running(), state):
            self.runs[number] = FlowRun(id=number, flow_id=uuid4(), name="nightly", state=one)
            self.look()

    def look(self, times: int = 1) -> None:
        for _ in range(times):
            for notice in self.follower.poll():
                self.say(notice)

    def see(self, state: str) -> None:
        """Ask every place, and begin to listen anew."""
        now = datetime.now(UTC) + self.ahead
        found = store_status(self.store, now.timestamp())
        looked = {path: answer(self.store, path, now.timestamp()) for path in ("/", "/health", "/metrics")}
        samples = [
            sample
            for family in text_string_to_metric_families(looked["/metrics"].text)
            for sample in family.samples
        ]
        line = found.lines.get("schedule", "no schedule")
        served = [s.labels["state"] for s in samples if s.name == "topline_schedule" and s.value]
        with redirect_stdout(io.StringIO()):
            # The command looks at the clock.
            code = int(not found.healthy) if self.ahead else exit_code("status", self.store.url)
        self.rows.append(
            Row(
                state,
                code,
                re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d", "TIME", line),
                looked["/health"].json()["status"],
                served[0] if served else "none",
                [one.kind.value for one in self.told if one.kind.told],
                [alert.name for alert in alerts() if any(map(alert.fires, samples))],
                line.partition("(")[2].removesuffix(")") in html.unescape(looked["/"].text),
            )
        )
        self.told.clear()


_SIMPLE = re.compile(
    r'(?P<name>topline_\w+)({(?P<label>\w+)(?P<how>=|!~)"(?P<value>[^"]+)"})?'
    r" (?P<sign>[=<>]+) (?P<bound>[\d.e]+)"
)
_SIGNS = {"==": float.__eq__, ">": float.__gt__, ">=": float.__ge__, "<": float.__lt__}


@dataclass(frozen=True)
class Alert:
    """A rule that compares one sample with a number; promtool checks all rules."""

    name: str
    parts: dict[str, str]

    def fires(self, sample: Any) -> bool:
        """Return whether a sample is picked and compares so."""
        label, parts = self.parts["label"], self.parts
        if sample.name != parts["name"]:
            return False
        picked = not label or (re.fullmatch(parts["value"], sample.labels[label]) is None) is (
            parts["how"] == "!~"
        )
        return picked and _SIGNS[parts["sign"]](float(sample.value), float(parts["bound"]))


def alerts() -> list[Alert]:
    """Return the rules of that kind."""
    rules = yaml.safe_load(ALERTS.read_text())["groups"][0]["rules"]
    found = [(rule["alert"], _SIMPLE.fullmatch(rule["expr"].strip())) for rule in rules]
    return [Alert(name, match.groupdict()) for name, match in found if match is not None]


@contextmanager
def served_day(store: Store) -> Iterator[Day]:
    with pulse(store, "6h", "UTC") as note:
        yield Day(store, note)


def day(folder: Path) -> list[Row]:
    """Live through the day in a new store, and return what was said."""
    store = open_store(folder / "store", create=True)
    with served_day(store) as one:
        one.say(Notice(Kind.SERVING, store.url, "served", {"reachable": True, "paused": False}))
        one.see("served, never ran")
        one.run(Completed(message="promoted: the first"))
        one.see("a run succeeded")
        one.run(Failed(message="no image can be read"))
        one.see("a run failed")
        one.run(Failed(message="no image can be read"))
        one.see("it failed again")
        one.run(Failed(message="no image can be read"))
        one.see("and a third time")
        one.run(Completed(message="kept: worse"))
        one.see("a run succeeded again")
        one.lost = httpx.ConnectError("connection refused")
        one.look(3)
        one.see("Prefect's server is gone")
        one.lost = None
        one.look()
        one.see("it answers again")
        one.paused = True
        one.look(10)
        one.see("the deployment is paused")
        one.paused = False
        one.look(10)
        one.see("it is resumed")
        standing = read_standing(store)
        record_decision(store, standing, DecisionRecord("promote", "m0001", "the first", "a run"))
        evidence = {"images": IMAGES, "drift": {"features": 0.31}}
        kept = DecisionRecord("keep", "m0002", "rows", "a run", evidence)
        record_decision(store, read_standing(store), kept)
        one.look()
        one.see("246 of 296 images are gone")
        one.ahead = timedelta(minutes=10)
        one.see("the process is killed")
        one.ahead = timedelta()
    one.see("ended on purpose")
    with suppress(RuntimeError), served_day(store) as two:
        raise RuntimeError("no server can be started")
    two.see("ended by an error")
    schedule = read_schedule(store)
    note_schedule(store, replace(schedule, beat="", ended="", error="", process="", since=schedule.since))
    with deployed_run(store, "0 2 * * *", "UTC", "retrain/nightly"):
        pass
    two.see("a deployment's run succeeded")
    for _ in range(3):
        with suppress(RuntimeError), deployed_run(store, "0 2 * * *", "UTC", "retrain/nightly"):
            raise RuntimeError("no image can be read")
    two.see("three of them failed")
    two.ahead = timedelta(days=3)
    two.see("none of them came for three days")
    two.ahead = timedelta()
    store.write_bytes("schedule.json", b"{")
    two.see("its record is damaged")
    return [*one.rows, *two.rows]


#: What an operator met, what is said of it now, and the tests that show it, below `tests`.
MET = yaml.safe_load(Path(__file__).with_name("operator_met.yaml").read_text())


def show_met() -> bool:
    """Run the tests of what was met, and print a row of each; return whether all passed."""
    tests = [f"tests/{test}" for one in MET for test in one["tests"]]
    command = [sys.executable, "-m", "pytest", "-q", "-rA", "-m", "", "-p", "no:cacheprovider", *tests]
    said = run_program(command, cwd=ROOT, timeout=None).stdout.splitlines()
    ended = [line.split()[:2] for line in said if re.match(r"(PASSED|FAILED|ERROR) tests/", line)]
    found = {test: Counter(how.lower() for how, node in ended if node.startswith(test)) for test in tests}
    print("\n| | met | now | shown by |\n|---|---|---|---|")
    for number, one in enumerate(MET, start=1):
        outcomes = {test: found[f"tests/{test}"] or {"not run": 1} for test in one["tests"]}
        cells = [
            f"{test}: {', '.join(f'{count} {how}' for how, count in each.items())}"
            for test, each in outcomes.items()
        ]
        print(f"| {number} | {one['met']} | {one['now']} | {'; '.join(cells)} |")
    return all(set(each) == {"passed"} for each in found.values())


def main() -> None:
    """Print the tables; exit with 1 unless all tests passed."""
    with tempfile.TemporaryDirectory() as folder:
        rows = day(Path(folder))
    print("| state | exit | /health | /metrics | notified | alerts | topline status |")
    print("|---|---|---|---|---|---|---|")
    for row in rows:
        told, alerts = ", ".join(row.notices), ", ".join(one.removeprefix("Topline") for one in row.alerts)
        print(
            f"| {row.state} | {row.exit} | {row.health} | {row.metric} | {told} | {alerts} | {row.status} |"
        )

    if "--no-tests" not in sys.argv[1:] and not show_met():
        raise SystemExit(1)


if __name__ == "__main__":
    main()
