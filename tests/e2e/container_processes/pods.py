"""The pods of deploy/kubernetes as Kubernetes and the Dask operator would make them, and who reaches whom."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from tests.e2e.container_processes.roots import ROOT, image_environment

Manifest = dict[str, Any]
#: What no pod of ours is, and whatever lies outside of the cluster.
NODE = "10.42.0.1"
OURS = "topline"
#: Where the image of PostgreSQL finds its programs, and this machine's are.
POSTGRES_PATH = ":".join(
    [*sorted(map(str, Path("/usr/lib/postgresql").glob("*/bin")), reverse=True), "/usr/bin", "/bin"]
)


@dataclass(frozen=True, eq=False)
class Pod:
    """A pod of one container, with the address that it has and what the operator adds to its environment."""

    name: str
    labels: Mapping[str, str]
    spec: Manifest
    address: str
    added: Mapping[str, str] = field(default_factory=dict)
    claims: Mapping[str, str] = field(default_factory=dict)

    @property
    def container(self) -> Manifest:
        (found,) = self.spec["containers"]
        return dict(found)

    @property
    def user(self) -> int:
        return int(self.spec["securityContext"]["runAsUser"])

    @property
    def group(self) -> int:
        return int(self.spec["securityContext"]["fsGroup"])

    def environment(self, secrets: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
        """Return the variables of its container; `KeyError` for a secret, or one's key, that is not there."""
        found = image_environment() if self.container["image"] == OURS else {"PATH": POSTGRES_PATH}
        for source in self.container.get("envFrom", []):
            found |= secrets[source["secretRef"]["name"]]
        for one in self.container["env"]:
            if "value" in one:
                found[one["name"]] = expanded(one["value"], found)
            elif "fieldRef" in one["valueFrom"]:
                found[one["name"]] = {"metadata.name": self.name}[one["valueFrom"]["fieldRef"]["fieldPath"]]
            else:
                place = one["valueFrom"]["secretKeyRef"]
                found[one["name"]] = secrets[place["name"]][place["key"]]
        return {**found, **self.added}

    def command(self, environment: Mapping[str, str]) -> list[str]:
        """Return what its container runs; the image of ours has no entry point of its own."""
        words = [*self.container.get("command", []), *self.container.get("args", [])]
        return [expanded(word, environment) for word in words]


def expanded(text: str, environment: Mapping[str, str]) -> str:
    """Return a value or an argument as Kubernetes does, with $(NAME) replaced where the name is known."""
    return re.sub(r"\$\((\w+)\)", lambda found: environment.get(found[1], found[0]), text)


def selected(selector: Manifest, labels: Mapping[str, str]) -> bool:
    """Return whether a label selector takes a pod; an empty one takes all."""
    wanted = all(labels.get(key) == value for key, value in selector.get("matchLabels", {}).items())
    for one in selector.get("matchExpressions", []):
        among = labels.get(one["key"]) in one["values"]
        wanted &= {"In": among, "NotIn": not among}[one["operator"]]
    return wanted


class Cluster:
    """What a folder with a kustomization describes."""

    def __init__(self, folder: str) -> None:
        place = ROOT / folder
        listed = yaml.safe_load((place / "kustomization.yaml").read_text())
        self.namespace = listed["namespace"]
        self.manifests: list[Manifest] = [
            found for name in listed["resources"] for found in yaml.safe_load_all((place / name).read_text())
        ]

    def of_kind(self, *kinds: str) -> list[Manifest]:
        return [found for found in self.manifests if found["kind"] in kinds]

    @cached_property
    def pods(self) -> dict[str, Pod]:
        """All pods by name, in the order of the manifests."""
        made: dict[str, Pod] = {}
        for name, labels, spec, added, claims in self._described():
            address = NODE.rpartition(".")[0] + f".{10 + len(made)}"
            made[name] = Pod(name, labels, spec, address, added, claims)
        return made

    def _described(self) -> Iterator[tuple[str, dict[str, str], Manifest, dict[str, str], dict[str, str]]]:
        for found in self.of_kind("StatefulSet", "Deployment"):
            name, template = found["metadata"]["name"], found["spec"]["template"]
            numbered = f"{name}-0" if found["kind"] == "StatefulSet" else name
            claims = [one["metadata"]["name"] for one in found["spec"].get("volumeClaimTemplates", [])]
            owned = {claim: f"{claim}-{numbered}" for claim in claims}
            yield numbered, template["metadata"]["labels"], template["spec"], {}, owned
        for found in self.of_kind("DaskCluster"):
            # The operator names the pods, their labels and these two variables.
            cluster, described = found["metadata"]["name"], found["spec"]
            labels = {"dask.org/cluster-name": cluster, "dask.org/component": "scheduler"}
            yield f"{cluster}-scheduler", labels, described["scheduler"]["spec"], {}, {}
            address = f"tcp://{cluster}-scheduler.{self.namespace}.svc.cluster.local:8786"
            for number in range(described["worker"]["replicas"]):
                name = f"{cluster}-default-worker-{number}"
                added = {"DASK_WORKER_NAME": name, "DASK_SCHEDULER_ADDRESS": address}
                labels = {"dask.org/cluster-name": cluster, "dask.org/component": "worker"}
                yield name, labels, described["worker"]["spec"], added, {}

    @cached_property
    def services(self) -> dict[str, Pod]:
        """The pod behind every Service, by the name that the Service has in the cluster."""
        described = {found["metadata"]["name"]: found["spec"] for found in self.of_kind("Service")}
        for found in self.of_kind("DaskCluster"):
            described[f"{found['metadata']['name']}-scheduler"] = found["spec"]["scheduler"]["service"]
        return {name: self._behind(spec["selector"]) for name, spec in described.items()}

    def _behind(self, labels: Mapping[str, str]) -> Pod:
        (pod,) = (one for one in self.pods.values() if selected({"matchLabels": labels}, one.labels))
        return pod

    def reaches(self, pod: Pod, other: Pod) -> bool:
        """Return whether the network policies let one pod call another."""
        leaves, enters = self._peers(pod, "Egress"), self._peers(other, "Ingress")
        return (leaves is None or any(selected(peer, other.labels) for peer in leaves)) and (
            enters is None or any(selected(peer, pod.labels) for peer in enters)
        )

    def governed(self, pod: Pod, direction: str) -> bool:
        """Return whether a policy says whom a pod may call ("Egress"), or who may call it ("Ingress")."""
        return self._peers(pod, direction) is not None

    def _peers(self, pod: Pod, direction: str) -> list[Manifest] | None:
        """Return the selectors of a pod's peers in a direction, None where no policy governs it."""
        policies = [found["spec"] for found in self.of_kind("NetworkPolicy")]
        policies = [one for one in policies if selected(one["podSelector"], pod.labels)]
        policies = [one for one in policies if direction in one["policyTypes"]]
        word, side = {"Ingress": ("ingress", "from"), "Egress": ("egress", "to")}[direction]
        peers = [peer["podSelector"] for one in policies for rule in one.get(word, []) for peer in rule[side]]
        return peers if policies else None
