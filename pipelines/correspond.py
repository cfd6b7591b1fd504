"""`beyondcls correspond`: whether patches alike are the same point of an object, in pairs of images."""

from pathlib import Path
from typing import Annotated

import typer

from pipelines.process.command_log import recorded_command
from pipelines.sharing.places import open_features


def main(
    features: Annotated[str, typer.Option(help="feature set of the images: its folder, receipt, or address")],
    pairs: Annotated[
        Path,
        typer.Option(
            help="folder of SPair-71k's pairs (PairAnnotation/test), or a .csv of points with the columns source, target, x, "
            "y, target_x, target_y, size and, if there are several, category"
        ),
    ],
    out: Annotated[Path, typer.Option(help="folder for metrics.json and description.json")],
    at: Annotated[
        str, typer.Option(help="shares of a pair's size within which a point is found, with commas")
    ] = "0.05,0.1,0.15",
    block: Annotated[int | None, typer.Option(help="of patch tokens  [default: each that is kept]")] = None,
    params: Annotated[Path | None, typer.Option(help="parameter file that says where shared feature sets are (store)")] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, or auto")] = "auto",
) -> None:
    """Find points of one image in another by the most similar patch: PCK (percentage of correct keypoints), without training.

    Per point and per image, for each block whose patch tokens are kept. Nothing is encoded. Images are whole in sets that were
    extracted with --crop-mode squash --crop-pct 1; points that no view shows are counted and left out.
    """
    from pipelines.parameters.options import numbers
    from pipelines.process.device import choose_device
    from pipelines.process.progress import progress_bar
    from probe.correspondence import correspondence, kept_blocks, read_pairs, shown_points
    from probe.result_files import METRICS, computed_by, described_images, result_folder, write_result

    thresholds = numbers("--at", at)
    store, chosen = open_features(features, params), choose_device(device)
    result = result_folder(out, store.attributes["encoder"])
    blocks = kept_blocks(store, block)
    seen = shown_points(store, read_pairs(pairs))
    measured = []
    with progress_bar("pairs", len(blocks) * len(seen.pairs), "pairs") as advance:
        for number in blocks:
            measured.append({"block": number, **correspondence(store, seen, number, thresholds, chosen, advance)})
    counts = {"n_pairs": len(seen.pairs), "n_points": seen.n_points, "n_points_outside": seen.n_outside}
    content = {
        **described_images(store, len({row for pair in seen.rows.tolist() for row in pair})),
        **counts,
        "at": list(thresholds),
        "blocks": measured,
        **computed_by(chosen),
        "command": recorded_command(),
    }
    with result.written() as folder:
        write_result(folder / METRICS, content, {f"block{row['block']}": row for row in measured})
    for row in measured:
        percents = (
            f"{t:g}: {row[f'pck_{t:g}_point']['mean']:.1f} ({row['chance'][f'{t:g}']:.1f} by chance)" for t in thresholds
        )
        typer.echo(f"block {row['block']}: PCK, % of points, at {', '.join(percents)}")
    typer.echo(f"{out}: {counts['n_points']:,} points of {counts['n_pairs']:,} pairs; {seen.n_outside:,} outside of a view")
