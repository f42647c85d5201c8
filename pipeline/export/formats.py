"""The formats of exported models: what each can hold, how it is written, and how it is read back.

A format is one value in `FORMATS`, from which the command's help, refusals and checks follow.  Heavy packages
are imported only when a format is used.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from topline.pipeline.errors import ConfigError
from topline.pipeline.options import ExportOptions
from topline.solvers.names import not_known

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from topline.pipeline.rows import StoredModel
    from topline.storage.models import ModelRecord


@dataclass(frozen=True, kw_only=True)
class ExportFormat:
    """One kind of file, or folder of files, that a model is written to.

    Parameters
    ----------
    name : what --format calls it
    write : writes a model to a new path, with the options that the user asked for; it may write a second file
        beside it, of the same name with ".data" behind
    scores : scores (rows, m) of stored features (rows, d), computed from what lies at a path alone; they are
        compared with the model's own before an export is kept
    suffix : of the default file name, "." and the name by default
    folder_record : file in every folder that the format writes, by which an earlier export is recognised;
        none where it writes a file
    transforms : names of the transforms that it can hold, None for all
    multilabel : whether it can hold a model of several labels per row, with its threshold
    kernel : whether it can hold a model with a kernel
    options : names of the `ExportOptions` that it has a use for
    check : raises `PipelineError` where what else lies at a path, besides scores, differs from the model's
    load : a line of Python that opens what was written, with {path} for its place in quotes; none by default
    """

    name: str
    write: Callable[[StoredModel, Path, ExportOptions], None]
    scores: Callable[[Path, NDArray[np.float32]], NDArray[Any]]
    suffix: str = ""
    folder_record: str | None = None
    transforms: frozenset[str] | None = None
    multilabel: bool = True
    kernel: bool = False
    options: frozenset[str] = frozenset()
    check: Callable[[StoredModel, Path, ExportOptions], None] | None = None
    load: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "suffix", self.suffix or f".{self.name}")

    def refuse_unused(self, options: ExportOptions) -> None:
        """Raise `ConfigError` for an option without effect in this format."""
        for name in sorted(options.model_fields_set - self.options):
            value = getattr(options, name)
            users = [form.name for form in FORMATS.values() if name in form.options]
            shown = "" if value is True else f" {value}"
            raise ConfigError(
                f"--{name.replace('_', '-')}{shown} changes nothing in {self.name}: leave it out, or export"
                f" as {' or '.join(users)}"
            )

    def obstacle(self, record: ModelRecord) -> str | None:
        """Return what part of the model the format cannot hold, or None."""
        if record.kernel is not None and not self.kernel:
            return f"has the kernel {record.kernel['name']} and scores through its training rows"
        if record.multilabel and not self.multilabel:
            return "predicts several labels per row"
        names = [str(step["name"]) for step in record.transforms]
        foreign = [name for name in names if name not in (self.transforms or ())]
        if self.transforms is not None and foreign:
            return f"has the transform {foreign[0]}"
        return None


def named_arrays(stored: StoredModel) -> dict[str, NDArray[Any]]:
    """Return W (features after the transforms, m) and the arrays of the transforms, by name."""
    return {"W": stored.W, **stored.transforms.arrays()}


def description(stored: StoredModel) -> dict[str, Any]:
    """Return what formats keep besides arrays, as values for JSON."""
    record = stored.model.record
    return {
        "model": record.id,
        "class_names": list(record.class_names),
        "transforms": list(stored.transforms.names),
        "features": {name: _without_folders(value) for name, value in record.features.items()},
        "loss": dict(record.loss),
        **({"multilabel": True, "threshold": record.threshold} if record.multilabel else {}),
        **({"compression": record.result["compression"]} if "compression" in record.result else {}),
    }


def _without_folders(value: Any) -> Any:
    """Replace absolute paths in a value by their last names."""
    if isinstance(value, Mapping):
        return {name: _without_folders(one) for name, one in value.items()}
    return Path(value).name if isinstance(value, str) and Path(value).is_absolute() else value


def _scores(rows: NDArray[np.float32], record: str, arrays: dict[str, NDArray[Any]]) -> NDArray[Any]:
    import numpy as np

    from topline.pipeline.rows import Transforms

    transforms = Transforms.from_arrays(json.loads(record)["transforms"], arrays)
    return np.asarray(transforms.apply(rows) @ arrays["W"])


def _write_npz(stored: StoredModel, path: Path, _: ExportOptions) -> None:
    import numpy as np

    content: dict[str, Any] = {"record": np.array(json.dumps(description(stored))), **named_arrays(stored)}
    with path.open("wb") as file:
        np.savez(file, **content)


def _npz_scores(path: Path, rows: NDArray[np.float32]) -> NDArray[Any]:
    import numpy as np

    with np.load(path, allow_pickle=False) as content:
        arrays = {name: content[name] for name in content.files}
    return _scores(rows, str(arrays.pop("record")), arrays)


def _write_safetensors(stored: StoredModel, path: Path, _: ExportOptions) -> None:
    import numpy as np
    from safetensors.numpy import save

    arrays = {name: np.ascontiguousarray(array) for name, array in named_arrays(stored).items()}
    # `save_file` makes files readable only by their owner, whatever the umask.
    path.write_bytes(save(arrays, metadata={"record": json.dumps(description(stored))}))


def _safetensors_scores(path: Path, rows: NDArray[np.float32]) -> NDArray[Any]:
    from safetensors import safe_open

    with safe_open(path, framework="numpy") as content:
        arrays = {name: content.get_tensor(name) for name in content.keys()}  # noqa: SIM118 - has no __iter__
        return _scores(rows, content.metadata()["record"], arrays)


def _onnx() -> Any:
    from topline.pipeline.export import onnx

    return onnx


def _estimator() -> Any:
    from topline.pipeline.export import estimator

    return estimator


#: Every format by name, the default first.  `register_format` adds one.
FORMATS: dict[str, ExportFormat] = {
    form.name: form
    for form in (
        ExportFormat(
            name="npz", write=_write_npz, scores=_npz_scores, load="import numpy; W = numpy.load({path})['W']"
        ),
        ExportFormat(
            name="onnx",
            write=lambda stored, *given: _onnx().write_onnx(stored, *given, description(stored)),
            scores=lambda *given: _onnx().run_onnx(*given),
            options=frozenset(ExportOptions.model_fields),
            check=lambda *given: _onnx().check_onnx(*given),
            load="import onnxruntime; session = onnxruntime.InferenceSession({path})",
        ),
        ExportFormat(
            name="safetensors",
            write=_write_safetensors,
            scores=_safetensors_scores,
            load="from safetensors.numpy import load_file; W = load_file({path})['W']",
        ),
        ExportFormat(
            name="sklearn",
            write=lambda *given: _estimator().write_estimator(*given),
            scores=lambda *given: _estimator().estimator_scores(*given),
            folder_record="estimator.json",
            multilabel=False,
            load="from topline import load_estimator; model = load_estimator({path})",
        ),
    )
}


def register_format(form: ExportFormat) -> None:
    """Add a format to those of the command; `ConfigError` if its name is taken."""
    if form.name in FORMATS:
        raise ConfigError(f"there is an export format {form.name!r} already: choose another name")
    FORMATS[form.name] = form


def export_format(name: str) -> ExportFormat:
    """Return the format `name`; `ConfigError` where there is none."""
    if name not in FORMATS:
        raise ConfigError(not_known("export format", name, FORMATS))
    return FORMATS[name]


def chosen_format(name: str | None, path: Path | None) -> ExportFormat:
    """Return the format `name`, else that of the ending of `path`; raise `ConfigError` if they disagree."""
    suffix = "" if path is None else path.suffix.lower()
    ends = next((form for form in FORMATS.values() if form.suffix == suffix), None)
    if name is None:
        return ends or next(iter(FORMATS.values()))
    form = export_format(name)
    if ends is not None and ends is not form:
        raise ConfigError(
            f"--output {path} ends like {ends.name}, and --format is {name}: change one of them"
        )
    return form


def require_holds(form: ExportFormat, stored: StoredModel) -> None:
    """Raise `ConfigError` for a model that the format cannot hold, naming the formats that can."""
    obstacle = form.obstacle(stored.model.record)
    if obstacle is None:
        return
    others = [other.name for other in FORMATS.values() if other.obstacle(stored.model.record) is None]
    instead = f"{form.name} cannot hold: export it as {' or '.join(others)}"
    if not others:
        instead = (
            "no format can hold: export it with --compress 0.01 where the kernel is rbf, or train with"
            " --transforms nystroem:1000 or fourier:4000"
        )
    raise ConfigError(f"model {stored.model.record.id} {obstacle}, which {instead}")
