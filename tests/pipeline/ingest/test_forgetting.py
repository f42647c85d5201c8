"""Forgotten rows are in no version, in no byte, and the audit says what it looked at."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.pipeline.fresh_photos import photographs
from tests.pipeline.small_data import make_features, make_split, write_dataset
from topline.pipeline.certification import certify
from topline.pipeline.cli import main
from topline.pipeline.errors import InputError
from topline.pipeline.evaluation.measurement import evaluate
from topline.pipeline.ingest import Edits, edited_dataset, extract
from topline.pipeline.ingest.forgetting import forget
from topline.pipeline.options import ClusterConfig, ExtractConfig, TrainConfig
from topline.pipeline.rows import LEARNED, digests_of
from topline.pipeline.training import train
from topline.storage.datasets import Dataset, list_datasets, read_catalog
from topline.storage.models import load_model, read_standing
from topline.storage.models.records import deleted_models
from topline.storage.schema import SPLITS
from topline.storage.stores import Store, open_store
from topline.storage.verification import verify_store

HERE = ClusterConfig(workers=0)
GONE = "c0/003.png"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Three versions of photographs, the last with a copy of one of them, and a model of the second."""
    photos, place = tmp_path / "photos", str(tmp_path / "store")
    for stop in (10, 11, 12):
        photographs(photos, range(stop - 1 if stop > 10 else 0, stop))
        if stop == 12:
            (photos / "c1" / "copy.png").write_bytes((photos / GONE).read_bytes())
        extract(
            ExtractConfig(images=str(photos), store=place, backbone="hog:size=24,cells=8"), HERE, follow=True
        )
        if stop == 11:
            train(TrainConfig(store=place, k=2, tol=1e-2), HERE)
    return open_store(place)


def test_they_are_gone_from_every_version_and_from_the_disk(store: Store, tmp_path: Path) -> None:
    before = Dataset.open(store)
    table = before.manifest()
    row = table["path"].to_pylist().index(GONE)
    digest, features = table["sha256"][row].as_py(), before.rows(row, row + 1)
    others = {
        path: before.rows(place, place + 1)
        for place, path in enumerate(table["path"].to_pylist())
        if path not in (GONE, "c1/copy.png")
    }
    removed = [info.id for info in list_datasets(store)]
    del before
    done = forget(store.url, [table["sample_id"][row].as_py()], "asked to")
    assert (done.rows, done.removed, done.models, done.in_use) == (4, tuple(removed), ("m0001",), ())
    assert (done.mentions, done.clean) == ((), False)
    (left,) = list_datasets(store)
    assert left.id == done.kept_as
    dataset = Dataset(store, left)
    paths = dataset.manifest()["path"].to_pylist()
    assert sorted(paths) == sorted(others)
    for place, path in enumerate(paths):
        np.testing.assert_array_equal(dataset.rows(place, place + 1), others[path])
    raw = features.astype(left.dtype).tobytes()
    for path in store.walk():
        assert digest.encode() not in store.read_bytes(path), path
    for unit in range(len(dataset.units)):
        start, stop = dataset.units[unit].rows
        assert raw not in np.ascontiguousarray(dataset.rows(start, stop)).tobytes()
    assert {removal.reason for removal in read_catalog(store).removed.values()} == {"asked to"}
    findings = verify_store(store)
    assert [finding for finding in findings if not finding.harmless] == []
    gone = {finding.path for finding in findings if finding.kind == "dataset-removed"}
    assert gone == {"models/m0001", "runs/r0001"}


def test_rows_that_a_model_learned_are_known_whatever_became_of_its_dataset(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first call takes the version away that the model was trained on; others ask for other rows."""

    def forget_by_hand(*words: str) -> tuple[object, dict[str, object]]:
        with pytest.raises(SystemExit) as ended:
            main(["forget", store.url, *words, "--json"])
        return ended.value.code, json.loads(capsys.readouterr().out)

    table = Dataset.open(store).manifest()
    names = dict(zip(table["path"].to_pylist(), table["sample_id"].to_pylist(), strict=True))
    learned = Dataset.open(store, load_model(f"{store.url}/models/m0001").record.dataset)
    splits = dict(zip(learned.manifest()["path"].to_pylist(), learned.split().tolist(), strict=True))
    test = SPLITS["test"]
    tested = next(path for path, split in splits.items() if split == test)
    first, second = [path for path, split in splits.items() if split != test and path != GONE][:2]
    newer = next(path for path in names if path not in splits and path != "c1/copy.png")
    del learned, table
    assert [forget_by_hand("--rows", names[path])[1]["models"] for path in (first, newer, tested)] == [
        ["m0001"], [], [],
    ]  # fmt: skip
    code, said = forget_by_hand("--rows", names[second])
    assert (code, said["models"], said["clean"]) == (1, ["m0001"], False)
    code, said = forget_by_hand("--rows", names[second])
    assert (code, said["rows"], said["models"]) == (1, 0, ["m0001"]), "asked again, no file names it"
    code, said = forget_by_hand("--rows", names[second], "--delete-models")
    assert (code, said["models"], said["deleted_models"], said["clean"]) == (0, [], ["m0001"], True)
    assert deleted_models(store) == ["m0001"]
    with pytest.raises(InputError, match="has a row"):
        forget(store.url, [names[second]], "nobody knows it any more")
    assert [found for found in verify_store(store) if not found.harmless] == []


def test_a_model_without_the_rows_works_on(store: Store) -> None:
    """Training without a row names it by its digest, so that the version goes as well."""
    before = Dataset.open(store)
    row = before.manifest()["path"].to_pylist().index(GONE)
    name = before.sample_ids()[row]
    copy = before.sample_ids()[before.manifest()["path"].to_pylist().index("c1/copy.png")]
    edited_dataset(before, Edits(frozenset({name, copy}), {}))
    del before
    trained = train(TrainConfig(store=store.url, k=2, tol=1e-2), HERE)
    done = forget(store.url, [name], "asked to")
    assert load_model(trained.model).record.dataset in done.removed
    assert done.models == ("m0001",)
    again = certify(trained.model)
    assert (again.certified, again.primal) == (True, pytest.approx(trained.primal, rel=1e-9))
    assert evaluate(trained.model).rows > 0
    with pytest.raises(
        InputError, match=r"m0001 was trained on .* was removed .*: asked to\) from .*: train"
    ):
        certify(f"{store.url}/models/m0001")


def test_ten_rows_are_forgotten_one_by_one_and_each_step_is_audited(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Three models: the champion learned all rows, the second not the first five, the last none of them."""
    place = str(tmp_path / "store")
    X, labels = make_features(300, 12, 4)
    split = make_split(300)
    write_dataset(open_store(place, create=True), X, labels, split)
    dataset = Dataset.open(open_store(place))
    names = [name for name, one in zip(dataset.sample_ids(), dataset.split(), strict=True) if one == 0][:10]

    def topline(*words: str) -> tuple[object, dict[str, Any]]:
        with pytest.raises(SystemExit) as ended:
            main([*words, "--json"])
        return ended.value.code, json.loads(capsys.readouterr().out)

    for known in (0, 5, 10):
        if known:
            edited_dataset(dataset, Edits(frozenset(names[:known]), {}))
        made = train(TrainConfig(store=place, k=2, tol=1e-2), HERE).model
        evaluate(made)
    del dataset
    assert topline("models", "promote", f"{place}/models/m0001", "--reason", "the first")[0] == 0
    for number, name in enumerate(names):
        code, said = topline("forget", place, "--rows", name, "--reason", "asked to")
        learned = ["m0001"] if number < 5 else ["m0001", "m0002"]
        assert (code, said["clean"], said["mentions"], said["models"]) == (1, False, [], learned), name
        assert said["rows"] == (1 if number == 0 else 0 if number < 5 else said["rows"])
        code, said = topline("fsck", place)
        assert (code, said["ok"]) == (0, True), said
    code, said = topline("forget", place, "--rows", names[9], "--retrain", "--workers", "0")
    assert (code, said["clean"], said["deleted_models"]) == (0, True, ["m0001", "m0002"])
    assert said["trained"].endswith("/m0004")
    standing = read_standing(open_store(place))
    assert (standing.champion, standing.entries[-3].action) == ("m0004", "promote")
    left = load_model(said["trained"])
    known_rows = set(np.asarray(left.array(LEARNED)).tolist())
    assert not known_rows & set(digests_of(names, ()).tolist())
    assert topline("prune", place, "--keep", "1", "--days", "0")[0] == 0
    for command in ("certify", "evaluate", "report"):
        assert topline(command, said["trained"])[0] == 0, command
    code, found = topline("fsck", place)
    assert (code, found["ok"]) == (0, True), found
    assert topline("status", place)[0] == 0
    code, refused = topline("forget", place, "--rows", names[0])
    assert code == 2
    assert "no model learned one" in refused["error"]["message"]


def test_the_content_of_a_row_that_is_gone_names_it(store: Store) -> None:
    """Its copy went with it: by its id nobody knows it any more, by its content the model does."""
    table = Dataset.open(store).manifest()
    paths = table["path"].to_pylist()
    copy, row = (paths.index(path) for path in ("c1/copy.png", GONE))
    name, other = (table["sample_id"][place].as_py() for place in (copy, row))
    digest = table["sha256"][copy].as_py()
    del table
    assert forget(store.url, [other], "asked to").models == ("m0001",)
    with pytest.raises(InputError, match="or a file's SHA-256"):
        forget(store.url, [name], "asked to")
    assert forget(store.url, [digest], "asked to").models == ("m0001",)


def test_a_model_is_not_judged_by_labels_that_it_did_not_learn(store: Store) -> None:
    """The version in the place of its own has the same rows, of which one was corrected since."""
    before = Dataset.open(store)
    first = train(TrainConfig(store=store.url, k=2, tol=1e-2), HERE)
    splits, ids, labels = before.split(), before.sample_ids(), before.labels()
    trained = int(np.flatnonzero(splits == SPLITS["train"])[0])
    tested = int(np.flatnonzero(splits == SPLITS["test"])[0])
    other = before.class_names[1 - labels[trained]]
    edited_dataset(before, Edits(frozenset(), {ids[trained]: other}))
    second = train(TrainConfig(store=store.url, k=2, tol=1e-2), HERE)
    del before
    forget(store.url, [ids[tested]], "asked to")
    assert certify(second.model).certified
    with pytest.raises(InputError, match="was removed"):
        certify(first.model)


def test_what_somebody_reads_is_out_of_sight_and_told(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    held = Dataset.open(store)
    name = held.sample_ids()[0]
    with pytest.raises(SystemExit) as ended:
        main(["forget", store.url, "--rows", name, "--json"])
    printed = json.loads(capsys.readouterr().out)
    assert (ended.value.code, printed["clean"], printed["in_use"]) == (1, False, [held.info.id])
    assert any(path.startswith("manifests/") for path in printed["mentions"])
    assert held.info.id not in {info.id for info in list_datasets(store)}
    del held
    with pytest.raises(SystemExit) as ended:
        main(["prune", store.url, "--json"])
    assert ended.value.code == 0
    capsys.readouterr()
    again = forget(store.url, [name], "again")
    assert (again.rows, again.removed, again.models) == (0, (), ("m0001",))


def test_a_row_that_was_left_out_before_is_forgotten_with_its_digest(store: Store) -> None:
    """And so is its correction; those of other rows stay."""
    dataset = Dataset.open(store)
    first, second, third = dataset.sample_ids()[:3]
    other = {name: next(c for c in dataset.class_names if not name.startswith(c)) for name in (second, third)}
    info = edited_dataset(dataset, Edits(frozenset({first}), other))
    del dataset
    done = forget(store.url, [first, second], "asked to")
    assert (info.id in done.removed, done.clean, done.models) == (True, False, ("m0001",))
    edits = Dataset.open(store).edits()
    assert edits is not None
    assert (list(edits.labels), edits.left_out) == ([third], frozenset())
