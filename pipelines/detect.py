"""`beyondcls detect`: boxes and masks of objects from patch tokens, without the encoder."""

import shlex
import sys
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipelines.parameters.options import Option, select_options, takes_options
from pipelines.parameters.params import integers
from pipelines.sharing.places import open_features

if TYPE_CHECKING:
    import numpy as np

    from probe.detection.options import DetectorOptions
    from probe.detection.recipe import DetectionRecipe
    from store import FeatureStore

# Fields of `probe.detection.recipe.DetectionRecipe`, …
OF_A_RECIPE = {
    "epochs": Option(int, "passes over the training images", "12", least=1),
    "batch_size": Option(int, "images of a step", "16", least=1),
    "optimiser": Option(str, "adamw or sgd", "adamw"),
    "lr": Option(float, "peak learning rate", "0.0001"),
    "weight_decay": Option(float, "λ of the optimiser; norms and biases have none", "0.05"),
    "warmup_steps": Option(int, "in which the learning rate rises", "500", least=0),
    "schedule": Option(str, "step: a tenth from 3/4 of the epochs on, a hundredth from 11/12 on; or cosine, to zero", "step"),
    "clip": Option(float, "largest norm of the gradient", "no limit"),
}
# … and of `probe.detection.options.DetectorOptions`.
OF_A_DETECTOR = {
    "width": Option(int, "channels of the pyramid and of the masks' head", "256", least=1),
    "anchors": Option(
        str, "side of the anchors of 4 or 5 levels, in pixels of a frame with 16 a patch", "32,64,128,256,512", read=integers
    ),
    "box_features": Option(int, "width of the layers that classify a region", "1024", least=1),
    "mask_layers": Option(int, "convolutions before masks are predicted", "4", least=1),
    "proposals": Option(int, "regions an image that training keeps; evaluation keeps half", "2000", least=2),
    "samples": Option(int, "regions an image that the loss is computed from", "512", least=1),
    "masks": Option(bool, "learn masks beside boxes", "masks where the set has them", flags="--masks/--no-masks"),
    "final_norm": Option(
        bool, "apply the encoder's last LayerNorm to the tokens first", "yes", flags="--final-norm/--no-final-norm"
    ),
}


@takes_options(OF_A_RECIPE, OF_A_DETECTOR)
def main(
    features: Annotated[str, typer.Option(help="feature set of the training images: its folder, receipt, or address")],
    test: Annotated[str, typer.Option(help="feature set of the test images, of the same encoder")],
    out: Annotated[Path, typer.Option(help="folder for trained/, curves.csv, detections.json and metrics.json")],
    preset: Annotated[
        str | None,
        typer.Option(help="v1, the protocol of the paper's first version, or small, for hundreds of images; options here win"),
    ] = None,
    seeds: Annotated[str, typer.Option(help="with commas; a detector each")] = "0",
    views: Annotated[
        str, typer.Option(help="stored views of the training images, with commas; 0 is the evaluation crop")
    ] = "0",
    block: Annotated[int | None, typer.Option(help="block whose tokens are read  [default: the deepest stored]")] = None,
    ids: Annotated[Path | None, typer.Option(help="train on the images that this file lists, one id or name a line")] = None,
    test_ids: Annotated[Path | None, typer.Option(help="likewise: measure on these")] = None,
    workers: Annotated[int, typer.Option(min=0, help="processes that decode masks beside this one")] = 0,
    placement: Annotated[
        str, typer.Option(help="of the tokens: device, memory, stream, or auto: the first that fits")
    ] = "auto",
    params: Annotated[Path | None, typer.Option(help="parameter file that says where shared feature sets are (store)")] = None,
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

    A run that was killed goes on when the same command is given again. Writes metrics.json (AP in percent), trained/,
    detections.json (of the first seed, in COCO's format of results), examples.json (those in a few images, for the report) and
    curves.csv.
    """
    from pipelines.process.allocator import keep_freed_memory
    from pipelines.process.device import choose_device
    from pipelines.process.progress import progress_bar
    from probe.detection.run import Detection, detect
    from probe.detection.sets import images_with_objects

    recipe, options = settings(preset, given)
    keep_freed_memory()
    stores, place = (open_features(features, params), open_features(test, params)), choose_device(device)
    images = [images_with_objects(store, _rows(store, file)) for store, file in zip(stores, (ids, test_ids), strict=True)]
    detection = Detection(
        training=images[0],
        test=images[1],
        recipe=recipe,
        options=options,
        seeds=integers("--seeds", seeds),
        views=integers("--views", views),
        block=block,
        device=place,
        placement=placement,
        workers=workers,
    )
    listed = {name: file.name for name, file in (("ids", ids), ("test_ids", test_ids)) if file is not None}
    about = {"preset": preset, **listed, "command": shlex.join(["beyondcls", *sys.argv[1:]])}
    with progress_bar(f"detect {stores[0].attributes['encoder']}", detection.n_units, "steps") as detection.progress:
        measures = detect(detection, out, about)
    typer.echo(f"{out}: {summary(measures)}")
    for note in measures["notes"]:
        typer.echo(f"  note: {note}")


def settings(preset: str | None, given: dict[str, Any]) -> "tuple[DetectionRecipe, DetectorOptions]":
    """The recipe and the parts of the detector: those of the preset, with the options that were given.

    Raises:
        BeyondClsError: an unknown preset, or a value out of its range.
    """
    from probe.detection.options import DetectorOptions
    from probe.detection.recipe import DetectionRecipe, make_detection_recipe, preset_of_detection

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


def _rows(store: "FeatureStore", file: Path | None) -> "np.ndarray | None":
    """Rows of the images that a file lists; None without one."""
    from store import read_ids, rows_of_ids

    return None if file is None else rows_of_ids(store, read_ids(file))
