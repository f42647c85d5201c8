"""Which features images get where nobody names any."""

from __future__ import annotations

from pathlib import Path
from zipfile import ZipFile

import numpy as np
import pytest
from PIL import Image, ImageDraw

from tests.pipeline.pictures import scene
from topline.pipeline.backbones import default_backbone
from topline.pipeline.backbones.registry import is_drawing
from topline.pipeline.images import ImageListing, Pixels, list_images
from topline.pipeline.options import ImageLimits


def character(side: int = 105) -> Pixels:
    """Black lines on white."""
    image = Image.new("1", (side, side), 1)
    ImageDraw.Draw(image).line([(20, 20), (side - 20, side // 2), (20, side - 20)], fill=0, width=3)
    return np.asarray(image.convert("RGB"))


def grey(pixels: Pixels) -> Pixels:
    return np.asarray(Image.fromarray(pixels).convert("L").convert("RGB"))


@pytest.mark.parametrize(
    ("image", "drawing"),
    [
        (character(), True),
        (255 - character(400), True),
        (grey(scene(47, 300)), True),
        (grey(scene(48, 48)), False),
        (grey(scene(300, 200)), False),
        (scene(32, 32), False),
        (scene(300, 200), False),
    ],
)
def test_drawings_have_no_colour_and_are_tiny_or_lines(image: Pixels, drawing: bool) -> None:
    assert is_drawing(image) is drawing


def chosen(folder: Path) -> str:
    return default_backbone(list_images(str(folder)).shuffled(), ImageLimits()).name


def write(folder: Path, drawings: int, photographs: int) -> Path:
    for kind, count in (("drawing", drawings), ("photograph", photographs)):
        (folder / kind).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            pixels = character() if kind == "drawing" else scene(60, 60, number)
            Image.fromarray(pixels).save(folder / kind / f"{number}.png")
    return folder


def test_most_of_the_images_decide(tmp_path: Path) -> None:
    assert chosen(write(tmp_path / "a", 4, 3)) == "hog"
    assert chosen(write(tmp_path / "b", 3, 3)) == "efficientnet_lite0"


def test_at_most_64_images_are_looked_at_and_always_the_same(tmp_path: Path) -> None:
    listing = list_images(str(write(tmp_path, 30, 60))).shuffled()
    choice = default_backbone(listing, ImageLimits())
    assert choice == default_backbone(listing, ImageLimits())
    assert " of 64 images looked at are drawings or digits" in choice.reason


def test_where_no_image_can_be_read_it_is_the_network(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "broken.png").write_bytes(b"")
    choice = default_backbone(list_images(str(tmp_path)), ImageLimits())
    assert (choice.name, choice.reason[:22]) == ("efficientnet_lite0", "0 of 0 images looked a")


@pytest.mark.data
@pytest.mark.parametrize(
    ("archive", "backbone"),
    [
        ("office_caltech/images_amazon.zip", "efficientnet_lite0"),
        ("scene15/scene15_subset.zip", "efficientnet_lite0"),
        ("tiny_imagenet_200/tiny_imagenet_200_public.zip", "efficientnet_lite0"),
        ("omniglot/images_background_small1.zip", "hog"),
    ],
)
def test_public_images_get_what_suits_them(
    shared_data: Path, tmp_path: Path, archive: str, backbone: str
) -> None:
    with ZipFile(shared_data / archive) as images:
        names = [name for name in images.namelist() if name.endswith((".jpg", ".JPEG", ".png"))]
        images.extractall(tmp_path, names[:: max(1, len(names) // 100)])
    listing: ImageListing = list_images(str(tmp_path))
    assert default_backbone(listing.shuffled(), ImageLimits()).name == backbone
