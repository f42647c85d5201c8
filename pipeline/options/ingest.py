"""What can be chosen about images, features and predictions; checked before any work starts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self, TypeVar

from pydantic import AfterValidator, Field, field_validator, model_validator

from topline.pipeline.options.train import DATA_STORE, NonEmpty, Options

# What a network's input may look like; the classes of preprocessing take them from here.
Layout = Literal["NCHW", "NHWC"]
Channels = Literal["RGB", "BGR"]
Interpolation = Literal["bilinear", "bicubic"]


class SplitConfig(Options):
    """Shares of rows held out, of all rows or of given training rows if those splits are missing."""

    test_share: float = Field(
        default=0.2,
        ge=0.0,
        lt=1.0,
        description="Share of each class held out for testing, if no split is given",
    )
    val_share: float = Field(
        default=0.0, ge=0.0, lt=1.0, description="Share of each class on which probabilities are fitted"
    )
    calibration_share: float = Field(
        default=0.0,
        ge=0.0,
        lt=1.0,
        description="Share of each class for the guarantee of prediction sets, used for nothing else",
    )
    split_seed: int = Field(default=0, ge=0, description="Seed of the hold-out split")

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

    label_separator: NonEmpty | None = Field(
        default=None, description="Text between the labels of a row that has several, such as ;"
    )
    groups: NonEmpty | None = Field(
        default=None,
        description="Column (or file) that says which rows belong together, such as photographs of one"
        " patient: no split and no fold cuts a group",
    )
    sample_weight: NonEmpty | None = Field(
        default=None, description="Column (or file) that says how often each row counts in training"
    )

    def row_facts(self) -> dict[str, str]:
        """Return what of it is given, for the specification of a dataset."""
        names = ("label_separator", "groups", "groups_from", "sample_weight")
        given = {name: getattr(self, name, None) for name in names}
        return {name: value for name, value in given.items() if value is not None}


class ImageLimits(Options):
    """What an image may cost; anything above is rejected from its header, before its pixels are decoded."""

    max_pixels: int = Field(default=64_000_000, ge=1, description="Most pixels of an image")
    max_bytes: int = Field(default=128 << 20, ge=1, description="Most bytes of an image file")
    max_side: int = Field(default=30_000, ge=1, description="Most pixels of an image's longer side")

    @property
    def limits(self) -> ImageLimits:
        """The limits alone."""
        return ImageLimits(max_pixels=self.max_pixels, max_bytes=self.max_bytes, max_side=self.max_side)


class ImageRowsConfig(ImageLimits):
    """Images that a backbone describes."""

    follow_links: bool = Field(
        default=False, description="Follow links that lead out of the folder, as those of a cache of data"
    )
    batch: int = Field(default=32, ge=1, description="Images in one call of the backbone")


class BackboneConfig(Options):
    """The backbone, and what of its preprocessing is not as its file (FILE.json) or its author says."""

    backbone: NonEmpty | None = Field(
        default=None,
        description="efficientnet_lite0, hog, hog:size=96,cells=12, fisher, fisher:words=64, onnx:FILE or"
        " timm:NAME (default: efficientnet_lite0; hog where most of 64 images looked at are drawings or"
        " digits, without colour and under 48 pixels or nearly all black and white)",
    )
    resize: int | None = Field(default=None, ge=1, description="Shorter side after resizing, in pixels")
    crop: int | None = Field(default=None, ge=1, description="Side of the central square, in pixels")
    mean: tuple[float, ...] | None = Field(default=None, description="Subtracted from R,G,B in 0..1")
    std: tuple[float, ...] | None = Field(default=None, description="R,G,B are divided by it")
    layout: Layout | None = Field(default=None, description="Order of the network's input")
    channels: Channels | None = Field(default=None, description="Order of the colours")
    interpolation: Interpolation | None = Field(default=None, description="How images are resized")
    input_name: NonEmpty | None = Field(default=None, description="Input of the network that takes images")
    output_name: NonEmpty | None = Field(
        default=None,
        description="Output of the network to take as features, by its name in an ONNX file that has several",
    )
    checkpoint: Path | None = Field(default=None, description="File with the weights of a timm model")

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

    images: NonEmpty | None = Field(
        default=None,
        description="Folder of classes, table (CSV, Parquet), tar shards, or Parquet files with images",
    )
    store: NonEmpty = Field(default=DATA_STORE, description="Store that receives the dataset")
    groups_from: Literal["folder"] | None = Field(
        default=None, description="folder: images of one folder are a group, within those of the classes"
    )
    duplicates: Literal["drop", "keep"] = Field(
        default="drop", description="Whether images with the content of an earlier one are dropped or kept"
    )
    max_bad_share: float = Field(
        default=0.1, ge=0.0, le=1.0, description="Share of unreadable images that stops the job"
    )
    dtype: Literal["float32", "float16"] = Field(default="float32", description="Type of stored features")


class ImportConfig(RowConfig, SplitConfig):
    """Features that exist already: files, names of what is inside them, the split."""

    features: NonEmpty | None = Field(
        default=None,
        description="npy, npz, Parquet, CSV, HDF5, safetensors, ARFF or LIBSVM text file, a folder or pattern"
        " of them, a Zarr or clip-retrieval folder",
    )
    test_features: Path | None = Field(
        default=None, description="File of the same kind with the test rows; all others are for training"
    )
    labels: Path | None = Field(
        default=None,
        description="Labels (npy, npz, txt, csv), where the features' file has none; an indicator matrix"
        " gives a row several; for ARFF, Mulan's XML of label names",
    )
    split: Path | None = Field(
        default=None, description="train, val, test or calibration of each row (npy, txt, csv)"
    )
    class_names: Path | None = Field(default=None, description="Names of labels 0, 1, ..., one per line")
    store: NonEmpty = Field(default=DATA_STORE, description="Store that receives the dataset")
    features_name: NonEmpty | None = Field(
        default=None, description="Array or column of the features inside their file"
    )
    labels_name: NonEmpty | None = Field(
        default=None, description="Array or column of the labels, in --labels or --features"
    )
    layout: Literal["auto", "dense", "csr"] = Field(
        default="auto", description="How features are stored; auto: sparse ones as CSR"
    )
    dtype: Literal["float32", "float16"] = Field(default="float32", description="Type of stored features")


class ExportOptions(Options):
    """What a file of a model gives besides scores, and what it takes."""

    top_k: int | None = Field(
        default=None, ge=1, description="Number of best classes that the ONNX graph returns (default: 5)"
    )
    coverage: float | None = Field(
        default=None,
        gt=0.0,
        lt=1.0,
        description="Let the ONNX graph return sets of classes that contain the right one with this"
        " probability",
    )
    per_class: bool = Field(
        default=False, description="Guarantee the coverage in every class, not only on average"
    )
    with_backbone: bool = Field(
        default=False, description="Write one ONNX graph from the pixels of a picture, with its network"
    )
    input_type: Literal["float32", "float64"] = Field(
        default="float32", description="Type of the features that the ONNX graph takes"
    )


class ExportConfig(ExportOptions):
    """A file for other programs: its format, its place, and how small a kernel model becomes."""

    format: NonEmpty | None = Field(
        default=None,
        description="Kind of file: npz, onnx, safetensors, sklearn (default: by the ending of --output, else"
        " npz)",
    )
    output: Path | None = Field(
        default=None, description="File, or for sklearn folder, to write (default: the model's id)"
    )
    compress: float | None = Field(
        default=None,
        description="Write a model with the kernel rbf on the fewest rows found that lose at most this share"
        " of its objective, such as 0.01",
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

    images: NonEmpty | None = Field(default=None, description="Folder, image, table or tar shards")
    features: NonEmpty | None = Field(
        default=None,
        description="File of features to classify instead of images, as topline import reads it, with labels"
        " or without",
    )
    features_name: NonEmpty | None = Field(
        default=None, description="Array or column of the features inside the file of --features"
    )
    labels_name: NonEmpty | None = Field(
        default=None, description="Array or column of the labels inside the file of --features, if it has any"
    )


class SuggestConfig(NewRowsConfig):
    """Which of new rows without labels to label next."""

    output: TablePath | None = Field(
        default=None,
        description="Table of the chosen rows to write, FILE.parquet or FILE.csv, with an empty column label"
        " to fill in",
    )
    page: Path | None = Field(default=None, description="HTML page to write, on which to label them")

    _are_two_files = model_validator(mode="after")(_two_files)


class PredictConfig(NewRowsConfig):
    """New images or features for a trained model, or a stored dataset."""

    dataset: NonEmpty | None = Field(
        default=None, description="Dataset to classify instead of images: its id, or latest"
    )
    store: NonEmpty | None = Field(default=None, description="Store of the dataset (default: the model's)")
    output: TablePath | None = Field(
        default=None, description="Table of the predictions to write, FILE.parquet or FILE.csv"
    )
    page: Path | None = Field(
        default=None, description="HTML page to write, with pictures, the least certain predictions first"
    )
    top_k: int = Field(
        default=5,
        ge=1,
        description="Best classes to return for each image or row; for several labels, at most this many",
    )
    threshold: float | None = Field(
        default=None,
        allow_inf_nan=False,
        description="For several labels: predict those scoring above this (default: the model's threshold)",
    )
    coverage: float | None = Field(
        default=None,
        gt=0.0,
        lt=1.0,
        description="Return sets of classes that contain the right one with this probability, such as 0.9",
    )
    guess_price: float | None = Field(
        default=None,
        gt=0.0,
        allow_inf_nan=False,
        description="Give each row its one or more best classes, more where it is in doubt: a miss costs 1,"
        " and k classes this price times log k, such as 0.05. How many is a rule fitted on the validation"
        " rows; it promises no coverage, and measured sets of --coverage of the same size held as many right"
        " classes to within two standard errors",
    )
    per_class: bool = Field(
        default=False, description="Guarantee the coverage in every class, not only on average"
    )
    never_empty: bool = Field(default=False, description="Put the best class into sets that would hold none")
    sets_by: Literal["adaptive", "rank", "probability"] | None = Field(
        default=None,
        description="Weigh classes by the probabilities up to them, by rank, or by their own probability"
        " (default: what made the smallest sets on validation rows; rank without any)",
    )
    seed: int = Field(default=0, ge=0, description="Seed of the random draws that break ties in sets")

    _are_two_files = model_validator(mode="after")(_two_files)


class InspectConfig(Options):
    """What is asked of a model's own rows: whose labels look wrong, and how much work proof is worth."""

    output: TablePath | None = Field(
        default=None, description="Table of all labels to write, FILE.parquet or FILE.csv, worst first"
    )
    top_k: int = Field(
        default=1, ge=1, description="A label counts as right if it is among this many best classes"
    )
    max_passes: int | None = Field(
        default=None,
        ge=0,
        description="Most passes over the rows for proofs, 0 for bounds alone (default: as many as training"
        " took; the proof of one row takes some tens)",
    )
    folds: int = Field(
        default=10,
        ge=0,
        description="Folds held out to estimate what is not proven, about a fit each for a hinge; 0 for none",
    )
    second_opinion: bool = Field(
        default=True,
        description="Rank the labels of a hinge, or of a softmax with another C, by it and by a softmax that"
        " starts at its weights: together they find more labels that are wrong at random",
    )
    page: Path | None = Field(
        default=None, description="HTML page to write, with pictures and their nearest neighbours"
    )
    duplicate_cosine: float = Field(
        default=0.999,
        gt=0.0,
        le=1.0,
        description="Rows whose features have at least this cosine count as near duplicates",
    )
    shown: int = Field(default=20, ge=0, description="Suspicious labels to list")

    _are_two_files = model_validator(mode="after")(_two_files)
