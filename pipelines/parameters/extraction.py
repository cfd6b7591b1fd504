"""Options that `beyondcls extract`, `plan` and `predict` share, and what they mean in combination."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from pipelines.parameters.datasets import DENSE, GEOMETRY, OF_EXTRACTION, entry_of
from pipelines.parameters.engine import ENGINE
from pipelines.parameters.features import FEATURES, TRANSFORM
from pipelines.parameters.features import IMAGES as IMAGES
from pipelines.parameters.layers import Given, Layer, resolve, values_of
from pipelines.parameters.options import Option, check_values
from pipelines.parameters.params import check_names, named_values, read_params, section
from pipelines.parameters.training import OF_AN_ENCODER
from store import BeyondClsError
from store.format.spec import SLIDE

RECOMPUTE = "recompute"
WHOLE_IMAGES = {"crop_mode": "squash", "crop_pct": 1.0}

Name = Annotated[str, typer.Option(help="name in the registry, in params.yaml, of any ViT of timm, or as --model has them")]
Data = Annotated[
    str | None,
    typer.Option(
        help="WebDataset tars (path, s3:// or https:// address, pattern, braces, folder of tars, pipe:COMMAND), "
        "a folder of class folders, a .csv, an .npz, a .parquet or a folder of them, the folder of a published data set, or a "
        "function that gives images: FILE.py:FUNCTION, package.module:function"
    ),
]
Dataset = Annotated[
    str | None,
    typer.Option(help="a data set of params.yaml, in place of --data: its images, their --split train or test, its views"),
]
Out = Annotated[Path, typer.Option(help="folder of the feature set")]
Params = Annotated[Path | None, typer.Option(help="take encoders.NAME, extract and store from this file; options here win")]
Receipt = Annotated[Path | None, typer.Option(help="file for its receipt  [default: none; with store.root receipts/NAME.json]")]


# How the encoder is loaded: arguments of `load_encoder`, which may also be under `encoders` in params.yaml.
MODEL = {
    "model": Option(
        str,
        "what makes it, if --encoder is a name that you chose: an architecture of timm, FILE.py:FUNCTION, "
        "package.module:function, or transformers:, torchvision: or open_clip: and a name there",
    ),
    "arguments": Option(
        list[str], "of the architecture or the function, e.g. depth=4; may be repeated", flags="--argument", read=named_values
    ),
}
CHECKPOINT = {
    "checkpoint": Option(Path, "local weights (.safetensors or torch), loaded strictly"),
    "checkpoint_key": Option(
        str,
        "key of the dictionary in the checkpoint that holds the tensors, e.g. teacher or model/ema",
        "found: a teacher before its student, weights before their average",
    ),
    "checkpoint_prefix": Option(str, "what names there begin with, e.g. module.backbone.", "found"),
    "ignore": Option(str, "names in the checkpoint that may be left out, patterns with commas, e.g. 'decoder.*,adapter.*'"),
}
LOADING = {
    **CHECKPOINT,
    **MODEL,
    "random_seed": Option(int, "random weights from this seed: the untrained twin"),
    "weights": Option(str, "digest that the weights must have"),
    "register_neurons": Option(
        Path, "file of hidden units, as `beyondcls registers` writes it: what they write into outliers goes to added tokens"
    ),
    "test_time_registers": Option(int, "how many tokens are added for them", "1 with --register-neurons, else 0", least=0),
}
FAMILY = {
    "family": Option(
        str,
        "how your own weights were trained: masked image modelling, joint embedding, labels or untrained; the report "
        "compares encoders by it",
        "as the name says, if it is one of the registry",
    )
}
# Arguments of `Settings` and of `plan`, which may be there too.
RUNNING = {
    "batch_size": Option(int, "images per forward pass", "128", least=1),
    "workers": Option(int, "images that are decoded at once", "4, or beside a GPU the cores", least=1),
}
# Arguments of `Encoder.run_with`, which may be there too.
COMPUTING = {
    "amp": Option(str, "what matrices are multiplied in: bf16, fp16, or none (float32)", "bf16 on a GPU, else none"),
    "channels_last": Option(bool, "images and weights with channels last", flags="--channels-last"),
    "compile": Option(bool, "through torch.compile", flags="--compile"),
}
OF_LOADING = (*LOADING, *FAMILY, *TRANSFORM)
EXTRACTING = {**FEATURES, **RUNNING, **COMPUTING, **ENGINE}
OF_EXTRACTING = (*OF_LOADING, *EXTRACTING)
Device = Annotated[str, typer.Option(help="cpu, cuda, or auto")]


def from_params(
    params: Path | None, encoder: str, dataset: str | None = None, given: Mapping[str, Any] = {}
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Arguments of `load_encoder`, and options of EXTRACTING, of a parameter file and of the command line, which wins.

    Raises:
        BeyondClsError: it has a parameter that neither takes, or no such data set.
    """
    asked: dict[str, Any] = {}
    if params is not None:
        asked = values_of(resolve_extraction(read_params(params), encoder, dataset, given.get("split")))
    loading, options = ({n: v for n, v in (asked | dict(given)).items() if n in names} for names in (OF_LOADING, EXTRACTING))
    return loading, options


def resolve_extraction(
    params: Mapping[str, Any], encoder: str, dataset: str | None = None, split: str | None = None
) -> dict[str, Given]:
    """What a parameter file says of an extraction, and where: `extract`, then datasets.NAME, then encoders.NAME, which wins.

    `block` of an encoder is what is stored of it if it has no `blocks`. Random crops, `views` of a data set or an encoder, are
    of training images; those of `extract`, and windows, are of all. `drop_path` is of training images wherever it is. Of the
    data sets of dense tasks all truths are kept, and whole images are seen, unless dense.datasets.NAME says otherwise; what
    that says of crops, windows and sizes wins over the encoder.

    Args:
        params: the parameter file.
        encoder, dataset: names there; the data set in `datasets` or in dense.datasets.
        split: "train" or "test".

    Raises:
        BeyondClsError: an unknown name, or a parameter that nothing reads.
    """
    common, of_encoder = section(params, "extract"), encoder_of(params, encoder)
    check_names("extract", common, list(EXTRACTING))
    where, entry = ("", {}) if dataset is None else entry_of(params, dataset)
    if where.startswith(DENSE):
        of_dataset = {"truths": "all"} | _given(entry, FEATURES)
        geometry = WHOLE_IMAGES | _given(entry, GEOMETRY)
    else:
        of_dataset, geometry = _given(entry, OF_EXTRACTION), {}
    slides = {**of_encoder, **geometry}.get("crop_mode") == SLIDE
    if slides:  # how many windows there are is up to the images
        geometry |= _given(entry, ["views"])
    if split == "test" and not slides:
        of_dataset, of_encoder = ({n: v for n, v in values.items() if n != "views"} for values in (of_dataset, of_encoder))
    if of_encoder.get("block") is not None and of_encoder.get("blocks") is None:
        of_encoder["blocks"] = [of_encoder["block"]]
    own, nearer = Layer(f"encoders.{encoder}", _given(of_encoder, OF_EXTRACTING)), Layer(where, geometry)
    layers = (Layer("extract", _given(common, common)), Layer(where, of_dataset), own, nearer)
    for layer in layers:
        check_values(f"{layer.where}.", layer.values, EXTRACTING)
    given = resolve(layers)
    if split == "test":
        given.pop("drop_path", None)
    return given


def _given(values: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Those of the values that are not None, by these names."""
    return {name: values[name] for name in names if values.get(name) is not None}


def encoder_of(params: Mapping[str, Any], encoder: str) -> dict[str, Any]:
    """The entry of an encoder.

    Raises:
        BeyondClsError: there is none, or it has a parameter that nothing reads.
    """
    entry = section(params, "encoders", encoder)
    check_names(f"encoders.{encoder}", entry, [*OF_EXTRACTING, RECOMPUTE, *OF_AN_ENCODER])
    return entry


def loading_of(params: Mapping[str, Any], encoder: str) -> dict[str, Any]:
    """Arguments of `load_encoder` under encoders.NAME; errors as of `encoder_of`."""
    return {name: value for name, value in encoder_of(params, encoder).items() if name in OF_LOADING}


def recomputes(params: Path | None, encoder: str) -> bool:
    """Whether the parameter file wants the features of an encoder extracted again where they differ.

    Raises:
        BeyondClsError: the value is neither true nor false.
    """
    recompute = False if params is None else section(read_params(params), "encoders", encoder).get(RECOMPUTE, False)
    if not isinstance(recompute, bool):
        raise BeyondClsError(f"encoders.{encoder}.{RECOMPUTE} is {recompute!r}, expected true or false")
    return recompute
