"""Groups and weights of rows: kept with the dataset, in one split and one fold, and in what is trained."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.pipeline.pictures import png, write_classes
from topline.pipeline.certification import certify
from topline.pipeline.errors import ConfigError, InputError
from topline.pipeline.ingest import Edits, edited_dataset, extract, import_features
from topline.pipeline.ingest.splits import HeldOut, hold_out
from topline.pipeline.options import ClusterConfig, ExtractConfig, ImportConfig, SweepConfig, TrainConfig
from topline.pipeline.sweep import sweep
from topline.pipeline.sweep.plan import stratified_folds
from topline.pipeline.training import train
from topline.solvers.losses import TopKHinge
from topline.solvers.run import solve
from topline.storage.datasets import Dataset, check_dataset
from topline.storage.models import load_model
from topline.storage.schema import SPLITS
from topline.storage.stores import open_store

HERE = ClusterConfig(workers=0)
Array = np.ndarray[Any, Any]


def cuts(parts: Array, groups: Array) -> int:
    """How many groups have rows in two parts."""
    return sum(len(np.unique(parts[groups == group])) > 1 for group in np.unique(groups))


def patients(n: int = 300, d: int = 20) -> tuple[Array, Array, Array]:
    """Rows that are near copies of their patient's, with classes and numbers of patients."""
    rng = np.random.default_rng(0)
    patient = rng.integers(0, n // 6, n)
    labels = rng.integers(0, 3, n // 6)[patient]
    X = rng.normal(size=(n // 6, d))[patient] + 0.02 * rng.normal(size=(n, d)) + 3.0 * np.eye(3, d)[labels]
    return X.astype(np.float32), labels, patient


def imported(folder: Path, **options: Any) -> Dataset:
    X, labels, patient = patients()
    table = pd.DataFrame(X).add_prefix("f")
    table["label"], table["patient"], table["often"] = labels, patient, 1 + patient % 3
    table.to_csv(folder / "rows.csv", index=False)
    np.save(folder / "patients.npy", patient)
    config = ImportConfig(features=str(folder / "rows.csv"), store=str(folder / "store"), **options)
    found = import_features(config)
    return Dataset.open(open_store(config.store), found.dataset)


@pytest.mark.parametrize("seed", range(20))
def test_groups_are_held_out_whole_and_near_their_share(seed: int) -> None:
    rng = np.random.default_rng(seed)
    groups = rng.integers(0, 120, 900)
    labels = np.where(rng.random(900) < 0.1, rng.integers(0, 4, 900), groups % 4)
    split = hold_out([f"patient {group}" for group in groups], labels, HeldOut(0.2, 0.1, 0.15, seed))
    assert cuts(split, groups) == 0
    largest = np.bincount(groups).max()
    for name, share in (("test", 0.2), ("val", 0.1), ("calibration", 0.15)):
        # The end of each share is at most half a group away, in each of the four classes.
        assert abs((split == SPLITS[name]).sum() - share * 900) <= 4 * (largest + 1)


@pytest.mark.parametrize("seed", range(10))
def test_a_rare_class_within_groups_of_others_keeps_training_rows(seed: int) -> None:
    groups = np.arange(200) // 10
    labels = groups % 2
    labels[[3, 57]] = 2  # two rows, in groups of the class 0 and of the class 1
    split = hold_out([f"patient {group}" for group in groups], labels, HeldOut(0.6, 0.2, seed=seed))
    assert cuts(split, groups) == 0
    assert set(labels[split == SPLITS["train"]]) == {0, 1, 2}


def test_folds_take_whole_groups_and_share_out_the_classes() -> None:
    _, labels, patient = patients(900)
    fold = stratified_folds(labels.astype(np.int32), 5, 0, patient.astype(np.int32))
    assert cuts(fold, patient) == 0
    for label in range(3):
        counts = np.bincount(fold[labels == label], minlength=5)
        assert counts.max() - counts.min() <= np.bincount(patient[labels == label]).max()


@pytest.mark.parametrize("where", ["patient", "patients.npy"])
def test_groups_of_a_column_or_a_file_are_kept_and_never_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    monkeypatch.chdir(tmp_path)
    dataset = imported(tmp_path, groups=where, val_share=0.2)
    groups = dataset.facts().groups
    _, _, patient = patients()
    assert len(np.unique(np.stack([groups, patient]), axis=1).T) == len(np.unique(patient))
    assert cuts(dataset.split(), groups) == 0
    assert {SPLITS[name] for name in ("train", "val", "test")} == set(dataset.split().tolist())
    # A column of groups is no feature.
    assert dataset.info.d == (21 if where == "patient" else 22)
    assert not check_dataset(dataset, deep=True)
    edited = edited_dataset(dataset, Edits(frozenset(dataset.sample_ids()[:10]), {}))
    kept = Dataset(dataset.store, edited).facts().groups
    assert kept is not None
    assert np.array_equal(kept, groups[10:])


def test_a_sweep_of_groups_is_not_flattered_by_near_copies(tmp_path: Path) -> None:
    """Labels that nothing but the patient tells are learned by heart where folds cut patients."""
    X, _, patient = patients(n=600, d=40)
    labels = np.random.default_rng(1).integers(0, 3, 100)[patient]
    np.save(tmp_path / "X.npy", X)
    np.save(tmp_path / "y.npy", labels)
    np.save(tmp_path / "g.npy", patient)
    found = {}
    for groups in (None, str(tmp_path / "g.npy")):
        store = str(tmp_path / f"store {groups is None}")
        files = {"features": str(tmp_path / "X.npy"), "labels": tmp_path / "y.npy", "test_share": 0.0}
        import_features(ImportConfig(store=store, groups=groups, **files))
        options = {"C": (100.0,), "topk": 1, "loss": ("softmax",), "folds": 3, "tol": 1e-2, "rule": "none"}
        found[groups is None] = sweep(SweepConfig(store=store, **options), HERE).cells[0].mean
    assert found[True] > 0.6 > 0.45 > found[False]


@pytest.mark.parametrize("grouped", [False, True])
def test_near_copies_across_splits_are_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, grouped: bool
) -> None:
    imported(tmp_path, groups="patient" if grouped else None)
    assert ("nearly copies of training rows" in caplog.text) is not grouped


def test_rows_that_are_far_apart_are_not_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    np.save(tmp_path / "X.npy", np.random.default_rng(0).normal(size=(300, 20)))
    np.save(tmp_path / "y.npy", np.arange(300) % 3)
    files = {"features": str(tmp_path / "X.npy"), "labels": tmp_path / "y.npy"}
    import_features(ImportConfig(store=str(tmp_path / "store"), **files))
    assert "nearly copies" not in caplog.text


def write_bursts(folder: Path, bursts: int = 6) -> None:
    places = [folder / label / f"burst{burst}" for label in ("cat", "dog") for burst in range(bursts)]
    for seed, place in enumerate(place for place in places for _ in range(3)):
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{seed}.png").write_bytes(png(seed))


def extracted(tmp_path: Path, *, follow: bool = False, **options: Any) -> Dataset:
    values = {
        "images": str(tmp_path / "photos"),
        "store": str(tmp_path / "store"),
        "backbone": "hog:size=24,cells=8",
    }
    config = ExtractConfig(**(values | options))
    found = extract(config, HERE, follow=follow)
    return Dataset.open(open_store(config.store), found.dataset)


def folders_of(dataset: Dataset) -> Array:
    return np.array([path.rpartition("/")[0] for path in dataset.manifest()["path"].to_pylist()])


def test_folders_within_those_of_classes_are_groups(tmp_path: Path) -> None:
    write_bursts(tmp_path / "photos")
    dataset = extracted(tmp_path, groups_from="folder", test_share=0.4)
    assert dataset.class_names == ("cat", "dog")
    assert cuts(dataset.split(), folders_of(dataset)) == 0
    assert len(np.unique(dataset.split())) == 2


def test_a_new_image_joins_the_split_of_its_group(tmp_path: Path) -> None:
    write_bursts(tmp_path / "photos", 12)
    options = {"groups_from": "folder", "test_share": 0.4, "follow": True}
    before = extracted(tmp_path, **options)
    of_folder = dict(zip(folders_of(before), before.split(), strict=True))
    assert len(set(of_folder.values())) == 2
    for number, folder in enumerate(of_folder):
        (tmp_path / "photos" / folder / "new.png").write_bytes(png(seed=5000 + number))
    after = extracted(tmp_path, **options)
    assert after.info.n_rows == before.info.n_rows + len(of_folder)
    assert all(
        of_folder[folder] == split for folder, split in zip(folders_of(after), after.split(), strict=True)
    )
    assert extracted(tmp_path, **options).info == after.info


def test_a_table_of_images_has_columns_of_groups_and_weights(tmp_path: Path) -> None:
    write_classes(tmp_path / "photos", classes=2, each=6)
    images = sorted(str(path.relative_to(tmp_path)) for path in (tmp_path / "photos").rglob("*.png"))
    with (tmp_path / "photos.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["path", "label", "animal", "often"])
        table.writerows(
            [path, Path(path).parent.name, place // 2, place / 4] for place, path in enumerate(images)
        )
    options = {"images": str(tmp_path / "photos.csv"), "groups": "animal", "sample_weight": "often"}
    facts = extracted(tmp_path, test_share=0.3, **options).facts()
    assert facts.groups is not None
    assert np.bincount(facts.groups).tolist() == [2] * 6
    assert sorted(facts.weights.tolist()) == [place / 4 for place in range(12)]


def test_parquet_files_of_images_have_a_column_of_groups(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    for part in range(2):
        rows = [
            {"image": {"bytes": png(10 * part + row), "path": "x.png"}, "label": row % 2, "animal": part}
            for row in range(6)
        ]
        name = f"train-{part:05d}-of-00002.parquet"
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / "photos" / name)
    facts = extracted(tmp_path, groups="animal").facts()
    assert facts.groups is not None
    assert np.bincount(facts.groups).tolist() == [6, 6]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"groups": "owner"}, "has no column 'owner'"),
        ({"groups": "patient", "split": "splits.txt"}, "splits cut the group"),
        ({"sample_weight": "label"}, "no weight, a number from 0 on, in row"),
    ],
)
def test_what_is_no_group_or_weight_is_refused(
    tmp_path: Path, options: dict[str, Any], sentence: str
) -> None:
    X, _, patient = patients()
    table = pd.DataFrame(X).add_prefix("f").assign(label="word", patient=patient)
    table.to_csv(tmp_path / "rows.csv", index=False)
    (tmp_path / "splits.txt").write_text("".join(("train\n", "test\n")[i % 2] for i in range(len(X))))
    if "split" in options:
        options = {**options, "split": tmp_path / "splits.txt"}
    with pytest.raises(InputError, match=sentence):
        import_features(
            ImportConfig(features=str(tmp_path / "rows.csv"), store=str(tmp_path / "store"), **options)
        )


def test_groups_are_refused_where_images_have_none(tmp_path: Path) -> None:
    write_classes(tmp_path / "photos", classes=2, each=2)
    with pytest.raises(InputError, match=r"names a column of a table, and .*photos is no table"):
        extracted(tmp_path, groups="animal")
    with pytest.raises(InputError, match="has no folders of groups"):
        extracted(tmp_path, groups_from="folder")


@pytest.mark.parametrize("class_weight", ["none", "balanced", {"0": 2.0, "2": 0.5}])
def test_a_weight_is_as_many_rows_and_is_certified(tmp_path: Path, class_weight: Any) -> None:
    dataset = imported(tmp_path, sample_weight="often", test_share=0.0)
    options = {"loss": "topk_hinge", "k": 1, "tol": 1e-6, "transforms": (), "max_passes": 10_000}
    url = train(TrainConfig(store=str(tmp_path / "store"), class_weight=class_weight, **options), HERE).model
    certificate = certify(url)
    assert certificate.certified
    labels = dataset.labels()
    often = np.array([1, 2, 3])[patients()[2] % 3]
    weights = often.astype(float)
    if class_weight == "balanced":
        weights *= (often.sum() / 3 / np.bincount(labels, often))[labels]
    elif class_weight != "none":
        weights *= np.array([2.0, 1.0, 0.5])[labels]
    # Rows that are written as often as they count, with what is left of the weight of their class.
    X, y = np.repeat(np.asarray(dataset.rows(0, 300)), often, axis=0), np.repeat(labels, often)
    own = np.repeat(weights / often, often)
    again = solve(
        X,
        y,
        TopKHinge(1),
        1.0 / len(labels) * len(labels) / len(y),
        tol=1e-6,
        sample_weight=own,
        max_passes=10_000,
    )
    assert certificate.primal * len(labels) == pytest.approx(again.primal * len(y), rel=1e-5)


def test_weights_of_classes_come_from_words_files_and_mappings(tmp_path: Path) -> None:
    (tmp_path / "w.csv").write_text("class,weight\na cat,2\ndog,0.5\n")
    (tmp_path / "w.json").write_text('{"a cat": 2, "dog": 0.5}')
    wanted = {"a cat": 2.0, "dog": 0.5}
    for given in ("a cat=2,dog=0.5", str(tmp_path / "w.csv"), str(tmp_path / "w.json"), wanted):
        assert TrainConfig(class_weight=given).class_weight == wanted
    for given in ("sqrt", "a=1=2", "a=x", "a=-1", str(tmp_path / "none.csv")):
        with pytest.raises(ValueError, match=r"class_weight|file of class,weight"):
            TrainConfig(class_weight=given)
    imported(tmp_path)
    with pytest.raises(ConfigError, match="'cat', which is none of the classes"):
        train(TrainConfig(store=str(tmp_path / "store"), class_weight="cat=2"), HERE)
    record = load_model(
        train(TrainConfig(store=str(tmp_path / "store"), class_weight="1=4"), HERE).model
    ).record
    assert record.class_weights == (1.0, 4.0, 1.0)
