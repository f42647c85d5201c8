"""What every backbone keeps; a new one adds a class with the fixture `backbone`."""

from __future__ import annotations

import json
import pickle

import numpy as np
import pytest

from tests.pipeline.pictures import scene
from topline.pipeline.backbones import Backbone, backbone_of_spec

IMAGES = [scene(40, 30, 0), scene(9, 61, 1), scene(1, 1, 2), scene(300, 7, 3), scene(64, 64, 4)]


class BackboneContract:
    """Tests that hold for any backbone."""

    @pytest.fixture
    def backbone(self) -> Backbone:
        raise NotImplementedError

    def test_images_of_any_size_become_finite_float32_rows(self, backbone: Backbone) -> None:
        features = backbone.open()(IMAGES)
        assert features.shape == (len(IMAGES), backbone.dim)
        assert features.dtype == np.float32
        assert np.isfinite(features).all()
        assert len(np.unique(features, axis=0)) > 1

    def test_an_image_does_not_depend_on_its_batch(self, backbone: Backbone) -> None:
        network = backbone.open()
        together = network(IMAGES)
        alone = np.concatenate([network([image]) for image in IMAGES])
        # Matrix products of another size may round in another order.
        np.testing.assert_allclose(together, alone, rtol=1e-4, atol=1e-5)

    def test_images_are_not_changed(self, backbone: Backbone) -> None:
        images = [image.copy() for image in IMAGES]
        for image in images:
            image.flags.writeable = False
        backbone.open()(images)

    def test_its_specification_makes_it_again(self, backbone: Backbone) -> None:
        spec = json.loads(json.dumps(backbone.spec()))
        again = backbone_of_spec(spec)
        assert again.spec() == backbone.spec()
        assert again.dim == backbone.dim
        np.testing.assert_array_equal(again.open()(IMAGES[:2]), backbone.open()(IMAGES[:2]))

    def test_it_travels_to_workers(self, backbone: Backbone) -> None:
        copy: Backbone = pickle.loads(pickle.dumps(backbone))
        assert copy.spec() == backbone.spec()
        assert backbone.side >= 1
