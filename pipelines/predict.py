"""`beyondcls predict`: a probe's predictions for images, and where it looks."""

import glob
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipelines.parameters import extraction
from pipelines.parameters.options import Option, flag_of, select_options, takes_options
from pipelines.parameters.params import read_params

if TYPE_CHECKING:
    import torch
    from PIL import Image

    from extract.encoders import Encoder
    from pipelines.live.online import Online

OF_JOINED = {
    "joined_checkpoint": Option(Path, "its local weights"),
    "joined_model": Option(str, "its architecture"),
    "joined_random_seed": Option(int, "its random weights"),
}
DRAWN = 224  # pixels of the shorter side of an overlay, at least


@takes_options(extraction.LOADING, extraction.TRANSFORM, OF_JOINED)
def main(
    images: Annotated[list[str], typer.Argument(help="files, folders (all images in them) or glob patterns")],
    probe: Annotated[Path, typer.Option(help="trained probe, e.g. probes/mae/abmilp/trained/seed0")],
    encoder: Annotated[str, typer.Option(help="that it was trained on: name in the registry, in params.yaml, or of timm")],
    params: Annotated[Path | None, typer.Option(help="take encoders.NAME from this file; options given here win")] = None,
    own: Annotated[str | None, typer.Option(help="FILE.py:CLASS of a probe with a custom aggregator; is run")] = None,
    joined_encoder: Annotated[
        str | None, typer.Option(help="second encoder, for heads that read joined/…; how it is loaded may be in --params")
    ] = None,
    top: Annotated[int, typer.Option(min=1, help="classes to show of each image")] = 5,
    threshold: Annotated[float, typer.Option(min=0, max=1, help="for several labels an image: probability of a yes")] = 0.5,
    overlays: Annotated[
        Path | None, typer.Option(help="folder for two .png an image: what the encoder sees, and the head's weights over it")
    ] = None,
    on_error: Annotated[str, typer.Option(help="damaged images: raise, or record them and go on")] = "raise",
    as_json: Annotated[bool, typer.Option("--json", help="one JSON object a line and image")] = False,
    batch_size: Annotated[int, typer.Option(min=1, help="images per forward pass")] = 32,
    device: extraction.Device = "auto",
    **given: Any,
) -> None:
    """Show images to a trained probe on its encoder: the most probable classes of each, and where the head looks.

    The encoder must be the one that the probe was trained on; its weights are compared. Images are transformed as the probe
    records; options or a parameter file that differ are refused. An image that cannot be read stops the run and is named, or is
    recorded with --on-error record. An image named twice is shown once.
    """
    from pipelines.live.online import online
    from pipelines.process.device import choose_device
    from pipelines.process.progress import progress_bar
    from probe.saved import load_with
    from store import BeyondClsError

    if on_error not in ("raise", "record"):
        raise BeyondClsError(f"--on-error is {on_error!r}, expected raise or record")
    files, values = find_images(images), {} if params is None else read_params(params)
    loading = select_options(given, (*extraction.LOADING, *extraction.TRANSFORM))
    joined_options = select_options(given, OF_JOINED)
    if joined_options and joined_encoder is None:
        raise BeyondClsError(f"{flag_of(next(iter(joined_options)))} was given without --joined-encoder NAME")
    place = choose_device(device)
    head, about = load_with(probe, own)
    frozen = _load(encoder, values if params else None, loading, about)
    second = about.get("joined_encoder") or {}
    joined = (
        None
        if joined_encoder is None
        else _load(
            joined_encoder,
            values if params else None,
            {n.removeprefix("joined_"): v for n, v in joined_options.items()},
            second,
        )
    )
    shown = online(frozen, head, description=about, joined=joined).to(place)
    if overlays is not None:
        overlays.mkdir(parents=True, exist_ok=True)
        if shown.grid is None:
            typer.echo("note: this head has no weights over the patches; overlays are left out", err=True)
    n_lost = 0
    with progress_bar("predict", len(files), "images", err=True) as progress:
        for number, result in enumerate(predictions(shown, files, batch_size, overlays is not None)):
            if result.problem is not None:
                n_lost += 1
                if on_error == "raise":
                    raise BeyondClsError(f"{result.problem}\nmend it, or go on with --on-error record")
            drawn = draw(result, overlays, f"{number:0{len(str(len(files) - 1))}d}") if overlays is not None else {}
            typer.echo(json.dumps(result.to_dict(top, threshold) | drawn) if as_json else result.to_text(top, threshold))
            progress(1)
    if n_lost == len(files):
        raise BeyondClsError(f"none of the {n_lost} images could be shown to the probe")
    if n_lost:
        typer.echo(f"{n_lost} of {len(files)} images were not shown to the probe, for the reasons above", err=True)


@dataclass(frozen=True)
class Prediction:
    """The prediction for an image: the probability of each class, by label; or the problem with the image.

    Attributes:
        pictures: the image as the encoder sees it, and the same overlaid with the head's weights if there are any; None unless
            requested.
    """

    file: Path
    probabilities: Sequence[float] = ()
    classes: Sequence[str] = ()
    multilabel: bool = False
    pictures: "tuple[Image.Image, Image.Image | None] | None" = None
    problem: str | None = None

    def ranked(self, n: int) -> list[tuple[float, int]]:
        """The `n` highest probabilities with their labels; among equal ones the lower label first."""
        return sorted(((p, label) for label, p in enumerate(self.probabilities)), key=lambda pair: (-pair[0], pair[1]))[:n]

    def to_dict(self, top: int, threshold: float) -> dict[str, Any]:
        """Plain values."""
        if self.problem is not None:
            return {"image": str(self.file), "error": self.problem}
        ranked = [{"class": self.classes[i], "label": i, "probability": round(p, 6)} for p, i in self.ranked(top)]
        if self.multilabel:
            ranked = [{**entry, "yes": self.probabilities[entry["label"]] >= threshold} for entry in ranked]  # type: ignore[call-overload]
        return {"image": str(self.file), "classes": ranked}

    def to_text(self, top: int, threshold: float) -> str:
        """Text for a terminal."""
        if self.problem is not None:
            return f"{legible(str(self.file))}\n  not shown: {legible(self.problem)}"
        mark = lambda p: "" if not self.multilabel else "yes  " if p >= threshold else "no   "  # noqa: E731
        lines = [f"  {100 * p:5.1f} %  {mark(p)}{legible(self.classes[label])}" for p, label in self.ranked(top)]
        return "\n".join([legible(str(self.file)), *lines])


def find_images(arguments: Sequence[str]) -> list[Path]:
    """Files in the order of the arguments, sorted within a folder or pattern; each once.

    Raises:
        BeyondClsError: nothing matches, or no image does.
    """
    from extract.datasets.listed import images_in
    from extract.datasets.sample import IMAGE_EXTENSIONS
    from store import BeyondClsError

    files: dict[Path, None] = {}
    for argument in arguments:
        places = [argument] if Path(argument).exists() else sorted(glob.glob(argument, recursive=True))
        if not places:
            raise BeyondClsError(f"there is no image {argument!r}, nor any that it matches as a pattern")
        for place in map(Path, places):
            inside = [place / name for name in sorted(images_in(place))] if place.is_dir() else [place]
            if not inside and str(place) == str(Path(argument)):
                kinds = ", ".join(f".{kind}" for kind in IMAGE_EXTENSIONS)
                raise BeyondClsError(f"the folder {argument!r} has no images; expected {kinds}")
            files |= dict.fromkeys(inside)
    if not files:
        raise BeyondClsError(f"there are no images in what {' '.join(map(repr, arguments))} matches")
    return list(files)


def predictions(shown: "Online", files: Sequence[Path], batch_size: int = 32, draw: bool = False) -> Iterator[Prediction]:
    """A prediction for each file, in order; with pictures if `draw` is set."""
    for begin in range(0, len(files), batch_size):
        batch = files[begin : begin + batch_size]
        opened = [_opened(file) for file in batch]
        good = [image for image in opened if not isinstance(image, str)]
        results = iter(_shown(shown, good, draw) if good else [])
        for file, image in zip(batch, opened, strict=True):
            if isinstance(image, str):
                yield Prediction(file, problem=image)
                continue
            probabilities, pictures = next(results)
            if not probabilities.isfinite().all():
                yield Prediction(file, problem=f"{file}: the head gives NaN, as its attention gives no mass to patches")
                continue
            names = shown.classes or [f"class {label}" for label in range(shown.n_classes)]
            yield Prediction(file, probabilities.tolist(), names, shown.multilabel, pictures)


def _opened(file: Path) -> "Image.Image | str":
    """The picture, or the problem with it."""
    from pipelines.live.pictures import open_picture
    from store import BeyondClsError

    try:
        return open_picture(file)
    except BeyondClsError as error:
        return str(error)


def _shown(
    shown: "Online", images: "Sequence[Image.Image]", draw: bool
) -> "Iterator[tuple[torch.Tensor, tuple[Image.Image, Image.Image | None] | None]]":
    """Probabilities [K] of each image, and its pictures if `draw` is set."""
    logits, maps = shown(*shown.prepare(images))
    probabilities = (logits.sigmoid() if shown.multilabel else logits.softmax(-1)).cpu()
    for i, image in enumerate(images):
        yield probabilities[i], _draw_pictures(shown, image, None if maps is None else maps[i].cpu()) if draw else None


def _draw_pictures(
    shown: "Online", image: "Image.Image", weights: "torch.Tensor | None"
) -> "tuple[Image.Image, Image.Image | None]":
    from PIL import Image

    from pipelines.live.overlay import blend, cut_out

    height, width = shown.encoder.config["input_size"][1:]
    scale = max(1, DRAWN / min(height, width))
    crop = shown.encoder.views.cut(image, "", 0)[1]
    picture = cut_out(image, crop.box, (round(width * scale), round(height * scale)))
    over = None if weights is None else Image.fromarray(blend(picture, weights.double().numpy()))
    return Image.fromarray(picture), over


def draw(result: Prediction, folder: Path, number: str) -> dict[str, str]:
    """Write the pictures of a result; returns the files by "crop" and "overlay"."""
    written = {}
    for name, picture in zip(("crop", "overlay"), result.pictures or (), strict=False):
        if picture is not None:
            file = folder / f"{number}-{result.file.stem}-{name}.png"
            picture.save(file)
            written[name] = str(file)
    return written


def legible(text: str) -> str:
    """Text without control characters: file names may come from anybody."""
    return "".join(c if c.isprintable() or c == "\n" else "?" for c in text)


def _load(name: str, values: dict[str, Any] | None, options: dict[str, Any], recorded: dict[str, Any]) -> "Encoder":
    """An encoder as the parameter file, if any, and the command line describe it; the rest is as the probe records."""
    from pipelines.live.online import load_as_recorded

    loading = {} if values is None else extraction.loading_of(values, name)
    return load_as_recorded(name, recorded, loading | options)
