"""The pages for containers, Kubernetes and Slurm, as printed; docker, kubectl and sbatch are stand-ins.

A stand-in refuses files that are not there; the tests check services, deployments, secrets and flow
parameters.  tests/e2e/test_slurm.py runs the Slurm job itself.
"""

from __future__ import annotations

import json
import os
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from prefect.flows import load_flow_from_entrypoint

from tests.guides.reader import ROOT, Reader, blocks_of

DEPLOY = ROOT / "deploy"
STAND_IN = """#!{python}
import json, os, pathlib, sys
words = [pathlib.Path(sys.argv[0]).name, *sys.argv[1:]]
for word in words[1:]:
    name = word.split("=")[-1] if word.startswith("--from-") else word
    is_file = word.startswith("--from-") and "=" in word or name.startswith("deploy/")
    if is_file and not os.path.exists(name):
        sys.exit(f"{{words[0]}}: {{name}} is not there")
with open({log!r}, "a") as log:
    print(json.dumps(words), file=log)
"""


def followed(page: str, tmp_path: Path, folder: str = ".") -> list[list[str]]:
    """Return what the stand-ins were called with by the page's commands, run in `folder` of the checkout."""
    for name in ("home", "checkout", "programs"):
        (tmp_path / name).mkdir()
    log = tmp_path / "calls"
    for name in ("docker", "kubectl", "sbatch"):
        program = tmp_path / "programs" / name
        program.write_text(STAND_IN.format(python=sys.executable, log=str(log)))
        program.chmod(0o755)
    reader = Reader(
        f"deploy/{page}/README.md", tmp_path / "checkout", tmp_path / "home", tmp_path / "programs"
    )
    if folder != ".":
        # The page's files are made here, beside links to what the folder holds.
        reader.enter(folder)
    try:
        for block in blocks_of((DEPLOY / page / "README.md").read_text(encoding="utf-8")):
            reader.run(block)
    finally:
        reader.close()
    return [json.loads(line) for line in log.read_text().splitlines()]


def check_prefect(words: list[str]) -> None:
    """Check that a command of Prefect names a deployment that is there, with parameters it takes."""
    if words[:3] == ["prefect", "deployment", "run"]:
        flow, _, name = words[3].partition("/")
        found = yaml.safe_load((DEPLOY / "prefect.yaml").read_text())["deployments"]
        (deployment,) = (each for each in found if each["name"] == name)
        loaded = load_flow_from_entrypoint(deployment["entrypoint"], use_placeholder_flow=False)
        assert loaded.name == flow
        given: dict[str, Any] = {}
        for flag, value in pairwise(words):
            if flag == "--param":
                key, _, text = value.partition("=")
                given[key] = json.loads(text)
        loaded.validate_parameters({**deployment["parameters"], **given})


@pytest.mark.guides
def test_the_page_on_containers(tmp_path: Path) -> None:
    calls = followed("compose", tmp_path, "deploy/compose")
    services = set(yaml.safe_load((DEPLOY / "compose" / "compose.yaml").read_text())["services"])
    verbs = [words[2] for words in calls]
    assert verbs == ["up", "run", "exec"]
    for words in calls:
        assert words[:2] == ["docker", "compose"]
        named = [word for word in words[3:] if not word.startswith("-")]
        if words[2] in ("run", "exec"):
            assert named[0] in services
            check_prefect(words[words.index(named[0]) + 1 :])
    settings = tmp_path / "checkout" / "deploy" / "compose" / ".env"
    assert settings.stat().st_mode & 0o077 == 0


@pytest.mark.guides
def test_the_page_on_kubernetes(tmp_path: Path) -> None:
    calls = followed("kubernetes", tmp_path)
    manifests = [
        found
        for path in (DEPLOY / "kubernetes").glob("*.yaml")
        for found in yaml.safe_load_all(path.read_text())
        if found and "metadata" in found
    ]
    deployments = {found["metadata"]["name"] for found in manifests if found["kind"] == "Deployment"}
    mounted = {
        volume["secret"]["secretName"]
        for text in [json.dumps(manifests)]
        for volume in _dictionaries(json.loads(text))
        if isinstance(volume.get("secret"), dict) and "secretName" in volume["secret"]
    }
    made = {words[words.index("generic") + 1] for words in calls if "generic" in words}
    assert mounted <= made
    for words in calls:
        assert words[0] == "kubectl"
        for word in words:
            if word.startswith("deployment/"):
                assert word.removeprefix("deployment/") in deployments
        if "--" in words:
            check_prefect(words[words.index("--") + 1 :])
    assert ["kubectl", "apply", "-k", "deploy/kubernetes"] in calls
    assert (tmp_path / "checkout" / "passwords").stat().st_mode & 0o077 == 0


def _dictionaries(value: Any) -> list[dict[str, Any]]:
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else []
    inside = [found for part in parts for found in _dictionaries(part)]
    return [value, *inside] if isinstance(value, dict) else inside


@pytest.mark.guides
def test_the_page_on_slurm(tmp_path: Path) -> None:
    calls = followed("slurm", tmp_path)
    assert [words[:3] for words in calls] == [["sbatch", "deploy/slurm/train.sbatch", "--store"]] * 2
    script = (DEPLOY / "slurm" / "train.sbatch").read_text()
    assert os.access(DEPLOY / "slurm" / "train.sbatch", os.R_OK)
    assert "TOPLINE_JOBS" in script
