"""Image files as they come: bytes in, upright RGB pixels out, or the reason why not; and thumbnails.

Every file is treated as hostile.  Size and sides are judged from the header, before anything is decoded; a
file that is cut short is rejected.  The EXIF orientation is applied, transparency is laid on white, of an
animation the first frame is taken; whole numbers in 16 or 32 bits count as ones of 8, 12 or 16 bits, the
fewest that hold all of them, and numbers outside a known range are stretched between their extremes.
"""

from __future__ import annotations

import base64
import io
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from importlib import import_module

import numpy as np
from numpy.typing import NDArray
from PIL import Image, PngImagePlugin, UnidentifiedImageError

from topline.pipeline.errors import ImageRejectedError, PipelineError
from topline.pipeline.options import ImageLimits
from topline.pipeline.readers.files import cause

Pixels = NDArray[np.uint8]

# Not among them: EPS, which would start Ghostscript, and formats that cameras do not write.
FORMATS = "JPEG, MPO, PNG, GIF, BMP, DIB, TIFF, WEBP, PPM, JPEG2000, ICO, TGA, PCX, AVIF, HEIF"

ORIENTATION_TAG = 0x0112
UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}

# How often a JPEG may be larger than wanted before it is decoded at a half, a quarter or an eighth.
DRAFT_FACTOR = 2

# Most bytes of a text or a colour profile in a PNG.
TEXT_BYTES = 1 << 25

THUMBNAIL_SIDE = 96
THUMBNAIL_QUALITY = 78


@dataclass(frozen=True, eq=False)
class Picture:
    """Upright RGB pixels (h, w, 3), and the width and height of the upright image in its file."""

    pixels: Pixels
    width: int
    height: int


def decode(data: bytes, limits: ImageLimits | None = None) -> Pixels:
    """Return upright RGB pixels (h, w, 3) of an image file; `ImageRejectedError` says why there are none."""
    return read_picture(data, limits).pixels


def read_picture(data: bytes, limits: ImageLimits | None = None, side: int | None = None) -> Picture:
    """Return the decoded image file; `ImageRejectedError` says why it cannot be used.

    A JPEG is decoded at a half, a quarter or an eighth of its size where at least twice `side` is left.
    """
    limits = limits or ImageLimits()
    if not data:
        raise ImageRejectedError("the file is empty")
    if len(data) > limits.max_bytes:
        raise ImageRejectedError(f"the file has {len(data):,} bytes, more than {limits.max_bytes:,}")
    with _pillow_quiet(limits):
        try:
            with Image.open(io.BytesIO(data), formats=_formats()) as image:
                return _decoded(image, limits, side)
        except ImageRejectedError:
            raise
        except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
            raise ImageRejectedError(f"refused as a decompression bomb: {cause(error)}") from error
        except UnidentifiedImageError as error:
            raise ImageRejectedError(_not_an_image(data)) from error
        except MemoryError as error:
            raise ImageRejectedError("decoding it needs more memory than there is") from error
        except Exception as error:
            # Decoders of hostile bytes raise whatever they like.
            raise ImageRejectedError(f"cannot be decoded: {cause(error)}") from error


def _decoded(image: Image.Image, limits: ImageLimits, side: int | None) -> Picture:
    width, height = image.size
    if width < 1 or height < 1:
        raise ImageRejectedError(f"the image has {width} x {height} pixels")
    if max(width, height) > limits.max_side:
        raise ImageRejectedError(f"{width} x {height} pixels: a side is longer than {limits.max_side:,}")
    if width * height > limits.max_pixels:
        raise ImageRejectedError(f"{width} x {height} pixels are more than {limits.max_pixels:,}")
    if side is not None and image.format in ("JPEG", "MPO"):
        wanted = DRAFT_FACTOR * side
        scale = min(width, height) / wanted
        if scale > 1:
            image.draft(None, (int(width / scale), int(height / scale)))
    image.load()
    turn = UPRIGHT.get(_orientation(image))
    pixels = _rgb(image)
    if turn is not None:
        pixels = np.asarray(Image.fromarray(pixels).transpose(turn))
        if turn not in (UPRIGHT[2], UPRIGHT[3], UPRIGHT[4]):
            width, height = height, width
    return Picture(np.ascontiguousarray(pixels), width, height)


def _orientation(image: Image.Image) -> int:
    """Return the EXIF orientation 1-8; 1 where there is none, or where the tags cannot be read."""
    try:
        found = image.getexif().get(ORIENTATION_TAG, 1)
    except Exception:  # noqa: BLE001 - broken tags are common in photographs that are fine otherwise
        return 1
    return int(found) if isinstance(found, int) else 1


def _rgb(image: Image.Image) -> Pixels:
    if image.mode[:1] in ("I", "F"):
        values = np.asarray(image)
        grey = _to_8_bit(values if values.dtype.kind == "f" else values.astype(np.int32))
        return np.asarray(np.repeat(grey[:, :, None], 3, axis=2))
    if image.has_transparency_data:
        picture = image.convert("RGBA")
        paper = Image.new("RGBA", picture.size, (255, 255, 255, 255))
        return np.asarray(Image.alpha_composite(paper, picture).convert("RGB"))
    return np.asarray(image.convert("RGB"))


def _to_8_bit(values: NDArray[np.int32] | NDArray[np.float32]) -> Pixels:
    """Return bytes: whole numbers up to 16 bits and fractions within 0..1 scaled so, others stretched."""
    if not np.isfinite(values).all():
        raise ImageRejectedError("some of its pixels are not finite numbers")
    low, high = float(values.min()), float(values.max())
    if values.dtype.kind == "i" and low >= 0 and high <= 65535:
        # Cameras and scanners put 12 bits into 16, and tools put bytes into 32.
        top = next(2**bits - 1 for bits in (8, 12, 16) if high < 2**bits)
        return ((values.astype(np.uint32) * 255 + top // 2) // top).astype(np.uint8)
    if values.dtype.kind == "f" and low >= 0 and high <= 1:
        low, high = 0.0, 1.0
    if low == high:
        return np.zeros(values.shape, np.uint8)
    stretched = (values.astype(np.float64) - low) * (255 / (high - low))
    return np.rint(stretched).astype(np.uint8)


@cache
def _formats() -> list[str]:
    """Return the formats that this Pillow can open, HEIC among them where pillow-heif is installed."""
    Image.init()
    with suppress(ImportError):
        import_module("pillow_heif").register_heif_opener()
    return [name for name in FORMATS.split(", ") if name in Image.OPEN]


def _not_an_image(data: bytes) -> str:
    """Return what the bytes look like where people mix them up with an image."""
    head = data[:256].lstrip().lower()
    if head.startswith((b"<!doctype html", b"<html")):
        return "not an image but a web page"
    if head.startswith((b"<svg", b"<?xml")):
        return "not an image of pixels (SVG or other XML): convert it to PNG"
    if data[4:8] == b"ftyp" and data[8:12] in (b"heic", b"heix", b"mif1", b"hevc"):
        return 'HEIC, which pillow-heif reads: python -m pip install "topline[heif]", or convert it to JPEG'
    return "not an image in a format that can be read"


def thumbnail_or_reason(read: Callable[[], Pixels], side: int = THUMBNAIL_SIDE) -> tuple[str | None, str]:
    """Return the thumbnail of what `read` returns, or None and why it cannot be read any more."""
    try:
        return thumbnail(read(), side), ""
    except (OSError, PipelineError) as error:
        return None, str(error)


def thumbnail(image: Pixels, side: int = THUMBNAIL_SIDE) -> str:
    """Return a data URL of a JPEG at most `side` wide and high of pixels (h, w, 3), tiny ones enlarged."""
    picture = Image.fromarray(image, mode=None).convert("RGB")
    largest = max(picture.size)
    if largest * 2 <= side:
        factor = side // largest
        picture = picture.resize((picture.width * factor, picture.height * factor), Image.Resampling.NEAREST)
    else:
        picture.thumbnail((side, side))
    buffer = io.BytesIO()
    picture.save(buffer, format="JPEG", quality=THUMBNAIL_QUALITY, optimize=True)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")


class _Quiet:
    """How many threads are decoding, and what to restore once none is."""

    lock = threading.Lock()
    depth = 0
    stack = ExitStack()


@contextmanager
def _pillow_quiet(limits: ImageLimits) -> Iterator[None]:
    """Make Pillow's warning of a bomb an error, ignore those about tags, and raise its limits to ours.

    All these belong to the process: the first thread that decodes sets them, the last one restores.
    """
    with _Quiet.lock:
        if _Quiet.depth == 0:
            _Quiet.stack.enter_context(warnings.catch_warnings())
            warnings.filterwarnings("ignore", module=r"PIL\.")
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            for module, name, least in (
                (Image, "MAX_IMAGE_PIXELS", limits.max_pixels),
                (PngImagePlugin, "MAX_TEXT_CHUNK", TEXT_BYTES),
            ):
                _Quiet.stack.callback(setattr, module, name, getattr(module, name))
                setattr(module, name, max(getattr(module, name) or 0, least))
        _Quiet.depth += 1
    try:
        yield
    finally:
        with _Quiet.lock:
            _Quiet.depth -= 1
            if _Quiet.depth == 0:
                _Quiet.stack.close()
