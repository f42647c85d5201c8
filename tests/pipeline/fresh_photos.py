"""Photographs that come night after night, and people who put them into wrong folders."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
from PIL import Image

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
