"""Which packages the workers of a running cluster have, beside those of this process."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Callable, Mapping
from typing import Any, cast

import numpy as np
from distributed import Client

from topline.pipeline.errors import ClusterError


def check_versions(client: Client, address: str) -> None:
    """Refuse workers whose Python, NumPy, Dask or Topline would not understand what is sent to them."""
    versions = cast("Mapping[str, Any]", client.get_versions(check=False))["workers"]
    ours = {
        "python": _minor(platform.python_version()),
        "numpy": _major(np.__version__),
        "distributed": importlib.metadata.version("distributed"),
    }
    reduce: dict[str, Callable[[str], str]] = {"python": _minor, "numpy": _major, "distributed": str}
    for worker, entry in versions.items():
        for package, here in ours.items():
            there = reduce[package](str(entry["packages"].get(package)))
            if there != here:
                raise ClusterError(
                    f"worker {worker} of {address} has {package} {there}, here it is {here}: install the same"
                )
    found = client.run(importlib.metadata.version, "topline", on_error="return")
    here = importlib.metadata.version("topline")
    for worker, version in found.items():
        if version != here:
            there = "none" if isinstance(version, Exception) else str(version)
            raise ClusterError(
                f"worker {worker} of {address} has topline {there}, here it is {here}: install the same"
            )


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def _major(version: str) -> str:
    return version.split(".")[0]
