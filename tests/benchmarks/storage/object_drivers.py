"""What obstore does beside s3fs: python -m tests.benchmarks.storage.object_drivers [--puts 200].

Against moto's server in a process of its own: milliseconds of a put and a get of 1,000 bytes, medians with
the drivers taking turns; whether a new one works in a process that was forked after the use of another, and
with credentials in `~/.aws` alone, each within the seconds of `--patience`; and seconds until each says that
the server is gone.  obstore is no dependency of Topline (`pip install obstore`); without it s3fs is alone.
"""

from __future__ import annotations

import argparse
import importlib
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from tests.free_ports import free_port

DATA, BUCKET, NAME = bytes(1000), "drivers", "object"
KEYS = {"AWS_ACCESS_KEY_ID": "AKIATESTTESTTEST", "AWS_SECRET_ACCESS_KEY": "secret"}
#: How long a server may take to answer first, and a fork that works.
SERVER_SECONDS, FORK_SECONDS = 240.0, 60.0


class S3fs:
    """The driver that Topline takes."""

    def __init__(self) -> None:
        import fsspec

        self._driver = fsspec.filesystem("s3", use_listings_cache=False)

    def put(self) -> None:
        self._driver.pipe_file(f"{BUCKET}/{NAME}", DATA)

    def get(self) -> bytes:
        return bytes(self._driver.cat_file(f"{BUCKET}/{NAME}"))


class Obstore:
    """The other one, as it comes."""

    def __init__(self) -> None:
        store = importlib.import_module("obstore.store")
        self._store: Any = store.S3Store(BUCKET, client_options={"allow_http": True})

    def put(self) -> None:
        self._store.put(NAME, DATA)

    def get(self) -> bytes:
        return bytes(self._store.get(NAME).bytes())


DRIVERS: Mapping[str, type[S3fs | Obstore]] = {"s3fs": S3fs, "obstore": Obstore}


@dataclass(frozen=True)
class Answers:
    """Milliseconds of a put and a get, whether it works, and the seconds of an outage."""

    put: float
    get: float
    after_fork: bool
    with_files: bool
    outage: float


def installed() -> list[str]:
    """Return the drivers that can be asked."""
    return [name for name in DRIVERS if find_spec(name) is not None]


@contextmanager
def served(environ: Mapping[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """Serve a bucket from a process of its own, with one object in it."""
    url = environ["AWS_ENDPOINT_URL"]
    words = [f"{sys.prefix}/bin/moto_server", "--host", "127.0.0.1", "--port", url.rpartition(":")[2]]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            deadline = time.monotonic() + SERVER_SECONDS
            while time.monotonic() < deadline:
                with suppress(httpx.TransportError):
                    httpx.put(f"{url}/{BUCKET}").raise_for_status()
                    break
                time.sleep(0.1)
            asked("s3fs", "put", environ, SERVER_SECONDS)
            yield server
        finally:
            server.kill()


def asked(driver: str, question: str, environ: Mapping[str, str], patience: float) -> tuple[bool, float]:
    """Ask in a process of its own: whether it succeeds within `patience`, and how many seconds that takes."""
    words = [sys.executable, "-m", "tests.benchmarks.storage.object_drivers", "--ask", driver, question]
    started = time.monotonic()
    try:
        done = subprocess.run(words, env=environ, capture_output=True, timeout=patience, check=False)
    except subprocess.TimeoutExpired:
        return False, patience
    return done.returncode == 0, time.monotonic() - started


def answer(driver: str, question: str) -> bool:
    """Do what was asked, here; what fails raises."""
    made = DRIVERS[driver]()
    getattr(made, "put" if question == "put" else "get")()
    if question != "fork":
        return True
    child = multiprocessing.get_context("fork").Process(target=lambda: DRIVERS[driver]().get())
    child.start()
    child.join(FORK_SECONDS)
    child.kill()
    child.join()
    return child.exitcode == 0


def timed(driver: str, verb: str) -> float:
    """Return the milliseconds of one request."""
    act = getattr(DRIVERS[driver](), verb)
    started = time.perf_counter()
    act()
    return 1000.0 * (time.perf_counter() - started)


def measure(drivers: Sequence[str], puts: int, patience: float) -> dict[str, Answers]:
    """Return the answers of the drivers, in environments that have nothing but what they are asked about."""
    with tempfile.TemporaryDirectory() as home:
        aws = Path(home, ".aws")
        aws.mkdir()
        aws.joinpath("credentials").write_text(
            "[default]\n" + "".join(f"{name.lower()} = {value}\n" for name, value in KEYS.items())
        )
        bare = {"PATH": os.environ["PATH"], "HOME": home, "AWS_DEFAULT_REGION": "us-east-1"}
        bare["AWS_ENDPOINT_URL"] = f"http://127.0.0.1:{free_port()}"
        environ = {**bare, **KEYS}
        with served(environ) as server:
            forks = [asked(driver, "fork", environ, patience)[0] for driver in drivers]
            files = [asked(driver, "get", bare, patience)[0] for driver in drivers]
            os.environ.update(environ)
            took = [
                [[timed(driver, verb) for verb in ("put", "get")] for driver in drivers] for _ in range(puts)
            ]
            whole = [asked(driver, "get", environ, patience)[1] for driver in drivers]
            server.kill()
            server.wait()
            gone = [asked(driver, "get", environ, patience)[1] for driver in drivers]
    medians = np.median(took, axis=0)
    return {
        driver: Answers(*medians[i].tolist(), forks[i], files[i], max(0.0, gone[i] - whole[i]))
        for i, driver in enumerate(drivers)
    }


def main(arguments: list[str] | None = None) -> int:
    """Print the table, or answer one question."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--puts", type=int, default=200)
    parser.add_argument("--patience", type=float, default=120.0)
    parser.add_argument("--ask", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.ask:
        return int(not answer(*options.ask))
    print("driver    put ms  get ms  after a fork  with ~/.aws  outage s")
    for driver, found in measure(installed(), options.puts, options.patience).items():
        fork, files = ("works" if fine else "fails" for fine in (found.after_fork, found.with_files))
        print(f"{driver:8}  {found.put:6.1f}  {found.get:6.1f}  {fork:>12}  {files:>11}  {found.outage:8.1f}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
