"""What can be chosen about images, features and predictions; checked before any work starts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self, TypeVar

from pydantic import AfterValidator, field_validator, model_validator

from topline.pipeline.options.train import DATA_STORE, NonEmpty, Options, option

# What a network's input may look like; the classes of preprocessing take them from here.
Layout = Literal["NCHW", "NHWC"]
Channels = Literal["RGB", "BGR"]
Interpolation = Literal["bilinear", "bicubic"]


class SplitConfig(Options):
    """Shares of rows held out, of all rows or of given training rows if those splits are missing."""

    test_share: float = option(
        "Share of each class held out for testing, if no split is given", 0.2, ge=0.0, lt=1.0
    )
    val_share: float = option("Share of each class on which probabilities are fitted", 0.0, ge=0.0, lt=1.0)
    calibration_share: float = option(
        "Share of each class for the guarantee of prediction sets, used for nothing else", 0.0, ge=0.0, lt=1.0
    )
    split_seed: int = option("Seed of the hold-out split", 0, ge=0)

    @model_validator(mode="after")
    def _something_is_left(self) -> Self:
        if self.test_share + self.val_share + self.calibration_share >= 1.0:
            raise ValueError(
                "--test-share, --val-share and --calibration-share leave nothing to train on: their sum must"
                " be below 1"
            )
        return self


class RowConfig(Options):
    """How the labels of a row are written where it has several, and what else is known of rows."""

    label_separator: NonEmpty | None = option("Text between the labels of a row that has several, such as ;")
    groups: NonEmpty | None = option(
        "Column (or file) that says which rows belong together, such as photographs of one"
        " patient: no split and no fold cuts a group"
    )
    sample_weight: NonEmpty | None = option(
        "Column (or file) that says how often each row counts in training"
    )

    def row_facts(self) -> dict[str, str]:
        """Return what of it is given, for the specification of a dataset."""
        names = ("label_separator", "groups", "groups_from", "sample_weight")
        given = {name: getattr(self, name, None) for name in names}
        return {name: value for name, value in given.items() if value is not None}


class ImageLimits(Options):
    """What an image may cost; anything above is rejected from its header, before its pixels are decoded."""

    max_pixels: int = option("Most pixels of an image", 64_000_000, ge=1)
    max_bytes: int = option("Most bytes of an image file", 128 << 20, ge=1)
    max_side: int = option("Most pixels of an image's longer side", 30_000, ge=1)

    @property
    def limits(self) -> ImageLimits:
        """The limits alone."""
        return ImageLimits(max_pixels=self.max_pixels, max_bytes=self.max_bytes, max_side=self.max_side)


class ImageRowsConfig(ImageLimits):
    """Images that a backbone describes."""

    follow_links: bool = option(
        "Follow links that lead out of the folder, as those of a cache of data", False
    )
    batch: int = option("Images in one call of the backbone", 32, ge=1)


class BackboneConfig(Options):
    """The backbone, and what of its preprocessing is not as its file (FILE.json) or its author says."""

    backbone: NonEmpty | None = option(
        "efficientnet_lite0, hog, hog:size=96,cells=12, fisher, fisher:words=64, onnx:FILE or"
        " timm:NAME (default: efficientnet_lite0; hog where most of 64 images looked at are drawings or"
        " digits, without colour and under 48 pixels or nearly all black and white)"
    )
    resize: int | None = option("Shorter side after resizing, in pixels", ge=1)
    crop: int | None = option("Side of the central square, in pixels", ge=1)
    mean: tuple[float, ...] | None = option("Subtracted from R,G,B in 0..1")
    std: tuple[float, ...] | None = option("R,G,B are divided by it")
    layout: Layout | None = option("Order of the network's input")
    channels: Channels | None = option("Order of the colours")
    interpolation: Interpolation | None = option("How images are resized")
    input_name: NonEmpty | None = option("Input of the network that takes images")
    output_name: NonEmpty | None = option(
        "Output of the network to take as features, by its name in an ONNX file that has several"
    )
    checkpoint: Path | None = option("File with the weights of a timm model")

    @field_validator("mean", "std", mode="before")
    @classmethod
    def _numbers(cls, value: object) -> object:
        """Read "0.485,0.456,0.406" as three numbers."""
        if isinstance(value, str):
            return tuple(part.strip() for part in value.split(","))
        return value

    def preprocessing(self) -> dict[str, object]:
        """Return what was chosen, by name."""
        names = set(BackboneConfig.model_fields) - {"backbone", "checkpoint"}
        chosen = {name: getattr(self, name) for name in BackboneConfig.model_fields if name in names}
        return {name: value for name, value in chosen.items() if value is not None}


class ExtractConfig(RowConfig, SplitConfig, ImageRowsConfig, BackboneConfig):
    """Images to features: where the images are, bad ones and duplicates, the split, the backbone."""

    images: NonEmpty | None = option(
        "Folder of classes, table (CSV, Parquet), tar shards, or Parquet files with images"
    )
    store: NonEmpty = option("Store that receives the dataset", DATA_STORE)
    groups_from: Literal["folder"] | None = option(
        "folder: images of one folder are a group, within those of the classes"
    )
    duplicates: Literal["drop", "keep"] = option(
        "Whether images with the content of an earlier one are dropped or kept", "drop"
    )
    max_bad_share: float = option("Share of unreadable images that stops the job", 0.1, ge=0.0, le=1.0)
    dtype: Literal["float32", "float16"] = option("Type of stored features", "float32")


class ImportConfig(RowConfig, SplitConfig):
    """Features that exist already: files, names of what is inside them, the split."""

    features: NonEmpty | None = option(
        "npy, npz, Parquet, CSV, HDF5, safetensors, ARFF or LIBSVM text file, a folder or pattern"
        " of them, a Zarr or clip-retrieval folder"
    )
    test_features: Path | None = option(
        "File of the same kind with the test rows; all others are for training"
    )
    labels: Path | None = option(
        "Labels (npy, npz, txt, csv), where the features' file has none; an indicator matrix"
        " gives a row several; for ARFF, Mulan's XML of label names"
    )
    split: Path | None = option("train, val, test or calibration of each row (npy, txt, csv)")
    class_names: Path | None = option("Names of labels 0, 1, ..., one per line")
    store: NonEmpty = option("Store that receives the dataset", DATA_STORE)
    features_name: NonEmpty | None = option("Array or column of the features inside their file")
    labels_name: NonEmpty | None = option("Array or column of the labels, in --labels or --features")
    layout: Literal["auto", "dense", "csr"] = option(
        "How features are stored; auto: sparse ones as CSR", "auto"
    )
    dtype: Literal["float32", "float16"] = option("Type of stored features", "float32")


class ExportOptions(Options):
    """What a file of a model gives besides scores, and what it takes."""

    top_k: int | None = option("Number of best classes that the ONNX graph returns (default: 5)", ge=1)
    coverage: float | None = option(
        "Let the ONNX graph return sets of classes that contain the right one with this probability",
        gt=0.0,
        lt=1.0,
    )
    per_class: bool = option("Guarantee the coverage in every class, not only on average", False)
    with_backbone: bool = option("Write one ONNX graph from the pixels of a picture, with its network", False)
    input_type: Literal["float32", "float64"] = option(
        "Type of the features that the ONNX graph takes", "float32"
    )


class ExportConfig(ExportOptions):
    """A file for other programs: its format, its place, and how small a kernel model becomes."""

    format: NonEmpty | None = option(
        "Kind of file: npz, onnx, safetensors, sklearn (default: by the ending of --output, else npz)"
    )
    output: Path | None = option("File, or for sklearn folder, to write (default: the model's id)")
    compress: float | None = option(
        "Write a model with the kernel rbf on the fewest rows found that lose at most this share"
        " of its objective, such as 0.01"
    )


def _is_a_table(path: Path) -> Path:
    if path.suffix.lower() not in (".parquet", ".csv"):
        raise ValueError("name a file that ends in .parquet or .csv")
    return path


Writes = TypeVar("Writes", "PredictConfig", "InspectConfig", "SuggestConfig")
#: File of a table, whose name says how it is written.
TablePath = Annotated[Path, AfterValidator(_is_a_table)]


def _two_files(config: Writes) -> Writes:
    """Refuse a page that would replace the table that was written before it."""
    output, page = config.output, config.page
    if output is not None and page is not None and output.absolute() == page.absolute():
        raise ValueError(f"--output and --page are both {output}: name two files")
    return config


class NewRowsConfig(ImageRowsConfig):
    """New images or features for a trained model."""

    images: NonEmpty | None = option("Folder, image, table or tar shards")
    features: NonEmpty | None = option(
        "File of features to classify instead of images, as topline import reads it, with labels or without"
    )
    features_name: NonEmpty | None = option("Array or column of the features inside the file of --features")
    labels_name: NonEmpty | None = option(
        "Array or column of the labels inside the file of --features, if it has any"
    )


class SuggestConfig(NewRowsConfig):
    """Which of new rows without labels to label next."""

    output: TablePath | None = option(
        "Table of the chosen rows to write, FILE.parquet or FILE.csv, with an empty column label to fill in"
    )
    page: Path | None = option("HTML page to write, on which to label them")

    _are_two_files = model_validator(mode="after")(_two_files)


class PredictConfig(NewRowsConfig):
    """New images or features for a trained model, or a stored dataset."""

    dataset: NonEmpty | None = option("Dataset to classify instead of images: its id, or latest")
    store: NonEmpty | None = option("Store of the dataset (default: the model's)")
    output: TablePath | None = option("Table of the predictions to write, FILE.parquet or FILE.csv")
    page: Path | None = option("HTML page to write, with pictures, the least certain predictions first")
    top_k: int = option(
        "Best classes to return for each image or row; for several labels, at most this many", 5, ge=1
    )
    threshold: float | None = option(
        "For several labels: predict those scoring above this (default: the model's threshold)",
        allow_inf_nan=False,
    )
    coverage: float | None = option(
        "Return sets of classes that contain the right one with this probability, such as 0.9", gt=0.0, lt=1.0
    )
    guess_price: float | None = option(
        "Give each row as many best classes as pay: a miss costs 1, and k classes cost this price, such as"
        " 0.05, times log k. The rule is fitted on the validation rows and promises no coverage; in no"
        " measurement were its sets better than those of --coverage of the same mean size",
        gt=0.0,
        allow_inf_nan=False,
    )
    per_class: bool = option("Guarantee the coverage in every class, not only on average", False)
    never_empty: bool = option("Put the best class into sets that would hold none", False)
    sets_by: Literal["adaptive", "rank", "probability"] | None = option(
        "Weigh classes by the probabilities up to them, by rank, or by their own probability"
        " (default: what made the smallest sets on validation rows; rank without any)"
    )
    seed: int = option("Seed of the random draws that break ties in sets", 0, ge=0)

    _are_two_files = model_validator(mode="after")(_two_files)


class InspectConfig(Options):
    """What is asked of a model's own rows: whose labels look wrong, and how much work proof is worth."""

    output: TablePath | None = option("Table of all labels to write, FILE.parquet or FILE.csv, worst first")
    top_k: int = option("A label counts as right if it is among this many best classes", 1, ge=1)
    max_passes: int | None = option(
        "Most passes over the rows for proofs, 0 for bounds alone (default: as many as training"
        " took; the proof of one row takes some tens)",
        ge=0,
    )
    folds: int = option(
        "Folds held out to estimate what is not proven, about a fit each for a hinge; 0 for none", 10, ge=0
    )
    second_opinion: bool = option(
        "Rank the labels of a hinge, or of a softmax with another C, by it and by a softmax that"
        " starts at its weights: together they find more labels that are wrong at random",
        True,
    )
    page: Path | None = option("HTML page to write, with pictures and their nearest neighbours")
    duplicate_cosine: float = option(
        "Rows whose features have at least this cosine count as near duplicates", 0.999, gt=0.0, le=1.0
    )
    shown: int = option("Suspicious labels to list", 20, ge=0)

    _are_two_files = model_validator(mode="after")(_two_files)
