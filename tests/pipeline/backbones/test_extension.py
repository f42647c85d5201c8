"""A new backbone is one file and its registration: written, registered, extracted with and trained on."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from PIL import Image

import topline
from tests.contracts.backbone_contract import BackboneContract
from topline.pipeline.backbones import (
    BACKBONES,
    Backbone,
    FeatureFunction,
    Features,
    IntegerOptions,
    make_backbone,
    register_backbone,
)
from topline.pipeline.errors import ConfigError
from topline.pipeline.images import Pixels
from topline.pipeline.ingest import extract
from topline.pipeline.options import ClusterConfig, ExtractConfig, PredictConfig, TrainConfig
from topline.pipeline.prediction import predict
from topline.pipeline.training import train

HERE = ClusterConfig(workers=0)


@dataclass(frozen=True)
class MeanColour(IntegerOptions):
    """Mean red, green and blue of `grid` x `grid` cells, from 0 to 1."""

    name: ClassVar[str] = "mean_colour"

    grid: int = 2

    @property
    def dim(self) -> int:
        return 3 * self.grid**2

    @property
    def side(self) -> int:
        return 16 * self.grid

    def open(self) -> FeatureFunction:
        return self._features

    def _features(self, images: Sequence[Pixels]) -> Features:
        cells = [
            Image.fromarray(image).resize((self.grid, self.grid), Image.Resampling.BOX) for image in images
        ]
        return np.stack([np.asarray(cell, dtype=np.float32).ravel() / 255 for cell in cells])


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    known = dict(BACKBONES)
    register_backbone(MeanColour)
    yield
    BACKBONES.clear()
    BACKBONES.update(known)


class TestMeanColour(BackboneContract):
    @pytest.fixture
    def backbone(self) -> Backbone:
        return make_backbone(ExtractConfig(backbone="mean_colour:grid=3"))


def write_images(folder: Path) -> Path:
    random = np.random.default_rng(0)
    for name, colour in {"red": (200, 60, 60), "blue": (60, 60, 200)}.items():
        (folder / name).mkdir(parents=True)
        for number in range(20):
            pixels = np.clip(random.normal(colour, 40, (48, 64, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{number}.png")
    return folder


def test_images_become_a_model_that_knows_its_backbone(tmp_path: Path) -> None:
    images, store = write_images(tmp_path / "images"), str(tmp_path / "store")
    dataset = extract(ExtractConfig(images=str(images), store=store, backbone="mean_colour:grid=3"), HERE)
    assert (dataset.n, dataset.d, dataset.m) == (40, 27, 2)
    assert dataset.info.features["backbone"] == {"name": "mean_colour", "grid": 3}
    model = train(TrainConfig(store=store, loss="topk_hinge", k=1), HERE)
    for name in ("red", "blue"):
        found = predict(model.model, PredictConfig(images=str(images / name / "0.png"), top_k=1))
        assert found.predictions[0].labels == (name,)


def test_a_name_is_of_one_backbone() -> None:
    register_backbone(MeanColour)

    class Other(MeanColour):
        pass

    with pytest.raises(ConfigError, match="another backbone 'mean_colour'"):
        register_backbone(Other)
    with pytest.raises(ConfigError, match="mean_colour has no option 'size=3'"):
        make_backbone(ExtractConfig(backbone="mean_colour:size=3"))
    with pytest.raises(
        ConfigError, match=r"no backbone named 'mean'; use one of efficientnet_lite0, hog, .*, mean_colour"
    ):
        make_backbone(ExtractConfig(backbone="mean"))


@pytest.mark.parametrize("name", sorted(BACKBONES))
def test_a_backbone_of_the_product_is_a_file_and_a_line_of_the_registry(name: str) -> None:
    kind = BACKBONES[name]
    own = Path(inspect.getfile(kind)).resolve()
    package = Path(topline.__file__).resolve().parent
    rooms = [package / room for room in ("pipeline", "flows", "solvers", "storage")]
    importers = {
        path.resolve()
        for room in rooms
        for path in room.resolve().rglob("*.py")
        if f"topline.pipeline.backbones.{own.stem} import" in path.read_text(encoding="utf-8")
    }
    assert importers == {own.with_name("registry.py")}
