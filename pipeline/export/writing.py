"""Writing a model in a format, and comparing what was written with the model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topline.pipeline.certification import objective
from topline.pipeline.errors import ConfigError, InputError, PipelineError
from topline.pipeline.export.formats import FORMATS, ExportFormat, export_format, require_holds
from topline.pipeline.options import ExportOptions
from topline.pipeline.rows import StoredModel, TrainingRows, Transforms
from topline.pipeline.rows.transforms import Nystroem
from topline.pipeline.training import spec_of_model
from topline.solvers.kernels import KernelExpansion, RBFKernel
from topline.solvers.run import compress
from topline.storage.errors import FULL_DISK, IntegrityError
from topline.storage.models import load_model


@dataclass(frozen=True)
class Compression:
    """What a compressed model is worth: `rows` of the `of_rows` that carry the model are left.

    `primal` is its P, recomputed by the certificate's formulas, `of_model` that of the model, and `dual` the
    bound of the certificate, below every P of this kernel.
    """

    rows: int
    of_rows: int
    primal: float
    of_model: float
    dual: float

    @property
    def loss(self) -> float:
        """By which share of the model's P the exported model's is larger."""
        return (self.primal - self.of_model) / abs(self.of_model)

    @property
    def relative_gap(self) -> float:
        """By which share of its own P the exported model is above the least there is, at most."""
        return (self.primal - self.dual) / abs(self.primal)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {**asdict(self), "loss": self.loss, "relative_gap": self.relative_gap}


def compressed(stored: StoredModel, most_loss: float) -> tuple[StoredModel, Compression]:
    """Return a linear model on the fewest rows found whose P is at most (1 + most_loss) times the model's.

    Raises `ConfigError` without an RBF kernel, for sparse features, and if float32 values lose more.
    """
    record, certificate = stored.model.record, stored.model.record.certificate
    _refuse(stored, most_loss)
    rows = stored.rows("train")
    labels = rows.labels()
    weights = rows.weights(record.class_weights)
    problem = spec_of_model(record).problem(*rows.shape, record.m)
    X = rows.whole()
    few = compress(stored.expansion, X, labels, problem, most_loss, weights)
    step, W = _landmarks(few.expansion)
    name = f"nystroem:{len(step.landmarks)}:{float(step.gamma[0])!r}"
    transforms = Transforms((*stored.transforms.names, name), (*stored.transforms.steps, step))
    small = replace(stored, model=load_model(stored.model.url), W=W, transforms=transforms, kernel=None)
    found = Compression(
        rows=len(step.landmarks),
        of_rows=len(stored.expansion.support),
        primal=objective(small),
        of_model=float(record.result["primal"]),
        dual=float((certificate or record.result)["dual"]),
    )
    if found.loss > 1.01 * most_loss:
        raise ConfigError(
            f"on {found.rows:,} rows model {record.id} loses {found.loss:.2e} of its objective once float32"
            f" values are written, more than --compress {most_loss:g}: allow more, or train with a larger C"
        )
    gaps = {"gap": found.primal - found.dual, "relative_gap": found.relative_gap}
    result = {**record.result, "primal": found.primal, **gaps, "compression": found.to_dict()}
    # Probabilities and sets were fitted on scores of the model itself.
    small.model.record = replace(record, kernel=None, calibration={}, result=result)
    return small, found


def _landmarks(expansion: KernelExpansion) -> tuple[Nystroem, np.ndarray[Any, np.dtype[np.float64]]]:
    """Return the transform to kernel values at the rows, made white, and W with the scores of the model."""
    landmarks = np.ascontiguousarray(expansion.rows, dtype=np.float32)
    gamma = np.array([getattr(expansion.kernel, "gamma", None)], dtype=np.float64)
    values, vectors = np.linalg.eigh(RBFKernel(float(gamma[0])).matrix(landmarks, landmarks))
    kept = values > len(values) * np.finfo(np.float64).eps * values.max()
    roots, vectors = np.sqrt(values[kept]), vectors[:, kept]
    W = (vectors * roots) @ (vectors.T @ expansion.coefficients)
    return Nystroem(landmarks, np.ascontiguousarray((vectors / roots) @ vectors.T), gamma), np.asarray(W)


def _refuse(stored: StoredModel, most_loss: float) -> None:
    record = stored.model.record
    if not 0.0 < most_loss < 1.0:
        raise ConfigError(f"--compress {most_loss:g} is not a share of the objective: give one such as 0.01")
    if record.kernel is None or record.kernel["name"] != RBFKernel.name:
        kind = "no kernel" if record.kernel is None else f"the kernel {record.kernel['name']}"
        raise ConfigError(f"model {record.id} has {kind}: --compress is for models with the kernel rbf")
    if stored.dataset().info.layout == "csr":
        raise ConfigError(f"model {record.id} has sparse features: --compress is for dense ones")


RANDOM_ROWS = 64
DATASET_ROWS = 1000
DATASET_BYTES = 1 << 28
TOP = 5
# Other programs compute in float32, with sums in another order.
CLOSE = 1e-4
# Two classes of a row may change places where their scores differ by less than this share of its largest.
TIED = 2e-5


@dataclass(frozen=True)
class ExportReport:
    """What was written, and how it compares with our own scores and predictions.

    `largest_difference` is that of the scores of random rows and rows of the dataset, of a compressed model
    its own.  The best `top_k` classes are the same, in `tied_rows` in another order by rounding.
    """

    model: str
    path: str
    format: str
    bytes: int
    rows_checked: int
    largest_difference: float
    dataset_rows: int
    top_k: int
    tied_rows: int
    compression: Compression | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        compression = None if self.compression is None else self.compression.to_dict()
        return {**asdict(self), "compression": compression}


def export_model(
    model_url: str,
    path: Path,
    format: str = "npz",  # noqa: A002 - the word of the command line
    options: ExportOptions | None = None,
    *,
    most_loss: float | None = None,
) -> ExportReport:
    """Write the model at `model_url` to `path`, read it back, and keep it if it predicts as the model does.

    `options` say what an ONNX graph takes and gives.  With `most_loss` a model with an RBF kernel is written
    on as few of its rows as lose no more than that share of its objective.

    Raises `ConfigError` for a format that is not offered or cannot hold the model, for unused options, and
    for a `path` that holds anything but an earlier export; `PipelineError` if scores or best classes do not
    agree.
    """
    form, options = export_format(format), options or ExportOptions()
    form.refuse_unused(options)
    stored = StoredModel.open(model_url)
    compression = None
    if most_loss is not None:
        stored, compression = compressed(stored, most_loss)
    require_holds(form, stored)
    m = stored.model.record.m
    if options.top_k is not None and options.top_k > m:
        raise ConfigError(f"--top-k {options.top_k} is more than the model's {m} classes")
    with _written_whole(path) as waiting:
        form.write(stored, waiting, options)
        report = _compared(stored, waiting, form)
        if form.check is not None:
            form.check(stored, waiting, options)
    return replace(report, path=str(path), compression=compression)


@contextmanager
def _written_whole(path: Path) -> Iterator[Path]:
    """Yield a path to write to, file or folder, which takes the place of `path` unless something fails."""
    records = [form.folder_record for form in FORMATS.values() if form.folder_record]
    if path.is_dir() and not any((path / name).exists() for name in records):
        raise ConfigError(f"{path} is a folder and not an earlier export: name another --output")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        folder = TemporaryDirectory(prefix=".topline-export-", dir=path.parent)
    except OSError as error:
        if error.errno in FULL_DISK:
            raise
        raise ConfigError(f"{path} cannot be written ({error.strerror}): name another --output") from error
    with folder as beside:
        waiting = Path(beside) / path.name
        yield waiting
        if waiting.is_dir() and path.exists() and not path.is_dir():
            raise ConfigError(f"{path} is a file, and the export is a folder: name another --output")
        if path.is_dir():
            path.rename(Path(beside) / "before")
        data = beside_of(path)
        # Without the earlier graph its second file is of no use.
        if path.is_file() and data.is_file() and data.name.encode() in path.read_bytes():
            data.unlink()
        if beside_of(waiting).exists():
            beside_of(waiting).replace(data)
        waiting.replace(path)


def beside_of(path: Path) -> Path:
    """Return the second file of an export that is too large for one."""
    return path.with_name(path.name + ".data")


def _compared(stored: StoredModel, path: Path, form: ExportFormat) -> ExportReport:
    """Compare what was written with our own scores, on random rows and on rows of the dataset."""
    record = stored.model.record
    difference, tied = 0.0, 0
    # Random rows of very different sizes, and one of zeros.
    random = np.random.default_rng(0).normal(size=(RANDOM_ROWS, stored.input_width)).astype(np.float32)
    random *= np.geomspace(1e-2, 1e2, RANDOM_ROWS, dtype=np.float32)[:, None]
    random[0], real = 0.0, _dataset_rows(stored)
    for rows in (random, real):
        if rows is None:
            continue
        ours, theirs = np.asarray(stored.transforms.apply(rows) @ stored.W), form.scores(path, rows)
        if record.m == 2:
            # Only the difference of the scores means anything.
            ours, theirs = (scores - scores.mean(axis=1, keepdims=True) for scores in (ours, theirs))
        off = float(np.abs(ours - theirs).max())
        if not off <= CLOSE * max(1.0, float(np.abs(ours).max())):
            raise PipelineError(
                f"the scores of the {form.name} export differ from those of model {record.id} by {off:.2e}:"
                " it was not kept"
            )
        difference = max(difference, off)
        if rows is real:
            tied = _tied_rows(ours, theirs, form.name, record.id)
    files = [one for one in (path, beside_of(path)) if one.is_file()] or sorted(path.iterdir())
    return ExportReport(
        model=record.id,
        path=str(path),
        format=form.name,
        bytes=sum(file.stat().st_size for file in files),
        rows_checked=len(random),
        largest_difference=difference,
        dataset_rows=0 if real is None else len(real),
        top_k=min(TOP, record.m),
        tied_rows=tied,
    )


def _tied_rows(ours: NDArray[Any], theirs: NDArray[Any], form: str, model: str) -> int:
    """Return how many rows have their best classes in another order by rounding; refuse worse."""
    k = min(TOP, ours.shape[1])
    best, found = (np.argsort(-scores, axis=1, kind="stable")[:, :k] for scores in (ours, theirs))
    short = np.take_along_axis(ours, best, axis=1) - np.take_along_axis(ours, found, axis=1)
    wrong = (np.abs(short) > TIED * np.abs(ours).max(axis=1, keepdims=True)).any(axis=1)
    if wrong.any():
        raise PipelineError(
            f"the {form} export gives other top-{k} classes than model {model} in {int(wrong.sum())} of"
            f" {len(ours)} rows: it was not kept"
        )
    return int((best != found).any(axis=1).sum())


def _dataset_rows(stored: StoredModel) -> NDArray[np.float32] | None:
    """Return rows of the dataset as they are stored, held-out ones first; None if the dataset is gone."""
    try:
        dataset = stored.dataset()
        left = min(DATASET_ROWS, max(1, DATASET_BYTES // (4 * dataset.info.d)))
        parts: list[Any] = []
        for split in ("test", "val", "train"):
            rows = TrainingRows(dataset, split)
            found: Any = rows[0 : min(left, len(rows))]
            parts.append(found.toarray() if dataset.info.layout == "csr" else np.array(found))
            left -= len(parts[-1])
    except (InputError, IntegrityError):
        return None
    return np.concatenate(parts, dtype=np.float32)
