"""An exported graph of pictures against `topline predict`, on pictures as people have them.

    python -m tests.benchmarks.models.picture_graphs

A classifier of the photographs of one shop (ten classes) is exported `--with-backbone` and meets pictures of
other sources: photographs of ImageNet's classes, turned ones, CMYK, grey, 16 bits, transparent, tiny, and
forty of its own shop.  The graph is given the pixels that `predict` decodes, and those of the whole file.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np
import onnxruntime
import pyarrow.parquet as pq

from tests.benchmarks.datasets import DATA_DIR
from tests.benchmarks.harness import HERE, features_of, unpacked
from topline.pipeline.backbones import backbone_of_spec
from topline.pipeline.export.writing import export_model
from topline.pipeline.images import read_picture
from topline.pipeline.options import ExportOptions, PredictConfig, TrainConfig
from topline.pipeline.prediction import predict
from topline.pipeline.rows import StoredModel
from topline.pipeline.training import train

OTHERS = ("imagenet_samples_public", "edge_images_pillow", "exif_orientation")
OWN = 40


def compared(folder: Path) -> dict[str, list[tuple[float, bool]]]:
    """Return by way of decoding, each picture's error over its largest score, and whether top-5 agree."""
    new = folder / "new"
    for path in (DATA_DIR / "office_caltech").glob("*.zip"):
        unpacked(path, folder / "own")
    shop = folder / "own" / "amazon"
    store, _ = features_of(shop, folder / "store", backbone="efficientnet_lite0", val_share=0.1)
    url = train(TrainConfig(store=store), HERE).model
    export_model(url, folder / "graph.onnx", "onnx", ExportOptions(with_backbone=True))
    for name in OTHERS:
        for path in sorted((DATA_DIR / name).glob("*.zip")):
            unpacked(path, new / path.stem)
    own = sorted(shop.rglob("*.jpg"))
    for number in np.random.default_rng(0).choice(len(own), OWN, replace=False):
        own[number].rename(new / f"{number}.jpg")
    predict(url, PredictConfig(images=str(new), output=folder / "table.parquet"))
    session = onnxruntime.InferenceSession(str(folder / "graph.onnx"))
    side = backbone_of_spec(StoredModel.open(url).model.record.features["backbone"]).side
    found: dict[str, list[tuple[float, bool]]] = {"decoded as by predict": [], "decoded whole": []}
    for row in pq.read_table(folder / "table.parquet").to_pylist():
        if row["classes"] is None:
            continue
        data = (new / row["path"]).read_bytes()
        for way, most in zip(found, (side, None), strict=True):
            image = read_picture(data, None, most).pixels
            top, names = session.run(["top_scores", "top_names"], {"image": image})
            off = float(np.abs(top[0] - row["scores"]).max() / np.abs(row["scores"]).max())
            found[way].append((off, names[0].tolist() == row["classes"]))
    return found


def main() -> int:
    """Print the table; return 1 where scores of the same pixels differ by over 1e-3."""
    print(f"{'pixels':<24}{'pictures':>9}{'same top-5':>12}{'within 1e-3':>13}{'median':>10}{'largest':>10}")
    with tempfile.TemporaryDirectory() as folder:
        table = compared(Path(folder))
    for way, rows in table.items():
        off = np.array([one for one, _ in rows])
        same = sum(equal for _, equal in rows)
        print(
            f"{way:<24}{len(rows):>9}{same:>12}{int((off <= 1e-3).sum()):>13}"
            f"{np.median(off):>10.1e}{off.max():>10.1e}"
        )
    return int(max(off for off, _ in table["decoded as by predict"]) > 1e-3)


if __name__ == "__main__":
    sys.exit(main())
