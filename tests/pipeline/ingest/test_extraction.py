"""Features of images: chosen, extracted beside decoding, and taken over from an earlier version."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

from tests.pipeline.pictures import BAD_FILES, photographs, png, scene, write_classes
from tests.pipeline.small_network import write_network
from tests.pipeline.watching import Recorder
from tests.processes import until
from tests.storage.samples import unit_of
from tests.storage.test_integrity import flip_first
from topline.pipeline.backbones import Backbone, FeatureFunction, Features, make_backbone
from topline.pipeline.cluster import known_workers, open_cluster
from topline.pipeline.errors import ConfigError, InputError, InterruptedRunError, RejectedShareError
from topline.pipeline.images import ImageItem, ImageListing, Pixels, decode, list_images
from topline.pipeline.ingest import Describer, ExtractResult, ImageRow, extract
from topline.pipeline.ingest.extraction import classes_found, names_line
from topline.pipeline.ingest.splits import recorded_splits
from topline.pipeline.ingest.unit import RowOrder, row_order
from topline.pipeline.options import BackboneConfig, ImageLimits
from topline.pipeline.options.ingest import ExtractConfig
from topline.pipeline.options.train import ClusterConfig
from topline.storage.arrays import ChunkPlan
from topline.storage.datasets import Dataset, DatasetWriter, check_dataset
from topline.storage.datasets.contents import STATUSES
from topline.storage.schema import SPLITS
from topline.storage.stores import open_store

HERE = ClusterConfig(workers=0)
SMALL = "hog:size=24,cells=8"


def config(tmp_path: Path, **options: Any) -> ExtractConfig:
    values = {"images": str(tmp_path / "photos"), "store": str(tmp_path / "store"), "backbone": SMALL}
    return ExtractConfig(**(values | options))


def opened(tmp_path: Path, result: ExtractResult) -> Dataset:
    return Dataset.open(open_store(str(tmp_path / "store")), result.dataset)


def features(dataset: Dataset) -> np.ndarray[Any, Any]:
    return np.asarray(dataset.rows(0, dataset.info.n_rows))


def test_a_folder_becomes_a_dataset(tmp_path: Path) -> None:
    root = write_classes(tmp_path / "photos", 3, 10)
    progress = Recorder()
    result = extract(config(tmp_path), HERE, progress)
    dataset = opened(tmp_path, result)
    assert (result.n, result.m, result.reused) == (30, 3, False)
    assert dataset.class_names == ("class0", "class1", "class2")
    rows = dataset.manifest().to_pylist()
    assert sorted(row["path"] for row in rows) == [
        f"class{c}/{i:03d}.png" for c in range(3) for i in range(10)
    ]
    # Runs of rows hold all classes, so that training may work on blocks of them.
    assert len(set(dataset.labels()[:12].tolist())) == 3
    # Two of ten of each class are held out.
    assert result.counts == {"train": 24, "val": 0, "test": 6, "rejected": 0}
    assert result.statuses == {"ok": 30, "rejected": 0, "duplicate": 0}
    assert progress.stages[-1] == ("extract", 30, "images")
    assert progress.counts["extract"] == 30
    X = features(dataset)
    network = make_backbone(config(tmp_path)).open()
    for i in (0, 13, 29):
        path = root / rows[i]["path"]
        np.testing.assert_array_equal(X[i], network([decode(path.read_bytes())])[0])
        assert rows[i]["size"] == path.stat().st_size
        assert (rows[i]["width"], rows[i]["height"]) == (24, 24)
        assert rows[i]["class_name"] == path.parent.name == f"class{dataset.labels()[i]}"
        assert SPLITS[rows[i]["split"]] == dataset.split()[i]
    assert not check_dataset(dataset, deep=True)
    assert dataset.info.features["images"] == str(root)
    assert result.to_dict()["class_names"] == ["class0", "class1", "class2"]


def test_the_same_again_is_there_already_and_a_change_is_new(tmp_path: Path) -> None:
    write_classes(tmp_path / "photos", 2, 4)
    first = extract(config(tmp_path), HERE)
    again = extract(config(tmp_path, max_bad_share=0.5, batch=3), HERE)
    assert again.reused
    assert (again.dataset, again.counts, again.statuses) == (first.dataset, first.counts, first.statuses)
    assert not extract(config(tmp_path, backbone="hog:size=24,cells=12"), HERE).reused
    assert not extract(config(tmp_path, split_seed=1), HERE).reused
    (tmp_path / "photos" / "class0" / "new.png").write_bytes(png(9))
    grown = extract(config(tmp_path), HERE)
    assert (grown.reused, grown.n) == (False, 9)


def test_bad_images_keep_their_rows_with_the_reason(tmp_path: Path) -> None:
    root = write_classes(tmp_path / "photos", 2, 12)
    for name, data in BAD_FILES.items():
        (root / "class1" / name).write_bytes(data)
    (root / "class0" / "out.png").symlink_to(tmp_path / "elsewhere.png")
    with pytest.raises(RejectedShareError, match=r"of 31 images \(.* 0.1 allows, among them: class"):
        extract(config(tmp_path), HERE)
    # What was done is kept: the same command with a larger share only commits.
    progress = Recorder()
    result = extract(config(tmp_path, max_bad_share=0.25), HERE, progress)
    assert (result.n, result.statuses) == (31, {"ok": 24, "rejected": 7, "duplicate": 0})
    assert {path for path, _ in result.rejected} == {
        *(f"class1/{name}" for name in BAD_FILES),
        "class0/out.png",
    }
    assert all(reason for _, reason in result.rejected)
    dataset = opened(tmp_path, result)
    bad = np.array([row["status"] == "rejected" for row in dataset.manifest().to_pylist()])
    assert (features(dataset)[bad] == 0).all()
    assert (features(dataset)[~bad] != 0).any(axis=1).all()
    assert (dataset.labels()[bad] == -1).all()
    assert (dataset.split() == SPLITS["rejected"]).tolist() == bad.tolist()
    assert {row["status"] for row in dataset.manifest().to_pylist()} <= set(STATUSES)


def test_the_sentence_about_too_many_says_how_to_allow_them(tmp_path: Path) -> None:
    root = write_classes(tmp_path / "photos", 1, 3)
    (root / "class0" / "cut.png").write_bytes(BAD_FILES["cut.png"])
    with pytest.raises(RejectedShareError) as caught:
        extract(config(tmp_path), HERE)
    assert str(caught.value) == (
        "1 of 4 images (25.0%) cannot be used, more than --max-bad-share 0.1 allows: class0/cut.png (cannot"
        " be decoded: image file is truncated); repair or remove them, or allow more with"
        " --max-bad-share 0.25"
    )
    assert extract(config(tmp_path, max_bad_share=0.25), HERE).counts["rejected"] == 1
    for image in root.rglob("*.png"):
        image.write_bytes(b"x")
    with pytest.raises(RejectedShareError, match=r"repair or remove them$"):
        extract(config(tmp_path), HERE)


@pytest.mark.parametrize("duplicates", ["drop", "keep"])
def test_copies_never_cross_splits(tmp_path: Path, duplicates: str, caplog: pytest.LogCaptureFixture) -> None:
    root = tmp_path / "photos"
    for i, name in enumerate(["train/a/1", "train/a/2", "train/b/3", "test/a/4", "test/b/5"]):
        path = root / f"{name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(png(i))
    for name in ("train/a/copy-of-1", "test/b/copy-of-1", "train/b/copy-of-1"):
        (root / f"{name}.png").write_bytes(png(0))
    result = extract(config(tmp_path, duplicates=duplicates), HERE)
    assert result.statuses == {"ok": 5, "rejected": 0, "duplicate": 3}
    assert "the content of 2 images lies in two classes, such as train/a/" in caplog.text
    dataset = opened(tmp_path, result)
    rows = {row["path"]: row for row in dataset.manifest().to_pylist()}
    # Of copies in several splits the held-out one stays.
    for name in ("train/a/1.png", "train/a/copy-of-1.png", "train/b/copy-of-1.png"):
        assert rows[name]["status"] == "duplicate"
        other = ", which has the label b" if "/a/" in name else ""
        assert rows[name]["error"] == f"same content as test/b/copy-of-1.png{other}"
        assert rows[name]["split"] == "rejected"
    digests: dict[str, set[str]] = {}
    for row in rows.values():
        if row["split"] != "rejected":
            digests.setdefault(row["sha256"], set()).add(row["split"])
    assert all(len(splits) == 1 for splits in digests.values())


def test_copies_are_kept_beside_their_original_if_that_is_wanted(tmp_path: Path) -> None:
    root = write_classes(tmp_path / "photos", 2, 10)
    for i in range(10):
        (root / "class0" / f"copy{i}.png").write_bytes((root / "class0" / f"{i:03d}.png").read_bytes())
    result = extract(config(tmp_path, duplicates="keep"), HERE)
    assert result.counts["rejected"] == 0
    rows = opened(tmp_path, result).manifest().to_pylist()
    split = {row["path"]: row["split"] for row in rows}
    assert all(split[f"class0/copy{i}.png"] == split[f"class0/{i:03d}.png"] for i in range(10))
    assert extract(config(tmp_path), HERE).counts["rejected"] == 10


def test_onnx_features_and_half_precision(tmp_path: Path) -> None:
    write_classes(tmp_path / "photos", 2, 5)
    path = write_network(tmp_path / "net.onnx")
    whole = extract(config(tmp_path, backbone=f"onnx:{path}"), HERE)
    half = extract(config(tmp_path, backbone=f"onnx:{path}", dtype="float16"), HERE)
    assert (whole.d, half.info.dtype) == (5, "float16")
    # float16 has eleven bits.
    np.testing.assert_allclose(
        features(opened(tmp_path, half)).astype(float),
        features(opened(tmp_path, whole)),
        rtol=2**-10,
        atol=1e-6,
    )


def test_an_interrupted_extraction_goes_on_where_it_stopped(tmp_path: Path) -> None:
    write_classes(tmp_path / "photos", 2, 100)
    stop = Recorder(130, lambda: signal.raise_signal(signal.SIGINT))
    with pytest.raises(
        InterruptedRunError, match=r"stopped by SIGINT; 2 of 4 parts are stored: run the same"
    ):
        extract(config(tmp_path), HERE, stop)
    progress = Recorder()
    result = extract(config(tmp_path), HERE, progress)
    assert not result.reused
    assert progress.counts["extract"] == 200
    whole = extract(config(tmp_path, store=str(tmp_path / "other")), HERE)
    other = Dataset.open(open_store(str(tmp_path / "other")), whole.dataset)
    np.testing.assert_array_equal(features(opened(tmp_path, result)), features(other))
    # The list of files carries every digest, so the two stores are the same to the bit.
    assert result.info.digest == whole.info.digest


def test_a_store_in_memory_is_written_in_this_process(tmp_path: Path) -> None:
    write_classes(tmp_path / "photos", 2, 3)
    result = extract(config(tmp_path, store="memory://extraction"), ClusterConfig(workers=2))
    assert Dataset.open(open_store("memory://extraction"), result.dataset).info.n_rows == 6


def test_images_are_asked_for() -> None:
    with pytest.raises(ConfigError, match="--images is missing"):
        extract(ExtractConfig())


@pytest.mark.cluster
@pytest.mark.slow
def test_workers_give_the_same_to_the_bit(tmp_path: Path) -> None:
    write_classes(tmp_path / "photos", 3, 100)
    with open_cluster(ClusterConfig(workers=2, dashboard=False)) as client:
        there = extract(config(tmp_path), None, Recorder(), client)
    here = extract(config(tmp_path, store=str(tmp_path / "other")), HERE)
    assert there.info.digest == here.info.digest


@pytest.mark.slow
@pytest.mark.cluster
def test_a_worker_that_is_killed_costs_only_its_unit(tmp_path: Path) -> None:
    write_classes(tmp_path / "photos", 4, 80)
    slow = config(tmp_path, backbone="hog:size=160,cells=16")
    with open_cluster(ClusterConfig(workers=2, dashboard=False)) as client:
        victims = list(client.run(os.getpid).values())
        kill = Recorder(64, lambda: os.kill(victims[0], signal.SIGKILL))
        there = extract(slow, None, kill, client)
        assert victims[0] not in client.run(os.getpid).values()
    here = extract(slow.model_copy(update={"store": str(tmp_path / "other")}), HERE)
    assert there.info.digest == here.info.digest


def test_a_cluster_without_workers_is_not_waited_for_for_ever(tmp_path: Path) -> None:
    write_classes(tmp_path / "photos", 2, 10)
    with open_cluster(ClusterConfig(workers=1, dashboard=False), data_bytes=0) as client:
        cluster: Any = client.cluster
        cluster.scale(0)
        until(lambda: not known_workers(client))
        with pytest.raises(InterruptedRunError, match=r"no worker for 2 s.*run the same command again"):
            extract(config(tmp_path), ClusterConfig(worker_wait=2.0), None, client)


@pytest.mark.data
def test_folders_of_difficult_images_do_not_stop_a_job(shared_data: Path, tmp_path: Path) -> None:
    for name in ("edge_images_pillow/edge_images_pillow", "exif_orientation/exif_orientation_portrait"):
        with zipfile.ZipFile(shared_data / f"{name}.zip") as archive:
            archive.extractall(tmp_path / Path(name).name)
    edge = extract(config(tmp_path, images=str(tmp_path / "edge_images_pillow"), backbone="hog"), HERE)
    # The index and the licence are left out by rule.
    assert (edge.n, edge.ignored) == (55, 2)
    assert {path for path, _ in edge.rejected} == {
        "broken.png",
        "decompression_bomb.gif",
        "dummy.container",
        "truncated_end_chunk.png",
        "truncated_jpeg.jpg",
    }
    turned = extract(
        config(tmp_path, images=str(tmp_path / "exif_orientation_portrait"), backbone="hog"), HERE
    )
    X = features(opened(tmp_path, turned))
    # One scene, compressed nine times: upright, its descriptions are nearly the same.
    assert turned.statuses == {"ok": 9, "rejected": 0, "duplicate": 0}
    cosines = X @ X.T / np.outer(np.linalg.norm(X, axis=1), np.linalg.norm(X, axis=1))
    assert cosines.min() > 0.98


@pytest.mark.data
@pytest.mark.slow
def test_hog_tells_fifteen_scenes_apart(shared_data: Path, tmp_path: Path) -> None:
    from sklearn.preprocessing import normalize
    from sklearn.svm import LinearSVC

    with zipfile.ZipFile(shared_data / "scene15" / "scene15_subset.zip") as archive:
        archive.extractall(tmp_path / "photos")
    result = extract(config(tmp_path, backbone="hog"), HERE)
    dataset = opened(tmp_path, result)
    # Two of the 180 training photographs are also among the 90 held-out ones, or twice among themselves.
    assert (result.m, result.statuses["duplicate"], result.counts["test"]) == (15, 2, 90)
    X, y, split = normalize(features(dataset)), dataset.labels(), dataset.split()
    train, test = split == SPLITS["train"], split == SPLITS["test"]
    # By chance one in fifteen; measured 0.52.
    assert LinearSVC(C=1.0, random_state=0).fit(X[train], y[train]).score(X[test], y[test]) > 0.45


def unnamed(tmp_path: Path, **options: Any) -> ExtractConfig:
    return ExtractConfig(images=str(tmp_path / "photos"), store=str(tmp_path / "store"), **options)


def test_photographs_get_the_network_and_the_store_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_classes(tmp_path / "photos", 2, 2)
    with caplog.at_level(logging.INFO, logger="topline.pipeline.ingest"):
        result = extract(unnamed(tmp_path), HERE)
    classes, choice, about = caplog.messages
    assert classes == "2 classes found: class0 2, class1 2"
    assert choice == (
        "backbone: efficientnet_lite0, as 0 of 4 images looked at are drawings or digits (no colour, and"
        " under 48 pixels or nearly all black and white); --backbone names another"
    )
    assert about == (
        "1,280 features: EfficientNet-Lite0 up to its pooling, trained on ImageNet (accuracies on"
        " ImageNet's own images are not held-out ones)"
    )
    assert result.d == 1280
    assert result.info.features["backbone"]["name"] == "efficientnet_lite0"
    assert result.info.features["about"] == result.to_dict()["features"] == about
    named = extract(unnamed(tmp_path, backbone="efficientnet_lite0"), HERE)
    assert (named.reused, named.dataset) == (True, result.dataset)


def test_what_follows_a_dataset_keeps_its_features(tmp_path: Path) -> None:
    photographs(tmp_path / "photos", range(2))
    options = {"store": str(tmp_path / "store"), "images": str(tmp_path / "photos")}
    extract(ExtractConfig(**options, backbone="hog:size=24,cells=8"), HERE, follow=True)
    photographs(tmp_path / "photos", range(2, 4))
    later = extract(ExtractConfig(**options), HERE, follow=True)
    assert later.info.features["backbone"]["cells"] == 8
    # Who does not follow it gets what suits the images.
    assert extract(ExtractConfig(**options), HERE).d == 1280


def test_flags_of_a_network_want_its_name(tmp_path: Path) -> None:
    write_classes(tmp_path / "photos", 2, 2)
    with pytest.raises(ConfigError, match="--resize is about a network that is not named"):
        extract(unnamed(tmp_path, resize=100), HERE)
    with pytest.raises(ConfigError, match="--checkpoint is about"):
        extract(unnamed(tmp_path, checkpoint=Path("weights.pt")), HERE)


def test_what_is_checked_is_checked_before_an_image_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_classes(tmp_path / "photos", 2, 2)
    monkeypatch.setattr(ImageItem, "read", lambda *_: pytest.fail("an image was read"))

    def refuse(listing: ImageListing) -> None:
        raise InputError(f"{len(listing.items)} images")

    with pytest.raises(InputError, match="4 images"):
        extract(unnamed(tmp_path), HERE, check=refuse)


class OneStep:
    """A network whose two steps nobody can see."""

    def __init__(self, network: FeatureFunction) -> None:
        self._network = network

    def __call__(self, images: Any) -> Features:
        return self._network(images)


@pytest.mark.parametrize("batch", [1, 3, 100])
def test_decoding_beside_the_network_changes_nothing(tmp_path: Path, batch: int) -> None:
    root = write_classes(tmp_path / "photos", 2, 5)
    for name, data in BAD_FILES.items():
        (root / "class1" / name).write_bytes(data)
    listing = list_images(str(root)).shuffled()
    backbone: Backbone = make_backbone(
        BackboneConfig(backbone=f"onnx:{write_network(tmp_path / 'net.onnx')}")
    )
    describer = Describer(listing.root, backbone, ImageLimits())
    found = []
    for network in (backbone.open(), OneStep(backbone.open())):
        rows = [ImageRow(item) for item in listing.items]
        parts = list(describer.describe_in_parts(network, rows, batch))
        assert [len(part) for part in parts[:-1]] == [batch] * (len(parts) - 1)
        found.append((np.concatenate(parts), rows))
    (beside, rows), (alone, same) = found
    np.testing.assert_array_equal(beside, alone)
    assert [(row.sha256, row.width, row.error) for row in rows] == [
        (row.sha256, row.width, row.error) for row in same
    ]
    assert sum(row.error is not None for row in rows) == len(BAD_FILES)
    whole = [ImageRow(item) for item in listing.items]
    np.testing.assert_array_equal(describer.describe(backbone.open(), whole), alone)


def test_an_error_beside_the_network_stops_the_job(tmp_path: Path) -> None:
    write_classes(tmp_path / "photos", 2, 4)
    backbone = make_backbone(BackboneConfig(backbone=f"onnx:{write_network(tmp_path / 'net.onnx')}"))

    class Breaks:
        def __call__(self, images: Any) -> Features:
            return self.describe(images)

        def prepare(self, image: Pixels) -> Pixels:
            self.seen = getattr(self, "seen", 0) + 1
            if self.seen > 5:
                raise MemoryError("no room")
            return image

        def describe(self, prepared: Any) -> Features:
            return np.zeros((len(prepared), backbone.dim), np.float32)

    listing = list_images(str(tmp_path / "photos"))
    describer = Describer(listing.root, backbone, ImageLimits())
    parts = describer.describe_in_parts(Breaks(), [ImageRow(item) for item in listing.items], 2)
    with pytest.raises(MemoryError, match="no room"):
        list(parts)


def test_features_are_kept_to_the_bit(tmp_path: Path) -> None:
    write_classes(tmp_path / "photos", 2, 3)
    result = extract(unnamed(tmp_path, batch=2), HERE)
    dataset = Dataset.open(open_store(str(tmp_path / "store")), result.dataset)
    network = make_backbone(BackboneConfig(backbone="efficientnet_lite0")).open()
    for i, row in enumerate(dataset.manifest().to_pylist()):
        (item,) = [item for item in list_images(str(tmp_path / "photos")).items if item.path == row["path"]]
        truth = network([decode(item.read(tmp_path / "photos", 1 << 20))])
        np.testing.assert_array_equal(np.asarray(dataset.rows(i, i + 1)), truth)


def found(tmp_path: Path, *names: str) -> str:
    for name in names:
        (tmp_path / name).mkdir(parents=True, exist_ok=True)
        Image.fromarray(scene(8, 8)).save(tmp_path / name / "1.png")
    return classes_found(list_images(str(tmp_path)))


def test_classes_are_listed_and_a_folder_too_high_is_named(tmp_path: Path) -> None:
    assert found(tmp_path / "a", "cat", "dog") == "2 classes found: cat 1, dog 1"
    assert found(tmp_path / "b", "amazon/bike", "amazon/mug") == (
        "2 classes found: amazon/bike 1, amazon/mug 1; all lie in amazon/, which --images can name for"
        " shorter names"
    )
    assert "all lie" not in found(tmp_path / "c", "amazon/bike", "dslr/bike")
    (tmp_path / "c" / "all.csv").write_text("path,label\namazon/bike/1.png,a/b\ndslr/bike/1.png,c\n")
    named = classes_found(list_images(str(tmp_path / "c" / "all.csv")))
    assert named == "2 classes found: a/b 1, c 1"
    assert found(tmp_path / "d", "cat") == "1 class found: cat 1"
    many = found(tmp_path / "e", *(f"class{i:03d}" for i in range(100)))
    assert many.startswith("100 classes found: class000 1, class001 1,")
    assert many.endswith(" and 91 more")
    assert names_line(["a" * 60, "b" * 60, "c" * 60, "d"]).endswith("c and 1 more")


def version(photos: Path, store: Path, **options: str) -> Dataset:
    config = ExtractConfig(images=str(photos), store=str(store), backbone="hog:size=24,cells=8", **options)
    return Dataset(open_store(store, create=True), extract(config, HERE, follow=True).info)


def splits(dataset: Dataset) -> dict[str, str]:
    rows = dataset.manifest().to_pylist()
    return {row["sha256"]: row["split"] for row in rows if row["status"] == "ok"}


def stored_features(dataset: Dataset) -> dict[str, bytes]:
    X = np.asarray(dataset.rows(0, dataset.info.n_rows))
    return {row["path"]: X[i].tobytes() for i, row in enumerate(dataset.manifest().to_pylist())}


@pytest.mark.parametrize("damaged", [False, True])
def test_features_are_those_of_a_fresh_extraction(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, *, damaged: bool
) -> None:
    """Also where the earlier ones can no longer be read: then they are made again."""
    photographs(tmp_path / "photos", range(20))
    first = version(tmp_path / "photos", tmp_path / "store")
    if damaged:
        flip_first(first.store, f"{unit_of(first.store, first.info, 0)}/c/0/0")
    photographs(tmp_path / "photos", range(20, 24))
    second = version(tmp_path / "photos", tmp_path / "store")
    assert stored_features(second) == stored_features(version(tmp_path / "photos", tmp_path / "fresh"))
    assert splits(first).items() <= splits(second).items()
    assert ("described again" in caplog.text) == damaged


def test_what_came_back_is_held_out_as_before(tmp_path: Path) -> None:
    photos, store = tmp_path / "photos", tmp_path / "store"
    photographs(photos, range(20))
    first = splits(version(photos, store))
    shutil.move(photos / "c0", tmp_path / "away")
    version(photos, store)
    photographs(photos, range(20, 22))
    shutil.copytree(tmp_path / "away", photos / "c0", dirs_exist_ok=True)
    (photos / "c0" / "000.png").rename(photos / "c0" / "another name.png")
    assert first.items() <= splits(version(photos, store)).items()
    assert sorted(set(first.values())) == ["test", "train"]


def test_folders_deal_out_new_images_and_move_no_old_ones(tmp_path: Path) -> None:
    photos, store = tmp_path / "photos", tmp_path / "store"
    photographs(photos / "train", range(12))
    photographs(photos / "test", range(12, 16))
    first = version(photos, store)
    (photos / "test" / "c1" / "012.png").rename(photos / "train" / "c1" / "012.png")
    (photos / "train" / "c2" / "003.png").rename(photos / "test" / "c2" / "003.png")
    photographs(photos / "test", range(16, 17))
    second = version(photos, store)
    assert splits(first).items() <= splits(second).items()
    assert (first.info.counts["test"], second.info.counts["test"]) == (16, 20)
    assert recorded_splits(second.store, second.info.id) == splits(second)


UNIT = 8


def item(name: str, size: int = 1) -> ImageItem:
    return ImageItem(name, name, name, size=size)


def listing(names: Sequence[str]) -> ImageListing:
    return ImageListing(Path("/photos"), "folder", tuple(item(name, len(name)) for name in names))


def stored(order: RowOrder, key: str) -> Dataset:
    """The dataset of these rows, each with one feature: a number that its name alone decides."""
    store = open_store(f"memory://{key.partition(' ')[0]}", create=True)
    names = [own.sample_id for own in order.listing.items]
    writer = DatasetWriter.begin(store, key, 1, "float32", order.plan, {}, cuts=order.cuts)
    for unit in range(writer.units):
        own = names[order.cuts[unit] : order.cuts[unit + 1]]
        X = np.array([[float(sum(name.encode()))] for name in own], np.float32)
        sizes = pa.array([len(name) for name in own], pa.int64())
        writer.write_unit(unit, X, pa.table({"sample_id": own, "path": own, "size": sizes}))
    return Dataset(store, writer.commit(np.zeros(len(names), int), np.zeros(len(names), int), ("c",)))


def plan(names: Sequence[str]) -> ChunkPlan:
    return ChunkPlan(len(names), UNIT, UNIT)


def test_one_image_a_version_leaves_few_units_and_writes_each_row_seldom() -> None:
    names = [f"c/{number:03d}" for number in range(20)]
    base = stored(row_order(listing(names), plan(names), None), "growing 0")
    written = 0
    for number in range(20, 20 + 24):
        before = {unit.features for unit in base.units}
        names.append(f"c/{number:03d}")
        base = stored(row_order(listing(names[::-1]), plan(names), base), f"growing {number}")
        assert base.sample_ids()[: len(names) - 1 - UNIT] == names[: len(names) - 1 - UNIT]
        written += sum(unit.rows[1] - unit.rows[0] for unit in base.units if unit.features not in before)
    assert sorted(base.sample_ids()) == names
    assert len(base.units) <= len(names) / UNIT + np.log2(UNIT) + 1
    # A row is written again when its unit doubles: once, and three times until a unit of 8 is full.
    assert written <= 24 * (1 + np.log2(UNIT))


def test_what_is_gone_is_left_out_and_a_renamed_class_keeps_its_places() -> None:
    names = [f"{'ab'[number % 2]}/{number:03d}" for number in range(24)]
    base = stored(row_order(listing(names), plan(names), None), "renamed 0")
    gone = [name for name in names if name != "b/011"]
    order = row_order(listing(gone), plan(gone), base)
    assert order.cuts == (0, 8, 15, 23)
    assert [own.sample_id for own in order.listing.items] == gone
    renamed = [name.replace("a/", "z/") for name in names]
    after = stored(row_order(listing(sorted(renamed)), plan(renamed), base), "renamed 1")
    assert after.sample_ids() == renamed
    kept = row_order(listing(sorted(renamed)), plan(renamed), base)
    assert (kept.cuts, kept.base) == ((0, 8, 16, 24), base.info.id)


@pytest.mark.parametrize("count", [24 + 25, 24 * 8])
def test_many_new_rows_or_much_larger_units_are_ordered_anew(count: int) -> None:
    names = [f"c/{number:03d}" for number in range(24)]
    base = stored(row_order(listing(names), plan(names), None), f"anew{count} 0")
    more = [f"c/{number:03d}" for number in range(count)]
    wanted = plan(more) if count < 100 else ChunkPlan(len(more), UNIT, 4 * UNIT)
    order = row_order(listing(more), wanted, base)
    assert (order.base, order.cuts, order.plan) == (None, tuple(wanted.unit_bounds()), wanted)
