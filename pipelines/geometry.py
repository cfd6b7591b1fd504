"""`beyondcls geometry`: what the vectors of a feature set tell without a head, block by block."""

from pathlib import Path
from typing import Annotated, Any

import typer

from pipelines.parameters.measures import OF_GEOMETRY, options_of_entry
from pipelines.parameters.options import takes_options
from pipelines.process.command_log import recorded_command
from pipelines.sharing.places import open_features


@takes_options(OF_GEOMETRY)
def main(
    features: Annotated[str, typer.Option(help="feature set: its folder, receipt, or address")],
    out: Annotated[Path, typer.Option(help="folder for metrics.json and description.json")],
    vector: Annotated[
        list[str] | None,
        typer.Option(help="cls, average or pooled; may be repeated  [default: those that the set has]"),
    ] = None,
    measure: Annotated[
        list[str] | None,
        typer.Option(help="may be repeated  [default: all that the set allows]"),
    ] = None,
    entry: Annotated[str | None, typer.Option(help="of `geometry` in --params: take its options; those given here win")] = None,
    params: Annotated[Path | None, typer.Option(help="parameter file that says where shared feature sets are (store)")] = None,
    **given: Any,
) -> None:
    """Measure vectors without a head: effective rank, decay of the spectrum, intrinsic dimension, and clusters against classes.

    rankme, participation_ratio and lidar are in directions (lidar wants several views); alpha_req is the exponent of the
    spectrum; two_nn and mle_dimension are dimensions; cluster_nmi and cluster_ari compare k-means' clusters with the classes;
    retrieval_map, recall_at_1 and recall_at_10 are percent of finding images of the same class.
    Nothing is encoded: [cls] and the average patch of every block are in sets that were extracted with --vectors all.
    """
    from pipelines.process.progress import progress_bar
    from probe.geometry import GEOMETRY, VECTORS, by_place, geometry, kind_of_vector, rows_of_all, vectors_in
    from probe.result_files import METRICS, described_images, result_folder, write_result

    images = (options_of_entry("geometry", entry, params) | given).get("images")
    store = open_features(features, params)
    result = result_folder(out, store.attributes["encoder"])
    names, rows = vectors_in(store, vector or VECTORS), rows_of_all([store], images)
    measured_of_all = []
    with progress_bar("measuring", len(names), "vectors") as advance:
        for name in names:
            measured = geometry(store, name, rows, measure or GEOMETRY)
            measured_of_all.append({"vector": kind_of_vector(name), "block": name.block, **measured})
            advance(1)
    content = {**described_images(store, len(rows)), "vectors": measured_of_all, "command": recorded_command()}
    shown = by_place(measured_of_all)
    with result.written() as folder:
        write_result(folder / METRICS, content, shown)
    for place, measured in shown.items():
        numbers = ", ".join(f"{m} {value['mean']:.3g}" for m, value in measured.items() if m in GEOMETRY)
        typer.echo(f"{place}: {numbers}")
    typer.echo(f"{out}: {len(rows):,} images")
