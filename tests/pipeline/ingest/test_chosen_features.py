"""Features where nobody names a backbone, what is said of them, and decoding beside the network."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.pipeline.fresh_photos import photographs
from tests.pipeline.pictures import BAD_FILES, scene, write_classes
from tests.pipeline.small_network import write_network
from topline.pipeline.backbones import Backbone, FeatureFunction, Features, make_backbone
from topline.pipeline.errors import ConfigError, InputError
from topline.pipeline.images import ImageItem, ImageListing, Pixels, decode, list_images
from topline.pipeline.ingest import Describer, ImageRow, extract
from topline.pipeline.ingest.extraction import classes_found, names_line
from topline.pipeline.options import BackboneConfig, ClusterConfig, ExtractConfig, ImageLimits
from topline.storage.datasets import Dataset
from topline.storage.stores import open_store

HERE = ClusterConfig(workers=0)


def config(tmp_path: Path, **options: Any) -> ExtractConfig:
    return ExtractConfig(images=str(tmp_path / "photos"), store=str(tmp_path / "store"), **options)


def test_photographs_get_the_network_and_the_store_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_classes(tmp_path / "photos", 2, 2)
    with caplog.at_level(logging.INFO, logger="topline.pipeline.ingest"):
        result = extract(config(tmp_path), HERE)
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
    named = extract(config(tmp_path, backbone="efficientnet_lite0"), HERE)
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
        extract(config(tmp_path, resize=100), HERE)
    with pytest.raises(ConfigError, match="--checkpoint is about"):
        extract(config(tmp_path, checkpoint=Path("weights.pt")), HERE)


def test_what_is_checked_is_checked_before_an_image_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_classes(tmp_path / "photos", 2, 2)
    monkeypatch.setattr(ImageItem, "read", lambda *_: pytest.fail("an image was read"))

    def refuse(listing: ImageListing) -> None:
        raise InputError(f"{len(listing.items)} images")

    with pytest.raises(InputError, match="4 images"):
        extract(config(tmp_path), HERE, check=refuse)


# -- decoding beside the network


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
    result = extract(config(tmp_path, batch=2), HERE)
    dataset = Dataset.open(open_store(str(tmp_path / "store")), result.dataset)
    network = make_backbone(BackboneConfig(backbone="efficientnet_lite0")).open()
    for i, row in enumerate(dataset.manifest().to_pylist()):
        (item,) = [item for item in list_images(str(tmp_path / "photos")).items if item.path == row["path"]]
        truth = network([decode(item.read(tmp_path / "photos", 1 << 20))])
        np.testing.assert_array_equal(np.asarray(dataset.rows(i, i + 1)), truth)


# -- classes


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
