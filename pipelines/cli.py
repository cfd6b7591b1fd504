"""The command line, `beyondcls`: a command for each stage, and tools."""

import errno
import gc
import io
import os
import re
import shutil
import sys
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from pipelines import (
    attention,
    blocks,
    compare,
    correspond,
    demo,
    depth,
    detect,
    divergence,
    encoders,
    extract,
    few_shot,
    geometry,
    init,
    localise,
    norms,
    params,
    plan,
    predict,
    probe,
    registers,
    retrieve,
    run_all,
    score,
    segment,
    similarity,
    store,
    track,
    transfer,
)
from pipelines.doctor import command as doctor
from pipelines.process.command_log import OURS, CommandLog, version_of
from pipelines.process.tasks import UNFORESEEN
from pipelines.process.terminal import printing_safely
from pipelines.report import command as report

# Garbage is looked for after this many new objects: by Python's default, 700, a fifth of the time that importing timm takes.
NEW_OBJECTS = 20_000
DEBUG = "BEYONDCLS_DEBUG"  # "1" in the environment: errors are shown with their traceback
FAILED, INTERRUPTED = 1, 130  # exit statuses, the second that of a shell for SIGINT
NOT_LOGGED = {"--help", "--version", "--install-completion", "--show-completion"}
COMPLETION = f"_{OURS.upper()}_COMPLETE"  # set by a shell that asks for completions

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # or [cls] would be markup, and not be seen
    help="How good is a frozen ViT's representation, and why: extract features once, probe them many times.",
)


def _show_version(shown: bool) -> None:
    if shown:
        typer.echo(f"{OURS} {version_of(OURS)}")
        raise typer.Exit


@app.callback()
def _for_all_commands(
    _: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_show_version, help="show the version, and end")
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="show errors with their traceback; give it before the command")
    ] = False,
) -> None:
    if debug:
        os.environ[DEBUG] = "1"
        if "--debug" in sys.argv:  # commands record how they were called
            place = sys.argv.index("--debug")
            sys.argv = sys.argv[:place] + sys.argv[place + 1 :]


app.command("extract")(extract.main)
app.command("init")(init.main)
app.command("demo")(demo.main)
app.command("run")(run_all.main)
app.command("plan")(plan.main)
app.command("probe")(probe.main)
app.command("transfer")(transfer.main)
app.command("score")(score.main)
app.command("predict")(predict.main)
app.command("attention")(attention.main)
app.command("blocks")(blocks.main)
app.command("divergence")(divergence.main)
app.command("few-shot")(few_shot.main)
app.command("correspond")(correspond.main)
app.command("retrieve")(retrieve.main)
app.command("track")(track.main)
app.command("geometry")(geometry.main)
app.command("similarity")(similarity.main)
app.command("norms")(norms.main)
app.command("localise")(localise.main)
app.command("segment")(segment.main)
app.command("depth")(depth.main)
app.command("detect")(detect.main)
app.command("report")(report.main)
app.command("compare")(compare.main)
app.command("encoders")(encoders.main)
app.command("registers")(registers.main)
app.command("params")(params.main)
app.command("doctor")(doctor.main)
app.add_typer(store.app, name="store")


# What a command may need beyond the plain installation, and the extra that brings it.
EXTRAS = {
    "timm": "extract",
    "webdataset": "extract",
    "scipy": "extract",
    "PIL": "extract",
    "h5py": "exchange",
    "open_clip": "open_clip",
    "transformers": "transformers",
    "ray": "ray",
    "s3fs": "s3",
}
EXTRAS |= {"sklearn": "probe", "matplotlib": "probe", "jinja2": "probe", "cv2": "probe", "faster_coco_eval": "probe"}
EXTRAS |= {"torchvision": "probe"}  # detection needs it; where features are extracted, timm brings it


def run() -> None:
    """Entry point: what goes wrong is one message and an exit status (docs/command-line.md); each command has a log."""
    gc.set_threshold(NEW_OBJECTS)
    arguments = sys.argv[1:]
    is_command = bool(arguments) and NOT_LOGGED.isdisjoint(arguments) and COMPLETION not in os.environ
    log = CommandLog.begin(arguments) if is_command else CommandLog(None)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # names of files need not be UTF-8
    show, debug, status = warnings.showwarning, os.environ.get(DEBUG), UNFORESEEN
    try:
        with printing_safely(), log.copying_stderr():
            warnings.showwarning = as_note(show)
            status = _run(log)
    finally:
        warnings.showwarning = show
        os.environ.pop(DEBUG, None)  # --debug is for one command and the processes that it starts
        os.environ.update({} if debug is None else {DEBUG: debug})
        log.end(status)
    sys.exit(status)


def _run(log: CommandLog) -> int:
    """Exit status of the command; says what went wrong, and logs where."""
    try:
        app(prog_name=OURS)
    except (Exception, SystemExit, KeyboardInterrupt) as error:
        status, message = _outcome(error, log)
        if message:
            shows_trace = os.environ.get(DEBUG, "0") not in ("", "0")
            print(traceback.format_exc(), file=sys.stderr) if shows_trace else log.write(traceback.format_exc())
            print(message, file=sys.stderr)
        return status
    return 0


def _outcome(error: BaseException, log: CommandLog) -> tuple[int, str]:
    """Exit status and message of what has ended a command; no message if that was the command itself."""
    from store.errors import BeyondClsError

    named = f" ({log.file} has the traceback)" if log.file else ""
    if _is_interrupt(error):
        return (
            INTERRUPTED,
            "interrupted; extraction and training go on from what they have kept when the same command is given again",
        )
    if isinstance(error, SystemExit):
        code = error.code
        return (FAILED, code) if isinstance(code, str) else (int(code or 0), "")
    if isinstance(error, BeyondClsError):
        return FAILED, f"error: {error}"
    if refused := _refused_by_the_system(error):
        return FAILED, f"error: {refused}{named}"
    package = (error.name or "").split(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    if package in EXTRAS:
        return FAILED, f"error: this needs {package}, which is not installed here; pip install 'beyondcls[{EXTRAS[package]}]'"
    reason = ", ".join([(str(error).strip().splitlines() or ["no reason was given"])[0], *getattr(error, "__notes__", ())])
    where = f", and {log.file} has it" if log.file else ""
    return (
        UNFORESEEN,
        f"error: {type(error).__name__}: {reason} (not foreseen: `{OURS} --debug COMMAND` shows the traceback{where})",
    )


def _refused_by_the_system(error: BaseException) -> str:
    """Message for files, disks and memory that the system does not give; empty for other errors."""
    from store.places.disk import refusal

    if code := re.search(r"\(os error (\d+)\)", str(error)):  # of safetensors
        error = OSError(int(code[1]), os.strerror(int(code[1])))
    elif isinstance(error, OSError) and re.fullmatch(r"\d+ requested and \d+ written", str(error)):  # of NumPy
        error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    if isinstance(error, OSError) and error.errno is not None:
        if isinstance(error.filename, str | bytes):
            return refusal(error, Path(os.fsdecode(error.filename)))
        return refusal(OSError(error.errno, error.strerror), _fullest_place())  # not the number of an open file
    torch = sys.modules.get("torch")  # what has not imported it has no memory of its devices
    is_memory = isinstance(error, MemoryError)
    if torch is not None:
        from store.loading.placement import is_out_of_memory

        is_memory = is_out_of_memory(error)
    if not is_memory:
        return ""
    reason = (str(error).strip().splitlines() or ["MemoryError"])[0]
    return f"memory does not suffice: {reason}; stop what else uses it, give a smaller --batch-size, or use another --device"


def _fullest_place() -> Path:
    """Of the places that the command line names, and this folder, the one on the disk with least room."""
    words = [word.partition("=")[2] or word for word in sys.argv[1:]]
    paths = [Path(os.path.abspath(word)) for word in words if "/" in word or os.path.lexists(word)]
    folders = [next(folder for folder in (path, *path.parents) if os.path.isdir(folder)) for path in (Path.cwd(), *paths)]
    return min(folders, key=lambda folder: shutil.disk_usage(folder).free)


def _is_interrupt(error: BaseException | None) -> bool:
    """Whether it comes from Ctrl-C, of which typer makes a SystemExit."""
    while isinstance(error, SystemExit | typer.Exit | typer.Abort):
        error = error.__cause__ or error.__context__
    return isinstance(error, KeyboardInterrupt)


def as_note(show: Callable[..., Any]) -> Callable[..., Any]:
    """`warnings.showwarning` that shows our own as a line, and others as `show` does."""
    from store.errors import BeyondClsWarning

    def shown(message: Warning | str, category: type[Warning], *where: Any, **options: Any) -> None:
        if issubclass(category, BeyondClsWarning):
            print(f"note: {message}", file=sys.stderr)
        else:
            show(message, category, *where, **options)

    return shown


if __name__ == "__main__":
    run()
