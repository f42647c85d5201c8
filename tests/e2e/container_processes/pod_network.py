"""Networks for pods: an interface each, and routes to those that policies let them reach, at any port."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.e2e.container_processes.pods import NODE, Cluster, Pod

#: Somebody outside of the cluster, whom no policy knows.
STRANGER, STRANGERS_ADDRESS = "stranger", "10.43.0.2"


def wire(cluster: Cluster) -> None:
    """Make a network namespace for every pod, of its name, and one for a stranger."""
    pods = list(cluster.pods.values())
    Path("/run/netns").mkdir(exist_ok=True)
    _run("mount", "-t", "tmpfs", "tmpfs", "/run/netns")
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
    _run("ip", "address", "add", f"{NODE}/32", "dev", "lo")
    addresses = {pod.name: pod.address for pod in pods} | {STRANGER: STRANGERS_ADDRESS}
    for number, (name, address) in enumerate(addresses.items()):
        _connect(name, address, f"pod{number}")
    for pod in pods:
        for other in pods:
            # Who may be called answers: a way to who calls is one back as well.
            if other is not pod and not (cluster.reaches(pod, other) or cluster.reaches(other, pod)):
                _route(pod.name, "blackhole", other.address)
        if cluster.governed(pod, "Ingress"):
            _route(pod.name, "blackhole", STRANGERS_ADDRESS)
        _route(pod.name, *_ways_out(cluster, pod))
    _route(STRANGER, "default", "via", NODE, "dev", "eth0")


def _ways_out(cluster: Cluster, pod: Pod) -> list[str]:
    return ["10.42.0.0/16" if cluster.governed(pod, "Egress") else "default", "via", NODE, "dev", "eth0"]


def _connect(name: str, address: str, link: str) -> None:
    """Connect a new network namespace to this machine."""
    _run("ip", "netns", "add", name)
    _run("ip", "link", "add", link, "type", "veth", "peer", "eth0", "netns", name)
    _run("ip", "link", "set", link, "up")
    _run("ip", "route", "add", address, "dev", link, "src", NODE)
    for words in (
        ("link", "set", "lo", "up"),
        ("address", "add", f"{address}/32", "dev", "eth0"),
        ("link", "set", "eth0", "up"),
    ):
        _run("ip", "-n", name, *words)
    _route(name, NODE, "dev", "eth0")


def _route(name: str, *words: str) -> None:
    _run("ip", "-n", name, "route", "add", *words)


def _run(*words: str) -> None:
    subprocess.run(words, check=True)
