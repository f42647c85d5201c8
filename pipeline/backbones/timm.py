"""PyTorch models by their name in timm: the optional extra of that name."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, Self

import numpy as np

from topline.pipeline.backbones.base import FeatureFunction, Features, TwoStepFunction, refuse_options, short
from topline.pipeline.backbones.preprocessing import FILTERS, Preprocessing
from topline.pipeline.errors import ConfigError, InputError, MissingExtraError
from topline.pipeline.images import Pixels
from topline.pipeline.options import BackboneConfig

OPTIONS = frozenset({"resize", "crop", "mean", "std", "interpolation", "checkpoint"})


@dataclass(frozen=True)
class TimmModel:
    """The features before the classifier of timm's model `model`, on one thread of the CPU.

    The weights are those of `checkpoint`, or timm's pretrained ones; `sha256` is that of their values.
    """

    name: ClassVar[str] = "timm"

    model: str
    checkpoint: str | None
    sha256: str
    preprocessing: Preprocessing
    dim: int

    @classmethod
    def from_config(cls, argument: str, config: BackboneConfig) -> Self:
        """Return the backbone; the model is created once to find its preprocessing and number of features."""
        refuse_options(cls.name, config, OPTIONS)
        if not argument:
            raise ConfigError("the backbone timm needs a model: write timm:resnet50")
        checkpoint = None if config.checkpoint is None else str(config.checkpoint.expanduser().absolute())
        return cls._make(argument, checkpoint, None, config.preprocessing())

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any]) -> Self:
        """Return the backbone that gave `spec`; `InputError` where the weights are others now."""
        stored = Preprocessing.from_values(spec["preprocessing"], "the stored specification")
        made = cls._make(str(spec["model"]), spec["checkpoint"], stored, {})
        if made.sha256 != spec["sha256"]:
            raise InputError(
                f"the weights of timm's {made.model} are not those that made the features: put"
                f" {made.checkpoint or 'the pretrained ones'} back, or extract and train again"
            )
        return made

    @classmethod
    def _make(
        cls, model: str, checkpoint: str | None, known: Preprocessing | None, chosen: Mapping[str, Any]
    ) -> Self:
        network = _load(model, checkpoint)
        found = known or _own_preprocessing(network)
        values = Preprocessing.from_values({**found.values(), **chosen}, "the flags of timm")
        made = cls(model, checkpoint, _digest(network), values, 0)
        empty = np.zeros((values.crop, values.crop, 3), np.uint8)
        return replace(made, dim=TimmFunction(network, values)([empty]).shape[1])

    @property
    def side(self) -> int:
        """Images are resized to this."""
        return self.preprocessing.shorter_side

    def spec(self) -> dict[str, Any]:
        """Return model, weights and preprocessing."""
        return {
            "name": self.name,
            "model": self.model,
            "checkpoint": self.checkpoint,
            "sha256": self.sha256,
            "dim": self.dim,
            "preprocessing": self.preprocessing.values(),
        }

    def about(self) -> str:
        """Return what they are."""
        weights = "its pretrained weights, whose training its model card tells of"
        if self.checkpoint is not None:
            weights = f"the weights of {Path(self.checkpoint).name}, whose training is not known here"
        return f"timm's {self.model} with {weights} (images: {self.preprocessing.words()})"

    def open(self) -> FeatureFunction:
        """Return the loaded model; `InputError` where its weights are not those that the job began with."""
        network = _load(self.model, self.checkpoint)
        if _digest(network) != self.sha256:
            raise InputError(f"the weights of timm's {self.model} differ on this machine")
        return TimmFunction(network, self.preprocessing)


@dataclass(frozen=True, eq=False)
class TimmFunction(TwoStepFunction):
    """A loaded model as a function of images."""

    network: Any
    preprocessing: Preprocessing

    def prepare(self, image: Pixels) -> Pixels:
        """Return the square of pixels that the model sees."""
        return self.preprocessing.square(image)

    def describe(self, prepared: Sequence[Pixels]) -> Features:
        """Return features (b, dim) of prepared images."""
        torch, _ = _packages()
        with torch.inference_mode():
            found = self.network(torch.from_numpy(self.preprocessing.laid_out(prepared)))
        array: Features = found.reshape(len(prepared), -1).numpy().astype(np.float32, copy=False)
        return array


def _packages() -> tuple[ModuleType, ModuleType]:
    try:
        import timm
        import torch
    except (ImportError, RuntimeError) as error:
        # A torchvision that was built for another torch fails with a RuntimeError.
        raise MissingExtraError(
            f"the backbone timm needs timm and torch ({error}): run python -m pip install 'topline[timm]'"
        ) from error
    return torch, timm


def _load(model: str, checkpoint: str | None) -> Any:
    torch, timm = _packages()
    if not timm.is_model(model):
        near = timm.list_models(f"*{model[:6]}*")[:3]
        raise InputError(
            f"timm has no model {model!r}" + (f": did you mean {', '.join(near)}?" if near else "")
        )
    if checkpoint is not None and not Path(checkpoint).is_file():
        raise InputError(f"there is no checkpoint {checkpoint}: check --checkpoint")
    torch.set_num_threads(1)
    try:
        network = timm.create_model(model, pretrained=checkpoint is None, num_classes=0)
        foreign = [] if checkpoint is None else _fill(network, checkpoint)
    except Exception as error:
        # Downloads, archives and PyTorch fail with exceptions of many families.
        place = (
            f"the checkpoint {checkpoint}" if checkpoint else "its pretrained weights (or give --checkpoint)"
        )
        raise InputError(f"timm's {model} cannot be loaded from {place}: {short(error)}") from error
    if foreign:
        raise InputError(
            f"the checkpoint {checkpoint} is not one of timm's {model}: {', '.join(foreign[:3])} and"
            f" {len(foreign)} weights in all do not belong to both"
        )
    return network.eval()


def _fill(network: Any, checkpoint: str) -> list[str]:
    """Load a checkpoint's weights, without its classifier; return the names that do not fit."""
    from timm.models import load_state_dict

    head = network.pretrained_cfg.get("classifier") or ()
    heads = (head,) if isinstance(head, str) else tuple(head)
    state = {
        name: tensor
        for name, tensor in load_state_dict(checkpoint, weights_only=True).items()
        if not name.startswith(tuple(f"{name}." for name in heads))
    }
    unfit = network.load_state_dict(state, strict=False)
    return [*unfit.missing_keys, *unfit.unexpected_keys]


def _own_preprocessing(network: Any) -> Preprocessing:
    from timm.data import resolve_model_data_config

    config = resolve_model_data_config(network)
    crop = int(config["input_size"][-1])
    interpolation = str(config["interpolation"])
    values = {
        "resize": max(crop, round(crop / float(config["crop_pct"]))),
        "crop": crop,
        "mean": config["mean"],
        "std": config["std"],
        "interpolation": interpolation if interpolation in FILTERS else "bicubic",
    }
    return Preprocessing.from_values(values, "timm's own configuration")


def _digest(network: Any) -> str:
    """Return the SHA-256 of all weights, which does not depend on the kind of file they came from."""
    total = hashlib.sha256()
    for name, tensor in network.state_dict().items():
        total.update(name.encode())
        total.update(np.ascontiguousarray(tensor.cpu().numpy()).tobytes())
    return total.hexdigest()
