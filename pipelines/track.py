"""`beyondcls track`: whether patches alike belong to the same object, frame by frame of videos."""

from pathlib import Path
from typing import Annotated

import typer

from pipelines.process.command_log import recorded_command
from pipelines.sharing.places import open_features


def main(
    features: Annotated[str, typer.Option(help="feature set of the frames, ids VIDEO/FRAME: its folder, receipt, or address")],
    masks: Annotated[
        Path,
        typer.Option(
            help="folder of VIDEO/FRAME.png, such as DAVIS' Annotations/480p: 0 is the background, 1, 2, … are objects, 255 is "
            "not measured"
        ),
    ],
    out: Annotated[Path, typer.Option(help="folder for metrics.json and description.json")],
    videos: Annotated[
        Path | None, typer.Option(help="file of their names, one a line, such as DAVIS' ImageSets/2017/val.txt  [default: all]")
    ] = None,
    block: Annotated[int | None, typer.Option(help="of patch tokens  [default: each that is kept]")] = None,
    n_frames: Annotated[int, typer.Option(help="right before a frame that count, beside the first one")] = 7,
    radius: Annotated[int, typer.Option(help="rows and columns by which similar patches may lie away; 0: any")] = 12,
    k: Annotated[int, typer.Option(help="most similar patches whose labels are averaged")] = 5,
    temperature: Annotated[float, typer.Option(help="of their weights, exp(cosine / temperature)")] = 0.1,
    params: Annotated[Path | None, typer.Option(help="parameter file that says where shared feature sets are (store)")] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, or auto")] = "auto",
) -> None:
    """Follow objects from the first frame of videos by the most similar patches: J & F of DAVIS 2017, without training.

    For each block whose patch tokens are kept. Beside it stands the first frame's mask in all frames, which sees no image.
    Nothing is encoded. Frames are whole in sets that were extracted with --crop-mode squash --crop-pct 1.
    """
    from pipelines.process.device import choose_device
    from pipelines.process.progress import progress_bar
    from probe.correspondence import kept_blocks
    from probe.result_files import METRICS, computed_by, described_images, result_folder, write_result
    from probe.tracking import Propagation, read_videos, still, tracking
    from store import BeyondClsError

    how = Propagation(n_frames, radius, k, temperature)
    store, chosen = open_features(features, params), choose_device(device)
    result, blocks = result_folder(out, store.attributes["encoder"]), kept_blocks(store, block)
    if videos is not None and not videos.is_file():
        raise BeyondClsError(f"--videos is {videos}, which is no file; expected one with the name of a video in each line")
    names = None if videos is None else videos.read_text(encoding="utf-8").split()
    found = read_videos(store, masks, names)
    n = sum(len(video.rows) for video in found)
    measured, baseline = [], still(store, found)  # errors in masks come before anything is computed
    with progress_bar("frames", len(blocks) * n, "frames") as advance:
        for number in blocks:
            measured.append({"block": number, **tracking(store, found, number, how, chosen, advance), **baseline})
    content = {
        **described_images(store, n),
        "n_videos": len(found),
        "n_measured": sum(len(video.masks) - 1 for video in found),
        "propagation": vars(how),
        "blocks": measured,
        **computed_by(chosen),
        "command": recorded_command(),
    }
    shown = {f"block{one['block']}": one for one in measured}
    with result.written() as folder:
        write_result(folder / METRICS, content, shown)
    for place, one in shown.items():
        typer.echo(
            f"{place}: J & F {one['j_and_f']['mean']:.1f} %, J {one['j']['mean']:.1f}, F {one['f']['mean']:.1f}; the first "
            f"frame's mask {one['still']['j_and_f']:.1f}"
        )
    typer.echo(f"{out}: {baseline['n_objects']:,} objects in {len(found):,} videos, {n:,} frames")
