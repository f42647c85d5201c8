"""What a backbone is: a small value that says how images become features, opened where they do."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Protocol, Self, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from topline.pipeline.errors import ConfigError
from topline.pipeline.images import Pixels
from topline.pipeline.options import BackboneConfig

Features = NDArray[np.float32]

FeatureFunction = Callable[[Sequence[Pixels]], Features]
"""An opened backbone: images (h, w, 3), RGB, of any sizes, to features (b, dim)."""


class Backbone(Protocol):
    """A frozen class that pickles to the workers; everything heavy is behind `open`.

    A new one is a file with such a class, registered in `registry.py` (or by `register_backbone`); where its
    options are whole numbers, `IntegerOptions` writes `from_config`, `from_spec` and `spec`.
    """

    name: ClassVar[str]

    @classmethod
    def from_config(cls, argument: str, config: BackboneConfig) -> Self:
        """Return the backbone for what follows the colon in --backbone name:argument, and for the flags."""
        ...

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any]) -> Self:
        """Return the backbone that gave `spec`; `InputError` where its files are gone or have changed."""
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
        """Return all that decides the features, digests of files too, as plain values with its "name"."""
        ...

    def about(self) -> str:
        """Return what the features are and what they were trained on, for people."""
        ...

    def open(self) -> FeatureFunction:
        """Return the loaded function of images; called once in each process that extracts."""
        ...


@runtime_checkable
class TwoStepFunction(Protocol):
    """A `FeatureFunction` whose work on one image alone can be done beside that on others."""

    def __call__(self, images: Sequence[Pixels], /) -> Features:
        """Return the features (b, dim) of images of any size."""
        return self.describe([self.prepare(image) for image in images])

    def prepare(self, image: Pixels) -> Pixels:
        """Return what of an image (h, w, 3) the backbone sees."""
        ...

    def describe(self, prepared: Sequence[Pixels]) -> Features:
        """Return the features (b, dim) of prepared images."""
        ...


@runtime_checkable
class FittableBackbone(Protocol):
    """A backbone that is fitted on images before it can describe any; `sample` of them are enough."""

    sample: int
    seed: int

    def fit(self, pictures: Iterable[Pixels]) -> Backbone:
        """Return the backbone fitted on pictures, which come in an order that `seed` decides."""
        ...

    def fitted_as(self, spec: Mapping[str, Any]) -> Backbone | None:
        """Return the fitted backbone that gave `spec`, if its options are the same; None otherwise."""
        ...


@dataclass(frozen=True, eq=False)
class IntegerOptions:
    """A backbone whose options are its fields of whole numbers, written name:option=number,option=number."""

    name: ClassVar[str]

    @classmethod
    def from_config(cls, argument: str, config: BackboneConfig) -> Self:
        """Read "size=96,cells=12"; `ConfigError` for anything else, and for the flags of networks."""
        refuse_options(cls.name, config)
        known, values = cls._names(), dict[str, int]()
        for part in filter(None, (part.strip() for part in argument.split(","))):
            option, _, text = part.partition("=")
            if option not in known or not text.isdecimal():
                raise ConfigError(
                    f"{cls.name} has no option {part!r}: write name=number, with names {', '.join(known)}"
                )
            values[option] = int(text)
        return cls(**values)

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any]) -> Self:
        """Return the backbone that gave `spec`."""
        return cls(**{name: int(spec[name]) for name in cls._names()})

    def spec(self) -> dict[str, Any]:
        """Return name and options."""
        return {"name": self.name, **{name: getattr(self, name) for name in self._names()}}

    def about(self) -> str:
        """Return the name."""
        return f"the backbone {self.name}"

    @classmethod
    def _names(cls) -> list[str]:
        return [field.name for field in fields(cls) if field.type in ("int", int)]


def resized(image: Pixels, width: int, height: int, resample: Image.Resampling) -> Image.Image:
    """Return an image of exactly that size; shrinking averages over all pixels, so that nothing aliases."""
    return Image.fromarray(image).resize((width, height), resample)


def refuse_options(name: str, config: BackboneConfig, known: frozenset[str] = frozenset()) -> None:
    """Raise `ConfigError` for chosen options that the backbone `name` has no use for."""
    chosen = config.preprocessing() | ({"checkpoint": config.checkpoint} if config.checkpoint else {})
    foreign = sorted(set(chosen) - known)
    if foreign:
        flag = "--" + foreign[0].replace("_", "-")
        raise ConfigError(f"the backbone {name} has no use for {flag}: leave it out")


def short(error: Exception) -> str:
    """Return the message of an error on one line of at most 300 characters."""
    return " ".join(str(error).split())[:300]
