"""The snippets of storage/README.md run as printed, and its tables name what the code has."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

from topline.storage import schema
from topline.storage.datasets import MANIFEST_SCHEMA, DatasetInfo
from topline.storage.models import DecisionRecord

ROOT = Path(__file__).resolve().parents[2]
GUIDE = (ROOT / "storage" / "README.md").read_text(encoding="utf-8")


def test_snippets_run_as_printed(tmp_path: Path) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 3
    code = "".join(blocks) + "assert len(best) == 5 and set(best) <= {'ant', 'bee'}\n"
    subprocess.run([sys.executable, "-W", "error", "-c", code], cwd=tmp_path, check=True)


def test_every_stored_name_is_in_the_guide() -> None:
    kinds = {value for name, value in vars(schema).items() if name.endswith("_ENCODING")}
    # The version of a dataset is its record's `encoding-version`.
    named = {field.name for kind in (DatasetInfo, DecisionRecord) for field in fields(kind)} - {"version"}
    missing = {name for name in {*named, *MANIFEST_SCHEMA.names} if f"`{name}`" not in GUIDE}
    assert not missing
    assert {kind for kind in kinds if kind not in GUIDE} == {"topline-estimator"}, "a folder of its own"
