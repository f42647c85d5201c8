"""The timm backbone, on a checkpoint made here; needs the extra of that name (nothing is downloaded)."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.contracts.backbone_contract import BackboneContract
from tests.pipeline.pictures import scene
from topline.pipeline.backbones import Backbone, backbone_of_spec, make_backbone
from topline.pipeline.errors import InputError, MissingExtraError
from topline.pipeline.options.ingest import BackboneConfig

MODEL = "test_resnet"

INSTALLED = importlib.util.find_spec("timm") is not None and importlib.util.find_spec("torch") is not None
#: Operators that torchvision's own files look up while they are imported.
OPERATORS = ("nms", "qnms")


@pytest.fixture(scope="module", autouse=True)
def operators() -> Iterator[None]:
    """Declare the compiled operators of a torchvision that was built for another torch than there is.

    It does not import without them, and no transform of timm uses them.
    """
    if not INSTALLED:
        yield
        return
    import torch

    try:
        import torchvision  # noqa: F401 - whether it can be imported
    except RuntimeError:
        library = torch.library.Library("torchvision", "DEF")
        for name in OPERATORS:
            library.define(f"{name}(Tensor boxes, Tensor scores, float iou_threshold) -> Tensor")
    yield


needs_timm = pytest.mark.skipif(not INSTALLED, reason="no timm and torch: pip install 'topline[timm]'")


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """Weights of a tiny ResNet with a classifier, as training leaves them."""
    import timm
    import torch

    torch.manual_seed(0)
    network = timm.create_model(MODEL, pretrained=False)
    path = tmp_path / "weights.pth"
    torch.save(network.state_dict(), path)
    return path


def config(checkpoint: Path, **options: object) -> BackboneConfig:
    return BackboneConfig(backbone=f"timm:{MODEL}", checkpoint=checkpoint, **options)


@needs_timm
class TestTimm(BackboneContract):
    @pytest.fixture
    def backbone(self, checkpoint: Path) -> Backbone:
        return make_backbone(config(checkpoint))


@needs_timm
def test_features_are_those_of_the_model_with_timms_own_transform(checkpoint: Path) -> None:
    import timm
    import torch
    from PIL import Image
    from timm.data import create_transform, resolve_model_data_config

    network = timm.create_model(MODEL, pretrained=False, checkpoint_path=str(checkpoint)).eval()
    network.reset_classifier(0)
    transform = create_transform(**resolve_model_data_config(network), is_training=False)
    image = scene(320, 256)
    with torch.inference_mode():
        truth = network(transform(Image.fromarray(image))[None]).numpy()
    found = make_backbone(config(checkpoint)).open()([image])
    assert found.shape == truth.shape
    # The crop is resized alone here, the whole image there: sub-pixel positions differ a little.
    assert np.abs(found - truth).max() < 0.05 * np.abs(truth).max()


@needs_timm
def test_other_weights_are_noticed(checkpoint: Path) -> None:
    import torch

    spec = make_backbone(config(checkpoint)).spec()
    state = torch.load(checkpoint, weights_only=True)
    name = next(name for name in state if name.endswith("weight"))
    state[name] = state[name] + 1.0
    torch.save(state, checkpoint)
    with pytest.raises(InputError, match="not those that made the features"):
        backbone_of_spec(spec)


@needs_timm
def test_models_and_files_that_are_not_there_are_named(checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="timm has no model 'resnet5000'"):
        make_backbone(BackboneConfig(backbone="timm:resnet5000", checkpoint=checkpoint))
    with pytest.raises(InputError, match="there is no checkpoint"):
        make_backbone(config(tmp_path / "gone.pth"))
    with pytest.raises(InputError, match="is not one of timm's test_vit"):
        make_backbone(BackboneConfig(backbone="timm:test_vit", checkpoint=checkpoint))
    torn = tmp_path / "torn.pth"
    torn.write_bytes(checkpoint.read_bytes()[:1000])
    with pytest.raises(InputError, match="cannot be loaded from the checkpoint"):
        make_backbone(config(torn))


def test_without_the_extra_the_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'topline\[timm\]'"):
        make_backbone(BackboneConfig(backbone="timm:resnet50"))
