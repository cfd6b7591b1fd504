"""The command line, `beyondcls`: a command for each stage, and tools."""

import sys
import warnings
from collections.abc import Callable
from typing import Any

import typer

from pipelines import (
    attention,
    blocks,
    compare,
    detect,
    divergence,
    encoders,
    extract,
    localise,
    params,
    plan,
    predict,
    probe,
    segment,
    store,
    transfer,
)
from pipelines.doctor import command as doctor
from pipelines.report import command as report

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # or [cls] would be markup, and not be seen
    help="How good is a frozen ViT's representation, and why: extract features once, probe them many times.",
)
app.command("extract")(extract.main)
app.command("plan")(plan.main)
app.command("probe")(probe.main)
app.command("transfer")(transfer.main)
app.command("predict")(predict.main)
app.command("attention")(attention.main)
app.command("blocks")(blocks.main)
app.command("divergence")(divergence.main)
app.command("localise")(localise.main)
app.command("segment")(segment.main)
app.command("detect")(detect.main)
app.command("report")(report.main)
app.command("compare")(compare.main)
app.command("encoders")(encoders.main)
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
    "ray": "ray",
    "s3fs": "s3",
}
EXTRAS |= {"sklearn": "probe", "matplotlib": "probe", "jinja2": "probe", "cv2": "probe", "faster_coco_eval": "probe"}
EXTRAS |= {"torchvision": "probe"}  # detection needs it; where features are extracted, timm brings it


def run() -> None:
    """Entry point: what a user can cause is one message and exit status 1, not a traceback."""
    from store.errors import BeyondClsError

    warnings.showwarning = as_note(warnings.showwarning)
    try:
        app()
    except BeyondClsError as error:
        message = str(error)
    except ModuleNotFoundError as error:
        package = (error.name or "").split(".")[0]
        if package not in EXTRAS:
            raise
        message = f"this needs {package}, which is not installed here; pip install 'beyondcls[{EXTRAS[package]}]'"
    else:
        return
    print(f"error: {message}", file=sys.stderr)
    sys.exit(1)


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
