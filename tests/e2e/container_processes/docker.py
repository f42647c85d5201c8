"""A stand-in for `docker compose`: the services of deploy/compose as processes, each in a root of its own.

Every process sees what its container would (`roots`), with the volumes and the environment of its service.
All share one loopback interface, on which each service has its name.  PostgreSQL is the machine's, and moto
stands for MinIO.

    python docker.py FOLDER compose up | run --rm SERVICE | exec SERVICE COMMAND... | ps

`FOLDER` is where compose.yaml is used: with .env, certs/ and images/.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import yaml

from tests.e2e.container_processes.roots import POSTGRES, ROOT, Mount, image_environment, in_image, made_root

COMPOSE = ROOT / "deploy" / "compose" / "compose.yaml"
ORDER = ("database", "store", "prefect", "scheduler", "workers", "worker", "dashboard")
SECONDS = 420.0


def services(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the services, with the variables of .env in their places."""
    lines = (line.split("=", 1) for line in (folder / ".env").read_text().split())
    known = dict(lines)
    text = re.sub(r"\$\{(\w+):\?[^}]*\}", lambda found: known[found[1]], COMPOSE.read_text())
    text = re.sub(r"\$\{(\w+):-([^}]*)\}", lambda found: known.get(found[1], found[2]), text)
    found: dict[str, dict[str, Any]] = yaml.safe_load(text)["services"]
    return found


def inside(folder: Path, service: dict[str, Any], command: list[str]) -> list[str]:
    """Return the command that runs `command` where the service's container would."""
    mounts = [Mount("/etc/hosts", folder / "hosts")]
    for volume in service.get("volumes", []):
        source, _, target = volume.partition(":")
        target, _, mode = target.partition(":")
        there = (folder / source).resolve() if source.startswith(".") else folder / "volumes" / source
        mounts.append(Mount(target, there, mode == "ro") if target else Mount(source))
    lines = made_root(mounts, read_only=bool(service.get("read_only")))
    environment = {**image_environment(), **service.get("environment", {})}
    lines.append(f"exec chroot $root {in_image(command, environment)}")
    return ["unshare", "--mount", "--propagation", "private", "bash", "-c", "\n".join(lines)]


def program(folder: Path, name: str, service: dict[str, Any]) -> list[str]:
    """Return what stands for a service."""
    environment = service.get("environment", {})
    if name == "store":
        return [f"{sys.prefix}/bin/moto_server", "--host", "127.0.0.1", "--port", "9000"]
    if name == "database":
        return [
            "bash",
            "-euc",
            DATABASE,
            "sh",
            str(folder / "volumes" / "database"),
            environment["POSTGRES_PASSWORD"],
        ]
    return inside(folder, service, [str(word) for word in service["command"]])


DATABASE = f"""
bin={POSTGRES}
chmod 711 "$(dirname "$1")"; mkdir -p "$1"; chown nobody "$1"; cd /
printf %s "$2" > "$1.password"; chown nobody "$1.password"
as="runuser -u nobody -- $bin"
$as/initdb --pgdata="$1" --username=topline --pwfile="$1.password" --auth=scram-sha-256 >/dev/null
$as/pg_ctl --pgdata="$1" --wait -o "-c listen_addresses=127.0.0.1 -p 5432 -k $1" start >/dev/null
PGPASSWORD=$2 $bin/createdb --host=127.0.0.1 --username=topline prefect
exec sleep infinity
"""


def healthy(folder: Path, name: str, service: dict[str, Any]) -> bool:
    """Return whether a service's own check, run where its container would, is content."""
    check = service.get("healthcheck")
    if name == "database":
        probe = ["bash", "-c", f"{POSTGRES}/pg_isready --host=127.0.0.1 --dbname=prefect"]
    elif check is None:
        return True
    else:
        probe = inside(folder, service, check["test"][1:])
    return subprocess.run(probe, capture_output=True).returncode == 0


def up(folder: Path) -> int:
    """Start all services, each when those that it waits for are healthy."""
    found = services(folder)
    (folder / "hosts").write_text("".join(f"127.0.0.1 {name}\n" for name in ("localhost", *found)))
    (folder / "volumes").mkdir()
    subprocess.run(["mount", "--bind", str(folder / "hosts"), "/etc/hosts"], check=True)
    for name in ORDER:
        for needed in found[name].get("depends_on", []):
            wait_for(folder, needed, found[needed])
        with (folder / f"{name}.log").open("wb") as log:
            subprocess.Popen(
                program(folder, name, found[name]),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
    for name in ORDER:
        wait_for(folder, name, found[name])
    return 0


def wait_for(folder: Path, name: str, service: dict[str, Any]) -> None:
    """Wait until a service is healthy."""
    deadline = time.monotonic() + SECONDS
    while not healthy(folder, name, service):
        if time.monotonic() > deadline:
            raise SystemExit(
                f"{name} is not healthy: {(folder / f'{name}.log').read_text(errors='replace')[-3000:]}"
            )
        time.sleep(1.0)


def main(folder: Path, words: list[str]) -> int:
    """Do as `docker compose` would."""
    found = [word for word in words if word not in ("compose", "--build", "--detach", "--rm")]
    match found:
        case ["up"]:
            return up(folder)
        case ["run", name]:
            service = services(folder)[name]
            return subprocess.run(
                inside(folder, service, [str(word) for word in service["command"]])
            ).returncode
        case ["exec", name, *command]:
            return subprocess.run(inside(folder, services(folder)[name], command)).returncode
        case ["ps"]:
            for name, service in services(folder).items():
                if "healthcheck" in service:
                    sys.stdout.write(
                        f"{name} {'healthy' if healthy(folder, name, service) else 'unhealthy'}\n"
                    )
            return 0
    raise SystemExit(f"nothing stands for docker {' '.join(words)}")


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
