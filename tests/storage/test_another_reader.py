"""Whoever has read storage/README.md can read a store: its snippets run, a reader by it finds P and D."""

from __future__ import annotations

import re
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.pipeline.small_data import small_dataset
from tests.processes import run_program
from tests.storage.reader import bounds
from topline.pipeline.certification import certify
from topline.pipeline.options import ClusterConfig, TrainConfig
from topline.pipeline.training import train
from topline.storage import schema
from topline.storage.arrays import ChunkPlan
from topline.storage.datasets import (
    MANIFEST_SCHEMA,
    DatasetInfo,
    DatasetWriter,
    LabelSetTable,
    RowFacts,
    empty_manifest,
)
from topline.storage.models import DecisionRecord, load_model
from topline.storage.stores import open_store

HINGE: dict[str, Any] = {"loss": "topk_hinge", "k": 2, "method": "fw"}
KINDS: dict[str, dict[str, Any]] = {
    "A": {
        **HINGE,
        "keep_duals": True,
        "class_weight": "balanced",
        "transforms": ("standardize", "l2", "bias"),
    },
    "A of components": {**HINGE, "keep_duals": True, "transforms": ("pca:5", "bias")},
    "sums": {**HINGE, "keep_duals": False, "method": "dual_ascent"},
    "gradient at W": {"loss": "softmax", "method": "lbfgs", "keep_duals": False},
    "cuts": {**HINGE, "average_top": 6.5, "C": 30.0, "method": "fw_fully_corrective", "tol": 1e-2},
    "sums elsewhere": {**HINGE, "average_top": 6.5, "C": 30.0, "tol": 0.2},
    "kernel": {**HINGE, "kernel": "rbf", "kernel_gamma": 0.3},
    "sparse": {**HINGE, "keep_duals": True, "transforms": ("l2",)},
    "label sets": {"loss": "one_vs_all_logistic", "keep_duals": True, "method": "dual_ascent"},
}
#: What the arrays of each are, beside W and what it learned.
STORED = {"sums": "dual_sums", "cuts": "cut_points", "sums elsewhere": "dual_W"}


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Stores with a dense dataset, a sparse one, and one whose rows have several labels."""
    folder = tmp_path_factory.mktemp("read")
    small_dataset(folder / "dense", n=150)
    small_dataset(folder / "sparse", n=150, sparse=True)
    X = np.random.default_rng(0).normal(size=(150, 6)).astype(np.float32)
    store, plan = open_store(folder / "label sets", create=True), ChunkPlan(150, 150, 150)
    writer = DatasetWriter.begin(store, "sets", 6, "float32", plan, {})
    writer.write_unit(0, X, empty_manifest([f"row{i}" for i in range(150)]))
    facts = RowFacts(weights=np.random.default_rng(1).uniform(0.5, 2.0, 150))
    sets = LabelSetTable.checked(np.array([0, 1, 1, 3]), np.array([2, 0, 3]), 4)
    writer.commit(np.argmax(X[:, :3], axis=1), np.zeros(150, np.int8), list("abcd"), None, sets, facts)
    return {path.name: path for path in folder.iterdir()}


@pytest.mark.parametrize("kind", KINDS)
def test_p_and_d_of_every_kind_of_model(stores: dict[str, Path], kind: str) -> None:
    config = TrainConfig(
        store=str(stores.get(kind, stores["dense"])), **{"C": 0.3, "tol": 1e-3, **KINDS[kind]}
    )
    url = train(config, ClusterConfig(workers=0)).model
    model = load_model(url)
    assert STORED.get(kind, "learned_rows") in model.arrays
    assert model.has_duals == (KINDS[kind].get("keep_duals") is True or kind == "kernel")
    certificate = certify(url)
    found = bounds(Path(url))
    print(f"{kind}: P = {found[0]:.9f}, D = {found[1]:.9f}")
    assert found == pytest.approx((certificate.primal, certificate.dual), rel=1e-6)


def test_it_needs_nothing_of_the_product() -> None:
    code = "import sys, tests.storage.reader; print([name for name in sys.modules if 'topline' in name])"
    ended = run_program([sys.executable, "-c", code], check=True, cwd=ROOT)
    assert ended.stdout == "[]\n"


ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "storage" / "README.md").read_text(encoding="utf-8")


def test_snippets_run_as_printed(tmp_path: Path) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 3
    code = "".join(blocks) + "assert len(best) == 5 and set(best) <= {'ant', 'bee'}\n"
    run_program([sys.executable, "-W", "error", "-c", code], cwd=tmp_path, check=True)


def test_every_stored_name_is_in_the_guide() -> None:
    kinds = {value for name, value in vars(schema).items() if name.endswith("_ENCODING")}
    # The version of a dataset is its record's `encoding-version`.
    named = {field.name for kind in (DatasetInfo, DecisionRecord) for field in fields(kind)} - {"version"}
    missing = {name for name in {*named, *MANIFEST_SCHEMA.names} if f"`{name}`" not in GUIDE}
    assert not missing
    assert {kind for kind in kinds if kind not in GUIDE} == {"topline-estimator"}, "a folder of its own"
