"""A served store as people see it: python -m tests.e2e.serving_pictures --folder FOLDER.

`topline serve` retrains photographs every 20 seconds on a Prefect server of its own and tells a webhook of
this machine.  Then all of it is killed at once, as by a loss of power, and the dashboard calls the schedule
dead.  FOLDER gets `alert.png`, what the webhook was told; `timeline.png`, a retraining with its steps in
Prefect; `metrics.png`, the text for Prometheus; `overview.png` and `overview_dead.png`.  Takes some minutes.
"""

from __future__ import annotations

import argparse
import base64
import json
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import httpx
import psutil

from tests.e2e.browser import Tab, browsing, find_browser
from tests.e2e.served_store import ServedStore
from tests.pipeline.fresh_photos import photographs
from topline.pipeline.dashboard import serve_dashboard
from topline.storage.stores import open_store

STEPS = ("extract", "train", "certify", "evaluate", "decide")
WAIT_SECONDS = 600.0


def told(tab: Tab, address: str, picture: Path) -> None:
    """Take what the webhook has received."""
    tab.open(address, height=600)
    tab.until("document.querySelector('pre') !== null")
    tab.shoot(picture)


def timeline(tab: Tab, served: ServedStore, page: str, picture: Path) -> None:
    """Take the first run that trained in the pages of Prefect, signed in as who knows the password."""
    password = (served.prefect / "topline-server.password").read_text(encoding="utf-8").strip()
    user, _, word = password.partition(":")
    answer = httpx.post(f"{page}/api/flow_runs/filter", json={"sort": "START_TIME_ASC"}, auth=(user, word))
    run = next(one for one in answer.raise_for_status().json() if one["state_type"] == "COMPLETED")
    tab.open(page)
    token = base64.b64encode(password.encode()).decode()
    tab.ask(f"localStorage.setItem('prefect-password', {json.dumps(token)})")
    tab.open(f"{page}/runs/flow-run/{run['id']}", width=1400, height=1000)
    for step in STEPS:
        tab.until(f"document.body.innerText.includes({json.dumps(step)})")
    tab.shoot(picture)


def overview(tab: Tab, dashboard: str, said: str, picture: Path) -> None:
    """Take the overview as soon as it says this."""
    tab.open(dashboard)
    tab.until(f"document.querySelector('main').innerText.includes({json.dumps(said)})")
    tab.shoot(picture, whole=True)


def kill_all(serving: subprocess.Popen[bytes]) -> None:
    """Kill what serves, its server and its runs, without a warning."""
    processes = psutil.Process(serving.pid).children(recursive=True)
    serving.kill()
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    serving.wait()


def take(tab: Tab, served: ServedStore, folder: Path) -> None:
    """Serve, and take one picture after the other."""
    photographs(served.photos, range(20))
    with served.hook() as address, served.served(address) as serving:
        page = served.wait_for("serving", WAIT_SECONDS)["server"]
        served.wait_for("promoted", WAIT_SECONDS)
        served.wait_for("finished", WAIT_SECONDS)
        told(tab, address, folder / "alert.png")
        timeline(tab, served, page, folder / "timeline.png")
        with serve_dashboard(open_store(str(served.store)), port=0) as dashboard:
            overview(tab, dashboard, "served", folder / "overview.png")
            tab.open(f"{dashboard}metrics")
            tab.shoot(folder / "metrics.png", whole=True)
            kill_all(serving)
            overview(tab, dashboard, "dead", folder / "overview_dead.png")


def main(arguments: Sequence[str] | None = None) -> None:
    """Take all pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="the pictures are written here")
    folder = parser.parse_args(arguments).folder
    binary = find_browser()
    if binary is None:
        parser.error("no Chromium: apt-get install chromium")
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:
        served = ServedStore(Path(place).resolve())
        with browsing(binary, Path(place)) as tab:
            take(tab, served, folder)


if __name__ == "__main__":
    main()
