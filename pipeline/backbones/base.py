"""What a backbone is: a small value that says how images become features, and opens where they do."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Protocol, Self, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from topline.pipeline.errors import ConfigError
from topline.pipeline.images import Pixels
from topline.pipeline.options.ingest import BackboneConfig

Features = NDArray[np.float32]

FeatureFunction = Callable[[Sequence[Pixels]], Features]
"""An opened backbone: images (h, w, 3), RGB, of any sizes, to features (b, dim)."""


class Backbone(Protocol):
    """A frozen class that pickles to the workers; everything heavy is behind `open`."""

    name: ClassVar[str]

    @classmethod
    def from_config(cls, argument: str, config: BackboneConfig) -> Self:
        """Make it of what follows the colon in --backbone name:argument, and of the flags."""
        ...

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any]) -> Self:
        """Make again what gave `spec`; `InputError` where the files behind it are gone or have changed."""
        ...

    @property
    def dim(self) -> int:
        """Number of features of an image."""
        ...

    @property
    def side(self) -> int:
        """Pixels of an image's shorter side beyond which more detail makes no difference."""
        ...

    def spec(self) -> dict[str, Any]:
        """Everything that decides the features, digests of files too, as plain values; "name" is its name."""
        ...

    def open(self) -> FeatureFunction:
        """Load what is heavy; called once in each process that extracts."""
        ...


@runtime_checkable
class FittableBackbone(Protocol):
    """A backbone that takes something from images before it can describe any; `sample` of them are enough."""

    sample: int
    seed: int

    def fit(self, pictures: Iterable[Pixels]) -> Backbone:
        """Learn from pictures, which come in an order that `seed` decides."""
        ...

    def fitted_as(self, spec: Mapping[str, Any]) -> Backbone | None:
        """Take what was learnt from `spec`, the specification of a backbone with the same options."""
        ...


def whole_numbers(name: str, options: Sequence[str], argument: str) -> dict[str, int]:
    """Read "size=96,cells=12", options of the backbone `name`; `ConfigError` for what is none of them."""
    values: dict[str, int] = {}
    for part in filter(None, (part.strip() for part in argument.split(","))):
        option, _, text = part.partition("=")
        if option not in options or not text.isdecimal():
            known = ", ".join(options)
            raise ConfigError(f"{name} has no option {part!r}: write name=number, with names {known}")
        values[option] = int(text)
    return values


def resized(image: Pixels, width: int, height: int, resample: Image.Resampling) -> Image.Image:
    """Image of exactly that size; shrinking averages over all pixels, so that nothing aliases."""
    return Image.fromarray(image).resize((width, height), resample)


def refuse_options(name: str, config: BackboneConfig, known: frozenset[str] = frozenset()) -> None:
    """`ConfigError` for chosen options that the backbone `name` has no use for."""
    chosen = config.preprocessing() | ({"checkpoint": config.checkpoint} if config.checkpoint else {})
    foreign = sorted(set(chosen) - known)
    if foreign:
        flag = "--" + foreign[0].replace("_", "-")
        raise ConfigError(f"{flag} means nothing to the backbone {name}: leave it out")
