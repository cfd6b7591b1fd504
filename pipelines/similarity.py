"""`beyondcls similarity`: how alike the vectors of feature sets are, between encoders and blocks."""

from itertools import combinations
from pathlib import Path
from typing import Annotated

import typer

from pipelines.process.command_log import recorded_command
from pipelines.sharing.places import open_features


def main(
    features: Annotated[
        list[str], typer.Option(help="feature set of the same images: its folder, receipt, or address; may be repeated")
    ],
    out: Annotated[Path, typer.Option(help="folder for similarity.csv, metrics.json and description.json")],
    vector: Annotated[
        list[str] | None, typer.Option(help="cls, average or pooled; may be repeated  [default: those that the sets have]")
    ] = None,
    measure: Annotated[list[str] | None, typer.Option(help="may be repeated  [default: all]")] = None,
    deepest: Annotated[bool, typer.Option("--deepest", help="of each kind of vector the last block alone")] = False,
    images: Annotated[int, typer.Option(help="number of images, the same on every machine; 0 for all")] = 10_000,
    params: Annotated[Path | None, typer.Option(help="parameter file that says where shared feature sets are (store)")] = None,
) -> None:
    """Compare each vector of each block with each other: CKA, mutual nearest neighbours, Procrustes.

    debiased_cka and cka are linear centred kernel alignment, mutual_knn the share of the 10 nearest images that both have in
    common, procrustes the cosine after the best rotation; 1 is alike. similarity.csv has a row for each pair and measure.
    """
    import csv

    from pipelines.process.progress import progress_bar
    from probe.geometry import VECTORS, kind_of_vector, rows_of_all, vectors, vectors_in
    from probe.result_files import DESCRIPTION, METRICS, write_result
    from probe.similarity import SIMILARITY, ImageVectors, similarity
    from store import BeyondClsError
    from store.errors import unknown
    from store.shown import csv_cell
    from store.writing.results import ResultFolder

    for name in measure or ():
        if name not in SIMILARITY:
            raise BeyondClsError(unknown("measure", name, SIMILARITY))
    stores, result = [open_features(place, params) for place in features], ResultFolder(out, DESCRIPTION)
    rows = rows_of_all(stores, images or None)
    places, compared = [], []
    for store in stores:
        encoder = store.attributes["encoder"]
        if [other.attributes["encoder"] for other in stores].count(encoder) > 1:
            encoder += f" {store.spec.key[:8]}"
        arrays = vectors_in(store, vector or VECTORS)
        for array in {kind_of_vector(array): array for array in arrays}.values() if deepest else arrays:
            places.append({"encoder": encoder, "vector": kind_of_vector(array), "block": array.block})
            compared.append(ImageVectors(vectors(store, array, rows)))
    if len(compared) < 2:
        raise BeyondClsError(
            f"there is one vector to compare, {_name(places[0])}; name another feature set of these images, or other vectors"
        )
    pairs = []
    with progress_bar("comparing", len(compared) * (len(compared) - 1) // 2, "pairs") as advance:
        for i, j in combinations(range(len(compared)), 2):
            pairs.append({"a": places[i], "b": places[j], **similarity(compared[i], compared[j], measure or SIMILARITY)})
            advance(1)
    with result.written() as folder:
        content = {"data": stores[0].spec.data, "n_images": len(rows), "pairs": pairs}
        content |= {"features": [store.spec.key for store in stores], "command": recorded_command()}
        named = {f"{_name(pair['a'])} and {_name(pair['b'])}": pair for pair in pairs}
        write_result(folder / METRICS, content, named)
        with (folder / "similarity.csv").open("w", newline="", encoding="utf-8") as target:
            writer = csv.writer(target)
            sides = [f"{column}_{side}" for side in "ab" for column in ("encoder", "vector", "block")]
            writer.writerow([*sides, "measure", "value"])
            for pair in pairs:
                of_sides = [csv_cell(str(value)) for side in "ab" for value in pair[side].values()]
                writer.writerows([*of_sides, name, pair[name]["mean"]] for name in measure or SIMILARITY)
    typer.echo(f"{out}: {len(pairs):,} pairs of {len(compared)} vectors of {len(rows):,} images")


def _name(place: dict[str, object]) -> str:
    block = "" if place["block"] is None else f", block {place['block']}"
    return f"{place['encoder']} {place['vector']}{block}"
