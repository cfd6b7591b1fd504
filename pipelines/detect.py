"""`beyondcls detect`: boxes and masks of objects from patch tokens, without the encoder."""

import sys
from dataclasses import asdict, fields
from pathlib import Path
from typing import Annotated, Any

import typer

from pipelines.parameters.dense import options_of_task
from pipelines.parameters.detection import OF_A_DETECTOR, OF_A_RECIPE, OF_DETECTION
from pipelines.parameters.engine import without
from pipelines.parameters.options import select_options, takes_options, with_defaults
from pipelines.parameters.training import LOGGING
from pipelines.process.command_log import recorded_command
from pipelines.sharing.places import open_features
from probe.detection.recipe import DetectionRecipe, DetectorOptions, make_detection_recipe, preset_of_detection

OF_LISTS = ("ids", "test_ids")
OPTIONS = with_defaults(with_defaults(OF_DETECTION, DetectionRecipe), DetectorOptions)


@takes_options(OPTIONS, LOGGING)
def main(
    features: Annotated[str, typer.Option(help="feature set of the training images: its folder, receipt, or address")],
    test: Annotated[str, typer.Option(help="feature set of the test images, of the same encoder")],
    out: Annotated[Path, typer.Option(help="folder for trained/, curves.csv, detections.json and metrics.json")],
    params: Annotated[
        Path | None, typer.Option(help="take dense.detect.DATASET and store from this file; options given here win")
    ] = None,
    dataset: Annotated[str | None, typer.Option(help="of dense.detect in --params: take its options")] = None,
    encoder: Annotated[str | None, typer.Option(help="take `block` of encoders.NAME in --params, too")] = None,
    workers: Annotated[int, typer.Option(min=0, help="processes that decode masks, in addition to this one")] = 0,
    device: Annotated[str, typer.Option(help="cpu, cuda, or auto")] = "auto",
    **given: Any,
) -> None:
    """Train Mask R-CNN on cached patch tokens, and measure COCO's average precision of its boxes and masks.

    Needs neither images nor encoder: torchvision's proposals and region heads read a pyramid of the tokens of one block (a
    "simple feature pyramid", Li et al. 2022). Objects are those of the data set's annotations:

        beyondcls extract --extend --truths instances … adds them to a feature set

    A central crop loses objects; extract whole images, by --crop-mode squash (or border, which keeps their proportions) and
    --crop-pct 1. AP is at the pixels of the originals, of all their objects; what the crop does not show counts as missed, and
    is recorded by size.

    A run that was killed goes on when the same command is given again. Writes metrics.json (AP in percent), description.json
    (all that describes it), trained/, detections.json (of the first seed, in COCO's format of results), examples.json (those in
    a few images, for the report) and curves.csv.
    """
    from pipelines.process.device import choose_device
    from pipelines.process.epoch_logs import epoch_logs
    from pipelines.process.progress import progress_bar
    from probe.detection.run import HEAD, Detection, detect
    from probe.detection.sets import images_with_objects
    from store import read_ids, rows_of_ids

    logs = given.pop("log", [])
    asked = options_of_task(params, "detect", OF_DETECTION, dataset, encoder, given, {**OF_A_RECIPE, **OF_A_DETECTOR})
    preset = asked.get("preset")
    recipe, options = settings(preset, asked)
    stores, place = (open_features(features, params), open_features(test, params)), choose_device(device)
    lists = {name: Path(asked[name]) for name in OF_LISTS if asked.get(name) is not None}
    sets = dict(zip(OF_LISTS, stores, strict=True))
    rows = {name: rows_of_ids(sets[name], read_ids(file)) for name, file in lists.items()}
    images = [images_with_objects(store, rows.get(name)) for name, store in sets.items()]
    detection = Detection(
        training=images[0],
        test=images[1],
        recipe=recipe,
        options=options,
        device=place,
        workers=workers,
        **select_options(asked, ("seeds", "views", "block", "placement")),
    )
    listed = {name: file.name for name, file in lists.items()}
    about = {"preset": preset, **listed, "command": recorded_command(without(sys.argv[1:], ["--log"]))}
    described = {**detection.description, "recipe": asdict(recipe), "detector": options.to_dict()}
    with (
        epoch_logs(logs, {HEAD: (out, described)}) as detection.on_epoch,
        progress_bar(f"detect {stores[0].attributes['encoder']}", detection.n_units, "steps") as detection.progress,
    ):
        measures = detect(detection, out, about)
    typer.echo(f"{out}: {summary(measures)}")
    for note in measures["notes"]:
        typer.echo(f"  note: {note}")


def settings(preset: str | None, given: dict[str, Any]) -> tuple[DetectionRecipe, DetectorOptions]:
    """The recipe and the parts of the detector: those of the preset, with the options that were given.

    Raises:
        BeyondClsError: an unknown preset, or a value out of its range.
    """
    recipe = make_detection_recipe(preset, **select_options(given, [field.name for field in fields(DetectionRecipe)]))
    of_detector = select_options(given, [field.name for field in fields(DetectorOptions)])
    return recipe, DetectorOptions.from_dict({**preset_of_detection(preset)[1], **of_detector})


def summary(measures: dict[str, Any]) -> str:
    """The result in a line: `box AP 31.2 (50: 52.0, large 40.1, medium 30.0, small 12.3), mask AP …, 5,000 test images`."""
    parts = []
    for kind in (name for name in ("box", "mask") if name in measures):
        values = {name: f"{value['mean']:.1f}" if value else "–" for name, value in measures[kind].items()}
        sizes = ", ".join(f"{size} {values[f'ap_{size}']}" for size in ("large", "medium", "small"))
        parts.append(f"{kind} AP {values['ap']} (at IoU 0.5 {values['ap50']}, {sizes})")
    n = len(measures["seeds"])
    return ", ".join([*parts, f"{n} seed{'s' * (n > 1)}", f"{measures['n_test']:,} test images"])
