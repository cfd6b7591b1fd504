"""Options that `beyondcls extract`, `plan` and `predict` share, and what they mean together."""

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from pipelines.params import check_names, given, integers, numbers, read_params, section
from store import BeyondClsError

RECOMPUTE = "recompute"
# Belong to a run, not to params.yaml.
RUN = ("device", "existing", "source", "older", "recompute", "task_id", "n_tasks", "progress", "warn", "checked")

Name = Annotated[str, typer.Option(help="name in the registry, in params.yaml, or of any ViT of timm")]
Data = Annotated[
    str,
    typer.Option(
        help="WebDataset tars (path, s3:// or https:// address, pattern, braces, folder of tars, pipe:COMMAND), "
        "a folder of class folders, a .csv, or the folder of a published data set"
    ),
]
Out = Annotated[Path, typer.Option(help="folder of the feature set")]
Params = Annotated[
    Path | None, typer.Option(help="take encoders.NAME, extract and store from this file; options given here win")
]
Receipt = Annotated[
    Path | None,
    typer.Option(help="file for its receipt  [default: none; with store.root receipts/NAME.json]"),
]
Model = Annotated[str | None, typer.Option(help="timm architecture, if --encoder is a name of your own")]
Form = Annotated[str | None, typer.Option(help="tars, folder, csv, imagenet, …; seen from the data by default")]
Split = Annotated[str | None, typer.Option(help="split of a published data set, e.g. train")]
Classes = Annotated[Path | None, typer.Option(help="file of class names, one a line; classes.txt beside tars by default")]
Mean = Annotated[
    str | None, typer.Option(help="of red, green and blue, pixels being 0 to 1, e.g. 0.5,0.5,0.5  [default: the encoder's own]")
]
Std = Annotated[str | None, typer.Option(help="what they are divided by, e.g. 0.5,0.5,0.5  [default: the encoder's own]")]
CropPct = Annotated[
    float | None,
    typer.Option(help="share of the resized image's side that is kept  [default: the encoder's own, mostly 0.875]"),
]
CropMode = Annotated[
    str | None,
    typer.Option(help="center, squash (whole image to a square, with --crop-pct 1), border  [default: the encoder's own]"),
]
Interpolation = Annotated[str | None, typer.Option(help="bicubic, bilinear, …  [default: the encoder's own]")]
InputSize = Annotated[int | None, typer.Option(help="side of the square input in pixels  [default: the encoder's own]")]
Blocks = Annotated[
    str | None,
    typer.Option(help="blocks whose tokens are kept, e.g. 3,-1; negative from the end  [default: as the encoder is read]"),
]
Statistics = Annotated[str | None, typer.Option(help="attention statistics: all, none, or names with commas  [default: all]")]
Maps = Annotated[bool | None, typer.Option(help="keep attention maps of these blocks  [default: maps]")]
NViews = Annotated[
    int | None, typer.Option(min=1, help="of each image: the evaluation crop, and random crops beside it  [default: 1]")
]
Dtype = Annotated[
    str | None,
    typer.Option(help="of stored tokens: float32, float16, bfloat16, float8_e4m3, int8, int4  [default: float16]"),
]
BatchSize = Annotated[int | None, typer.Option(min=1, help="images per forward pass  [default: 128]")]
ShardRows = Annotated[int | None, typer.Option(help="images per shard file, a multiple of 32  [default: as suits the set]")]
Workers = Annotated[int | None, typer.Option(min=1, help="threads that decode images  [default: 4]")]
Device = Annotated[str, typer.Option(help="cpu, cuda, or auto")]
Amp = Annotated[str, typer.Option(help="what a GPU multiplies matrices in: bf16, fp16, or none (float32)")]
ChannelsLast = Annotated[bool, typer.Option("--channels-last", help="images and weights with channels last")]
Compile = Annotated[bool, typer.Option("--compile", help="through torch.compile")]


def from_params(params: Path | None, encoder: str, load: Callable[..., Any], run: Callable[..., Any]) -> tuple[dict, dict]:
    """Arguments of `load` and `run` (`load_encoder`, `extract`) that a parameter file gives; none without a file.

    Raises:
        BeyondClsError: it names what neither takes.
    """
    if params is None:
        return {}, {}
    values = read_params(params)
    loading, options = loading_of(values, encoder, load), section(values, "extract")
    check_names("extract", options, [n for n in inspect.signature(run).parameters if n not in RUN])
    return loading, options


def loading_of(params: Mapping[str, Any], encoder: str, load: Callable[..., Any]) -> dict[str, Any]:
    """Arguments of `load` that stand under encoders.NAME.

    Raises:
        BeyondClsError: it names what it does not take.
    """
    loading = section(params, "encoders", encoder)
    check_names(f"encoders.{encoder}", loading, [*inspect.signature(load).parameters, RECOMPUTE])
    loading.pop(RECOMPUTE, None)  # is of its extraction
    return loading


def recomputes(params: Path | None, encoder: str) -> bool:
    """Whether the parameter file wants the features of an encoder extracted again where they differ.

    Raises:
        BeyondClsError: it says neither true nor false.
    """
    wanted = False if params is None else section(read_params(params), "encoders", encoder).get(RECOMPUTE, False)
    if not isinstance(wanted, bool):
        raise BeyondClsError(f"encoders.{encoder}.{RECOMPUTE} is {wanted!r}, expected true or false")
    return wanted


def as_transform(mean: str | None, std: str | None, **values: Any) -> dict[str, Any]:
    """Arguments of `load_encoder` from the options that say what the encoder sees.

    Raises:
        BeyondClsError: means or deviations are no numbers.
    """
    colours = {name: text if text is None else numbers(f"--{name}", text) for name, text in (("mean", mean), ("std", std))}
    return given(**colours, **values)


def as_arguments(blocks: str | None, statistics: str | None, **values: Any) -> dict[str, Any]:
    """Arguments of `extract` from the options that were given.

    Raises:
        BeyondClsError: blocks are no integers.
    """
    arguments = given(**values)
    if blocks is not None:
        arguments["blocks"] = integers("--blocks", blocks)
    if statistics is not None:
        arguments["statistics"] = {"all": None, "none": ()}.get(statistics, tuple(statistics.split(",")))
    return arguments
