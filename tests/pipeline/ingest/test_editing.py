"""Datasets without some rows or with corrected labels, and rows that are forgotten to the last byte."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy.sparse import issparse

from tests.pipeline.conftest import Topline
from tests.pipeline.pictures import photographs
from tests.pipeline.small_data import make_features, make_split, small_dataset, write_dataset
from topline.pipeline.certification import certify
from topline.pipeline.cli.making import _edited
from topline.pipeline.errors import ConfigError, InputError
from topline.pipeline.evaluation.measurement import evaluate
from topline.pipeline.ingest import Edits, edited_dataset, extract, import_features, tell_edits
from topline.pipeline.ingest.editing import forget
from topline.pipeline.inspection import inspect_model
from topline.pipeline.options import ClusterConfig, ExtractConfig, ImportConfig, InspectConfig, TrainConfig
from topline.pipeline.prediction.files import table_writer
from topline.pipeline.rows import LEARNED, StoredModel, digests_of
from topline.pipeline.training import train
from topline.storage.datasets import Dataset, list_datasets, read_catalog
from topline.storage.models import deleted_models, load_model, read_standing
from topline.storage.schema import SPLITS
from topline.storage.stores import Store, open_store
from topline.storage.verification import verify_store

HERE = ClusterConfig(workers=0)
GONE = [0, 5, 63, 64, 300, 699]


def name(row: int) -> str:
    return f"row{row:06d}"


def dense(rows: Any) -> Any:
    return rows.toarray() if issparse(rows) else rows


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
def test_rows_are_gone_and_labels_are_corrected(
    tmp_path: Path, sparse: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="topline.pipeline.ingest")
    dataset = small_dataset(tmp_path / "store", sparse=sparse)
    (tmp_path / "gone.txt").write_text("\n".join(name(row) for row in GONE[1:]))
    table = "\ufeffsample_id;label;decided\nrow000001;class 3;wrong\nrow000000;;wrong\nrow000002;'=x;right\n"
    (tmp_path / "corrected.csv").write_text(table)
    with pytest.raises(InputError, match="'=x' of row000002 is not one of the 5 classes"):
        edited_dataset(dataset, Edits.read(None, tmp_path / "corrected.csv"))
    (tmp_path / "corrected.csv").write_text(table.replace("'=x", "class 1"))
    edits = Edits.read(str(tmp_path / "gone.txt"), tmp_path / "corrected.csv")
    edited = Dataset.open(dataset.store, edited_dataset(dataset, edits).id)
    kept = np.setdiff1d(np.arange(700), GONE)
    assert edited.sample_ids() == [name(row) for row in kept.tolist()]
    assert np.array_equal(dense(edited.rows(0, len(kept))), dense(dataset.rows(0, 700))[kept])
    assert np.array_equal(edited.split(), dataset.split()[kept])
    labels = dataset.labels().copy()
    labels[[1, 2]] = 3, 1
    assert np.array_equal(edited.labels(), labels[kept])
    assert edited_dataset(dataset, edits).id == edited.info.id
    tell_edits(dataset, edited)
    assert (
        f"dataset {edited.info.id}, made of {dataset.info.id}: 2 labels changed, 6 rows left" in caplog.text
    )
    tell_edits(dataset, dataset)
    assert f"no label differs from those of {dataset.info.id}" in caplog.text
    assert edited_dataset(dataset, Edits(frozenset(), {})).id == dataset.info.id
    assert verify_store(dataset.store) == []


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_names_come_back_from_the_table_that_was_written(tmp_path: Path, form: str) -> None:
    names = [
        "=cmd()",
        "-a",
        "\tb",
        "\nc",
        "d\ne",
        "f,g",
        "h\x0bi",
        "\u2028j",
        "\x1b[2Jm",
        "n\\u001bo",
        "\x9b1mp",
        'k"l',
        "-5",
        " m ",
    ]
    path, schema = tmp_path / f"rows.{form}", pa.schema([("sample_id", pa.string()), ("label", pa.string())])
    with table_writer(path, schema) as write:
        write(pa.table({"sample_id": names, "label": [f"={name}" for name in names]}, schema))
    assert Edits.read(None, path).labels == {name: f"={name}".strip() for name in names}
    assert Edits.read(str(path), None).without == set(names)


def test_names_that_hold_commas_are_given_in_quotes(tmp_path: Path) -> None:
    assert Edits.read('"a,b/1.png", c"d.png,e', None).without == {"a,b/1.png", 'c"d.png', "e"}
    dataset = small_dataset(tmp_path / "store", n=80)
    with pytest.raises(InputError, match=r"has no row 'a' and 1 other: .* in double quotes"):
        edited_dataset(dataset, Edits.read("a,b/1.png", None))


@pytest.mark.parametrize("form", ["{}", "{}.0"], ids=["now", "before version 0.2"])
def test_rows_that_numbers_name_are_found_by_either_form(
    tmp_path: Path, form: str, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [f"{form.format(row)},{row * 0.5},{'ab'[row % 2]}" for row in range(20)]
    (tmp_path / "rows.csv").write_text("\n".join(["sample_id,x,label", *rows]))

    def imported(name: str) -> Dataset:
        config = ImportConfig(features=str(tmp_path / name), store=str(tmp_path / "store"))
        found = import_features(config)
        return Dataset(open_store(config.store), found.info)

    dataset = imported("rows.csv")
    names = np.arange(20.0)
    pq.write_table(pa.table({"sample_id": names[[4, 7]], "label": ["b", ""]}), tmp_path / "corrected.parquet")
    edited = Dataset(dataset.store, edited_dataset(dataset, Edits.read(None, tmp_path / "corrected.parquet")))
    recorded = edited.edits()
    assert recorded.labels == {form.format(4): ("a", "b")}
    assert set(dataset.sample_ids()) - set(edited.sample_ids()) == {form.format(7)}
    # Files are called as they are called.
    named = Edits(frozenset({"a.0", "v1", "2.0"}), {}).by(["a", "v1.0", "2"])
    assert named.without == {"a.0", "v1", "2"}
    labels = ["ab"[row % 2] for row in range(20)]
    pq.write_table(pa.table({"sample_id": names, "x": names, "label": labels}), tmp_path / "again.parquet")
    assert imported("again.parquet").sample_ids()[7] == "7"
    assert f"without the edits of {edited.info.id} (1 label corrected, 1 row left out)" in caplog.text


def test_what_no_row_or_file_is_called_is_refused(tmp_path: Path) -> None:
    dataset = small_dataset(tmp_path / "store", n=80)
    for text, words in (
        ("sample_id,label\nrow000001,class 1\nrow000001,class 2\n", "two labels of row000001"),
        ("id,label\nrow000001,class 1\n", "no column sample_id, its first line has id, label: give a table"),
        ("row000001,class 1\n", "no column sample_id, its first line has row000001, class 1"),
        ("sample_id,label\n", "has no rows"),
        ("", "has no rows"),
    ):
        (tmp_path / "bad.csv").write_text(text)
        with pytest.raises(InputError, match=words):
            Edits.read(None, tmp_path / "bad.csv")
    with pytest.raises(InputError, match="cannot be read"):
        Edits.read(str(tmp_path / "none.csv"), None)
    with pytest.raises(InputError, match=r"none\.txt cannot be read: No such file or directory"):
        Edits.read(str(tmp_path / "none.txt"), None)
    (tmp_path / "bad.csv").write_text("sample_id,label\nrow000001,clas 1\n")
    with pytest.raises(InputError, match=r"'clas 1' of row000001 .*: did you mean 'class 1'"):
        edited_dataset(dataset, Edits.read(None, tmp_path / "bad.csv"))
    with pytest.raises(InputError, match="has no row 'row98x' and 1 other:"):
        edited_dataset(dataset, Edits.read("row000001, row99,row98x", None))
    with pytest.raises(InputError, match="nothing is left"):
        edited_dataset(dataset, Edits(frozenset(dataset.sample_ids()), {}))
    with pytest.raises(ConfigError, match="--resume"):
        _edited(TrainConfig(resume="r1"), None, "row000001", None)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("edited") / "store"
    small_dataset(folder)
    return train(
        TrainConfig(store=str(folder), k=2, C=0.5, tol=1e-4, transforms=("standardize",)), HERE
    ).model


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.cluster)])
def test_a_model_forgets_rows(model: str, workers: int) -> None:
    """It is the one that never saw them: same optimum, settings of the first, nothing of them kept."""
    before = StoredModel.open(model)
    train_rows = before.rows("train").indices
    gone = [name(row) for row in train_rows[::100].tolist()]
    config = _edited(TrainConfig(tol=1e-4), model, ",".join(gone), None)
    assert (config.C, config.k, config.transforms) == (0.5, 2, ("standardize",))
    warm = train(config, ClusterConfig(workers=workers))
    cold = train(config.model_copy(update={"start_from": None}), HERE)
    assert warm.certificate.certified
    assert warm.primal == pytest.approx(cold.primal, rel=2e-4)
    assert warm.passes < cold.passes
    after = StoredModel.open(warm.model)
    record = after.model.record
    assert (record.n, record.parents) == (len(train_rows) - len(gone), (before.model.record.id,))
    assert record.result["start"]["rows"] == record.n
    ids = after.dataset().sample_ids()
    assert set(ids).isdisjoint(gone)
    assert after.model.duals(0, record.n).shape[0] == record.n
    assert not any(word in str(record.to_json()) for word in gone)


def test_corrections_of_an_inspection_are_fed_back(model: str, tmp_path: Path) -> None:
    table = tmp_path / "suspects.csv"
    found = inspect_model(model, InspectConfig(output=table, max_passes=0))
    lines = table.read_text().splitlines()
    first, label, suggested = lines[1].split(",")[:3]
    lines[1] = lines[1].replace(f"{label},{suggested}", f"{suggested},{suggested}")
    table.write_text("\n".join(lines))
    config = _edited(TrainConfig(), model, None, table)
    assert config.dataset != found.dataset
    edited = Dataset.open(StoredModel.open(model).model.store, config.dataset)
    place = edited.sample_ids().index(first)
    assert edited.class_names[edited.labels()[place]] == suggested
    assert (edited.labels() != StoredModel.open(model).dataset().labels()).sum() == 1


FORGOTTEN = "c0/003.png"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Three versions of photographs, the last with a copy of one of them, and a model of the second."""
    photos, place = tmp_path / "photos", str(tmp_path / "store")
    for stop in (10, 11, 12):
        photographs(photos, range(stop - 1 if stop > 10 else 0, stop))
        if stop == 12:
            (photos / "c1" / "copy.png").write_bytes((photos / FORGOTTEN).read_bytes())
        extract(
            ExtractConfig(images=str(photos), store=place, backbone="hog:size=24,cells=8"), HERE, follow=True
        )
        if stop == 11:
            train(TrainConfig(store=place, k=2, tol=1e-2), HERE)
    return open_store(place)


def test_they_are_gone_from_every_version_and_from_the_disk(store: Store, tmp_path: Path) -> None:
    before = Dataset.open(store)
    table = before.manifest()
    row = table["path"].to_pylist().index(FORGOTTEN)
    digest, features = table["sha256"][row].as_py(), before.rows(row, row + 1)
    others = {
        path: before.rows(place, place + 1)
        for place, path in enumerate(table["path"].to_pylist())
        if path not in (FORGOTTEN, "c1/copy.png")
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


def test_rows_that_a_model_learned_are_known_whatever_became_of_its_dataset(store: Store, topline) -> None:
    """The first call takes the version away that the model was trained on; others ask for other rows."""

    def forget_by_hand(*words: str) -> tuple[int, dict[str, Any]]:
        ran = topline("forget", store.url, *words, "--json")
        return ran.code, ran.json

    table = Dataset.open(store).manifest()
    names = dict(zip(table["path"].to_pylist(), table["sample_id"].to_pylist(), strict=True))
    learned = Dataset.open(store, load_model(f"{store.url}/models/m0001").record.dataset)
    splits = dict(zip(learned.manifest()["path"].to_pylist(), learned.split().tolist(), strict=True))
    test = SPLITS["test"]
    tested = next(path for path, split in splits.items() if split == test)
    first, second = [path for path, split in splits.items() if split != test and path != FORGOTTEN][:2]
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
    row = before.manifest()["path"].to_pylist().index(FORGOTTEN)
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


def test_four_rows_are_forgotten_one_by_one_and_each_step_is_audited(
    tmp_path: Path, topline: Topline
) -> None:
    """Three models: the champion learned all rows, the second not the first two, the last none of them."""
    place = str(tmp_path / "store")
    X, labels = make_features(300, 12, 4)
    split = make_split(300)
    write_dataset(open_store(place, create=True), X, labels, split)
    dataset = Dataset.open(open_store(place))
    names = [name for name, one in zip(dataset.sample_ids(), dataset.split(), strict=True) if one == 0][:4]

    def run(*words: str) -> tuple[int, dict[str, Any]]:
        ran = topline(*words, "--json")
        return ran.code, ran.json

    for known in (0, 2, 4):
        if known:
            edited_dataset(dataset, Edits(frozenset(names[:known]), {}))
        made = train(TrainConfig(store=place, k=2, tol=1e-2), HERE).model
        evaluate(made)
    del dataset
    assert run("models", "promote", f"{place}/models/m0001", "--reason", "the first")[0] == 0
    for number, name in enumerate(names):
        code, said = run("forget", place, "--rows", name, "--reason", "asked to")
        learned = ["m0001"] if number < 2 else ["m0001", "m0002"]
        assert (code, said["clean"], said["mentions"], said["models"]) == (1, False, [], learned), name
        assert said["rows"] == (1 if number == 0 else 0 if number < 2 else said["rows"])
        code, said = run("fsck", place)
        assert (code, said["ok"]) == (0, True), said
    code, said = run("forget", place, "--rows", names[-1], "--retrain", "--workers", "0")
    assert (code, said["clean"], said["deleted_models"]) == (0, True, ["m0001", "m0002"])
    assert said["trained"].endswith("/m0004")
    standing = read_standing(open_store(place))
    assert (standing.champion, standing.entries[-3].action) == ("m0004", "promote")
    left = load_model(said["trained"])
    known_rows = set(np.asarray(left.array(LEARNED)).tolist())
    assert not known_rows & set(digests_of(names, ()).tolist())
    assert run("prune", place, "--keep", "1", "--days", "0")[0] == 0
    for command in ("certify", "evaluate", "report"):
        assert run(command, said["trained"])[0] == 0, command
    code, found = run("fsck", place)
    assert (code, found["ok"]) == (0, True), found
    assert run("status", place)[0] == 0
    code, refused = run("forget", place, "--rows", names[0])
    assert code == 2
    assert "no model learned one" in refused["error"]["message"]


def test_the_content_of_a_row_that_is_gone_names_it(store: Store) -> None:
    """Its copy went with it: by its id nobody knows it any more, by its content the model does."""
    table = Dataset.open(store).manifest()
    paths = table["path"].to_pylist()
    copy, row = (paths.index(path) for path in ("c1/copy.png", FORGOTTEN))
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


def test_what_somebody_reads_is_out_of_sight_and_told(store: Store, topline: Topline) -> None:
    held = Dataset.open(store)
    name = held.sample_ids()[0]
    ran = topline("forget", store.url, "--rows", name, "--json")
    printed = ran.json
    assert (ran.code, printed["clean"], printed["in_use"]) == (1, False, [held.info.id])
    assert any(path.startswith("manifests/") for path in printed["mentions"])
    assert held.info.id not in {info.id for info in list_datasets(store)}
    del held
    topline.printed("prune", store.url)
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
    assert (list(edits.labels), edits.left_out) == ([third], frozenset())
