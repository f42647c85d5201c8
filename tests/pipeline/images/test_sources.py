from __future__ import annotations

import io
import json
import math
import os
import re
import tarfile
import unicodedata
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from tests.pipeline.pictures import png, write_classes
from topline.pipeline.errors import ImageRejectedError, InputError
from topline.pipeline.images import ImageItem, ImageListing, SourceImages, Wanted, list_images, sorted_names

LIMIT = 1 << 20


def touch(path: Path, data: bytes | None = None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(png() if data is None else data)
    return path


def paths(listing: ImageListing) -> list[str]:
    return [item.path for item in listing.items]


def errors(listing: ImageListing) -> dict[str, str]:
    return {item.path: item.error for item in listing.items if item.error}


def classes(listing: ImageListing) -> tuple[str, ...]:
    return sorted_names(item.label for item in listing.items if item.label is not None)


def test_a_folder_is_a_class(tmp_path: Path) -> None:
    write_classes(tmp_path / "photos", 3, 2)
    listing = list_images(str(tmp_path / "photos"))
    assert paths(listing) == [f"class{c}/{i:03d}.png" for c in range(3) for i in range(2)]
    assert [item.label for item in listing.items] == [f"class{c}" for c in range(3) for _ in range(2)]
    assert classes(listing) == ("class0", "class1", "class2")
    assert {item.split for item in listing.items} == {None}
    first = listing.items[0]
    assert first.read(listing.root, LIMIT) == (tmp_path / "photos" / first.path).read_bytes()


def test_folders_inside_folders_are_classes_by_their_path(tmp_path: Path) -> None:
    for name in ("Balinese/character01/a.png", "Balinese/character02/a.png", "Latin/character01/a.png"):
        touch(tmp_path / name)
    listing = list_images(str(tmp_path))
    assert classes(listing) == ("Balinese/character01", "Balinese/character02", "Latin/character01")


def test_splits_beside_other_folders_of_images_are_refused_by_name(tmp_path: Path) -> None:
    for path in ("train/Kitchen/1.png", "test/Kitchen/2.png", "extra/Bath/3.png"):
        touch(tmp_path / path)
    with pytest.raises(InputError, match=r"folders test, train of splits, and beside them extra with images"):
        list_images(str(tmp_path))
    assert len(list_images(str(tmp_path), Wanted(labelled=False)).items) == 3
    # A folder without images, and a store, are in nobody's way.
    (tmp_path / "extra" / "Bath" / "3.png").rename(tmp_path / "extra" / "notes.txt")
    assert {item.label for item in list_images(str(tmp_path)).items} == {"Kitchen"}
    # Of vehicles, one class is called train.
    for path in ("toys/train/1.png", "toys/bus/2.png"):
        touch(tmp_path / path)
    assert classes(list_images(str(tmp_path / "toys"))) == ("bus", "train")


def test_train_val_and_test_above_the_classes_are_splits(tmp_path: Path) -> None:
    for name in ("Train/cat/1.png", "val/cat/2.png", "test/dog/3.png"):
        touch(tmp_path / name)
    items = list_images(str(tmp_path)).items
    assert {item.path: (item.label, item.split) for item in items} == {
        "Train/cat/1.png": ("cat", "train"),
        "val/cat/2.png": ("cat", "val"),
        "test/dog/3.png": ("dog", "test"),
    }


def test_hidden_files_and_files_that_are_no_images_are_left_out_and_written_down(tmp_path: Path) -> None:
    for name in (
        "a/1.png",
        "a/.DS_Store",
        "a/notes.txt",
        "a/INDEX.TSV",
        ".git/x.png",
        "a/LICENSE",
        "a/README.md",
    ):
        touch(tmp_path / name)
    # Unknown suffixes and none are tried as images, so that nothing is lost without a word.
    for name in ("a/strange.container", "a/nosuffix", "a/license.png"):
        touch(tmp_path / name)
    listing = list_images(str(tmp_path))
    assert paths(listing) == ["a/1.png", "a/license.png", "a/nosuffix", "a/strange.container"]
    assert sorted(listing.ignored) == [
        ".git",
        "a/.DS_Store",
        "a/INDEX.TSV",
        "a/LICENSE",
        "a/README.md",
        "a/notes.txt",
    ]


def test_names_in_any_script_stay_as_they_are(tmp_path: Path) -> None:
    composed, decomposed = unicodedata.normalize("NFC", "é"), unicodedata.normalize("NFD", "é")
    for name in (
        "犬/一.png",
        "кот/два три.png",
        f"{composed}/1.png",
        f"{decomposed}/1.png",
        "a'b\"c;d/x\ny.png",
    ):
        touch(tmp_path / name)
    listing = list_images(str(tmp_path))
    assert set(classes(listing)) == {"犬", "кот", composed, "a'b\"c;d"}, "one class, however it is typed"
    assert all(item.read(listing.root, LIMIT) == png() for item in listing.items)


def test_names_that_are_no_text_are_listed_and_read(tmp_path: Path) -> None:
    touch(tmp_path / "a" / "1.png")
    touch(tmp_path / "a" / os.fsdecode(b"\xff\xfe.png"), png(5))
    listing = list_images(str(tmp_path))
    strange = listing.items[1]
    assert strange.path == "a/\\xff\\xfe.png"
    assert strange.read(listing.root, LIMIT) == png(5)
    assert strange.path.encode()


def test_links_that_lead_out_are_refused_and_others_followed(tmp_path: Path) -> None:
    outside = touch(tmp_path / "secret.png")
    root = tmp_path / "photos"
    touch(root / "a" / "1.png")
    (root / "a" / "inside.png").symlink_to("1.png")
    (root / "a" / "outside.png").symlink_to(outside)
    (root / "a" / "nothing.png").symlink_to("gone.png")
    (root / "b").symlink_to(root / "a")
    for name in ("a/round", ".round"):
        (root / name).symlink_to(root / name)
    os.mkfifo(root / "a" / "pipe.png")
    listing = list_images(str(root))
    reasons = errors(listing)
    assert set(reasons) == {"a/outside.png", "a/nothing.png", "a/pipe.png", "a/round", "b"}
    assert listing.ignored == (".round",)
    assert "leads out of" in reasons["a/outside.png"]
    assert "no such file" in reasons["a/nothing.png"]
    assert "not a regular file" in reasons["a/pipe.png"]
    assert "link to a folder" in reasons["b"]
    with pytest.raises(ImageRejectedError, match="leads out of"):
        next(item for item in listing.items if item.path == "a/outside.png").read(root, LIMIT)


def test_a_link_made_after_the_listing_is_refused_when_it_is_read(tmp_path: Path) -> None:
    outside = touch(tmp_path / "secret.png")
    image = touch(tmp_path / "photos" / "a" / "1.png")
    listing = list_images(str(tmp_path / "photos"))
    image.unlink()
    image.symlink_to(outside)
    with pytest.raises(ImageRejectedError, match="leads out of"):
        listing.items[0].read(listing.root, LIMIT)
    image.unlink()
    with pytest.raises(ImageRejectedError, match="no such file"):
        listing.items[0].read(listing.root, LIMIT)


def test_images_beside_class_folders_have_no_class(tmp_path: Path) -> None:
    touch(tmp_path / "a" / "1.png")
    touch(tmp_path / "stray.png")
    listing = list_images(str(tmp_path))
    assert "no class's folder" in errors(listing)["stray.png"]
    assert not errors(list_images(str(tmp_path), Wanted(labelled=False)))


def test_a_flat_folder_is_one_class(tmp_path: Path) -> None:
    touch(tmp_path / "photos" / "1.png")
    assert classes(list_images(str(tmp_path / "photos"))) == ("photos",)


@pytest.mark.parametrize(("suffix", "mark"), [(".csv", ","), (".csv", ";"), (".tsv", "\t"), (".parquet", "")])
def test_a_table_names_paths_labels_and_splits(tmp_path: Path, suffix: str, mark: str) -> None:
    for name in ("img/1.png", "img/2, two.png", "猫.png"):
        touch(tmp_path / name)
    columns = {
        "path": [
            "img/1.png",
            "img/2, two.png",
            "猫.png",
            "../out.png",
            "gone.png",
            "/etc/hostname",
            "img/1.png",
        ],
        "label": ["cat", "dog", "cat", "cat", "dog", "dog", ""],
        "split": ["train", "Test", "validation", "train", "train", "train", "train"],
    }
    touch(tmp_path.parent / "out.png")
    table = tmp_path / f"table{suffix}"
    if suffix == ".parquet":
        pq.write_table(pa.table(columns | {"more": list(range(7))}), table)
    else:
        lines = [mark.join(columns)] + [
            mark.join(f'"{word}"' for word in row) for row in zip(*columns.values(), strict=True)
        ]
        table.write_text("\ufeff" + "\n".join(lines) + "\n", encoding="utf-8")
    listing = list_images(str(table))
    assert paths(listing) == columns["path"]
    assert [(item.label, item.split) for item in listing.items[:3]] == [
        ("cat", "train"),
        ("dog", "test"),
        ("cat", "val"),
    ]
    assert listing.items[1].read(listing.root, LIMIT) == png()
    reasons = errors(listing)
    assert "leads out of" in reasons["../out.png"]
    assert "no such file" in reasons["gone.png"]
    assert "leads out of" in reasons["/etc/hostname"]
    assert "has no label" in reasons["img/1.png"]
    assert listing.items[6].sample_id == "img/1.png#2"


@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        (("1.0", "2.0", "1e1", "007"), ["1", "2", "10", "007"]),
        (("3.11", "nightly", "2.0", "1"), ["3.11", "nightly", "2.0", "1"]),
    ],
)
def test_numbers_of_a_table_are_classes_by_one_rule(
    tmp_path: Path, labels: tuple[str, ...], classes: list[str]
) -> None:
    rows = {"path": [f"{place}.png" for place in range(4)], "label": list(labels)}
    table = tmp_path / "t.csv"
    table.write_text("path,label\n" + "\n".join(map(",".join, zip(*rows.values(), strict=True))))
    assert [item.label for item in list_images(str(table)).items] == classes
    pq.write_table(pa.table(rows), tmp_path / "text.parquet")
    typed = [item.label for item in list_images(str(tmp_path / "text.parquet")).items]
    assert typed == ["1e1" if name == "10" else name for name in classes], "text is no number of its own"


def test_labels_that_nobody_asks_for_are_not_judged(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("path,label\na.png,-1\nb.png,0.5\n")
    listing = list_images(str(tmp_path / "t.csv"), Wanted(labelled=False))
    assert [(item.label, item.split) for item in listing.items] == [("-1", None), ("0.5", None)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("file,label\na.png,x\n", "file, label: it needs path and label"),
        ("path,label\n", "has no rows"),
        ("", "it needs path and label"),
        ("path,label,split\na.png,x,holdout\n", "line 2, has the split 'holdout'"),
        ("path,label\na,b.png,x\n", "line 2, has more fields"),
        ("path,label\n,x\n", "line 2, has no path"),
        ('path,label\n"a.png,x\n', "cannot be read"),
    ],
)
def test_tables_that_cannot_be_used_are_refused(tmp_path: Path, text: str, message: str) -> None:
    table = tmp_path / "t.csv"
    table.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=message):
        list_images(str(table))


def member(archive: tarfile.TarFile, name: str, data: bytes = b"", **facts: object) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    for key, value in facts.items():
        setattr(info, key, value)
    archive.addfile(info, io.BytesIO(data))


def write_shard(path: Path, keys: list[str], *, start: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as archive:
        for i, key in enumerate(keys, start=start):
            member(archive, f"{key}.png", png(i))
            if i % 2:
                member(archive, f"{key}.cls", str(i % 3).encode())
            else:
                member(archive, f"{key}.json", json.dumps({"label": i % 3, "width": 40}).encode())
    return path


def test_shards_are_read_by_offset(tmp_path: Path) -> None:
    write_shard(tmp_path / "shard-001.tar", ["c", "d"], start=2)
    write_shard(tmp_path / "shard-000.tar", ["x/a", "ключ"])
    for images in (tmp_path, tmp_path / "shard-*.tar"):
        listing = list_images(str(images))
        assert paths(listing) == [
            "shard-000.tar/x/a.png",
            "shard-000.tar/ключ.png",
            "shard-001.tar/c.png",
            "shard-001.tar/d.png",
        ]
        assert [item.label for item in listing.items] == ["0", "1", "2", "0"]
        assert [item.read(listing.root, LIMIT) for item in listing.items] == [png(i) for i in range(4)]
    # Nothing was extracted.
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["shard-000.tar", "shard-001.tar"]
    assert len(list_images(str(tmp_path / "shard-001.tar")).items) == 2


def test_a_pattern_may_match_in_several_folders_and_what_is_no_shard(tmp_path: Path) -> None:
    write_shard(tmp_path / "sh-0" / "t.tar", ["a", "b"])
    write_shard(tmp_path / "sh-1" / "t.tar", ["c"], start=2)
    (tmp_path / "sh-0" / "t.idx").write_text("0 1024")
    listing = list_images(str(tmp_path / "sh-*" / "t*"))
    assert paths(listing) == ["sh-0/t.tar/a.png", "sh-0/t.tar/b.png", "sh-1/t.tar/c.png"]
    assert [item.read(listing.root, LIMIT) for item in listing.items] == [png(i) for i in range(3)]


def test_a_table_names_images_inside_archives_and_text_that_no_spreadsheet_runs(tmp_path: Path) -> None:
    """As the labels that `topline suggest` asks for."""
    write_shard(tmp_path / "new.tar", ["a", "b"])
    (tmp_path / "=1.png").write_bytes(png(3))
    (tmp_path / "labels.csv").write_text("path,label\nnew.tar/b.png,'-off\nnew.tar/x.png,on\n'=1.png,on\n")
    listing = list_images(str(tmp_path / "labels.csv"))
    assert paths(listing) == ["new.tar/b.png", "new.tar/x.png", "=1.png"]
    assert [item.label for item in listing.items] == ["-off", "on", "on"]
    found = [listing.items[row].read(listing.root, LIMIT) for row in (0, 2)]
    assert found == [png(1), png(3)]
    with pytest.raises(ImageRejectedError, match="there is no such file"):
        listing.items[1].read(listing.root, LIMIT)
    again = SourceImages({"images": str(listing.root), "source": listing.kind})
    pixels = [again({"sample_id": item.sample_id, "path": item.path}) for item in listing.items[::2]]
    np.testing.assert_array_equal(pixels, [np.asarray(Image.open(io.BytesIO(data))) for data in found])


def test_images_inside_archives_are_judged_as_others_of_their_table(tmp_path: Path) -> None:
    write_shard(tmp_path / "shards" / "new.tar", ["a", "b"])
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "new.tar").symlink_to(tmp_path / "shards" / "new.tar")
    table = touch(
        tmp_path / "photos" / "t.csv", b"path,label\nnew.tar/a.png,on\nnew.tar/b.png,\nnew.tar/a.png,on\n"
    )
    with pytest.raises(InputError, match=r"leads out of .*--follow-links"):
        list_images(str(table))
    listing = list_images(str(table), Wanted(follow_links=True))
    assert [item.label for item in listing.items] == ["on", None, "on"]
    assert errors(listing) == {"new.tar/b.png": "has no label"}
    assert [item.sample_id for item in listing.items] == ["new.tar/a.png", "new.tar/b.png", "new.tar/a.png#2"]
    again = SourceImages({"images": str(listing.root), "source": listing.kind, "follow_links": True})
    first, second = (
        again({"sample_id": listing.items[row].sample_id, "path": "new.tar/a.png"}) for row in (0, 2)
    )
    np.testing.assert_array_equal(first, second)


def test_shards_under_split_folders(tmp_path: Path) -> None:
    write_shard(tmp_path / "train" / "0.tar", ["a", "b"])
    write_shard(tmp_path / "test" / "0.tar", ["c"])
    items = list_images(str(tmp_path)).items
    assert [(item.path, item.split) for item in items] == [
        ("test/0.tar/c.png", "test"),
        ("train/0.tar/a.png", "train"),
        ("train/0.tar/b.png", "train"),
    ]


def test_members_that_lead_out_links_and_incomplete_samples_are_refused(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "s.tar", "w") as archive:
        member(archive, "good.png", png())
        member(archive, "good.cls", b"7")
        member(archive, "good.depth.npy", b"123")
        member(archive, "../evil.png", png())
        member(archive, "/abs.png", png())
        member(archive, "link.png", type=tarfile.SYMTYPE, linkname="/etc/passwd")
        member(archive, "hard.png", type=tarfile.LNKTYPE, linkname="good.png")
        member(archive, "device.png", type=tarfile.CHRTYPE)
        member(archive, "nolabel.png", png(1))
        member(archive, "broken.png", png(2))
        member(archive, "broken.json", b"{not json")
        member(archive, "noimage.cls", b"3")
        member(archive, "._good.png", b"mac")
    listing = list_images(str(tmp_path / "s.tar"))
    good = [item for item in listing.items if not item.error]
    assert [(item.path, item.label) for item in good] == [("s.tar/good.png", "7")]
    reasons = errors(listing)
    assert set(reasons) == {
        f"s.tar/{name}"
        for name in (
            "../evil.png",
            "/abs.png",
            "link.png",
            "hard.png",
            "device.png",
            "nolabel.png",
            "broken.png",
            "noimage",
        )
    }
    assert "leads out" in reasons["s.tar/../evil.png"]
    assert "leads out" in reasons["s.tar//abs.png"]
    assert "link, a device" in reasons["s.tar/link.png"]
    assert "no label" in reasons["s.tar/nolabel.png"]
    assert "no image" in reasons["s.tar/noimage"]
    assert sorted(listing.ignored) == ["s.tar/._good.png", "s.tar/good.depth.npy"]


def test_a_shard_that_is_cut_short_keeps_what_it_has(tmp_path: Path) -> None:
    shard = write_shard(tmp_path / "s.tar", ["a", "b", "c"])
    with tarfile.open(shard) as archive:
        last = archive.getmembers()[-2]
    shard.write_bytes(shard.read_bytes()[: last.offset_data + 100])
    listing = list_images(str(shard))
    assert [item.label for item in listing.items] == ["0", "1", None, None]
    assert "cut short" in listing.items[-1].error
    for i, item in enumerate(listing.items[:2]):
        assert item.read(listing.root, LIMIT) == png(i)
    with pytest.raises(InputError, match="is not a tar archive"):
        list_images(str(touch(tmp_path / "zipped.tar", b"\x1f\x8b" + bytes(600))))


def test_without_labels_none_are_needed(tmp_path: Path) -> None:
    image = touch(tmp_path / "new" / "sub" / "1.png")
    touch(tmp_path / "new" / "2.png")
    listing = list_images(str(tmp_path / "new"), Wanted(labelled=False))
    assert paths(listing) == ["2.png", "sub/1.png"]
    assert [item.label for item in listing.items] == [None, None]
    assert paths(list_images(str(image), Wanted(labelled=False))) == ["1.png"]
    table = tmp_path / "new" / "t.csv"
    table.write_text("path\n2.png\n", encoding="utf-8")
    assert not errors(list_images(str(table), Wanted(labelled=False)))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nowhere", "is not there"),
        ("photos.zip", "unpack it first"),
        ("photo.png", "is not a folder, a table"),
        ("empty", "has no images"),
        ("texts", r"has no images \(1 other files are there\)"),
        ("s3://bucket/images", "from this machine's disks"),
    ],
)
def test_what_is_no_source_of_images_is_refused(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "empty").mkdir()
    touch(tmp_path / "texts" / "a.txt")
    touch(tmp_path / "photos.zip")
    touch(tmp_path / "photo.png")
    with pytest.raises(InputError, match=message):
        list_images(name if "://" in name else str(tmp_path / name))


def test_the_digest_knows_whether_anything_has_changed(tmp_path: Path) -> None:
    write_classes(tmp_path, 2, 2)
    before = list_images(str(tmp_path)).digest()
    assert list_images(str(tmp_path)).digest() == before
    image = tmp_path / "class0" / "000.png"
    facts = image.stat()
    os.utime(image, ns=(facts.st_atime_ns, facts.st_mtime_ns + 1_000_000))
    changed = list_images(str(tmp_path)).digest()
    assert changed != before
    image.rename(tmp_path / "class1" / "100.png")
    assert list_images(str(tmp_path)).digest() not in (before, changed)


def test_class_names_that_are_numbers_are_in_their_order() -> None:
    assert sorted_names(["10", "9", "1", "9"]) == ("1", "9", "10")
    assert sorted_names(["10", "9", "b", "a"]) == ("10", "9", "a", "b")


def test_links_of_a_farm_are_followed_where_that_is_asked_for(tmp_path: Path) -> None:
    """As data version control and caches keep files: each name is a link to its content elsewhere."""
    for place in ("cat/1.png", "dog/2.png"):
        content = touch(tmp_path / "cache" / place.replace("/", ""), png())
        (tmp_path / "farm" / place).parent.mkdir(parents=True)
        (tmp_path / "farm" / place).symlink_to(content)
    (tmp_path / "farm" / "cow").symlink_to(touch(tmp_path / "more" / "3.png").parent)
    (tmp_path / "more" / "round").symlink_to(tmp_path / "more")
    assert "(--follow-links allows links)" in errors(list_images(str(tmp_path / "farm")))["cat/1.png"]
    followed = list_images(str(tmp_path / "farm"), Wanted(follow_links=True))
    assert errors(followed) == {"cow/round": "is a link to a folder that it lies in, which is not followed"}
    good = [item for item in followed.items if not item.error]
    assert [(item.path, item.label) for item in good] == [
        ("cat/1.png", "cat"),
        ("cow/3.png", "cow"),
        ("dog/2.png", "dog"),
    ]
    assert all(item.read(followed.root, LIMIT) == png() for item in good)
    outside = ImageItem("x", "x", "../cache/cat1.png", follow=True)
    with pytest.raises(ImageRejectedError, match="leads out of"):
        outside.read(followed.root, LIMIT)


def write_pictures(path: Path, labels: list[int], names: list[str] | None) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    images = pa.array([{"bytes": png(label % 4), "path": None} for label in labels], kind)
    known = {"info": {"features": {"label": {"names": names, "_type": "ClassLabel"}}}}
    table = pa.table({"image": images, "label": labels})
    pq.write_table(table.replace_schema_metadata({"huggingface": json.dumps(known)}), path, row_group_size=2)


def test_images_inside_parquet_have_the_names_of_its_schema(tmp_path: Path) -> None:
    for place, name in enumerate(("train-00000-of-00002", "train-00001-of-00002", "test-00000-of-00001")):
        write_pictures(tmp_path / "data" / f"{name}.parquet", [place, 2, 1, -1], ["ant", "bee", "cat"])
    listing = list_images(str(tmp_path)).shuffled()
    for item in listing.items:
        code = {"ant": 0, "bee": 1, "cat": 2, None: 3}[item.label]
        assert (item.label is None) == (item.error == "has no label")
        assert item.split == (None if item.error else item.path.split("/")[1].partition("-")[0])
        assert replace(item, error="").read(listing.root, LIMIT) == png(code)
    runs = [item.run for item in listing.items]
    assert len(runs) == 12
    assert sum(one != other for one, other in pairwise(runs)) == 5, "what is unpacked together is together"
    alone = list_images(str(tmp_path / "data" / "train-*.parquet")).items
    assert [item.split for item in alone] == [None] * 8, "held-out rows are drawn where all are called train"
    (tmp_path / "data" / "train-00000-of-00002.parquet").unlink()
    for place in (tmp_path, tmp_path / "data" / "*.parquet"):
        with pytest.raises(InputError, match=r": part 0 of 2 is missing, train-00000-of-00002: bring back"):
            list_images(str(place))
    assert len(list_images(str(tmp_path / "data" / "train-00001-of-00002.parquet")).items) == 4
    write_pictures(tmp_path / "data" / "odd.parquet", [5], ["ant"])
    with pytest.raises(InputError, match=r"a label out of range in row 0 \(5\): the file names 1 classes"):
        list_images(str(tmp_path / "data" / "odd.parquet"))


def test_groups_and_weights_of_shards_are_fields_of_their_json(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for place, patient in enumerate(["p1", "p1", 7, None]):
            member(archive, f"{place}.png", png())
            facts = {"label": "cat", "patient": patient, "often": place + 1}
            member(archive, f"{place}.json", json.dumps(facts).encode())
    items = list_images(str(tmp_path / "a.tar"), Wanted(groups="patient", weights="often")).items
    assert [(item.group, item.weight) for item in items] == [("p1", 1), ("p1", 2), ("7", 3), (None, 4)]
    with pytest.raises(
        InputError, match=r"no column 'patent': did you mean 'patient'\? it has label, often, patient$"
    ):
        list_images(str(tmp_path / "a.tar"), Wanted(groups="patent"))


def test_an_archive_of_class_folders_has_their_classes(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "photos.tar", "w") as archive:
        for name in ("cat/1.png", "cat/2.png", "dog/deep/3.png"):
            member(archive, name, png())
    items = list_images(str(tmp_path / "photos.tar")).items
    assert [(item.label, item.error) for item in items] == [("cat", ""), ("cat", ""), ("dog/deep", "")]


def test_a_table_without_labels_says_what_it_has(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("path,species\na.png,cat\n")
    with pytest.raises(InputError, match="has the columns path, species: it needs path and label"):
        list_images(str(tmp_path / "t.csv"))
    touch(tmp_path / "a.png")
    (tmp_path / "t.csv").write_text("file_name, Label\na.png,cat\n")
    assert [item.label for item in list_images(str(tmp_path / "t.csv")).items] == ["cat"]


def test_a_store_among_the_classes_is_left_out(tmp_path: Path) -> None:
    for place in ("cat/1.jpg", "dog/2.jpg", "store/commits/datasets/d0001", "store/units/0/c/0"):
        (tmp_path / place).parent.mkdir(parents=True)
        (tmp_path / place).write_bytes(b"x")
    listing = list_images(str(tmp_path))
    assert [(item.path, item.label) for item in listing.items] == [("cat/1.jpg", "cat"), ("dog/2.jpg", "dog")]
    assert listing.ignored == ("store",)


LABELS = [
    ([3, 3.0, "3"], ["3", "3", "3"]),
    ([1.0, math.nan, None], ["1", None, None]),
    (["none", "null", "a"], ["none", "null", "a"]),
    ([True, False], ["True", "False"]),
    ([True, 1], "a truth value beside other labels in row 0 (True): write every label alike"),
    ([[0, 1], 2], "what is no label in row 0 ([0, 1]): give a word or a whole number a row"),
    ([{"id": 0}, 2], "what is no label in row 0 ({'id': 0}): give a word or a whole number a row"),
    ([0.5, 1.0], "a fraction for a label in row 0 (0.5): number classes from 0"),
    ([-1, 0, 1], "a negative label in row 0 (-1): number classes from 0"),
    ([-1, 1], ["-1", "1"]),
]


@pytest.mark.parametrize(("values", "expected"), LABELS, ids=lambda value: str(value)[:30])
def test_labels_of_shards_follow_the_rule_of_tables(
    tmp_path: Path, values: list[object], expected: list[str | None] | str
) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for i, value in enumerate(values):
            member(archive, f"{i}.png", png())
            member(archive, f"{i}.json", json.dumps({"label": value}).encode())
    if isinstance(expected, str):
        said = expected.replace("row 0", "row a.tar/0.png")
        with pytest.raises(InputError, match=re.escape(said)):
            list_images(str(tmp_path / "a.tar"))
        return
    assert [item.label for item in list_images(str(tmp_path / "a.tar")).items] == expected


def one_type(values: list[object]) -> bool:
    """Whether values go into one column of Parquet."""
    return len({type(value) for value in values} - {type(None)}) == 1


@pytest.mark.parametrize(
    ("values", "expected"), [case for case in LABELS if one_type(case[0])], ids=lambda value: str(value)[:30]
)
def test_labels_of_parquet_tables_follow_the_same_rule(
    tmp_path: Path, values: list[object], expected: list[str | None] | str
) -> None:
    column = pa.array(values)
    paths = [f"{i}.png" for i in range(len(values))]
    pq.write_table(pa.table({"path": paths, "label": column}), tmp_path / "t.parquet")
    if isinstance(expected, str):
        with pytest.raises(InputError, match=re.escape(expected.partition(" (")[0])):
            list_images(str(tmp_path / "t.parquet"))
        return
    assert [item.label for item in list_images(str(tmp_path / "t.parquet")).items] == expected
