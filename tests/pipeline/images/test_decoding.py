from __future__ import annotations

import csv
import io
import threading
import warnings
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from tests.pipeline.pictures import BAD_FILES, encoded, jpeg, png, png_header, scene
from topline.pipeline.errors import ConfigError, ImageRejectedError
from topline.pipeline.images import decode, decoding, read_picture
from topline.pipeline.ingest import extract
from topline.pipeline.jobs import retrain, run
from topline.pipeline.options import ExtractConfig, ImageLimits, PredictConfig, RetrainConfig, RunConfig
from topline.pipeline.options.train import ClusterConfig, TrainConfig
from topline.pipeline.prediction import predict
from topline.storage.datasets import Dataset, check_dataset
from topline.storage.stores import open_store


def test_pixels_of_a_png_are_its_pixels() -> None:
    assert np.array_equal(decode(png()), scene())


@pytest.mark.parametrize("orientation", range(1, 9))
def test_photographs_are_turned_upright(orientation: int) -> None:
    # Turn the scene as a camera would store it; decoding must bring it back.  Truth: Pillow's own ImageOps.
    from PIL import ImageOps

    data = jpeg(orientation=orientation)
    truth = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB"))
    picture = read_picture(data)
    assert np.array_equal(picture.pixels, truth)
    assert (picture.height, picture.width) == truth.shape[:2]
    assert (picture.width, picture.height) == ((40, 30) if orientation < 5 else (30, 40))


@pytest.mark.parametrize("orientation", [0, 9, 77])
def test_an_orientation_that_does_not_exist_is_upright(orientation: int) -> None:
    assert np.array_equal(decode(jpeg(orientation=orientation)), decode(jpeg()))


def test_cmyk_grey_and_palette_become_rgb() -> None:
    image = Image.fromarray(scene())
    grey = decode(encoded(image.convert("L")))
    assert (grey[..., 0] == grey[..., 1]).all()
    assert np.array_equal(grey[..., 0], np.asarray(image.convert("L")))
    cmyk = decode(encoded(image.convert("CMYK"), "JPEG", quality=100, subsampling=0)).astype(int)
    assert np.abs(cmyk - scene()).mean() < 4
    palette = decode(encoded(image.convert("P", palette=Image.Palette.ADAPTIVE, colors=64))).astype(int)
    assert np.abs(palette - scene()).mean() < 10
    assert decode(encoded(image.convert("1"))).max() == 255


def test_transparency_is_laid_on_white() -> None:
    image = Image.fromarray(scene()).convert("RGBA")
    image.putalpha(0)
    assert (decode(encoded(image)) == 255).all()
    image.putalpha(128)
    half = decode(encoded(image)).astype(int)
    assert np.abs(half - (scene().astype(int) * 128 + 255 * 127) / 255).max() <= 1
    grey = Image.new("LA", (5, 4), (0, 0))
    assert (decode(encoded(grey)) == 255).all()
    palette = image.convert("RGB").convert("P", palette=Image.Palette.ADAPTIVE, colors=16)
    indices = np.asarray(palette)
    see_through = decode(encoded(palette, transparency=int(indices[0, 0])))
    assert (see_through[indices == indices[0, 0]] == 255).all()
    assert (see_through[indices != indices[0, 0]] != 255).any(axis=1).all()


def test_sixteen_bits_are_scaled_to_eight() -> None:
    values = np.array([[0, 128, 129, 257, 65535, 32768]], dtype=np.uint16)
    # round(v * 255 / 65535): 128 is below one half of 257, 129 above it.
    expected = np.array([0, 0, 1, 1, 255, 128], dtype=np.uint8)
    for kind in ("PNG", "TIFF"):
        pixels = decode(encoded(Image.fromarray(values), kind))
        assert np.array_equal(pixels[0, :, 0], expected)
        assert np.array_equal(pixels[..., 0], pixels[..., 2])


@pytest.mark.parametrize(("top", "half"), [(255, 128), (4095, 2048), (65535, 32768)])
@pytest.mark.parametrize("dtype", [np.uint16, np.int32])
def test_whole_numbers_count_in_the_bits_that_they_need(top: int, half: int, dtype: Any) -> None:
    values = np.array([[0, half, top]], dtype=dtype)
    assert decode(encoded(Image.fromarray(values), "TIFF"))[0, :, 0].tolist() == [0, 128, 255]


def test_a_png_may_have_a_long_text_and_profile() -> None:
    texts = PngInfo()
    texts.add_text("notes", "n" * 5_000_000, zip=True)
    data = encoded(Image.fromarray(scene()), "PNG", pnginfo=texts, icc_profile=bytes(3_000_000))
    assert np.array_equal(decode(data), scene())


def test_numbers_of_unknown_range_are_stretched() -> None:
    floats = np.array([[-1.0, 0.0, 3.0]], dtype=np.float32)
    assert decode(encoded(Image.fromarray(floats), "TIFF"))[0, :, 1].tolist() == [0, 64, 255]
    unit = np.array([[0.0, 0.5, 1.0]], dtype=np.float32)
    assert decode(encoded(Image.fromarray(unit), "TIFF"))[0, :, 1].tolist() == [0, 128, 255]
    flat = np.full((2, 2), 70000, dtype=np.int32)
    assert decode(encoded(Image.fromarray(flat), "TIFF")).max() == 0
    with pytest.raises(ImageRejectedError, match="not finite"):
        decode(encoded(Image.fromarray(np.full((2, 2), np.nan, np.float32)), "TIFF"))


def test_of_an_animation_the_first_frame_is_taken() -> None:
    frames = [Image.new("RGB", (9, 7), colour) for colour in ("red", "green", "blue")]
    for kind in ("GIF", "WEBP", "PNG"):
        options: dict[str, Any] = {"lossless": True} if kind == "WEBP" else {}
        pixels = decode(encoded(frames[0], kind, save_all=True, append_images=frames[1:], **options))
        assert pixels.shape == (7, 9, 3)
        assert pixels[3, 4].tolist() == [255, 0, 0]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("zero.png", "is empty"),
        ("cut.jpg", "truncated"),
        ("cut.png", "truncated"),
        ("page.jpg", "web page"),
        ("noise.png", "not an image"),
        ("bomb.png", "bomb"),
    ],
)
def test_bad_files_are_rejected_with_their_reason(name: str, reason: str) -> None:
    with pytest.raises(ImageRejectedError, match=reason):
        decode(BAD_FILES[name])


def test_limits_are_judged_from_the_header() -> None:
    # 10,000 x 9,000 is below Pillow's own limit for an error and above the one for a warning.
    with pytest.raises(ImageRejectedError, match="bomb"):
        decode(png_header(10_000, 9_000))
    with pytest.raises(ImageRejectedError, match="9000 x 9000 pixels are more than 64,000,000"):
        decode(png_header(9_000, 9_000))
    with pytest.raises(ImageRejectedError, match=r"(?i)truncated"):
        decode(png_header(10_000, 9_000), ImageLimits(max_pixels=100_000_000))
    with pytest.raises(ImageRejectedError, match="a side is longer than 39"):
        decode(png(), ImageLimits(max_side=39))
    with pytest.raises(ImageRejectedError, match="40 x 30 pixels are more than 1,199"):
        decode(png(), ImageLimits(max_pixels=1199))
    with pytest.raises(ImageRejectedError, match="bytes, more than 100"):
        decode(png(), ImageLimits(max_bytes=100))
    assert decode(png(), ImageLimits(max_pixels=1200, max_side=40)).shape == (30, 40, 3)


def test_other_files_that_people_mistake_for_images() -> None:
    with pytest.raises(ImageRejectedError, match="convert it to PNG"):
        decode(b'<svg xmlns="http://www.w3.org/2000/svg"></svg>')
    with pytest.raises(ImageRejectedError, match="not an image"):
        # PostScript would start a program: it is not among the formats.
        decode(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\nshowpage\n")


def test_heic_is_read_where_pillow_heif_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    heif = pytest.importorskip("pillow_heif", reason="comes with topline[heif]")
    buffer = io.BytesIO()
    heif.from_pillow(Image.fromarray(scene(64, 48))).save(buffer, quality=95)
    found = decode(buffer.getvalue())
    assert found.shape == (48, 64, 3)
    assert np.abs(found.astype(int) - scene(64, 48)).mean() < 12.0
    monkeypatch.setattr(decoding, "_formats", lambda: ["PNG", "JPEG"])
    with pytest.raises(ImageRejectedError, match=r"HEIC, which pillow-heif reads: .*topline\[heif\]"):
        decode(buffer.getvalue())


def test_large_jpegs_are_decoded_smaller_where_less_is_wanted() -> None:
    data = encoded(Image.fromarray(scene(1600, 1200)), "JPEG", quality=90)
    picture = read_picture(data, side=96)
    assert (picture.width, picture.height) == (1600, 1200)
    assert 192 <= min(picture.pixels.shape[:2]) < 400
    whole = Image.fromarray(decode(data)).resize((96, 96), Image.Resampling.BILINEAR)
    small = Image.fromarray(picture.pixels).resize((96, 96), Image.Resampling.BILINEAR)
    assert np.abs(np.asarray(whole, dtype=int) - np.asarray(small, dtype=int)).mean() < 3


def test_threads_leave_the_warning_filters_as_they_were() -> None:
    before = list(warnings.filters)
    threads = [threading.Thread(target=lambda: [decode(jpeg(seed)) for seed in range(5)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert warnings.filters == before


@pytest.mark.data
def test_difficult_images_do_what_their_index_says(shared_data: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(shared_data / "edge_images_pillow" / "edge_images_pillow.zip") as archive:
        archive.extractall(tmp_path)
    root = next(tmp_path.rglob("INDEX.tsv")).parent
    lines = (root / "INDEX.tsv").read_text(encoding="utf-8").splitlines()
    rows = list(csv.DictReader(lines, delimiter="\t"))
    assert len(rows) == 55
    rejected = set()
    for row in rows:
        try:
            pixels = decode((root / row["file"]).read_bytes())
        except ImageRejectedError:
            rejected.add(row["file"])
        else:
            width, height = map(int, row["size"].split("x"))
            turned = row["exif_orientation"] in ("5", "6", "7", "8")
            assert pixels.shape == ((width, height, 3) if turned else (height, width, 3)), row["file"]
    failing = {row["file"] for row in rows if row["Pillow 13.0.0 load()"] != "ok"}
    # Its last chunk is cut off: Pillow notices at the first load, and no more at the second.
    assert rejected == failing | {"truncated_end_chunk.png"}


@pytest.mark.data
def test_one_scene_in_nine_orientations_is_one_image(shared_data: Path) -> None:
    with zipfile.ZipFile(shared_data / "exif_orientation" / "exif_orientation_portrait.zip") as archive:
        photographs = {name: archive.read(name) for name in archive.namelist() if name.endswith(".jpg")}
    assert len(photographs) == 9
    first, *others = (read_picture(data, side=100).pixels for data in photographs.values())
    for other in others:
        assert other.shape == first.shape
        # The scene was compressed anew for each orientation.
        assert np.abs(other.astype(int) - first.astype(int)).mean() < 6


N = 40
HERE = ClusterConfig(workers=0)


def tagged(folder: Path) -> Path:
    """Pictures with bars; row 3 is a copy of row 2, row 4 is no image and row 5 has no label."""
    folder.mkdir(parents=True)
    rng, rows = np.random.default_rng(0), []
    for i in range(N):
        pixels = (rng.random((32, 32, 3)) * 40).astype(np.uint8)
        upright, flat = bool(i % 3), i % 4 < 2
        if upright:
            pixels[:, 4:9] = 250
        if flat:
            pixels[20:25] = 250
        words = ["upright, left"] * upright + ["flat"] * flat + ["any"]
        Image.fromarray(pixels).save(folder / f"{i:02d}.png")
        rows.append((f"{i:02d}.png", "; ".join(words), "test" if i % 5 == 1 else "train"))
    (folder / "03.png").write_bytes((folder / "02.png").read_bytes())
    (folder / "04.png").write_bytes(b"no image")
    rows[3], rows[5] = ("03.png", rows[2][1], "train"), ("05.png", "", "train")
    table = folder / "tags.csv"
    with table.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("path", "label", "split"), *rows])
    return table


def config(table: Path, store: Path, **options: str) -> ExtractConfig:
    return ExtractConfig.model_validate(
        {"images": str(table), "store": str(store), "label_separator": ";", "backbone": "hog:size=32,cells=4"}
        | options
    )


@pytest.mark.parametrize("duplicates", ["drop", "keep"])
def test_tags_of_a_table_become_label_sets(tmp_path: Path, duplicates: str) -> None:
    table = tagged(tmp_path / "images")
    result = extract(config(table, tmp_path / "store", duplicates=duplicates), HERE)
    dataset = Dataset.open(open_store(tmp_path / "store"))
    assert dataset.class_names == ("any", "flat", "upright, left")
    assert result.info.label_sets == 4
    known = {row["path"]: row for row in dataset.manifest().to_pylist()}
    assert known["01.png"]["class_name"] == "any, flat, upright, left"
    assert known["03.png"]["class_name"] == ("any, upright, left" if duplicates == "keep" else None)
    splits = [known[name]["split"] for name in ("01.png", "04.png", "05.png")]
    assert splits == ["test", "rejected", "rejected"]
    assert "has no label" in known["05.png"]["error"]
    assert check_dataset(dataset, deep=True) == []


def test_one_command_trains_measures_and_reports(tmp_path: Path) -> None:
    table = tagged(tmp_path / "images")
    job = RunConfig(
        store=str(tmp_path / "store"),
        extract=config(table, tmp_path / "store"),
        train=TrainConfig(loss="multilabel_hinge", smoothing=1.0),
    )
    done = run(job, HERE)
    assert done.to_dict()["metrics"]["rank_loss"] == done.evaluation.rank_loss < 0.1
    assert done.train.certificate.certified
    assert "Labels, worst first" in Path(done.report).read_text(encoding="utf-8")
    found = predict(done.train.model, PredictConfig(images=str(table.parent)))
    labels = {one.sample: set(one.labels) for one in found.predictions if one.status == "ok"}
    right = 0
    for i in range(6, N):
        words = {"any"} | ({"upright, left"} if i % 3 else set()) | ({"flat"} if i % 4 < 2 else set())
        right += labels[f"{i:02d}.png"] == words
    assert right >= 0.8 * (N - 6)


def test_no_rule_compares_models_of_tags(tmp_path: Path) -> None:
    table = tagged(tmp_path / "images")
    options = RetrainConfig(store=str(tmp_path / "store"), extract=config(table, tmp_path / "store"))
    with pytest.raises(ConfigError, match="--label-separator gives images several labels"):
        retrain(options, HERE)
