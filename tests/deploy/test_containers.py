"""The container file, compose and Kubernetes: nothing open, nothing as root, no password, all pinned."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask.config
import pytest
import yaml
from distributed.security import Security

from topline.pipeline.cluster.tls import make_tls_files

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose" / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
MANIFESTS = [
    document
    for path in sorted((DEPLOY / "kubernetes").glob("*.yaml"))
    for document in yaml.safe_load_all(path.read_text())
]
SECRET_NAMES = re.compile(r"PASSWORD|SECRET|AUTH_STRING|CONNECTION_URL")
VERSION = tomllib.loads((DEPLOY.parent / "pyproject.toml").read_text())["project"]["version"]
OURS = f"topline:{VERSION}"
#: The version of Kubernetes whose schemas the manifests are held against.
KUBERNETES = "1.34"


def pod_specs() -> Iterator[tuple[str, dict[str, Any]]]:
    for found in MANIFESTS:
        name = f"{found['kind']} {found.get('metadata', {}).get('name')}"
        if found["kind"] == "DaskCluster":
            for part in ("worker", "scheduler"):
                yield f"{name} {part}", found["spec"][part]["spec"]
        elif "template" in found.get("spec", {}):
            yield name, found["spec"]["template"]["spec"]


PODS = dict(pod_specs())


def is_pinned(image: str) -> bool:
    """Whether an image's tag names one release, and its digest the very bytes; a tag alone can be moved."""
    release = r":(\d+\.\d+(\.\d+)?-\w[\w.-]*|RELEASE\.\d{4}-[\w-]+)"
    return bool(re.fullmatch(rf"[\w./-]+{release}@sha256:[0-9a-f]{{64}}", image))


def test_images_of_others_are_pinned_to_a_release_and_its_digest() -> None:
    bases = re.findall(r"^FROM (\S+)", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)
    images = [*bases, *(service["image"] for service in SERVICES.values() if service["image"] != OURS)]
    images += [c["image"] for pod in PODS.values() for c in pod["containers"] if c["image"] != "topline"]
    assert len(images) == 5
    assert [image for image in images if not is_pinned(image)] == []
    digests: dict[str, set[str]] = {}
    for image in images:
        name, _, digest = image.partition("@")
        digests.setdefault(name, set()).add(digest)
    assert [name for name, found in digests.items() if len(found) > 1] == []


@pytest.mark.parametrize(
    "image",
    [
        "postgres:16",
        "python:latest",
        "docker.io/library/postgres:16.9-bookworm",
        "postgres@sha256:" + 64 * "0",
        "postgres:16.9-bookworm@sha256:" + 63 * "0",
    ],
)
def test_an_image_without_release_or_digest_is_refused(image: str) -> None:
    assert not is_pinned(image)
    assert is_pinned("docker.io/library/postgres:16.9-bookworm@sha256:" + 64 * "0")


def test_the_container_runs_as_nobody_in_particular_and_takes_no_secrets_in() -> None:
    lines = (DEPLOY / "Dockerfile").read_text().splitlines()
    users = [line for line in lines if line.startswith("USER")]
    assert users == ["USER 10001"]
    assert lines.index(users[0]) > max(i for i, line in enumerate(lines) if line.startswith(("COPY", "RUN")))
    assert not any(line.startswith(("ADD ", "ARG ")) for line in lines)
    assert "COPY . " not in "\n".join(lines)
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text().split()
    assert {"*", "**/.env", "**/*.key"} <= set(ignored)
    copied = {line.split()[1] for line in lines if line.startswith("COPY") and "--from" not in line}
    assert copied <= {"pyproject.toml", *(name.removeprefix("!") for name in ignored if name[0] == "!")}
    for name in copied:
        assert (DEPLOY.parent / name).exists()


def test_compose_opens_ports_on_this_machine_alone() -> None:
    ports = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert sorted(ports) == [f"127.0.0.1:{port}:{port}" for port in (4200, 8787, 8788)]
    assert all(service.get("network_mode") != "host" for service in SERVICES.values())


def test_compose_separates_who_need_not_meet() -> None:
    networks = {name: set(service["networks"]) for name, service in SERVICES.items()}
    inner = {name for name, network in COMPOSE["networks"].items() if network.get("internal")}
    assert inner == {"prefect", "dask", "store"}
    assert networks["database"] == {"prefect"}
    assert not networks["workers"] & networks["database"]
    assert {name for name, found in networks.items() if "pages" in found} == {
        "prefect", "scheduler", "dashboard"
    }  # fmt: skip


def test_compose_has_no_password_and_gives_each_to_whom_it_concerns() -> None:
    holders: dict[str, set[str]] = {}
    for name, service in SERVICES.items():
        for variable, value in service.get("environment", {}).items():
            if SECRET_NAMES.search(variable):
                (wanted,) = re.findall(r"\$\{([A-Z]+_PASSWORD):\?", value)
                holders.setdefault(wanted, set()).add(name)
                assert re.sub(r"\$\{[^}]*\}", "", value) in {
                    "",
                    "topline:",
                    "postgresql+asyncpg://topline:@database:5432/prefect",
                }
    assert holders == {
        "DATABASE_PASSWORD": {"database", "prefect"},
        "PREFECT_PASSWORD": {"prefect", "worker", "setup"},
        "STORE_PASSWORD": {"store", "scheduler", "workers", "worker", "setup", "dashboard"},
    }


def test_our_containers_have_no_more_rights_than_they_need() -> None:
    ours = {name: service for name, service in SERVICES.items() if service["image"] == OURS}
    assert set(ours) == {"prefect", "scheduler", "workers", "worker", "setup", "dashboard"}
    for service in ours.values():
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert service["user"].startswith("${TOPLINE_USER:?")


@pytest.mark.parametrize(
    ("service", "role"), [("scheduler", "scheduler"), ("workers", "worker"), ("worker", "client")]
)
def test_each_container_has_the_key_of_its_role_and_dask_finds_it(
    service: str, role: str, tmp_path: Path
) -> None:
    """The variables, read by Dask itself, with the mounts in the place of the container's files."""
    made = make_tls_files(tmp_path / "certs").folder
    mounts = dict(volume.split(":")[:2][::-1] for volume in SERVICES[service]["volumes"] if "certs" in volume)
    assert {Path(path).name for path in mounts.values()} == {"ca.pem", f"{role}.pem", f"{role}.key"}
    variables = {}
    for name, value in SERVICES[service]["environment"].items():
        there = mounts.get(value)
        variables[name] = str(made / Path(there).name) if there else value
    environ = {**os.environ, **{name: value for name, value in variables.items() if name.startswith("DASK_")}}
    code = (
        "import sys; from distributed.security import Security; s = Security();"
        "print(s.require_encryption, s.get_connection_args(sys.argv[1])['ssl_context'].__class__.__name__)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, role], env=environ, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["True", "SSLContext"]


def test_kubernetes_pods_keep_to_the_restricted_standard() -> None:
    (namespace,) = (found for found in MANIFESTS if found["kind"] == "Namespace")
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    assert set(PODS) == {
        "StatefulSet database",
        "Deployment prefect",
        "Deployment worker",
        "Deployment dashboard",
        "DaskCluster topline worker",
        "DaskCluster topline scheduler",
    }
    for pod in PODS.values():
        assert pod["automountServiceAccountToken"] is False
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in pod["containers"]:
            assert container["securityContext"]["allowPrivilegeEscalation"] is False
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
            assert set(container["resources"]["limits"]) == {"cpu", "memory"}


def test_the_page_says_what_the_pods_request() -> None:
    (dask,) = (found for found in MANIFESTS if found["kind"] == "DaskCluster")
    replicas = {"DaskCluster topline worker": dask["spec"]["worker"]["replicas"]}
    sizes = {"Mi": 1 / 1024, "Gi": 1.0}
    cores = gigabytes = 0.0
    for name, pod in PODS.items():
        for container in pod["containers"]:
            cpu, memory = (str(container["resources"]["requests"][what]) for what in ("cpu", "memory"))
            number = replicas.get(name, 1)
            cores += number * (int(cpu[:-1]) / 1000 if cpu.endswith("m") else int(cpu))
            gigabytes += number * int(memory[:-2]) * sizes[memory[-2:]]
    page = (DEPLOY / "kubernetes" / "README.md").read_text()
    assert f"{round(cores)} cores and {round(gigabytes)} GiB requested" in page


def test_what_reads_images_has_them_and_every_server_is_probed() -> None:
    """The flow lists the images, and Dask's workers read them, at one path."""
    readers = {
        name for name, found in SERVICES.items() if any("images:" in v for v in found.get("volumes", []))
    }
    assert readers == {"workers", "worker", "setup"}
    pods = {
        name: mount["mountPath"]
        for name, pod in PODS.items()
        for container in pod["containers"]
        for mount in container["volumeMounts"]
        if mount["name"] == "images"
    }
    assert pods == {
        "Deployment worker": "/srv/topline/images",
        "DaskCluster topline worker": "/srv/topline/images",
    }
    assert SERVICES["worker"]["environment"]["TOPLINE_IMAGES"] == "/srv/topline/images"
    assert {name for name, found in SERVICES.items() if "healthcheck" in found} == {
        "database", "prefect", "scheduler", "workers", "dashboard",
    }  # fmt: skip
    for name, found in SERVICES.items():
        assert set(found["deploy"]["resources"]["limits"]) == {"cpus", "memory"}, name
    unprobed = {
        name
        for name, pod in PODS.items()
        for container in pod["containers"]
        if not {"readinessProbe", "livenessProbe"} <= set(container)
    }
    # It takes work from the server by asking, and listens to nobody.
    assert unprobed == {"Deployment worker"}


def test_kubernetes_passwords_come_from_secrets_and_keys_go_to_their_role() -> None:
    for name, pod in PODS.items():
        for container in pod["containers"]:
            for variable in container["env"]:
                if SECRET_NAMES.search(variable["name"]):
                    there = variable.get("valueFrom", {}).get("secretKeyRef") or "$(" in variable["value"]
                    assert there, f"{name}: {variable}"
    keys = {
        name: volume["secret"]["secretName"]
        for name, pod in PODS.items()
        for volume in pod.get("volumes", [])
        if "secret" in volume
    }
    assert keys == {
        "Deployment worker": "dask-client",
        "DaskCluster topline worker": "dask-worker",
        "DaskCluster topline scheduler": "dask-scheduler",
    }


def test_kubernetes_opens_nothing_to_the_outside() -> None:
    services = [found["spec"] for found in MANIFESTS if found["kind"] == "Service"]
    services += [
        found["spec"]["scheduler"]["service"] for found in MANIFESTS if found["kind"] == "DaskCluster"
    ]
    assert len(services) == 4
    assert {service.get("type", "ClusterIP") for service in services} == {"ClusterIP"}
    assert not any(found["kind"] == "Ingress" for found in MANIFESTS)
    policies = [found["spec"] for found in MANIFESTS if found["kind"] == "NetworkPolicy"]
    for policy in policies:
        for rule in policy["ingress"]:
            assert all(set(source) == {"podSelector"} for source in rule["from"])
    database = {"matchLabels": {"app": "database"}}
    assert [policy["podSelector"] for policy in policies if policy["podSelector"] == database] == [database]


def test_services_find_pods_with_the_ports_they_name() -> None:
    for found in MANIFESTS:
        if found["kind"] != "Service":
            continue
        pods = [
            other["spec"]["template"]
            for other in MANIFESTS
            if other["kind"] in {"Deployment", "StatefulSet"}
            and other["spec"]["template"]["metadata"]["labels"] == found["spec"]["selector"]
        ]
        assert len(pods) == 1
        open_ports = {port["containerPort"] for c in pods[0]["spec"]["containers"] for port in c["ports"]}
        assert {port["port"] for port in found["spec"]["ports"]} <= open_ports


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="no kubectl: apt-get install kubernetes-client")
def test_kustomize_renders_every_manifest_with_the_image_of_the_registry() -> None:
    done = subprocess.run(
        ["kubectl", "kustomize", str(DEPLOY / "kubernetes")], capture_output=True, text=True, check=True
    )
    rendered = list(yaml.safe_load_all(done.stdout))
    assert len(rendered) == len([found for found in MANIFESTS if found["kind"] != "Kustomization"])
    assert done.stdout.count(f"image: registry.example/{OURS}") == 5
    assert "image: topline\n" not in done.stdout


def kubernetes_objects() -> Iterator[tuple[str, dict[str, Any]]]:
    """Return what Kubernetes' own schemas describe, and of Dask's resource the parts that they do."""
    for found in MANIFESTS:
        name = f"{found['kind']} {found.get('metadata', {}).get('name')}"
        if found["kind"] == "DaskCluster":
            service = found["spec"]["scheduler"]["service"]
            yield f"{name} service", {"apiVersion": "v1", "kind": "Service", "spec": service}
            for part in ("worker", "scheduler"):
                yield (
                    f"{name} {part}",
                    {"apiVersion": "v1", "kind": "Pod", "spec": found["spec"][part]["spec"]},
                )
        elif found["kind"] != "Kustomization":
            yield name, found


@pytest.mark.parametrize("name", dict(kubernetes_objects()))
def test_kubernetes_knows_every_field_of_a_manifest(name: str) -> None:
    """By the schemas of its API, in which a misspelt field is an error."""
    validator = pytest.importorskip("kubernetes_validate", reason="comes with topline[dev]")
    found = dict(kubernetes_objects())[name]
    validator.validate(found, KUBERNETES, strict=True)
    with pytest.raises(validator.ValidationError, match="speck"):
        validator.validate({**found, "speck": {}}, KUBERNETES, strict=True)


def test_compose_knows_every_field_of_its_file(tmp_path: Path) -> None:
    """By the Compose Specification's schema, which check-jsonschema ships."""
    pytest.importorskip("check_jsonschema", reason="comes with topline[dev]")
    misspelt = tmp_path / "compose.yaml"
    misspelt.write_text(
        (DEPLOY / "compose" / "compose.yaml").read_text().replace("healthcheck:", "healthcheek:")
    )
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    for file, accepted in ((DEPLOY / "compose" / "compose.yaml", True), (misspelt, False)):
        done = subprocess.run([*command, str(file)], capture_output=True, text=True)
        assert (done.returncode == 0) is accepted, done.stdout + done.stderr
    assert "healthcheek" in done.stdout


@pytest.mark.parametrize("folder", ["compose", "kubernetes", "slurm", "systemd", "tls"])
def test_every_folder_has_a_page_that_says_how_what_and_whether(folder: str) -> None:
    page = (DEPLOY / folder / "README.md").read_text()
    for words in ("## Setup", "## Cost", "## Check that it works"):
        assert words in page
    for command in re.findall(r"^```sh\n(.*?)^```", page, re.MULTILINE | re.DOTALL):
        subprocess.run(["bash", "-n"], input=command, text=True, check=True)


def test_every_alert_fires_for_what_it_is_about_and_no_other() -> None:
    """The cases are written down for Prometheus' own checker, which skips where it cannot be had."""
    rules = yaml.safe_load((DEPLOY / "alerts.yaml").read_text())["groups"][0]["rules"]
    cases = Path(__file__).with_name("alerts.test.yaml")
    ill = yaml.safe_load(cases.read_text())["tests"][-1]["promql_expr_test"][0]["exp_samples"]
    assert [f'{{alertname="{rule["alert"]}"}}' for rule in rules] == [one["labels"] for one in ill]
    if shutil.which("promtool") is None:
        pytest.skip("no promtool: apt-get install prometheus")
    done = subprocess.run(["promtool", "test", "rules", str(cases)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_units_end_with_a_checkpoint_and_a_mask_and_systemd_knows_every_line(tmp_path: Path) -> None:
    units = sorted((DEPLOY / "systemd").glob("*.service"))
    assert [unit.stem for unit in units] == ["topline-dashboard", "topline-serve"]
    for unit in units:
        text = unit.read_text()
        assert {"UMask=0077", "NoNewPrivileges=yes", "EnvironmentFile=%h/.config/topline.env"} <= set(
            text.split()
        )
        (command,) = re.findall(r"^ExecStart=/usr/bin/env topline (.*)", text, re.MULTILINE)
        words = re.sub(r"\$\{\w+\}", "x", command).replace('"', "").split()
        known = subprocess.run(
            [sys.executable, "-m", "topline", words[0], "--help"], capture_output=True, text=True, check=True
        )
        assert {word for word in words if word.startswith("--")} <= set(
            re.findall(r"--[a-z-]+", known.stdout)
        )
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("no systemd-analyze: apt-get install systemd")
    environ = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)}
    misspelt = tmp_path / units[0].name
    misspelt.write_text(units[0].read_text().replace("Restart=", "Restat="))
    for files, said in ((units, ""), ([misspelt], ".*Unknown key.*'Restat'.*\n")):
        verified = [analyze, "--user", "verify", *map(str, files)]
        done = subprocess.run(verified, env=environ, capture_output=True, text=True)
        assert done.returncode == 0
        assert re.fullmatch(said, done.stderr)


SLURM = Path(__file__).resolve().parents[2] / "deploy" / "slurm"
ROLES = ("scheduler", "worker", "client")


def test_bash_accepts_the_training_job() -> None:
    subprocess.run(["bash", "-n", SLURM / "train.sbatch"], check=True)


def test_a_job_of_workers_speaks_tls_and_shows_its_pages_to_nobody(tmp_path: Path) -> None:
    from dask_jobqueue.slurm import SLURMJob

    made = make_tls_files(tmp_path / "certs").folder
    files = {f"tls_{role}_{kind[0]}": str(made / f"{role}.{kind[1]}") for role in ROLES for kind in KINDS}
    security = Security(require_encryption=True, tls_ca_file=str(made / "ca.pem"), **files)
    given = yaml.safe_load((SLURM / "jobqueue.yaml").read_text())["jobqueue"]["slurm"]
    known = set(dask.config.get("jobqueue.slurm"))
    assert set(given) <= known
    with dask.config.set({f"jobqueue.slurm.{name}": value for name, value in given.items()}):
        logs = {"log_directory": str(tmp_path / "logs")}
        job = SLURMJob(scheduler="tls://node1:8786", name="w", security=security, **logs)
    script = job.job_script()
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)
    for words in (
        "#SBATCH --cpus-per-task=16",
        "distributed.cli.dask_worker tls://node1:8786",
        f"--tls-key {made / 'worker.key'}",
        f"--tls-ca-file {made / 'ca.pem'}",
        "--nworkers 4",
        "--dashboard-address 127.0.0.1:0",
    ):
        assert words in script
    assert "PRIVATE" not in script
    assert "client.key" not in script


KINDS = (("cert", "pem"), ("key", "key"))
