from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import TensorProto
from PIL import Image, ImageDraw

from tests.contracts.backbone_contract import BackboneContract
from tests.pipeline.pictures import scene
from tests.pipeline.small_network import SIDE, features, pooled, write_network
from topline.pipeline.backbones import BACKBONES, Backbone, backbone_of_spec, default_backbone, make_backbone
from topline.pipeline.backbones.hog import Hog
from topline.pipeline.backbones.preprocessing import IMAGENET_MEAN, IMAGENET_STD, Preprocessing
from topline.pipeline.backbones.registry import is_drawing
from topline.pipeline.errors import ConfigError, InputError
from topline.pipeline.images import ImageListing, Pixels, list_images
from topline.pipeline.options import BackboneConfig, ImageLimits

RANGE, COLOURS = "Image.NominalPixelRange", "Image.BitmapPixelFormat"


def taken(preprocessing: Preprocessing, images: Sequence[Pixels], *, normalise: bool = True) -> NDArray[Any]:
    """Return images as a network takes them."""
    return preprocessing.laid_out([preprocessing.square(image) for image in images], normalise=normalise)


def config(backbone: str, **options: object) -> BackboneConfig:
    return BackboneConfig(backbone=backbone, **options)


class TestHog(BackboneContract):
    @pytest.fixture
    def backbone(self) -> Backbone:
        return make_backbone(config("hog"))


class TestSmallHog(BackboneContract):
    @pytest.fixture
    def backbone(self) -> Backbone:
        return make_backbone(config("hog:size=32,cells=8,block=1,orientations=6"))


class TestOnnx(BackboneContract):
    @pytest.fixture
    def backbone(self, tmp_path: Path) -> Backbone:
        return make_backbone(config(f"onnx:{write_network(tmp_path / 'net.onnx')}"))


class TestOnnxOfFixedBatch(BackboneContract):
    @pytest.fixture
    def backbone(self, tmp_path: Path) -> Backbone:
        path = write_network(tmp_path / "net.onnx", batch=3, layout="NHWC")
        return make_backbone(config(f"onnx:{path}", output_name="pooled"))


def test_names() -> None:
    assert set(BACKBONES) == {"efficientnet_lite0", "hog", "fisher", "onnx", "timm"}
    with pytest.raises(ConfigError, match="no backbone named 'sift'"):
        make_backbone(config("sift"))
    with pytest.raises(InputError, match="'sift', unknown here"):
        backbone_of_spec({"name": "sift"})


def test_hog_has_the_dimension_it_says() -> None:
    assert Hog().dim == 1764
    for options in ("size=40,cells=7,block=3,orientations=4", "size=33,cells=8", "block=1"):
        backbone = make_backbone(config(f"hog:{options}"))
        assert backbone.open()([scene()]).shape == (1, backbone.dim)


def test_hog_sees_the_direction_of_edges() -> None:
    """A vertical edge has horizontal gradients only: one orientation takes all the weight."""
    image = np.zeros((96, 96, 3), dtype=np.uint8)
    image[:, 48:] = 200
    histograms = Hog(block=1).open()([image]).reshape(8, 8, 9)
    sums = histograms.sum(axis=(0, 1))
    assert sums[0] > 0
    assert sums[1:].max() == 0
    turned = Hog(block=1).open()([image.transpose(1, 0, 2)]).reshape(8, 8, 9).sum(axis=(0, 1))
    assert turned.argmax() in (4, 5)


def test_hog_takes_the_colour_with_the_largest_gradient() -> None:
    image = np.zeros((96, 96, 3), dtype=np.uint8)
    image[:, 48:, 1] = 200
    grey = np.repeat(image[:, :, 1:2], 3, axis=2)
    np.testing.assert_array_equal(Hog().open()([image]), Hog().open()([grey]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("size=0", "at least one block must fit"),
        ("cells=60", "at least one block must fit"),
        ("size=4000", "at most 1024"),
        ("orientations=0", "1 to 180 orientations"),
        ("colour=1", "no option 'colour=1'"),
        ("size=big", "no option 'size=big'"),
    ],
)
def test_hog_refuses_options_that_give_nothing(options: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_backbone(config(f"hog:{options}"))


def test_flags_of_other_backbones_are_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="the backbone hog has no use for --mean"):
        make_backbone(config("hog", mean="0,0,0"))
    with pytest.raises(ConfigError, match="the backbone onnx has no use for --checkpoint"):
        make_backbone(config("onnx:net.onnx", checkpoint="a.pt"))


def test_preprocessing_against_pillow_and_numpy() -> None:
    """Resize to a shorter side of 16, cut out 12, then normalise: the same by Pillow's whole resize."""
    image = scene(48, 32)
    found = taken(Preprocessing(resize=16, crop=12), [image])
    small = np.asarray(Image.fromarray(image).resize((24, 16), Image.Resampling.BILINEAR))[2:14, 6:18]
    truth = (small / 255.0 - IMAGENET_MEAN) / IMAGENET_STD
    # One grey level of 255, divided by the standard deviations.
    np.testing.assert_allclose(found[0], truth.transpose(2, 0, 1), atol=1.01 / 255 / 0.224)


def test_preprocessing_orders_colours_and_axes() -> None:
    image = scene(12, 12)
    plain = {"resize": 12, "crop": 12, "mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0)}
    rgb = taken(Preprocessing(**plain, layout="NHWC"), [image])
    np.testing.assert_array_equal(rgb[0], image.astype(np.float32) / np.float32(255))
    np.testing.assert_array_equal(taken(Preprocessing(**plain), [image])[0], rgb[0].transpose(2, 0, 1))
    bgr = taken(Preprocessing(**plain, layout="NHWC", channels="BGR"), [image])
    np.testing.assert_array_equal(bgr, rgb[..., ::-1])
    # The mean goes with its colour, whatever the order.
    moved = taken(
        Preprocessing(**(plain | {"mean": (1.0, 0.0, 0.0)}), layout="NHWC", channels="BGR"), [image]
    )
    np.testing.assert_allclose(moved[..., 2], bgr[..., 2] - 1, atol=1e-6)


def test_preprocessing_of_long_images_stays_small() -> None:
    batch = taken(Preprocessing(crop=8, resize=8), [scene(1, 20_000), scene(20_000, 1)])
    assert batch.shape == (2, 3, 8, 8)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"size": 3}, "size: Extra inputs are not permitted"),
        ({"mean": "grey"}, "mean: Input should be a valid tuple"),
        ({"mean": [1.0, 2.0]}, "mean.2: Field required"),
        ({"std": [1, 0, 1]}, "std.1: Input should be greater than 0"),
        ({"crop": 2.5}, "crop: Input should be a valid integer"),
        ({"crop": 64, "resize": 32}, "crop 64 does not fit into resize 32"),
        ({"layout": "CHWN"}, "layout: Input should be 'NCHW' or 'NHWC'"),
    ],
)
def test_sidecars_that_cannot_be_are_refused(values: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=rf"net\.onnx\.json: .*{message}"):
        Preprocessing.from_values(values, "net.onnx.json")


def test_onnx_gives_what_numpy_computes(tmp_path: Path) -> None:
    path = write_network(tmp_path / "net.onnx")
    images = [scene(40, 30), scene(33, 50, 1)]
    backbone = make_backbone(config(f"onnx:{path}", resize=14))
    inputs = taken(Preprocessing(resize=14, crop=SIDE), images)
    assert backbone.dim == 5
    # Single precision against double: a few units in the last place of sums of 27 products.
    np.testing.assert_allclose(backbone.open()(images), features(inputs), rtol=1e-4, atol=1e-5)
    chosen = make_backbone(config(f"onnx:{path}", resize=14, output_name="pooled"))
    assert chosen.dim == 4
    np.testing.assert_allclose(chosen.open()(images), pooled(inputs), rtol=1e-4, atol=1e-5)


def test_onnx_reads_its_sidecar_and_flags_win(tmp_path: Path) -> None:
    path = write_network(tmp_path / "net.onnx", side="side")
    sidecar = {
        "crop": 10,
        "resize": 10,
        "mean": [0, 0, 0],
        "std": [1, 1, 1],
        "channels": "BGR",
        "output_name": "pooled",
    }
    (tmp_path / "net.onnx.json").write_text(json.dumps(sidecar), encoding="utf-8")
    plain = Preprocessing(resize=10, crop=10, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0), channels="BGR")
    found = make_backbone(config(f"onnx:{path}")).open()([scene()])
    np.testing.assert_allclose(found, pooled(taken(plain, [scene()])), rtol=1e-4, atol=1e-5)
    flagged = make_backbone(config(f"onnx:{path}", channels="RGB", output_name="features")).open()([scene()])
    truth = features(taken(plain.model_copy(update={"channels": "RGB"}), [scene()]))
    np.testing.assert_allclose(flagged, truth, rtol=1e-4, atol=1e-5)


def test_onnx_asks_for_what_nobody_says(tmp_path: Path) -> None:
    path = write_network(tmp_path / "net.onnx", metadata={})
    with pytest.raises(ConfigError) as asked:
        make_backbone(config(f"onnx:{path}"))
    sentence = str(asked.value)
    assert "for net.onnx: mean, std, channels; write them into net.onnx.json" in sentence
    assert "--mean 0.485,0.456,0.406 --std 0.229,0.224,0.225 --channels RGB" in sentence
    # What the sentence proposes is taken, in the sidecar and as flags; they can be mixed.
    written = sentence.partition(", as ")[2].partition("}")[0] + "}"
    sidecar = path.with_name("net.onnx.json")
    sidecar.write_text(written, encoding="utf-8")
    from_sidecar = make_backbone(config(f"onnx:{path}", resize=14))
    sidecar.write_text('{"std": [0.229, 0.224, 0.225]}', encoding="utf-8")
    with pytest.raises(ConfigError, match=r"for net\.onnx: mean, channels; .* or give --mean .* --channels"):
        make_backbone(config(f"onnx:{path}"))
    flagged = make_backbone(config(f"onnx:{path}", mean="0.485,0.456,0.406", channels="RGB", resize=14))
    assert flagged.spec() == from_sidecar.spec()
    inputs = taken(Preprocessing(resize=14, crop=SIDE), [scene()])
    np.testing.assert_allclose(flagged.open()([scene()]), features(inputs), rtol=1e-4, atol=1e-5)


def test_onnx_asks_for_size_and_layout_where_the_graph_leaves_them_open(tmp_path: Path) -> None:
    path = write_network(tmp_path / "net.onnx", side="side", metadata={})
    with pytest.raises(ConfigError, match=r"for net\.onnx: mean, std, crop, channels;"):
        make_backbone(config(f"onnx:{path}"))
    # Three pixels high and wide: either axis of three may be the colours.
    small = write_network(tmp_path / "small.onnx", side=3)
    with pytest.raises(ConfigError, match=r"for small\.onnx: layout; .* or give --layout NCHW"):
        make_backbone(config(f"onnx:{small}"))
    assert make_backbone(config(f"onnx:{small}", layout="NCHW")).dim == 5


@pytest.mark.parametrize(
    ("metadata", "mean", "std", "channels"),
    [
        ({RANGE: "NominalRange_0_255", COLOURS: "Bgr8"}, 0, 1 / 255, "BGR"),
        ({RANGE: "Normalized_0_1", COLOURS: "Rgb8"}, 0, 1, "RGB"),
        ({RANGE: "Normalized_1_1", COLOURS: "Rgb8"}, 0.5, 0.5, "RGB"),
    ],
)
def test_onnx_knows_the_standard_metadata_of_images(
    tmp_path: Path, metadata: dict[str, str], mean: float, std: float, channels: str
) -> None:
    """Their meaning: the network's values for bytes x are x, x / 255 and x / 127.5 - 1."""
    path = write_network(tmp_path / "net.onnx", metadata=metadata)
    stated = Preprocessing(crop=SIDE, mean=(mean,) * 3, std=(std,) * 3, channels=channels)
    image = scene(SIDE, SIDE)
    backbone = make_backbone(config(f"onnx:{path}", resize=SIDE))
    inputs = taken(stated.model_copy(update={"resize": SIDE}), [image])
    low, high = {1 / 255: (0, 255), 1: (0, 1), 0.5: (-1, 1)}[std]
    planes = image[..., ::-1] if channels == "BGR" else image
    truth = low + planes.transpose(2, 0, 1) / 255 * (high - low)
    np.testing.assert_allclose(inputs[0], truth, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(backbone.open()([image]), features(inputs), rtol=1e-4, atol=1e-4)


def test_onnx_says_in_words_what_it_takes_and_was_trained_on(tmp_path: Path) -> None:
    path = write_network(tmp_path / "net.onnx")
    assert make_backbone(config(f"onnx:{path}", resize=14, output_name="pooled")).about() == (
        "the output pooled of net.onnx, whose training is not known here (images: shorter side 14 (bilinear),"
        " central 12 x 12, RGB in 0..1 less (0.485, 0.456, 0.406) over (0.229, 0.224, 0.225), NCHW)"
    )
    (tmp_path / "net.onnx.json").write_text('{"trained_on": "Places365"}', encoding="utf-8")
    told = make_backbone(config(f"onnx:{path}"))
    assert "net.onnx, trained on Places365 (images:" in told.about()
    assert backbone_of_spec(told.spec()).about() == told.about()
    taken = write_network(tmp_path / "bytes.onnx", kind=TensorProto.UINT8, metadata={"channels": "BGR"})
    assert "central 12 x 12, BGR bytes, NCHW" in make_backbone(config(f"onnx:{taken}")).about()


def test_onnx_gives_bytes_to_a_network_that_takes_bytes(tmp_path: Path) -> None:
    path = write_network(tmp_path / "net.onnx", kind=TensorProto.UINT8)
    backbone = make_backbone(config(f"onnx:{path}", resize=SIDE))
    inputs = taken(Preprocessing(resize=SIDE, crop=SIDE), [scene()], normalise=False)
    assert inputs.dtype == np.uint8
    np.testing.assert_allclose(backbone.open()([scene()]), features(inputs), rtol=1e-4, atol=1e-3)


def test_onnx_refuses_what_it_cannot_use(tmp_path: Path) -> None:
    path = write_network(tmp_path / "net.onnx")
    with pytest.raises(ConfigError, match="needs a file"):
        make_backbone(config("onnx"))
    with pytest.raises(InputError, match="there is no network"):
        make_backbone(config("onnx:gone.onnx"))
    with pytest.raises(InputError, match="no output 'logits': it has features, pooled, maps"):
        make_backbone(config(f"onnx:{path}", output_name="logits"))
    with pytest.raises(InputError, match=r"has shape \(1, 4, 12, 12\), not \(b, dim\)"):
        make_backbone(config(f"onnx:{path}", output_name="maps"))
    with pytest.raises(InputError, match="does not run on an input of shape"):
        make_backbone(config(f"onnx:{path}", crop=20, resize=20))
    (tmp_path / "text.onnx").write_text("not a network", encoding="utf-8")
    with pytest.raises(InputError, match=r"cannot be (read|loaded) as an ONNX network"):
        make_backbone(config(f"onnx:{tmp_path / 'text.onnx'}"))
    (tmp_path / "net.onnx.json").write_text("[1]", encoding="utf-8")
    with pytest.raises(InputError, match="one JSON object"):
        make_backbone(config(f"onnx:{path}"))


def test_onnx_knows_when_its_file_has_changed(tmp_path: Path) -> None:
    path = write_network(tmp_path / "net.onnx")
    backbone = make_backbone(config(f"onnx:{path}"))
    path.write_bytes(path.read_bytes() + b"\x62\x00")
    with pytest.raises(InputError, match="is not the network that made the features"):
        backbone_of_spec(backbone.spec())
    with pytest.raises(InputError, match="has changed since the job began"):
        backbone.open()


def test_onnx_runtime_leaves_nothing_in_the_home_of_its_user(tmp_path: Path) -> None:
    """As it is imported without its switch, it writes an id and opens a database of what it reports."""
    write_network(tmp_path / "network.onnx")
    command = (
        "import sys, pathlib; from topline.pipeline.backbones.onnx_session import open_session;"
        "open_session(pathlib.Path(sys.argv[1]))"
    )
    (tmp_path / "home").mkdir()
    kept = {name: value for name, value in os.environ.items() if name != "XDG_CACHE_HOME"}
    environment = {**kept, "HOME": str(tmp_path / "home")}
    subprocess.run(
        [sys.executable, "-c", command, str(tmp_path / "network.onnx")], env=environment, check=True
    )
    assert list((tmp_path / "home").iterdir()) == []


def test_onnx_weights_in_other_files_count_and_stay_in_the_folder(tmp_path: Path) -> None:
    path = write_network(tmp_path / "a" / "net.onnx", external="weights.bin")
    backbone = make_backbone(config(f"onnx:{path}", resize=SIDE))
    truth = features(taken(Preprocessing(resize=SIDE, crop=SIDE), [scene()]))
    np.testing.assert_allclose(backbone.open()([scene()]), truth, rtol=1e-4, atol=1e-5)
    weights = path.with_name("weights.bin")
    data = bytearray(weights.read_bytes())
    data[3] ^= 1
    weights.write_bytes(data)
    with pytest.raises(InputError, match="is not the network"):
        backbone_of_spec(backbone.spec())
    weights.unlink()
    with pytest.raises(InputError, match="which is not beside it"):
        make_backbone(config(f"onnx:{path}"))
    outside = write_network(tmp_path / "b" / "net.onnx", external="../stolen.bin")
    with pytest.raises(InputError, match="outside its folder: refused"):
        make_backbone(config(f"onnx:{outside}"))


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
