"""`beyondcls predict`: predictions of what was trained for images, and where it looks."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipelines.parameters import extraction
from pipelines.parameters.options import Option, flag_of, select_options, takes_options
from pipelines.parameters.params import read_params
from store import BeyondClsError

if TYPE_CHECKING:
    import torch

    from extract.encoders import Encoder
    from pipelines.predictions.images import Predictor

OF_JOINED = {
    **{f"joined_{name}": option for name, option in extraction.CHECKPOINT.items()},
    "joined_checkpoint": Option(Path, "its local weights"),
    "joined_model": Option(str, "its architecture"),
    "joined_random_seed": Option(int, "its random weights"),
}
# Options that concern one kind of what was trained.
OF_CLASSES = {
    "top": Option(int, "classes to show of each image", "5", least=1),
    "threshold": Option(float, "for several labels an image: probability of a yes, 0…1", "0.5"),
    "own": Option(str, "FILE.py:CLASS of a probe with a custom aggregator; is run"),
    "joined_encoder": Option(str, "second encoder, for heads that read joined/…; how it is loaded may be in --params"),
    **OF_JOINED,
}
OF_IMAGES = select_options(extraction.IMAGES, ("allow_left_out", "max_pixels"))
OF_OBJECTS = {"score_threshold": Option(float, "of detectors: score of the objects that are printed and drawn, 0…1", "0.5")}


@takes_options(OF_CLASSES, OF_OBJECTS, extraction.LOADING, extraction.TRANSFORM, OF_IMAGES)
def main(
    images: Annotated[list[str], typer.Argument(help="files, folders (all images in them) or glob patterns")],
    probe: Annotated[
        Path,
        typer.Option(
            help="what was trained, e.g. probes/mae/abmilp/trained/seed0, segmentation/mae/linear/seed0 or "
            "detection/mae/trained/seed0; a folder stands for its first seed"
        ),
    ],
    encoder: Annotated[str, typer.Option(help="that it was trained on: name in the registry, in params.yaml, or of timm")],
    params: Annotated[Path | None, typer.Option(help="take encoders.NAME from this file; options given here win")] = None,
    out: Annotated[
        Path | None, typer.Option(help="folder for predictions.csv, and for label-maps/*.png or detections.json")
    ] = None,
    overlays: Annotated[
        Path | None, typer.Option(help="folder for .png: where the head looks, the label map or the objects of each image")
    ] = None,
    on_error: Annotated[str, typer.Option(help="damaged images: raise, or record them and go on")] = "raise",
    as_json: Annotated[bool, typer.Option("--json", help="one JSON object a line and image")] = False,
    batch_size: Annotated[int, typer.Option(min=1, help="images per forward pass")] = 32,
    device: extraction.Device = "auto",
    **given: Any,
) -> None:
    """Show images to what was trained on an encoder: their classes and where a head looks, their label maps, or their objects.

    A probe of `beyondcls probe` gives the most probable classes of an image; a head of `beyondcls segment` the class of each
    pixel; a detector of `beyondcls detect` boxes, and masks if it learnt them.

    The encoder must be the one that the probe was trained on; its weights are compared. Images are transformed as the probe
    records; options or a parameter file that differ are refused. An image that cannot be read stops the run and is named, or is
    recorded with --on-error record. An image named twice is shown once.

    --out keeps predictions.csv, with a row for each class or object; label maps as PNG, in pixels of the image: a value is a
    class, and 255 is what the encoder does not see; and objects of any score in COCO's format of results.
    """
    from extract.datasets.pixels import Pixels
    from pipelines.predictions.images import draw, find_images, kept, predictions
    from pipelines.process.device import choose_device
    from pipelines.process.progress import progress_bar
    from probe.saved import first_seed

    if on_error not in ("raise", "record"):
        raise BeyondClsError(f"--on-error is {on_error!r}, expected raise or record")
    files = find_images(images, given.get("allow_left_out", False), lambda note: typer.echo(note, err=True))
    Pixels(max_pixels=given.get("max_pixels")).raise_limit()
    trained = first_seed(probe)
    if trained != probe:
        typer.echo(f"note: of {probe}, {trained.relative_to(probe)} is used", err=True)
    predictor = load_predictor(trained, encoder, None if params is None else read_params(params), given, choose_device(device))
    if overlays is not None:
        overlays.mkdir(parents=True, exist_ok=True)
        if getattr(predictor.model, "grid", ()) is None:
            typer.echo("note: this head has no weights over the patches; overlays are left out", err=True)
    n_lost = 0
    with kept(predictor, out) as keep, progress_bar("predict", len(files), "images", err=True) as progress:
        for i, prediction in enumerate(predictions(predictor, files, batch_size)):
            if prediction.problem is not None:
                n_lost += 1
                if on_error == "raise":
                    raise BeyondClsError(f"{prediction.problem}\nmend it, or go on with --on-error record")
            number = f"{i:0{len(str(len(files) - 1))}d}"
            written = {**keep(number, prediction), **(draw(prediction, overlays, number) if overlays is not None else {})}
            typer.echo(json.dumps(prediction.to_dict() | written) if as_json else prediction.to_text())
            progress(1)
    if n_lost == len(files):
        raise BeyondClsError(f"none of the {n_lost} images could be shown to the probe")
    if n_lost:
        typer.echo(f"{n_lost} of {len(files)} images were not shown to the probe, for the reasons above", err=True)


def load_predictor(
    trained: Path, encoder: str, values: Mapping[str, Any] | None, given: Mapping[str, Any], device: "torch.device"
) -> "Predictor":
    """What was trained, behind its encoder.

    Args:
        trained: of either file, or their common stem.
        values: of the parameter file, if there is one.
        given: options that were given.

    Raises:
        BeyondClsError: as `beyondcls.online` and `beyondcls.online_detector`; an option that does not concern what was trained,
            or a value out of its range.
    """
    from pipelines.live.online import load_as_recorded, online
    from probe.saved import task_of

    task = task_of(trained)
    kind, others = {
        "segmentation": ("a head for patches", {**OF_CLASSES, **OF_OBJECTS}),
        "detection": ("a detector", OF_CLASSES),
    }.get(task or "", ("a probe of whole images", OF_OBJECTS))
    for name in select_options(given, others):
        raise BeyondClsError(f"{flag_of(name)} was given, which does not concern {trained}, {kind}; leave it out")
    for name, value in select_options(given, ("threshold", "score_threshold")).items():
        if not 0 <= value <= 1:
            raise BeyondClsError(f"{flag_of(name)} is {value:g}, expected a number from 0 to 1")
    loading = select_options(given, (*extraction.LOADING, *extraction.TRANSFORM))

    def load(recorded: Mapping[str, Any], name: str = encoder, options: Mapping[str, Any] = loading) -> "Encoder":
        """An encoder as the parameter file, if any, and the command line describe it; the rest is as the probe records."""
        of_file = {} if values is None else extraction.loading_of(values, name)
        loaded = load_as_recorded(name, recorded, {**of_file, **options})
        loaded.model.to(device)
        return loaded

    if task == "segmentation":
        from pipelines.predictions.label_maps import LabelMapPredictor
        from probe.segmentation.patch_head import load_patch_head

        return LabelMapPredictor(online(load(load_patch_head(trained)[1]), trained))
    if task == "detection":
        from pipelines.live.detections import online_detector
        from pipelines.predictions.objects import Objects
        from probe.detection.detector import load_detector_with

        detector, about = load_detector_with(trained)
        return Objects(online_detector(load(about), detector, description=about), *select_options(given, OF_OBJECTS).values())
    from pipelines.predictions.classes import Classes
    from probe.saved import load_with

    second, of_joined = given.get("joined_encoder"), select_options(given, OF_JOINED)
    if second is None and of_joined:
        raise BeyondClsError(f"{flag_of(next(iter(of_joined)))} was given without --joined-encoder NAME")
    head, about = load_with(trained, given.get("own"))
    options = {option.removeprefix("joined_"): value for option, value in of_joined.items()}
    joined = None if second is None else load(about.get("joined_encoder") or {}, second, options)
    return Classes(online(load(about), head, description=about, joined=joined), **select_options(given, ("top", "threshold")))
