"""The `topline` command: all commands with an example, arguments in, exit code out, never a traceback."""

from __future__ import annotations

import atexit
import codecs
import contextlib
import io
import json
import logging
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from typer.exceptions import TyperException

from topline.pipeline.cli import keeping, making, models, using
from topline.pipeline.cli.command import Handler, add_command
from topline.pipeline.cli.table import (
    BAD_INPUT,
    FAILURE,
    INTERRUPTED,
    error_facts,
    exit_code,
    is_expected,
    sentence,
    visible,
)
from topline.pipeline.interrupts import StopFlag, Terminated, whole_interrupts
from topline.pipeline.log import say_choices
from topline.solvers.names import meant

app = typer.Typer(
    name="topline",
    help="Certified top-k classifiers, from a folder of images to a model with a duality gap.",
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
models_app = typer.Typer(name="models", help="List, show, compare, promote and delete the models of a store.")


@app.callback(invoke_without_command=True)
def _top(
    context: typer.Context,
    show_version: Annotated[bool, typer.Option("--version", help="Show the version and exit")] = False,
) -> None:
    if show_version:
        typer.echo(f"topline {version('topline')}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(2)


#: Groups of `topline --help`.
STEPS, MODELS, FRESH, CHECKS = "From data to a model", "Models", "Keep a model fresh", "Look and check"


def _add(panel: str, handler: Handler, example: str, sections: str = "", **options: Any) -> None:
    parent = models_app if panel == "" else app
    add_command(parent, handler, f"topline {example}", sections.split(), panel=panel or None, **options)


# fmt: off
_add(STEPS, making.run, "run --images photos --store photos-store",
     "run search extract train cluster evaluate", hidden={"dataset", "resume", "certify"}, flow=True)
_add(STEPS, making.extract, "extract --images photos --store photos-store --backbone hog", "extract cluster",
     flow=True)
_add(STEPS, making.import_, "import --features embeddings.npy --labels labels.npy --store my-store", "import")
_add(STEPS, making.train, "train --store topline-run --auto", "search train cluster",
     flow=True)
_add(STEPS, making.sweep, "sweep --store topline-run --C 1e-3:1e2:11 --k 1,5 --topk 5", "sweep cluster",
     flow=True)
_add(MODELS, making.certify, "certify topline-run/models/m0001")
_add(MODELS, using.evaluate, "evaluate topline-run/models/m0001 --split test", "evaluate", flow=True)
_add(MODELS, using.report, "report topline-run/models/m0001 --output report.html")
_add(MODELS, using.predict, "predict topline-run/models/m0001 --images new-photos --top-k 5",
     "predict cluster")
_add(MODELS, using.inspect, "inspect topline-run/models/m0001 --output suspects.csv", "inspect")
_add(MODELS, using.suggest, "suggest topline-run/models/m0001 --images new-photos --page label.html",
     "suggest")
_add(MODELS, using.export, "export topline-run/models/m0001 --format onnx --output model.onnx",
     "export")
app.add_typer(models_app, rich_help_panel=MODELS)
_add("", models.list_, "models list --store topline-run")
_add("", models.show, "models show topline-run/models/m0001")
_add("", models.compare, "models compare topline-run/models/m0002 topline-run/models/m0001", "evaluate",
     hidden={"confused"})
_add("", models.promote, "models promote topline-run/models/m0002 --by-rule", "promote evaluate",
     hidden={"confused"})
_add("", models.rollback, "models rollback --store topline-run")
_add("", models.archive, "models archive topline-run/models/m0001")
_add("", models.delete, "models delete topline-run/models/m0001")
_add("", models.pin, 'models pin topline-run/models/m0001 --reason "the one in the paper"')
_add("", models.unpin, "models unpin topline-run/models/m0001")
_add(FRESH, keeping.retrain, "retrain --images photos --store photos-store", keeping.SECTIONS,
     hidden=keeping.HIDDEN, flow=True)
_add(FRESH, keeping.serve, 'serve --every "0 2 * * *" --images photos --store photos-store', keeping.SECTIONS,
     hidden=keeping.HIDDEN)
_add(CHECKS, keeping.status, "status topline-run")
_add(FRESH, keeping.prune, "prune topline-run --keep 5 --days 7 --dry-run", "prune")
_add(FRESH, keeping.forget, 'forget photos-store --rows cats/0001.jpg --reason "asked to be deleted"',
     "cluster")
_add(CHECKS, keeping.dashboard, "dashboard --store topline-run --port 8788")
_add(CHECKS, keeping.fsck, "fsck topline-run")
_add(CHECKS, keeping.doctor, "doctor topline-run")
_add(CHECKS, keeping.certs, "certs --out certs --host scheduler.example")
# fmt: on


DEBUG = "TOPLINE_DEBUG"
#: What may have been meant by words too many, and by the store where it needs no flag.
EXTRA_WORDS = (
    "the store is named by --store here, values of a list have commas between them, as in --C 0.1,1, and a"
    " path with spaces quotes"
)
NAMELESS_STORE = "here the store stands by itself, as in topline status STORE"


def run(arguments: Sequence[str] | None, terminated: StopFlag) -> NoReturn:
    """Run the words of a command, by default the process's own, and exit; `terminated` is set by SIGTERM."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    ending = _Ending()
    _take_any_text()
    if arguments is None:
        # Before anything else that wants to be called at the end, and so after it.
        atexit.register(ending)
    _log_to_stderr()
    try:
        with whole_interrupts():
            code = app(words, prog_name="topline", standalone_mode=False)
        if code == INTERRUPTED:
            # What typer makes of Ctrl-C and SIGTERM, which still need their sentence.
            code = _explain(words, Terminated() if terminated else KeyboardInterrupt())
        sys.stdout.flush()
    except BrokenPipeError:
        _write_to_nobody()
        code = FAILURE
    except TyperException as error:
        code = _fail(words, "UsageError", _usage(error), BAD_INPUT)
    except BaseException as error:
        if os.environ.get(DEBUG) or isinstance(error, SystemExit):
            raise
        code = _explain(words, error)
    ending.code = int(code or 0)
    sys.exit(ending.code)


def _usage(error: TyperException) -> str:
    """Return what typer says of words that it cannot place, with what may have been meant."""
    context, option = getattr(error, "ctx", None), getattr(error, "option_name", "")
    if context is None or not error.message.startswith("No such option"):
        extra = f": {EXTRA_WORDS}" if "unexpected extra argument" in error.message else ""
        return error.format_message().replace("Value error, ", "") + extra
    close = meant(option, _flags(context.command))
    commands = getattr(context.find_root().command, "commands", {})
    able = [name for name, command in commands.items() if option in _flags(command)]
    if close is not None:
        return f"{error.message}: did you mean {close}?"
    if option == "--store":
        return f"{error.message}: {NAMELESS_STORE}"
    others = (
        f"it belongs to topline {', '.join(able)}" if able else f"{context.command_path} --help lists all"
    )
    return f"{error.message}: {others}"


def _flags(command: Any) -> list[str]:
    """Return the options of a command, those with --no- too."""
    names = (name for one in command.params for name in (*one.opts, *one.secondary_opts))
    return [name for name in names if name.startswith("-")]


@dataclass
class _Ending:
    """Ends the process once Python has cleaned up, without the static destructors of libraries.

    Those of Arrow and ONNX Runtime now and then find a C++ thread at work and abort a process that has
    printed its result.  Python's threads have been joined by then.
    """

    code: int | None = None

    def __call__(self) -> None:
        """Leave with the command's exit code; called last of all."""
        if self.code is not None:
            for stream in (sys.stdout, sys.stderr):
                # None where it was closed before the command began.
                with contextlib.suppress(OSError, ValueError, AttributeError):
                    stream.flush()
            os._exit(self.code)


def _explain(words: Sequence[str], error: BaseException) -> int:
    if is_expected(error):
        return _fail(words, type(error).__name__, sentence(error), exit_code(error))
    message = (
        f"a fault in topline: {type(error).__name__}: {sentence(error)}"
        f" (run again with {DEBUG}=1 to see where, and report it)"
    )
    return _fail(words, type(error).__name__, message, FAILURE)


def _fail(words: Sequence[str], kind: str, message: str, code: int) -> int:
    message = " ".join(message.split())
    sys.stderr.write(f"error: {visible(message)}\n")
    if "--json" in words:
        try:
            sys.stdout.write(json.dumps(error_facts(kind, message, code)) + "\n")
            sys.stdout.flush()
        except OSError:  # nobody reads it, or nothing can be written
            _write_to_nobody()
    return code


def _take_any_text() -> None:
    """Let the outputs take every text, also where they are closed, or the locale knows ASCII alone."""
    if sys.stdout is None:
        sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - for all of the process
    if sys.stderr is None:
        sys.stderr = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            encoding = "utf-8" if codecs.lookup(stream.encoding).name == "ascii" else None
            stream.reconfigure(encoding=encoding, errors="backslashreplace")


def _write_to_nobody() -> None:
    """Let go of an output whose reader is gone (`topline ... | head`)."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class _ToStderr(logging.StreamHandler[Any]):
    """Writes to what standard error is at the moment: above a progress bar while there is one."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record."""
        self.setStream(sys.stderr)
        super().emit(record)

    def format(self, record: logging.LogRecord) -> str:
        """Return a record as text; our own are one line, whatever the names in it hold."""
        if record.name == "topline.solvers.jit_cache":
            # Python shows its users warnings alone; at a command line the wait is no reason for one.
            record.levelname = logging.getLevelName(logging.INFO)
        text = super().format(record)
        return visible(text) if record.name.startswith("topline") and not record.exc_info else text


def _log_to_stderr() -> None:
    """Send warnings to standard error; libraries that are noisy while they shut down are silenced."""
    level = logging.DEBUG if os.environ.get(DEBUG) else logging.WARNING
    for number in (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR):
        logging.addLevelName(number, logging.getLevelName(number).lower())
    logging.basicConfig(level=level, handlers=[_ToStderr()], format="%(levelname)s: %(message)s")
    say_choices(level)
    for name in ("distributed", "tornado", "asyncio", "bokeh"):
        logging.getLogger(name).setLevel(logging.ERROR)
