"""Fisher vectors: gradients of the mixture, a vocabulary that stays, and new images seen through it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from sklearn.decomposition import PCA

from tests.contracts.backbone_contract import BackboneContract
from tests.pipeline.pictures import scene, write_classes
from topline.pipeline.backbones import Backbone, backbone_of_spec, make_backbone
from topline.pipeline.backbones.fisher import Fisher, Vocabulary, colour_grid, gradient_grid
from topline.pipeline.errors import ConfigError, InputError
from topline.pipeline.ingest import extract
from topline.pipeline.options.ingest import BackboneConfig, ExtractConfig, PredictConfig
from topline.pipeline.options.train import ClusterConfig, TrainConfig
from topline.pipeline.pages import flat
from topline.pipeline.prediction import predict
from topline.pipeline.rows.stored_model import StoredModel
from topline.pipeline.training import train
from topline.storage.datasets import Dataset
from topline.storage.stores import open_store

HERE = ClusterConfig(workers=0)
OPTIONS = "size=32,step=4,radius=5,words=3,components=6,stripes=2,sample=6"
PICTURES = [scene(50 + 5 * seed, 40, seed) for seed in range(8)]


def fitted(options: str = OPTIONS) -> Fisher:
    made = make_backbone(BackboneConfig(backbone=f"fisher:{options}"))
    return made.fit(iter(PICTURES))


class TestFisher(BackboneContract):
    @pytest.fixture
    def backbone(self) -> Backbone:
        return fitted()


def loglikelihood(z: Any, logits: Any, centres: Any, deviations: Any) -> float:
    """Mean log-likelihood of rows z under a mixture, its shares the softmax of `logits`."""
    shares = np.exp(logits) / np.exp(logits).sum()
    terms = -0.5 * ((z[:, None, :] - centres) / deviations) ** 2 - np.log(np.sqrt(2 * np.pi) * deviations)
    return float(np.mean(np.log(np.exp(terms.sum(axis=2)) @ shares)))


def slopes(function: Any, at: Any) -> Any:
    """Central differences of a function of one array."""
    found = np.zeros(at.shape)
    for place in np.ndindex(at.shape):
        moved = [at.copy(), at.copy()]
        moved[0][place] += 1e-5
        moved[1][place] -= 1e-5
        found[place] = (function(moved[0]) - function(moved[1])) / 2e-5
    return found


def test_it_is_the_gradient_of_the_mixture_in_its_natural_units() -> None:
    """Slopes of the log-likelihood, divided by the root of the Fisher information (Sanchez et al., 2013)."""
    backbone = fitted(OPTIONS.replace("stripes=2", "stripes=0"))
    words = backbone.vocabulary
    image = scene(60, 60, 99)
    z = np.concatenate([words.project(grid).reshape(-1, 6) for grid in backbone._grids(image)])
    assert len(z) == 36 + 16
    shares, centres = words.shares.astype(float), words.centres.astype(float)
    shares /= shares.sum()
    deviations = np.sqrt(words.variances.astype(float))
    root = np.sqrt(shares)[:, None]
    by_share = slopes(lambda at: loglikelihood(z, at, centres, deviations), np.log(shares)) / root[:, 0]
    by_centre = slopes(lambda at: loglikelihood(z, np.log(shares), at, deviations), centres)
    by_deviation = slopes(lambda at: loglikelihood(z, np.log(shares), centres, at), deviations)
    truth = np.concatenate(
        [
            by_share,
            (by_centre * deviations / root).ravel(),
            # scikit-image has these with the opposite sign, which no inner product sees.
            -(by_deviation * deviations / (np.sqrt(2) * root)).ravel(),
        ]
    )
    rooted = np.sign(truth) * np.sqrt(np.abs(truth))
    (found,) = backbone.open()([image])
    # Differences of 1e-5 are good to 1e-9, and their square root to a few times 1e-5.
    np.testing.assert_allclose(found, rooted / np.linalg.norm(rooted), atol=2e-4)


def test_each_region_has_length_one_and_sees_its_own_part() -> None:
    backbone = fitted()
    whole = fitted(OPTIONS.replace("stripes=2", "stripes=0"))
    assert backbone.dim == 3 * 3 * 13
    assert whole.dim == 3 * 13
    image = scene(64, 64, 3)
    (features,) = backbone.open()([image])
    regions = features.reshape(3, -1)
    np.testing.assert_allclose(np.linalg.norm(regions, axis=1), 1.0, rtol=1e-6)
    np.testing.assert_allclose(regions[0], whole.open()([image])[0], atol=1e-6)
    image[56:] = 255 - image[56:]
    changed = backbone.open()([image])[0].reshape(3, -1)
    assert np.abs(changed[2] * np.abs(changed[2]) - regions[2] * np.abs(regions[2])).max() > 5e-2
    # Descriptors of the upper half look 5 pixels of 32 below themselves, and smoothing has tails.
    # Squares, for a root makes much of what is near 0.
    np.testing.assert_allclose(changed[1] * np.abs(changed[1]), regions[1] * np.abs(regions[1]), atol=5e-3)


def test_images_without_any_edge_have_features_too() -> None:
    flat_image = np.full((30, 30, 3), 128, dtype=np.uint8)
    assert np.isfinite(fitted().open()([flat_image])).all()


def test_colours_are_statistics_of_the_cells_of_a_patch() -> None:
    radius, step = 12, 5
    image = scene(50, 60, 4)
    grid = colour_grid(Image.fromarray(image), step, radius)
    assert grid.shape == (-(-(60 - 24) // 5), -(-(50 - 24) // 5), 96)
    row, column = 2, 3
    top, left = step * row, step * column
    patch = image[top : top + 24, left : left + 24] / 255.0
    found = []
    for down in range(0, 24, 6):
        for right in range(0, 24, 6):
            cell = patch[down : down + 6, right : right + 6].reshape(-1, 3)
            found += [*cell.mean(axis=0), *cell.std(axis=0)]
    rooted = np.sqrt(found)
    np.testing.assert_allclose(grid[row, column], rooted / np.linalg.norm(rooted), atol=1e-7)
    # Gradients are of the same places, and see no colours.
    grey = Image.fromarray(image).convert("L").convert("RGB")
    gradients = gradient_grid(Image.fromarray(image), step, radius)
    assert gradients.shape == (*grid.shape[:2], 104)
    np.testing.assert_array_equal(gradient_grid(grey, step, radius), gradients)
    black = colour_grid(Image.new("RGB", (30, 30)), step, radius)
    assert not black.any()


@pytest.mark.parametrize(("colour", "numbers"), [(0, 104), (1, 200)])
def test_colours_are_a_choice(colour: int, numbers: int) -> None:
    words = fitted(f"{OPTIONS},colour={colour}").vocabulary
    assert words.axes.shape == (numbers, 6)


# ---------------------------------------------------------------- the vocabulary


def test_components_are_scikit_learns_on_a_common_scale() -> None:
    rows = np.random.default_rng(0).normal(size=(400, 9)) * np.arange(1, 10)
    words = Vocabulary.fit(rows, dim=4, words=2, seed=0)
    theirs = PCA(4, svd_solver="full").fit_transform(rows)
    ours = words.project(rows)
    np.testing.assert_allclose(np.abs(ours), np.abs(theirs) / np.sqrt(theirs.var(axis=0).mean()), atol=1e-4)


def test_the_same_images_and_seed_learn_the_same_words() -> None:
    # With as many words as this, where the mixture ends depends on where it begins.
    options = OPTIONS.replace("words=3", "words=8")
    first, again, other = fitted(options), fitted(options), fitted(options + ",seed=1")
    assert first.spec() == again.spec()
    assert first.spec()["sha256"] != other.spec()["sha256"]
    assert fitted(options.replace("sample=6", "sample=2")).spec()["sha256"] != first.spec()["sha256"]


def test_a_damaged_vocabulary_is_refused() -> None:
    spec = json.loads(json.dumps(fitted().spec()))
    words = spec["vocabulary"]
    for changed, message in [
        ({"sha256": "0" * 64}, "it is damaged"),
        ({"vocabulary": {**words, "mean": words["shares"]}}, "it is damaged"),
        ({"vocabulary": {**words, "centres": words["mean"]}}, "not one of 3 words in 6 dimensions"),
        ({"vocabulary": {**words, "centres": "not base64"}}, "not one of 3 words in 6 dimensions"),
        ({"vocabulary": {}}, "not one of 3 words in 6 dimensions"),
        ({"words": 4}, "not one of 4 words"),
    ]:
        with pytest.raises(InputError, match=message):
            backbone_of_spec({**spec, **changed})


def test_words_of_other_descriptors_are_refused() -> None:
    rows = np.random.default_rng(0).normal(size=(50, 10))
    words = Vocabulary.fit(rows, dim=6, words=3, seed=0)
    spec = replace(fitted(), vocabulary=words).spec()
    with pytest.raises(InputError, match="descriptors of 10 numbers and these have 200"):
        backbone_of_spec(spec)


def test_nothing_is_described_before_anything_is_fitted() -> None:
    plain = make_backbone(BackboneConfig(backbone="fisher"))
    assert plain.dim == 4 * 16 * 97
    for use in (plain.spec, plain.open):
        with pytest.raises(InputError, match="no vocabulary yet"):
            use()
    with pytest.raises(InputError, match="0 images have 0 descriptors, too few for 16 words"):
        plain.fit(iter([]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("shape=1", "fisher has no option 'shape=1'"),
        ("words=0", "1 or more for step, radius, scales, words and sample"),
        ("size=20", "twice the radius must fit"),
        ("scales=9", "twice the radius must fit"),
        ("size=1000", "at most 512"),
        ("components=201", "1 to 200 components"),
        ("colour=0,components=105", "1 to 104 components"),
        ("stripes=40", "18 rows of descriptors, too few for 40 stripes"),
    ],
)
def test_options_that_give_nothing_are_refused(options: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_backbone(BackboneConfig(backbone=f"fisher:{options}"))
    with pytest.raises(ConfigError, match="the backbone fisher has no use for --mean"):
        make_backbone(BackboneConfig(backbone="fisher", mean="0,0,0"))


# ---------------------------------------------------------------- in a store


def extracted(tmp_path: Path, folder: str = "photos", options: str = OPTIONS) -> Any:
    store = str(tmp_path / "store")
    config = ExtractConfig(images=str(tmp_path / folder), store=store, backbone=f"fisher:{options}")
    return extract(config, HERE)


def test_a_store_fits_once_and_predictions_use_what_it_fitted(tmp_path: Path) -> None:
    root = write_classes(tmp_path / "photos", 3, 8)
    first = extracted(tmp_path)
    assert extracted(tmp_path).reused
    # Later images are seen through the same words; other options have words of their own.
    write_classes(tmp_path / "later", 4, 5)
    later = extracted(tmp_path, "later")
    assert later.info.features["backbone"] == first.info.features["backbone"]
    other = extracted(tmp_path, "later", OPTIONS + ",seed=2")
    assert other.info.features["backbone"]["sha256"] != first.info.features["backbone"]["sha256"]

    model = train(TrainConfig(store=first.store, dataset=first.dataset, k=1, certify=False), HERE).model
    found = predict(model, PredictConfig(images=str(root), top_k=3))
    stored = StoredModel.open(model)
    dataset = Dataset.open(open_store(first.store), first.dataset)
    scores = stored.scores(np.asarray(stored.transforms.apply(dataset.rows(0, 24)), dtype=np.float64))
    by_path = {prediction.sample: prediction for prediction in found.predictions}
    for entry, own in zip(dataset.manifest().to_pylist(), scores, strict=True):
        np.testing.assert_allclose(by_path[entry["path"]].scores, np.sort(own)[::-1], rtol=1e-4, atol=1e-5)
    # A report shows that there is a vocabulary, and not all of it.
    shown = dict(flat(stored.model.record.features))
    assert "characters)" in shown["backbone.vocabulary.axes"]
    assert shown["backbone.sha256"] == first.info.features["backbone"]["sha256"]


def test_validation_and_test_images_are_not_fitted_on(tmp_path: Path) -> None:
    for split, seeds in (("train", range(6)), ("test", range(6, 12))):
        for seed in seeds:
            path = tmp_path / "photos" / split / f"class{seed % 2}" / f"{seed}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(scene(40, 30, seed)).save(path)
    (tmp_path / "photos" / "train" / "class0" / "broken.png").write_bytes(b"no image")
    config = ExtractConfig(
        images=str(tmp_path / "photos"), store=str(tmp_path / "store"), backbone=f"fisher:{OPTIONS}"
    )
    words = extract(config, HERE).info.features["backbone"]["sha256"]
    for seed in range(6, 12):
        other = tmp_path / "photos" / "test" / f"class{seed % 2}" / f"{seed}.png"
        Image.fromarray(scene(40, 30, seed + 100)[::-1]).save(other)
    again = config.model_copy(update={"store": str(tmp_path / "other")})
    assert extract(again, HERE).info.features["backbone"]["sha256"] == words
