"""A stand-in for `kubectl`: the pods of deploy/kubernetes as processes, with roots and networks of their own.

A container sees what its pod would give it (`roots`): its volumes, secrets and environment; it runs as its
user, without capabilities.  A pod has an address, the names of the Services, and routes to those that network
policies let it reach; `outside` runs a command where no policy lets anybody in.  PostgreSQL is the machine's.
Pods start one after the other, each when the one before is ready, and a container that ends is an error,
where Kubernetes would start it again.

    python -m tests.e2e.container_processes.kubectl FOLDER [-n NAMESPACE] \
        create namespace NAME | create secret generic NAME --from-... | apply -k FOLDER | get pods \
        | get namespace NAME | get secret NAME \
        | rollout status deployment/NAME | exec deployment/NAME -- COMMAND... | outside COMMAND...

`FOLDER` holds the state, and images/ for the claim of that name.
"""

from __future__ import annotations

import os
import shlex
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from tests.e2e.container_processes.pod_network import STRANGER, wire
from tests.e2e.container_processes.pods import OURS, Cluster, Pod
from tests.e2e.container_processes.roots import Mount, in_image, made_root

MANIFESTS = "deploy/kubernetes"
SECONDS = 420.0
#: What the entry point of PostgreSQL's image does, with the machine's programs.
DATABASE = """
password=$(dirname "$PGDATA")/password
printf %s "$POSTGRES_PASSWORD" > "$password"
initdb --pgdata="$PGDATA" --username="$POSTGRES_USER" --pwfile="$password" --auth=scram-sha-256 > /dev/null
echo 'host all all all scram-sha-256' >> "$PGDATA/pg_hba.conf"
pg_ctl --pgdata="$PGDATA" --wait -o "-c listen_addresses='*' -k /var/run/postgresql" start > /dev/null
PGPASSWORD=$POSTGRES_PASSWORD createdb --host=/var/run/postgresql --username="$POSTGRES_USER" "$POSTGRES_DB"
exec sleep infinity
"""


class Node:
    """The machine on which all pods run, and what `kubectl` keeps between its calls."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cluster = Cluster(MANIFESTS)

    def create_secret(self, name: str, sources: Sequence[str]) -> int:
        """Keep a secret of files, or of the lines NAME=VALUE of one."""
        place = self.folder / "secrets" / name
        place.mkdir(parents=True)
        for source in sources:
            kind, _, path = source.partition("=")
            text = Path(path).read_text()
            if kind == "--from-file":
                (place / Path(path).name).write_text(text)
                continue
            for line in text.split():
                key, _, value = line.partition("=")
                (place / key).write_text(value)
        return 0

    def secrets(self) -> dict[str, dict[str, str]]:
        return {
            place.name: {file.name: file.read_text() for file in place.iterdir()}
            for place in (self.folder / "secrets").iterdir()
        }

    def apply(self) -> int:
        """Start all pods of the namespace, which somebody has created."""
        if not (self.folder / "namespaces" / self.cluster.namespace).exists():
            raise SystemExit(f"namespace {self.cluster.namespace} is not there")
        # What the pods' users read is not the caller's secret.
        os.umask(0o022)
        names = {pod.address: [name] for name, pod in self.cluster.services.items()}
        hosts = {"127.0.0.1": ["localhost"], **names}
        lines = (f"{address} {' '.join(found)}\n" for address, found in hosts.items())
        (self.folder / "hosts").write_text("".join(lines))
        users = "".join(f"u{user}:x:{user}:{user}::/:/bin/sh\n" for user in {p.user for p in self.pods})
        (self.folder / "passwd").write_text(Path("/etc/passwd").read_text() + users)
        wire(self.cluster)
        for pod in self.pods:
            self._start(pod)
        return 0

    @property
    def pods(self) -> list[Pod]:
        return list(self.cluster.pods.values())

    def _start(self, pod: Pod) -> None:
        environment = pod.environment(self.secrets())
        ours = pod.container["image"] == OURS
        command = pod.command(environment) if ours else ["sh", "-euc", DATABASE]
        read_only = pod.container["securityContext"].get("readOnlyRootFilesystem", False)
        lines = made_root(self._mounts(pod), read_only=read_only)
        if not ours:
            lines.append("mkdir -p $root/var/run/postgresql; chmod 1777 $root/var/run/postgresql")
        lines.append(f"exec chroot $root {rights(pod)} {in_image(command, environment)}")
        words = ["nsenter", f"--net=/run/netns/{pod.name}"]
        words += ["unshare", "--mount", "--propagation", "private", "bash", "-c", "\n".join(lines)]
        with (self.folder / f"{pod.name}.log").open("wb") as log:
            process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        (self.folder / f"{pod.name}.pid").write_text(str(process.pid))
        deadline = time.monotonic() + SECONDS
        while not self.ready(pod):
            if process.poll() is not None or time.monotonic() > deadline:
                said = (self.folder / f"{pod.name}.log").read_text(errors="replace")
                raise SystemExit(f"{pod.name} is not ready: {said[-3000:]}")
            time.sleep(0.5)

    def _mounts(self, pod: Pod) -> list[Mount]:
        volumes = {volume["name"]: volume for volume in pod.spec.get("volumes", [])}
        found = [Mount("/etc/hosts", self.folder / "hosts"), Mount("/etc/passwd", self.folder / "passwd")]
        for one in pod.container["volumeMounts"]:
            target, read_only = one["mountPath"], one.get("readOnly", False)
            volume = volumes.get(one["name"], {})
            if "emptyDir" in volume:
                found.append(Mount(target))
            elif "secret" in volume:
                found.append(Mount(target, self._secret_folder(pod, volume["secret"]), read_only))
            elif "persistentVolumeClaim" in volume:
                claim = volume["persistentVolumeClaim"]["claimName"]
                found.append(Mount(target, self._claim(claim), read_only))
            else:
                place = self.folder / pod.claims[one["name"]]
                place.mkdir()
                os.chown(place, 0, pod.group)
                place.chmod(0o2775)
                found.append(Mount(target, place, read_only))
        return found

    def _claim(self, name: str) -> Path:
        """Return the folder of a claim that a manifest makes."""
        (claim,) = (
            one for one in self.cluster.of_kind("PersistentVolumeClaim") if one["metadata"]["name"] == name
        )
        return self.folder / str(claim["metadata"]["name"])

    def _secret_folder(self, pod: Pod, secret: dict[str, str]) -> Path:
        place = self.folder / f"{pod.name}.{secret['secretName']}"
        shutil.copytree(self.folder / "secrets" / secret["secretName"], place)
        place.chmod(0o755)
        for file in place.iterdir():
            os.chown(file, 0, pod.group)
            file.chmod(secret["defaultMode"])
        return place

    def ready(self, pod: Pod) -> bool:
        """Return whether a pod runs and its readiness probe, if it has one, succeeds."""
        if not Path(f"/proc/{self.pid(pod)}").exists():
            return False
        probe = pod.container.get("readinessProbe")
        if probe is None:
            return True
        if "exec" in probe:
            words = self.inside(pod, probe["exec"]["command"])
            return subprocess.run(words, capture_output=True).returncode == 0
        ports = {port["name"]: port["containerPort"] for port in pod.container["ports"]}
        if "tcpSocket" in probe:
            with socket.socket() as asked:
                asked.settimeout(10.0)
                return asked.connect_ex((pod.address, ports[probe["tcpSocket"]["port"]])) == 0
        address = f"http://{pod.address}:{ports[probe['httpGet']['port']]}{probe['httpGet']['path']}"
        try:
            with urllib.request.urlopen(address, timeout=10.0) as answer:
                return bool(200 <= answer.status < 400)
        except OSError:
            return False

    def pid(self, pod: Pod) -> int:
        return int((self.folder / f"{pod.name}.pid").read_text())

    def inside(self, pod: Pod, command: Sequence[str]) -> list[str]:
        """Return the words that run a command in a pod that runs."""
        entered = ["nsenter", f"--target={self.pid(pod)}", "--mount", "--net", "--root", "--wd"]
        words = in_image(command, pod.environment(self.secrets()))
        return [*entered, "sh", "-c", f"umask 022; exec {rights(pod)} {words}"]


def rights(pod: Pod) -> str:
    """Return the words that give a command the user of a pod and no capability."""
    ids = f"--reuid={pod.user} --regid={pod.user} --groups={pod.group}"
    assert pod.container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    return f"setpriv {ids} --no-new-privs --bounding-set=-all --inh-caps=-all"


def main(folder: Path, words: Sequence[str]) -> int:
    """Do as `kubectl` would."""
    node = Node(folder)
    if words[:2] == ["-n", node.cluster.namespace]:
        words = words[2:]
    match list(words):
        case ["create", "namespace", name]:
            (folder / "namespaces" / name).mkdir(parents=True)
            return 0
        case ["create", "secret", "generic", name, *sources]:
            return node.create_secret(name, sources)
        case ["get", ("namespace" | "secret") as kind, name]:
            return 0 if (folder / f"{kind}s" / name).exists() else 1
        case ["apply", "-k", place] if place == MANIFESTS:
            return node.apply()
        case ["rollout", "status", target]:
            return 0 if node.ready(node.cluster.pods[target.removeprefix("deployment/")]) else 1
        case ["exec", target, "--", *command]:
            pod = node.cluster.pods[target.removeprefix("deployment/")]
            return subprocess.run(node.inside(pod, command)).returncode
        case ["get", "pods"]:
            for pod in node.pods:
                sys.stdout.write(f"{pod.name} {'1/1' if node.ready(pod) else '0/1'}\n")
            return 0
        case ["outside", *command]:
            return subprocess.run(["nsenter", f"--net=/run/netns/{STRANGER}", *command]).returncode
    raise SystemExit(f"nothing stands for kubectl {shlex.join(words)}")


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
