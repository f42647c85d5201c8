"""The versions of the program that meet on a store: today's, and the last that was released.

`topline-0.1.0.zip` holds `storage/` as version 0.1.0 shipped it.  A version here is what actors call, by the
names of today: the older one lacks pruning, forgetting and pins.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from topline.pipeline.registry import delete, mark, promote, rollback
from topline.storage import errors
from topline.storage.arrays import ChunkPlan
from topline.storage.datasets import Dataset, DatasetWriter, find_dataset, list_datasets
from topline.storage.models import (
    ModelRecord,
    list_models,
    load_model,
    read_standing,
    save_model,
    update_record,
)
from topline.storage.runs import create_run, latest_checkpoint, run_lock, save_checkpoint
from topline.storage.stores import CommitLog, held_lease, open_store

_RELEASED = Path(__file__).with_name("topline-0.1.0.zip")


def released(module: str) -> Any:
    """Return a module of the last version that was released."""
    if str(_RELEASED) not in sys.path:
        sys.path.insert(0, str(_RELEASED))
    return importlib.import_module(f"storage.{module}")


TODAY = SimpleNamespace(
    errors=errors,
    open_store=open_store,
    CommitLog=CommitLog,
    held_lease=held_lease,
    create_run=create_run,
    run_lock=run_lock,
    save_checkpoint=save_checkpoint,
    latest_checkpoint=latest_checkpoint,
    ModelRecord=ModelRecord,
    save_model=save_model,
    update_record=update_record,
    load_model=load_model,
    list_models=list_models,
    read_standing=read_standing,
    promote=promote,
    rollback=rollback,
    mark=mark,
    delete=delete,
    ChunkPlan=ChunkPlan,
    begin=DatasetWriter.begin,
    Dataset=Dataset,
    find_dataset=find_dataset,
    list_datasets=list_datasets,
)


def _last() -> SimpleNamespace:
    stores, registry, models = released("stores"), released("registry"), released("models")
    datasets, info, runs = released("features"), released("dataset_info"), released("runs")
    checkpoints, chunking = released("checkpoints"), released("chunking")

    def decided(url: str, action: str, name: str | None = None) -> Any:
        root, given = (url, name) if name else stores.split_url(url, "models")
        store = stores.open_store(root)
        standing = registry.read_registry(store)
        return registry.record_decision(
            store, standing, registry.RegistryEntry(action, given, "a test", "a test")
        )

    def promoted(url: str, reason: str, *, force: bool) -> Any:
        models.load_model(url)
        return decided(url, "promote")

    def rolled_back(url: str) -> Any:
        return decided(url, "rollback", registry.read_registry(stores.open_store(url)).previous or "none")

    def deleted(url: str) -> None:
        decided(url, "delete")
        models.delete_model(url, "a test")

    def begun(store: Any, key: str, d: int, dtype: str, plan: Any, attributes: Any) -> Any:
        return datasets.DatasetWriter.begin(store, key, plan.n_rows, d, dtype, plan, attributes)

    return SimpleNamespace(
        errors=released("errors"),
        open_store=stores.open_store,
        CommitLog=released("commits").CommitLog,
        held_lease=released("lease").held_lease,
        create_run=lambda store, fields: runs.create_run(store, fields),
        run_lock=released("run_lock").run_lock,
        save_checkpoint=lambda *values: checkpoints.save_checkpoint(*values[:-1]),
        latest_checkpoint=checkpoints.latest_checkpoint,
        ModelRecord=models.ModelRecord,
        save_model=models.save_model,
        update_record=models.update_record,
        load_model=models.load_model,
        list_models=models.list_models,
        read_standing=registry.read_registry,
        promote=promoted,
        rollback=rolled_back,
        mark=lambda url, how, reason: decided(url, "archive"),
        delete=deleted,
        ChunkPlan=chunking.ChunkPlan,
        begin=begun,
        Dataset=datasets.Dataset,
        find_dataset=lambda store: datasets.Dataset.open(store).info,
        list_datasets=info.list_datasets,
    )


LAST = _last()
