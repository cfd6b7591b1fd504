"""`beyondcls depth`: depth, or surface normals, of pixels from cached patch tokens, without the encoder."""

from pathlib import Path
from typing import Annotated

import typer

from pipelines.process.command_log import recorded_command
from pipelines.sharing.places import open_features


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
    normals: Annotated[bool, typer.Option("--normals", help="the maps are of surface normals, not of depth")] = False,
    cls: Annotated[bool, typer.Option("--cls", help="put [cls] behind each patch, as DINOv2 does")] = False,
    final_norm: Annotated[bool, typer.Option("--final-norm", help="apply the encoder's last norm to the tokens")] = False,
    block: Annotated[int | None, typer.Option(help="of the tokens  [default: the deepest]")] = None,
    min_depth: Annotated[float, typer.Option(help="metres; nearer pixels are ignored")] = 0.001,
    max_depth: Annotated[float, typer.Option(help="metres; farther pixels are ignored")] = 10.0,
    per_metre: Annotated[float, typer.Option(help="whole numbers of a PNG that are a metre: 1000 for millimetres")] = 1000.0,
    eigen_crop: Annotated[
        bool, typer.Option("--eigen-crop", help="measure rows 45-470 and columns 41-600 of NYUv2's images alone, as is usual")
    ] = False,
    epochs: Annotated[int, typer.Option(min=1, help="passes over the training images")] = 20,
    batch_size: Annotated[int, typer.Option(min=2, help="images of a step")] = 16,
    base_lr: Annotated[float, typer.Option(help="AdamW's peak learning rate for 256 images a step")] = 0.128,
    weight_decay: Annotated[float, typer.Option(help="of AdamW")] = 0.01,
    seeds: Annotated[str, typer.Option(help="with commas; each trains a head")] = "0,1,2",
    loss_size: Annotated[
        int | None, typer.Option(min=1, help="shorter side, in pixels, at which the loss is computed  [default: the view's]")
    ] = None,
    params: Annotated[Path | None, typer.Option(help="parameter file that says where shared feature sets are (store)")] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, or auto")] = "auto",
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

    from pipelines.parameters.options import integers
    from pipelines.process.device import choose_device
    from pipelines.process.progress import progress_bar
    from probe.depth.run import PLAN, Regression, regress, write
    from probe.depth.targets import Depth, Normals
    from probe.result_files import result_folder
    from probe.run import shown_views
    from store.places.disk import check_writable

    target = Normals() if normals else Depth(min_depth, max_depth, per_metre=per_metre)
    recipe = replace(
        PLAN.recipe,
        epochs=epochs,
        batch_size=batch_size,
        base_lr=base_lr,
        weight_decay=weight_decay,
        warmup_epochs=min(PLAN.recipe.warmup_epochs, epochs - 1),
    )
    plan = replace(PLAN, recipe=recipe, seeds=integers("--seeds", seeds))
    learn, judge = open_features(features, params), open_features(test, params)
    result = result_folder(out, judge.attributes["encoder"])
    regression = Regression(
        learn,
        judge,
        target,
        maps,
        test_maps,
        plan,
        block=block,
        final_norm=final_norm,
        with_cls=cls,
        eigen_crop=eigen_crop,
        views=shown_views(learn, None, False),  # random crops alone where there are any
        loss_size=loss_size,
        device=choose_device(device),
    )
    check_writable(out)
    content, trained = regress(regression, progress_bar)
    with result.written() as folder:
        write(folder, {**content, "command": recorded_command()}, trained)
    for name, measured in content["protocols"].items():
        values = (
            f"{measure} {value['mean']:.4g}"
            for measure, value in measured.items()
            if isinstance(value, dict) and "mean" in value
        )
        typer.echo(f"{name}: {', '.join(values)}")
    pixels = content["pixels"]["test"]
    typer.echo(
        f"{out}: {content['n_test']:,} test images; {', '.join(f'{n:,} pixels {name}' for name, n in pixels.items())}; "
        f"{content['n_without']['test']:,} images without any"
    )
