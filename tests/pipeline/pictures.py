"""Small image files for tests: good ones in every mode, and bad ones of every kind."""

from __future__ import annotations

import hashlib
import io
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image


def scene(width: int = 40, height: int = 30, seed: int = 0) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """RGB pixels with a gradient, a bright square in the upper left corner and some noise."""
    y, x = np.mgrid[0:height, 0:width]
    noise = np.random.default_rng(seed).integers(0, 20, (height, width))
    pixels = np.stack([x * 200 // width, y * 200 // height, noise], axis=2).astype(np.uint8)
    pixels[: height // 3, : width // 3] = (250, 10, 10)
    return pixels


def encoded(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format=kind, **options)
    return buffer.getvalue()


def png(seed: int = 0, width: int = 40, height: int = 30) -> bytes:
    return encoded(Image.fromarray(scene(width, height, seed)))


def jpeg(seed: int = 0, orientation: int | None = None, width: int = 40, height: int = 30) -> bytes:
    exif = Image.Exif()
    if orientation is not None:
        exif[0x0112] = orientation
    return encoded(Image.fromarray(scene(width, height, seed)), "JPEG", quality=95, exif=exif)


def png_header(width: int, height: int) -> bytes:
    """PNG of a few bytes that claims to be `width` x `height`."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"\0" * 64)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


BAD_FILES = {
    "zero.png": b"",
    "cut.jpg": jpeg()[:-300],
    "cut.png": png()[: len(png()) // 2],
    "page.jpg": b"<!DOCTYPE html><html><body>404</body></html>",
    "noise.png": bytes(range(256)) * 4,
    "bomb.png": png_header(60_000, 60_000),
}


def write_classes(root: Path, classes: int = 3, each: int = 8, *, names: list[str] | None = None) -> Path:
    """A folder of `classes` folders of PNG files: horizontal, vertical and diagonal stripes, and so on."""
    rng = np.random.default_rng(7)
    y, x = np.mgrid[0:24, 0:24]
    for c in range(classes):
        folder = root / (names[c] if names else f"class{c}")
        folder.mkdir(parents=True, exist_ok=True)
        angle = np.pi * c / classes
        for i in range(each):
            wave = np.sin((np.cos(angle) * x + np.sin(angle) * y) * 0.9 + rng.uniform(0, 6))
            pixels = np.clip(128 + 90 * wave[:, :, None] + rng.normal(0, 8, (24, 24, 3)), 0, 255)
            Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{i:03d}.png")
    return root


CLASSES = 4


def photograph(folder: Path, label: int, number: int) -> None:
    """Stripes whose angle says the class, noisy enough to be mistaken now and then."""
    rng = np.random.default_rng((label, number))
    y, x = np.mgrid[0:24, 0:24]
    angle = np.pi * (label + rng.normal(0, 0.35)) / CLASSES
    wave = np.sin((np.cos(angle) * x + np.sin(angle) * y) * 0.9 + rng.uniform(0, 6))
    pixels = np.clip(128 + 60 * wave[:, :, None] + rng.normal(0, 40, (24, 24, 3)), 0, 255)
    (folder / f"c{label}").mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels.astype(np.uint8)).save(folder / f"c{label}" / f"{number:03d}.png")


def photographs(folder: Path, numbers: range) -> None:
    """Photographs of these numbers in every class."""
    for label in range(CLASSES):
        for number in numbers:
            photograph(folder, label, number)


def spoil(folder: Path, seen: set[str]) -> int:
    """Move the photographs with these contents into the folder of the next class; how many they were."""
    wrong = [
        file
        for file in sorted(folder.rglob("*.png"))
        if hashlib.sha256(file.read_bytes()).hexdigest() in seen
    ]
    for file in wrong:
        label = (int(file.parent.name[1:]) + 1) % CLASSES
        file.rename(folder / f"c{label}" / f"moved-{file.parent.name}-{file.name}")
    return len(wrong)
