"""The commands of deploy/README.md, run for real: PostgreSQL, Prefect, Dask over TLS, an S3 store."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.free_ports import free_port
from tests.others_rooms import others_rooms
from tests.processes import run_program, until
from topline.pipeline.cluster.tls import make_tls_files

ROOT = Path(__file__).resolve().parents[2]
PORTS = ("4200", "5432", "8786", "8787", "8788", "5000")
SLOW = 420.0  # a busy machine takes minutes to start a server

wait_for = partial(until, seconds=SLOW, pause=1.0)

pytestmark = [pytest.mark.deployment, pytest.mark.timeout(1800)]


def blocks(page: str) -> dict[str, str]:
    """Commands of the page by the name in their first line."""
    found = re.findall(r"^```sh\n# (\w+)\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    return dict(found)


@dataclass
class Deployment:
    """Everything that the page starts, and where it is."""

    folder: Path
    commands: Mapping[str, str]
    environ: dict[str, str]
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def home(self) -> Path:
        """Where the page keeps its settings, unless told otherwise."""
        return Path(self.environ["HOME"], ".topline")

    def run(self, name: str) -> str:
        """Run a block of commands to its end."""
        done = run_program(
            ["bash", "-euo", "pipefail", "-c", self.commands[name]], cwd=ROOT, env=self.environ
        )
        (self.folder / f"{name}.log").write_text(done.stdout + done.stderr)
        assert done.returncode == 0, f"{done.stdout}{done.stderr}{self.last_words()}"
        return done.stdout

    def last_words(self, lines: int = 40) -> str:
        """The ends of the logs of whoever takes part in a run: a failed run's reason is in one of them."""
        said = ""
        for name in ("worker", "workers", "scheduler", "server"):
            log = self.folder / f"{name}.log"
            if log.exists():
                last = log.read_text(errors="replace").splitlines()[-lines:]
                said += "\n".join([f"\n--- {log.name}", *last])
        return said

    @property
    def elsewhere(self) -> Path:
        """Where servers and workers are started: a folder that has others' packages of our rooms' names."""
        return self.folder / "elsewhere"

    def start(self, name: str) -> None:
        """Run a block of commands in the background, as in a terminal of its own."""
        with (self.folder / f"{name}.log").open("wb") as log:
            self.processes[name] = subprocess.Popen(
                ["bash", "-euo", "pipefail", "-c", self.commands[name]],
                cwd=self.elsewhere,
                env=self.environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def settings(self) -> dict[str, str]:
        """What the processes get from the file of settings."""
        words = re.findall(r"([A-Z_0-9]+)=(\S+)", (self.home / "env").read_text())
        return dict(words)

    def ask(self, path: str, body: Any = None, **headers: Any) -> httpx.Response:
        settings = self.settings()
        auth = tuple(settings["PREFECT_API_AUTH_STRING"].split(":"))
        return httpx.post(
            f"{settings['PREFECT_API_URL']}/{path}",
            json=body or {},
            auth=headers.get("auth", auth),
            timeout=60.0,
        )

    def flow_runs(self) -> list[dict[str, Any]]:
        # On a busy machine a database may take longer than the server waits for it, which answers 500 then.
        answer = wait_for(lambda: (found := self.ask("flow_runs/filter")).status_code < 500 and found)
        found: list[dict[str, Any]] = answer.raise_for_status().json()
        return sorted(found, key=lambda run: str(run["created"]))

    def says(self, name: str, text: str) -> bool:
        process = self.processes[name]
        log = (self.folder / f"{name}.log").read_text(errors="replace")
        assert process.poll() is None, log
        return text in log


def as_somebody_else(folder: Path, home: Path, binaries: Path) -> str:
    """PostgreSQL refuses to run as root: give a folder of commands that run its programs as "nobody"."""
    wrappers = folder / "bin"
    wrappers.mkdir()
    for name in ("initdb", "pg_ctl"):
        wrapper = wrappers / name
        wrapper.write_text(f'#!/bin/sh\ncd /\nexec runuser -u nobody -- {binaries / name} "$@"\n')
        wrapper.chmod(0o755)
    for parent in (home, *home.parents):
        if parent.stat().st_uid == 0 and parent != Path("/tmp"):
            parent.chmod(parent.stat().st_mode | 0o011)
    (home / "pg").mkdir(mode=0o700)
    shutil.chown(home / "pg", "nobody")
    return f"{wrappers}:"


@contextmanager
def ended(deployment: Deployment) -> Iterator[None]:
    try:
        yield
    finally:
        family = [
            member
            for process in deployment.processes.values()
            if process.poll() is None
            for member in [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
        ]
        for member in reversed(family):
            with_no_trace(member.terminate)
        for survivor in psutil.wait_procs(family, timeout=20.0)[1]:
            with_no_trace(survivor.kill)
        for process in deployment.processes.values():
            process.wait()


def with_no_trace(call: Callable[[], None]) -> None:
    try:
        call()
    except psutil.NoSuchProcess:
        return


@pytest.fixture(scope="module")
def deployment(open_folder: Path) -> Iterator[Deployment]:
    """All of the page's processes, started by its commands in its order."""
    binaries = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    if not binaries:
        pytest.skip("no PostgreSQL: apt-get install postgresql")
    (open_folder / "account").mkdir()
    page = (ROOT / "deploy" / "README.md").read_text()
    for port in PORTS:
        page = re.sub(rf"\b{port}\b", str(free_port()), page)
    path = f"{Path(sys.executable).parent}:{binaries[-1]}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
    # What a fresh account has: the page sets the rest.
    environ = {"PATH": path, "HOME": str(open_folder / "account"), "LANG": "C.UTF-8"}
    if "PYTHONPATH" in os.environ:
        environ["PYTHONPATH"] = os.environ["PYTHONPATH"]
    found = Deployment(open_folder, blocks(page), environ)
    others_rooms(found.elsewhere)
    with ExitStack() as stack:
        stack.enter_context(ended(found))
        found.run("settings")
        found.run("settings")
        if os.getuid() == 0:
            found.environ["PATH"] = as_somebody_else(open_folder, found.home, binaries[-1]) + path
        found.run("database")
        found.run("database")
        stack.callback(
            subprocess.run,
            ["pg_ctl", f"--pgdata={found.home / 'pg'}", "--mode=fast", "stop"],
            env=found.environ,
            stdout=subprocess.DEVNULL,
            check=True,
        )
        for name in ("store", "scheduler", "server"):
            found.start(name)
        wait_for(lambda: found.says("scheduler", "Scheduler at:"))
        found.start("workers")
        wait_for(lambda: healthy(found))
        found.run("deployments")
        found.start("worker")
        found.start("dashboard")
        wait_for(lambda: found.says("worker", "started!"))
        found.run("data")
        yield found


def healthy(deployment: Deployment) -> bool:
    deployment.says("server", "")
    try:
        return httpx.get(f"{deployment.settings()['PREFECT_API_URL']}/health", timeout=10.0).is_success
    except httpx.TransportError:
        return False


def test_everything_listens_on_the_loopback_alone(deployment: Deployment) -> None:
    pids = [process.pid for process in deployment.processes.values()]
    pids.append(int((deployment.home / "pg" / "postmaster.pid").read_text().split()[0]))
    family = [
        member
        for pid in pids
        for member in [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    ]
    places = {
        (connection.laddr.ip, " ".join(member.cmdline()))
        for member in family
        for connection in member.net_connections("inet")
        if connection.status == "LISTEN"
    }
    assert len(places) >= 6
    assert [place for place in places if place[0] != "127.0.0.1"] == []


@pytest.mark.parametrize("auth", [None, ("topline", "guess")])
def test_without_the_password_the_api_is_not_read(
    deployment: Deployment, auth: tuple[str, str] | None
) -> None:
    assert deployment.ask("flow_runs/filter", auth=auth).status_code == httpx.codes.UNAUTHORIZED
    assert deployment.ask("flow_runs/filter").is_success


def test_the_database_asks_for_its_password(deployment: Deployment) -> None:
    address = deployment.settings()["PREFECT_SERVER_DATABASE_CONNECTION_URL"].replace("+asyncpg", "")
    for url, expected in ((address, 0), (re.sub(r"topline:\w+@", "topline:guess@", address), 2)):
        words = ["psql", url, "--no-password", "--command", "select count(*) from flow"]
        done = run_program(words, env=deployment.environ)
        assert done.returncode == expected, done.stderr


@pytest.mark.parametrize("who", ["nobody", "somebody else", "in the clear"])
def test_a_client_without_the_certificate_does_not_reach_the_scheduler(
    deployment: Deployment, who: str, tmp_path: Path
) -> None:
    address = re.findall(r"tls://127\.0\.0\.1:\d+", deployment.commands["workers"])[0]
    environ = dict(deployment.environ)
    if who == "somebody else":
        environ["DASK_CONFIG"] = str(make_tls_files(tmp_path / "own").config)
    if who == "in the clear":
        address = address.replace("tls", "tcp")
    code = "import sys; from distributed import Client; Client(sys.argv[1], timeout=20).scheduler_info()"
    done = run_program([sys.executable, "-c", code, address], env=environ)
    assert done.returncode == 1
    assert re.search("TLS|ssl|Timed out|reset by peer|Closed", done.stderr)


def test_a_training_goes_through_all_of_it(deployment: Deployment) -> None:
    said = deployment.run("run")
    assert re.search(r"certificate +certified", said)
    (ended_run,) = deployment.flow_runs()
    assert (ended_run["state_type"], ended_run["work_pool_name"]) == ("COMPLETED", "topline")
    scheduler = (deployment.folder / "scheduler.log").read_text()
    assert "Receive client connection" in scheduler
    assert len(set(re.findall(r"Register worker addr: (tls://\S+)", scheduler))) == 2


def test_a_retraining_promotes_its_first_model_and_then_finds_nothing_new(deployment: Deployment) -> None:
    deployment.run("retrain")
    first, again = (deployment.run("models"), (deployment.run("retrain"), deployment.run("models"))[1])
    assert re.search(r"m0001 .*champion", first)
    assert again == first
    states = [run["state_type"] for run in deployment.flow_runs() if run["name"].startswith("retrain")]
    assert states == ["COMPLETED", "COMPLETED"]


def test_no_secret_is_written_down(deployment: Deployment) -> None:
    settings = deployment.settings()
    words = [
        settings["AWS_SECRET_ACCESS_KEY"],
        settings["PREFECT_API_AUTH_STRING"].split(":")[1],
        re.findall(r"topline:(\w+)@", settings["PREFECT_SERVER_DATABASE_CONNECTION_URL"])[0],
    ]
    logs = {path.name: path.read_text(errors="replace") for path in deployment.folder.glob("*.log")}
    assert {"worker.log", "server.log", "scheduler.log", "workers.log", "run.log"} <= set(logs)
    for path in (
        "flow_runs/filter",
        "deployments/filter",
        "artifacts/filter",
        "logs/filter",
        "events/filter",
    ):
        logs[path] = deployment.ask(path).raise_for_status().text
    logs["store"] = stored(deployment)
    assert "relative_gap" in logs["store"]
    assert [name for name, text in logs.items() if any(word in text for word in words)] == []


def stored(deployment: Deployment, prefix: str = "", *, names: bool = False) -> str:
    said = "p" if names else "s.read_bytes(p).decode(errors='replace')"
    code = (
        "from topline.storage.stores import open_store; s = open_store('s3://topline/digits');"
        f"print(*({said} for p in s.walk() if p.startswith({prefix!r})))"
    )
    environ = {**deployment.environ, **deployment.settings()}
    return run_program([sys.executable, "-c", code], env=environ, check=True).stdout


ENDLESS = {"store": "s3://topline/digits", "k": 2, "tol": 1e-12, "method": "fw", "max_passes": 10_000_000}


def begun(deployment: Deployment, **config: Any) -> str:
    """Ask for a run of `train/train` and return its id."""
    deployments = deployment.ask("deployments/filter").raise_for_status().json()
    train = next(found for found in deployments if found["name"] == "train")
    cluster = {"scheduler": re.findall(r"tls://127\.0\.0\.1:\d+", deployment.commands["workers"])[0]}
    body = {"parameters": {"config": config, "cluster": cluster}, "state": {"type": "SCHEDULED"}}
    made = deployment.ask(f"deployments/{train['id']}/create_flow_run", body).raise_for_status().json()
    return str(made["id"])


def test_a_killed_run_is_crashed_within_two_minutes_and_the_next_one_starts(deployment: Deployment) -> None:
    run = begun(deployment, **ENDLESS)
    wait_for(lambda: heartbeats(deployment, run))
    worker = psutil.Process(deployment.processes["worker"].pid)
    for member in [worker, *worker.children(recursive=True)]:
        os.kill(member.pid, signal.SIGKILL)
    deployment.processes["worker"].wait()
    assert state(deployment, run) == "RUNNING"
    # Within two minutes, which tests/flows/test_deployments.py reads off the settings.
    wait_for(lambda: state(deployment, run) == "CRASHED")
    following = begun(deployment, store="s3://topline/digits", k=2)
    deployment.start("worker")
    wait_for(lambda: state(deployment, following) in {"COMPLETED", "FAILED", "CRASHED", "CANCELLED"})
    assert state(deployment, following) == "COMPLETED"


def state(deployment: Deployment, run: str) -> str:
    return str(next(found["state_type"] for found in deployment.flow_runs() if found["id"] == run))


def heartbeats(deployment: Deployment, run: str) -> bool:
    names = {
        "event": {"name": ["prefect.flow-run.heartbeat"]},
        "resource": {"id": [f"prefect.flow-run.{run}"]},
    }
    found = deployment.ask("events/filter", {"filter": names}).raise_for_status().json()
    return bool(found["events"])


def test_the_run_that_goes_on_is_on_a_page_of_the_scheduler(deployment: Deployment) -> None:
    port = re.findall(r"--dashboard-address 127\.0\.0\.1:(\d+)", deployment.commands["scheduler"])[0]
    page = httpx.get(f"http://127.0.0.1:{port}/topline", timeout=60.0)
    assert page.status_code == httpx.codes.OK
    assert "relative gap" in page.text
    foreign = httpx.get(f"http://127.0.0.1:{port}/topline", headers={"Host": "evil.example"}, timeout=60.0)
    assert foreign.status_code == httpx.codes.FORBIDDEN


def test_what_was_backed_up_comes_back(deployment: Deployment) -> None:
    deployment.run("backup")
    deployment.run("restore")
    address = deployment.settings()["PREFECT_SERVER_DATABASE_CONNECTION_URL"].replace("+asyncpg", "")
    query = ("--tuples-only", "--command", "select count(*) from flow_run")
    counts = [
        run_program(["psql", url, *query], env=deployment.environ, check=True).stdout.strip()
        for url in (address, address.replace("/prefect", "/restored"))
    ]
    assert int(counts[1]) >= 3
    assert counts[0] == counts[1]


def test_registering_again_keeps_what_is_on_and_makes_nothing_double(deployment: Deployment) -> None:
    nightly = next(one for one in deployment.ask("deployments/filter").json() if one["name"] == "nightly")
    settings = deployment.settings()
    url, auth = settings["PREFECT_API_URL"], tuple(settings["PREFECT_API_AUTH_STRING"].split(":"))
    place = f"{url}/deployments/{nightly['id']}/schedules"
    httpx.patch(f"{place}/{nightly['schedules'][0]['id']}", json={"active": True}, auth=auth, timeout=60.0)
    deployment.run("deployments")
    (schedule,) = httpx.get(place, auth=auth, timeout=60.0).raise_for_status().json()
    assert schedule["active"]
    assert len(deployment.ask("automations/filter").raise_for_status().json()) == 2


def test_the_dashboard_has_what_prometheus_scrapes(deployment: Deployment) -> None:
    port = re.findall(r"--port (\d+)", deployment.commands["dashboard"])[0]
    metrics = httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=60.0)
    assert re.search(r"^topline_models [1-9]", metrics.text, re.MULTILINE)


def test_every_settings_file_has_its_own_passwords(deployment: Deployment) -> None:
    text = (deployment.home / "env").read_text()
    assert (deployment.home / "env").stat().st_mode & 0o077 == 0
    assert len(set(re.findall(r"\b[0-9a-f]{48}\b", text))) == 3


def test_a_worker_that_is_to_end_saves_its_run_and_says_how_it_goes_on(deployment: Deployment) -> None:
    run = begun(deployment, **ENDLESS)
    wait_for(lambda: state(deployment, run) == "RUNNING" and heartbeats(deployment, run))
    wait_for(lambda: '"round"' in stored(deployment, "runs/"))
    family = [psutil.Process(deployment.processes["worker"].pid)]
    family += family[0].children(recursive=True)
    leader = next(member for member in family if "topline.flows.deploying" in member.cmdline())
    os.kill(leader.pid, signal.SIGTERM)
    following = begun(deployment, store="s3://topline/digits", k=2)
    deployment.processes["worker"].wait(SLOW)
    found = next(one for one in deployment.flow_runs() if one["id"] == run)
    assert found["state_type"] == "CANCELLED"
    resumed = re.findall(r"topline train --store s3://topline/digits --resume (r\d+)", str(found["state"]))
    assert resumed
    assert f"runs/{resumed[0]}/checkpoints" in stored(deployment, "runs/", names=True)
    # Asked for while the worker ended, which left it to the next one.
    assert state(deployment, following) == "SCHEDULED"
    deployment.start("worker")
    wait_for(lambda: state(deployment, following) in {"COMPLETED", "FAILED", "CRASHED", "CANCELLED"})
    assert state(deployment, following) == "COMPLETED"


def test_certificates_and_passwords_are_made_anew(deployment: Deployment) -> None:
    """The last test of the file: the processes that run have the old ones."""
    before, old = deployment.settings(), (deployment.home / "certs" / "ca.pem").read_bytes()
    for name in ("passwords", "certificates", "certificates"):
        deployment.run(name)
    after = deployment.settings()
    changed = {name for name, value in after.items() if value != before[name]}
    assert changed == {
        "PREFECT_SERVER_API_AUTH_STRING", "PREFECT_API_AUTH_STRING", "PREFECT_SERVER_DATABASE_CONNECTION_URL"
    }  # fmt: skip
    assert (deployment.home / "certs" / "ca.pem").read_bytes() != old
    address = after["PREFECT_SERVER_DATABASE_CONNECTION_URL"].replace("+asyncpg", "")
    words = ["psql", address, "--no-password", "--command", "select 1"]
    assert subprocess.run(words, env=deployment.environ, capture_output=True).returncode == 0
