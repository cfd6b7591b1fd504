"""`beyondcls depth`: depth, or surface normals, of pixels from cached patch tokens, without the encoder."""

from pathlib import Path
from typing import Annotated, Any

import typer

from pipelines.parameters.measures import OF_DEPTH, options_of_entry
from pipelines.parameters.options import select_options, takes_options
from pipelines.process.command_log import recorded_command
from pipelines.sharing.places import open_features


@takes_options(OF_DEPTH)
def main(
    features: Annotated[str, typer.Option(help="feature set of the training images: its folder, receipt, or address")],
    maps: Annotated[
        Path,
        typer.Option(
            help="folder of their maps, ID.png or ID.npy by the id of the image: depth as PNG of 16 bits or floats in metres "
            "[height, width], normals as RGB PNG or floats [height, width, 3]"
        ),
    ],
    test: Annotated[str, typer.Option(help="feature set of the test images, of the same encoder")],
    test_maps: Annotated[Path, typer.Option(help="folder of their maps")],
    out: Annotated[Path, typer.Option(help="folder for metrics.json, description.json and curves.csv")],
    entry: Annotated[str | None, typer.Option(help="of `depth` in --params: take its options; those given here win")] = None,
    params: Annotated[Path | None, typer.Option(help="parameter file that says where shared feature sets are (store)")] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, or auto")] = "auto",
    **given: Any,
) -> None:
    """Predict depth or surface normals of pixels by a linear head on patch tokens, and measure them on test images.

    A head is batch normalisation and a 1x1 convolution: to 256 bins of depth and a loss in the logarithm, as in DINOv2, or to
    normals and their mean angle, as in Probe3D. Nothing is selected. The baseline `mean` sees no image: it predicts the mean
    of the training pixels. Pixels of depth 0 or NaN, and normals without length, are counted and left out.

    Measures are means over test images, each at the pixels of its original that the view shows. Depth: rmse in metres, abs_rel,
    log10, si_log, delta1 to delta3 in percent, aligned_rmse and aligned_delta1 after the best scale and shift of each image.
    Normals: mean_angle, median_angle and rmse_angle in degrees, within_11.25, _22.5 and _30 in percent.
    """
    from dataclasses import replace

    from pipelines.process.device import choose_device
    from pipelines.process.progress import progress_bar
    from probe.depth.run import PLAN, Regression, regress, write
    from probe.depth.targets import Depth, Normals
    from probe.result_files import is_measure, result_folder
    from probe.run import shown_views
    from store.places.disk import check_writable

    options = options_of_entry("depth", entry, params) | given
    of_depth = {"min_depth": "low", "max_depth": "high", "per_metre": "per_metre"}
    depth = {of_depth[name]: value for name, value in select_options(options, of_depth).items()}
    of_recipe = select_options(options, ("epochs", "batch_size", "base_lr", "weight_decay"))
    warmup_epochs = min(PLAN.recipe.warmup_epochs, options.get("epochs", PLAN.recipe.epochs) - 1)
    recipe = replace(PLAN.recipe, **of_recipe, warmup_epochs=warmup_epochs)
    learn, judge = open_features(features, params), open_features(test, params)
    result = result_folder(out, judge.attributes["encoder"])
    regression = Regression(
        learn,
        judge,
        Normals() if options.get("normals") else Depth(**depth),
        maps,
        test_maps,
        replace(PLAN, recipe=recipe, **select_options(options, ("seeds",))),
        with_cls=options.get("cls", False),
        views=shown_views(learn, None, False),  # random crops alone where there are any
        **select_options(options, ("block", "final_norm", "eigen_crop", "loss_size")),
        device=choose_device(device),
    )
    check_writable(out)
    content, trained = regress(regression, progress_bar)
    with result.written() as folder:
        write(folder, {**content, "command": recorded_command()}, trained)
    for name, measured in content["protocols"].items():
        values = (f"{measure} {value['mean']:.4g}" for measure, value in measured.items() if is_measure(value))
        typer.echo(f"{name}: {', '.join(values)}")
    pixels = content["pixels"]["test"]
    typer.echo(
        f"{out}: {content['n_test']:,} test images; {', '.join(f'{n:,} pixels {name}' for name, n in pixels.items())}; "
        f"{content['n_without']['test']:,} images without any"
    )
