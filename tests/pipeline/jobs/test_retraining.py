"""A classifier kept fresh: versions, warm starts, decisions, and retrainings that are killed or overlap."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.pipeline.conftest import Topline
from tests.pipeline.pictures import BAD_FILES, photograph, photographs, spoil, write_classes
from tests.pipeline.small_data import small_dataset
from topline.pipeline.backbones.hog import Hog
from topline.pipeline.cli.keeping import retraining_lines
from topline.pipeline.errors import ConfigError
from topline.pipeline.images import ImageItem, items
from topline.pipeline.ingest import Edits, edited_dataset, extract, extraction
from topline.pipeline.jobs import STEPS, RetrainResult, Steps, retrain, run
from topline.pipeline.options import ExtractConfig, PromotionRule, RetrainConfig, RunConfig
from topline.pipeline.options.train import ClusterConfig, TrainConfig
from topline.pipeline.registry.decisions import champion_url, rollback
from topline.pipeline.training import settings_of_model, train
from topline.storage.datasets import Dataset, list_datasets
from topline.storage.models import list_models, load_model, read_standing
from topline.storage.stores import LeaseHeldError, held_lease, open_store
from topline.storage.verification import verify_store

EACH = 25
HERE = ClusterConfig(workers=0)
TRAINED: dict[str, Any] = {"k": 2, "C": 1.0, "tol": 1e-3}


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    photographs(tmp_path / "photos", range(EACH))
    return tmp_path / "photos"


@pytest.fixture
def again(tmp_path: Path, photos: Path) -> Callable[..., RetrainResult]:
    """A retraining of the photographs, every time with the same options."""

    def run(steps: Steps = STEPS, **options: Any) -> RetrainResult:
        config = RetrainConfig(
            store=str(tmp_path / "store"),
            extract=ExtractConfig(images=str(photos), backbone="hog:size=24,cells=8"),
            train=TrainConfig(**TRAINED),
            promote=PromotionRule(k=1, most_feature_drift=None),
            **options,
        )
        return retrain(config, HERE, steps=steps)

    return run


@pytest.fixture
def described(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many images each call of the backbone got."""
    calls: list[int] = []
    network = Hog.open

    def opened(self: Hog) -> Any:
        inner = network(self)

        def counted(pictures: Any) -> Any:
            calls.append(len(pictures))
            return inner(pictures)

        return counted

    monkeypatch.setattr(Hog, "open", opened)
    monkeypatch.setattr("topline.pipeline.ingest.unit._networks", {})
    return calls


def held_out(store: str) -> list[tuple[set[str], set[str]]]:
    """Contents of training and held-out rows, version by version."""
    place = open_store(store)
    found = []
    for info in list_datasets(place):
        rows = Dataset(place, info).manifest().to_pylist()
        found.append(
            tuple({row["sha256"] for row in rows if row["split"] == split} for split in ("train", "test"))
        )
    return found


def test_nights_of_a_classifier(
    again: Callable[..., RetrainResult], photos: Path, tmp_path: Path, described: list[int]
) -> None:
    store = str(tmp_path / "store")
    first = again()
    assert (first.outcome, first.champion, first.start["from"]) == ("promoted", "m0001", "zero")
    assert first.changes.to_dict() == {
        "seen": 100, "new": 100, "changed": 0, "gone": 0, "described": 100, "rejected": 0,
    }  # fmt: skip
    assert sum(described) == 100

    photographs(photos, range(EACH, EACH + 5))
    shutil.copy(photos / "c0" / "025.png", photos / "c0" / "copy.png")
    (photos / "c3" / "broken.jpg").write_bytes(BAD_FILES["cut.jpg"])
    (photos / "c1" / "004.png").unlink()
    photograph(photos, 2, 900)
    (photos / "c2" / "900.png").replace(photos / "c2" / "003.png")
    described.clear()
    second = again()
    assert second.changes.to_dict() == {
        "seen": 121, "new": 22, "changed": 1, "gone": 1, "described": 22, "rejected": 1,
    }  # fmt: skip
    assert sum(described) == 22  # the copy too, which nobody had seen before; not the broken one
    assert (second.outcome, second.champion) == ("promoted", "m0002"), second.reasons
    assert (second.start["model"], second.start["from"]) == ("m0001", "duals")
    assert second.certified
    cold = train(TrainConfig(store=store, dataset=second.dataset, **TRAINED), HERE)
    # A fifth of the rows is new: the start saves little, and must not cost.
    assert second.passes < 1.2 * cold.passes

    described.clear()
    third = again()
    assert (third.outcome, third.dataset, sum(described)) == ("unchanged", second.dataset, 0)
    (photos / "c0" / "000.png").touch()
    assert (again().outcome, len(list_datasets(open_store(store)))) == ("unchanged", 2)

    spoil(photos, held_out(store)[-1][0])
    spoiled = again()
    assert (spoiled.outcome, spoiled.champion, spoiled.changes.described) == ("kept", "m0002", 0)
    assert any("top-1" in reason for reason in spoiled.reasons), spoiled.reasons
    assert rollback(store, reason="a drill").champion == "m0001"
    assert again().outcome == "unchanged"
    assert champion_url(store) == f"{store}/models/m0001"

    versions = held_out(store)
    for seen, test in versions:
        assert not seen & set().union(*(other for _, other in versions))
        assert 10 <= len(test) <= 40
    assert len(versions[0][1] - versions[1][1]) <= 2  # one was deleted, one replaced
    assert verify_store(open_store(store)) == []


@pytest.mark.parametrize("broken", ["extract", "fit", "certify", "evaluate", "decide"])
@pytest.mark.sampled(3)
def test_what_was_cut_off_is_finished_by_the_next(
    again: Callable[..., RetrainResult], photos: Path, tmp_path: Path, broken: str
) -> None:
    """The step is done, and the process dies before anything else happens."""
    again()
    photographs(photos, range(EACH, EACH + 5))
    step = getattr(STEPS, broken)

    def dying(*args: Any, **options: Any) -> Any:
        if broken != "decide":
            step(*args, **options)
        raise SystemExit(9)

    with pytest.raises(SystemExit):
        again(replace(STEPS, **{broken: dying}))
    store = open_store(tmp_path / "store")
    assert read_standing(store).champion == "m0001"
    done = again()
    assert (done.outcome, done.certified, bool(done.accuracy)) == ("promoted", True, True)
    assert done.resumed == (broken != "extract")
    assert [record.id for record in list_models(store)] == ["m0001", "m0002"]
    assert load_model(done.model).record.parents == ("m0001",)
    assert again().outcome == "unchanged"


def test_a_class_that_was_renamed_keeps_no_challenger_out(
    again: Callable[..., RetrainResult], photos: Path, tmp_path: Path
) -> None:
    again()
    (photos / "c0").rename(photos / "zebra")
    photographs(photos, range(EACH, EACH + 3))
    shutil.rmtree(photos / "c0")
    done = again()
    assert (done.outcome, done.champion) == ("promoted", "m0002"), done.reasons
    assert done.evidence["classes"]["renamed"] == (("c0", "zebra"),)
    assert any(
        "compared on the 4 classes that both know (renamed c0 to zebra)" in said for said in done.reasons
    )
    store = open_store(tmp_path / "store")
    first, second = (Dataset(store, info) for info in list_datasets(store))
    before = {unit.features for unit in first.units}
    assert before.intersection(unit.features for unit in second.units), "its features are stored once"
    recorded = read_standing(store).entries[-1].evidence["comparison"]
    assert recorded["classes"]["renamed"] == [["c0", "zebra"]]
    assert recorded["disputed"]["champion"] == "m0001"


def test_images_that_vanish_while_they_are_read_are_listed_again(
    again: Callable[..., RetrainResult],
    photos: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    listed = extraction.list_images
    renamed: list[Path] = []

    def overtaken(images: str, wanted: Any) -> Any:
        found = listed(images, wanted)
        if not renamed:
            renamed.append((photos / "c0").rename(photos / "late"))
        return found

    monkeypatch.setattr(extraction, "list_images", overtaken)
    done = again()
    assert (done.outcome, done.changes.rejected, done.changes.seen) == ("promoted", 0, 4 * EACH)
    assert f"{EACH} of {4 * EACH} images are gone since they were listed" in caplog.text


def test_images_that_vanish_while_they_are_listed_are_listed_again(
    again: Callable[..., RetrainResult],
    photos: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The folder has been read, and the sizes of its files have not."""
    (photos / "c1" / "link.png").symlink_to(photos / "nothing.png")
    stats = items.with_file_stats
    renamed: list[Path] = []

    def overtaken(root: Path, item: ImageItem) -> ImageItem:
        if not renamed:
            renamed.append((photos / "c0").rename(photos / "late"))
        return stats(root, item)

    monkeypatch.setattr(items, "with_file_stats", overtaken)
    done = again()
    assert (done.outcome, done.changes.rejected, done.changes.seen) == ("promoted", 1, 4 * EACH + 1)
    assert f"{EACH} of {4 * EACH + 1} images are gone since they were listed" in caplog.text


def test_two_at_once(again: Callable[..., RetrainResult], tmp_path: Path, topline: Topline) -> None:
    store = str(tmp_path / "store")
    with held_lease(open_store(store, create=True), "retrain", "the other one"):
        with pytest.raises(LeaseHeldError, match=r"the other one .* holds .*store for retrain: wait for it"):
            again()
        ran = topline("retrain", "--store", store, "--images", tmp_path / "photos", "--json")
    assert (ran.code, "the other one" in ran.out) == (73, True)
    done = again(overlap="wait")
    assert done.outcome == "promoted"
    assert retraining_lines(done)[-1] == f"  next: topline status {done.store}"


@pytest.fixture
def edited(again: Callable[..., RetrainResult], tmp_path: Path) -> Dataset:
    """A version with two labels corrected and a row left out, of the one that a first retraining made."""
    first = again()
    dataset = Dataset.open(open_store(str(tmp_path / "store")), first.dataset)
    labels = {"c0/000.png": "c1", "c0/001.png": "c1"}
    return Dataset(dataset.store, edited_dataset(dataset, Edits(frozenset({"c2/001.png"}), labels)))


def labels_of(store: Path, dataset: str) -> dict[str, str]:
    table = Dataset.open(open_store(str(store)), dataset).manifest()
    return dict(zip(table["sample_id"].to_pylist(), table["class_name"].to_pylist(), strict=True))


def test_corrections_outlive_a_retraining(
    again: Callable[..., RetrainResult],
    edited: Dataset,
    photos: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    second = again()
    assert (second.dataset, second.model[-5:]) == (edited.info.id, "m0002")
    assert not any(second.changes.to_dict()[name] for name in ("new", "changed", "gone"))
    assert f"edits: 2 labels corrected and 1 row left out, as in {edited.info.id}" in caplog.text
    assert again().outcome == "unchanged"

    photograph(photos, 2, 900)
    (photos / "c0" / "001.png").unlink()

    def dying(*args: Any, **options: Any) -> Any:
        STEPS.extract(*args, **options)
        raise SystemExit(9)

    with pytest.raises(SystemExit):
        again(replace(STEPS, extract=dying))
    third = again()
    assert (third.changes.new, third.changes.changed, third.changes.gone) == (1, 0, 1)
    assert "1 label corrected and 1 row left out" in caplog.text
    assert "1 edit could not be repeated: their images are gone or of another class" in caplog.text
    labels = labels_of(tmp_path / "store", third.dataset)
    assert (labels["c0/000.png"], labels["c0/002.png"], labels["c2/900.png"]) == ("c1", "c0", "c2")
    assert "c2/001.png" not in labels
    caplog.clear()
    assert again().outcome == "unchanged"
    assert "could not be repeated" not in caplog.text
    labels = labels_of(tmp_path / "store", again(keep_edits=False).dataset)
    assert (labels["c0/000.png"], labels["c2/001.png"]) == ("c0", "c2")


def test_a_model_of_corrected_labels_is_weighed_by_a_retraining_that_finds_nothing_new(
    photos: Path, tmp_path: Path, described: list[int]
) -> None:
    """It is not trained again, and no image is described again, one that was left out neither."""
    store = str(tmp_path / "store")
    images = ExtractConfig(images=str(photos), backbone="hog:size=24,cells=8", val_share=0.1)
    first = train(
        TrainConfig(store=store, dataset=extract(images.model_copy(update={"store": store}), HERE).dataset)
    )
    model = load_model(first.model)
    edits = Edits(frozenset({"c2/001.png"}), {"c0/000.png": "c1"})
    info = edited_dataset(Dataset.open(model.store, model.record.dataset), edits)
    second = train(settings_of_model(TrainConfig(dataset=info.id), first.model), HERE)
    described.clear()
    bare = RetrainConfig(store=store, extract=ExtractConfig(images=str(photos)))
    done = retrain(bare, HERE)
    assert (done.outcome, done.model, done.dataset) == ("promoted", second.model, info.id)
    assert (sum(described), len(list_datasets(model.store))) == (0, 2)


def test_a_correction_that_the_images_have_by_now_is_said_once(
    again: Callable[..., RetrainResult], edited: Dataset, photos: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    for name in ("000.png", "001.png"):
        (photos / "c0" / name).rename(photos / "c1" / f"moved-{name}")
    (photos / "c2" / "001.png").unlink()
    again()
    assert f"edits: nothing is left to edit, as in {edited.info.id}; 3 edits could not be" in caplog.text
    caplog.clear()
    photograph(photos, 2, 900)
    again()
    assert "edits:" not in caplog.text


def test_edits_of_features_that_were_imported_are_not_those_of_images(
    again: Callable[..., RetrainResult], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    imported = small_dataset(tmp_path / "store", n=80)
    edited_dataset(imported, Edits(frozenset(imported.sample_ids()[:1]), {}))
    model = train(TrainConfig(store=str(tmp_path / "store"), **TRAINED), HERE).model[-5:]
    done = again()
    assert "edits:" not in caplog.text
    assert (done.start["model"], done.start["from"]) == (model, "zero")
    assert any("passes from zero, relative gap" in line for line in retraining_lines(done))


def test_edits_that_are_damaged_or_not_recorded_are_said_to_be_undone(
    again: Callable[..., RetrainResult],
    edited: Dataset,
    photos: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Earlier versions of topline recorded none; where only rows were left out no labels are counted."""
    with monkeypatch.context() as earlier:
        earlier.setattr(Dataset, "edits", lambda _: None)
        photograph(photos, 2, 900)
        done = again()
        assert (
            f"{done.dataset} takes labels from the images again, and not the edits of {edited.info.id}"
            " (2 labels of the same rows): move or remove the image"
        ) in caplog.text
        rows_left_out = edited_dataset(
            Dataset.open(edited.store, done.dataset), Edits(frozenset({"c1/003.png"}), {})
        )
        photograph(photos, 2, 901)
        again()
        assert f"not the edits of {rows_left_out.id}: move or remove" in caplog.text
    broken = edited_dataset(Dataset.open(edited.store), Edits(frozenset({"c1/003.png"}), {}))
    (Path(edited.store.url) / broken.folder / "edits.json").write_text("{")
    photograph(photos, 2, 902)
    assert again().changes.new
    assert f"the edits of {broken.id} are undone, for they cannot be read" in caplog.text


def test_groups_and_weights_that_nobody_gives_are_those_of_the_champion(photos: Path, tmp_path: Path) -> None:
    store, table = str(tmp_path / "store"), photos / "images.csv"

    def retrained(each: int, **given: Any) -> Dataset:
        files = [file for file in sorted(photos.rglob("*.png")) if int(file.stem) < each]
        lines = [f"{file.relative_to(photos)},{file.parent.name},{int(file.stem) // 4},2" for file in files]
        table.write_text("path,label,day,often\n" + "\n".join(lines) + "\n")
        images = ExtractConfig(images=str(table), backbone="hog:size=24,cells=8", **given)
        found = retrain(RetrainConfig(store=store, extract=images, train=TrainConfig(**TRAINED)), HERE)
        return Dataset.open(open_store(store), found.dataset)

    retrained(EACH - 5, groups="day", sample_weight="often")
    facts = retrained(EACH).facts()
    assert len(set(facts.groups.tolist())) == -(-EACH // 4)
    assert set(facts.weights.tolist()) == {2.0}


def test_what_nobody_gives_is_as_in_the_champion(
    photos: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    store = str(tmp_path / "store")
    images = ExtractConfig(images=str(photos), backbone="hog:size=24,cells=8", val_share=0.15, max_side=999)
    lenient = PromotionRule(k=1, most_feature_drift=None, least_gain=-1.0)
    settings = TrainConfig(loss="softmax", C=2.5, transforms=("standardize", "bias"))
    first = retrain(RetrainConfig(store=store, extract=images, train=settings, promote=lenient), HERE)
    assert first.champion == "m0001"
    assert "settings that are not given" not in caplog.text
    bare = RetrainConfig(store=store, extract=ExtractConfig(images=str(photos)), promote=lenient)
    assert retrain(bare, HERE).outcome == "unchanged"
    assert (
        "settings that are not given are those of m0001, the champion: --backbone hog --loss softmax --C 2.5"
        " --transforms standardize,bias --max-side 999 --val-share 0.15; the rest are defaults"
    ) in caplog.text

    photographs(photos, range(EACH, EACH + 5))
    other = bare.model_copy(update={"train": TrainConfig(loss="topk_hinge", tol=1e-2)})
    record = load_model(retrain(other, HERE).model).record
    assert record.loss == {"name": "topk_hinge", "k": 2}
    assert (record.C, record.config["tol"], len(record.transforms)) == (2.5, 1e-2, 2)
    assert (record.features["val_share"], record.features["limits"]["max_side"]) == (0.15, 999)

    photographs(photos, range(EACH + 5, EACH + 8))
    for number in range(EACH):
        for new, old in (("c4", "c3"), ("c5", "c2")):
            (photos / new).mkdir(exist_ok=True)
            pixels = (photos / old / f"{number:03d}.png").read_bytes()
            (photos / new / f"new-{number}.png").write_bytes(pixels + bytes([number]))
    # The default k was not chosen by anybody, and grows with the classes.
    assert load_model(retrain(bare, HERE).model).record.loss == {"name": "topk_hinge", "k": 3}


@pytest.fixture
def unread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three classes of four photographs, of which none may be read."""
    write_classes(tmp_path / "photos", 3, 4)
    monkeypatch.setattr(ImageItem, "read", lambda *_: pytest.fail("an image was read"))
    return tmp_path / "photos"


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--loss", "max_hinge", "--method", "lbfgs"], "the method lbfgs needs a smooth loss"),
        (["--method", "newtonn"], "there is no method named 'newtonn'"),
        (["--loss", "topk_hing"], "there is no loss named 'topk_hing'"),
        (["--loss", "softmax", "--smoothing", "0.1"], "the loss softmax is smooth as it is"),
        (["--k", "4"], "k"),
        (["--loss", "topk_entropy", "--k", "3", "--method", "lbfgs"], "k"),
        (["--loss", "multilabel_hinge"], "is for rows with several labels, and the images have one per row"),
        (["--loss", "structured_hinge", "--margins", "gone.npy"], "margins gone.npy cannot be read"),
        (["--average-top", "100"], "average_top 100 is 100 of 12 training rows"),
        (["--average-top", "2", "--kernel", "rbf"], "does not go with kernel rbf"),
        (["--kernel", "rbf", "--no-keep-duals"], "a model with a kernel is made of its dual variables"),
        (["--keep-duals", "--method", "fw_away"], "leave keep_duals out"),
        (["--transforms", "l3"], "there is no transform 'l3'"),
        (["--backbone", "sift"], "there is no backbone named 'sift'"),
        (["--backbone", "onnx:gone.onnx"], "there is no network"),
        (["--mean", "0,0,0"], "--mean is about a network that is not named"),
        (["--memory-limit", "much"], "memory limit 'much' is not a size"),
        (["--start-from", "m0007"], "there is no store"),
        (["--auto", "--kernel", "rbf"], "leave out --kernel or --auto"),
        (["--for", "top-0"], "--for 'top-0' is not usable: use top-1, another number of guesses"),
        (["--for", "top-3"], "--for top-3 is always right of 3 classes: use a smaller number"),
        (["--report", f"{__file__}/report.html"], "report.html cannot be written: name a file in a folder"),
    ],
)
def test_a_run_that_cannot_end_well_does_not_begin(
    unread: Path, tmp_path: Path, flags: list[str], sentence: str, topline
) -> None:
    store = tmp_path / "store"
    ran = topline("run", "--images", unread, "--store", store, *flags)
    (line,) = (line for line in ran.err.splitlines() if line.startswith("error: "))
    assert (ran.code, sentence in line) == (2, True), line
    assert not list_datasets(open_store(str(store), create=True))


def test_one_class_is_no_problem_to_train_on(tmp_path: Path, unread: Path) -> None:
    extract = ExtractConfig(images=str(unread / "class0"))
    with pytest.raises(ValueError, match="the images are of 1 class, and at least 2 are needed"):
        run(RunConfig(store=str(tmp_path / "store"), extract=extract), ClusterConfig(workers=0))


def test_retraining_is_checked_too(tmp_path: Path, unread: Path) -> None:
    options: dict[str, Any] = {"store": str(tmp_path / "store"), "extract": ExtractConfig(images=str(unread))}
    with pytest.raises(ValueError, match="the method lbfgs needs a smooth loss"):
        retrain(RetrainConfig(**options, train=TrainConfig(loss="max_hinge", method="lbfgs")))
    with pytest.raises(ConfigError, match="memory limit 'much'"):
        retrain(RetrainConfig(**options), ClusterConfig(memory_limit="much"))


def test_labels_of_a_table_are_split_before_they_are_counted(tmp_path: Path, unread: Path, topline) -> None:
    table = unread / "table.csv"
    rows = [f"class0/{i:03d}.png,{label}" for i, label in enumerate(["sea;sky", "sky", "sea", "sky;town"])]
    table.write_text("path,label\n" + "\n".join(rows), encoding="utf-8")
    images = ["--images", str(table), "--label-separator", ";", "--store", str(tmp_path / "store")]
    for flags, sentence in (
        ([], "the images have rows with several labels, and the loss softmax is for one per row"),
        (["--loss", "multilabel_hinge", "--method", "lbfgs"], "the method lbfgs needs a smooth loss"),
        (["--loss", "multilabel_hinge", "--class-weight", "balanced"], "no class to be weighted by"),
    ):
        assert sentence in topline.refused("run", *images, *flags)


def test_the_digits_do_not_follow_other_data_in_a_store(tmp_path: Path) -> None:
    small_dataset(tmp_path / "store")
    with pytest.raises(ConfigError, match=r"no images are given, and .*topline train --store .* --auto"):
        run(RunConfig(store=str(tmp_path / "store")), ClusterConfig(workers=0))
    assert len(list_datasets(open_store(tmp_path / "store"))) == 1
