"""`beyondcls retrieve`: whether the images most like a query show the same."""

from pathlib import Path
from typing import Annotated

import typer

from pipelines.process.command_log import recorded_command
from pipelines.sharing.places import open_features


def main(
    features: Annotated[str, typer.Option(help="feature set of the images that are searched: its folder, receipt, or address")],
    relevant: Annotated[
        Path,
        typer.Option(
            help="what is to be found: gnd_roxford5k.mat or gnd_rparis6k.mat, or a .csv with the columns query, image and, "
            "for several protocols, relation (easy, hard, junk)"
        ),
    ],
    out: Annotated[Path, typer.Option(help="folder for metrics.json and description.json")],
    queries: Annotated[str | None, typer.Option(help="feature set of the queries  [default: --features]")] = None,
    vector: Annotated[
        list[str] | None,
        typer.Option(help="cls, average or pooled; may be repeated  [default: those that the set has]"),
    ] = None,
    params: Annotated[Path | None, typer.Option(help="parameter file that says where shared feature sets are (store)")] = None,
) -> None:
    """Find images that show the same as a query, by cosine: mean average precision, precision and micro AP, without training.

    By the protocols of ROxford and RParis, easy, medium and hard, or by one's own table, as for copies. Nothing is encoded.
    """
    from pipelines.process.progress import progress_bar
    from probe.geometry import VECTORS, kind_of_vector, vectors_in
    from probe.result_files import DESCRIPTION, METRICS, described_images, write_result
    from probe.retrieval import ranked, read_search, retrieval
    from store.writing.results import ResultFolder

    search = read_search(relevant)
    store, result = open_features(features, params), ResultFolder(out, DESCRIPTION)
    asked = store if queries is None else open_features(queries, params)
    names, found = vectors_in(store, vector or VECTORS), ranked(search, store, asked)
    measured = []
    with progress_bar("searching", len(names), "vectors") as advance:
        for name in names:
            for protocol, measures in retrieval(store, asked, name, found).items():
                measured.append({"vector": kind_of_vector(name), "block": name.block, "protocol": protocol, **measures})
            advance(1)
    content = {
        **described_images(store, len(found.images)),
        "n_queries": len(found.queries),
        "searches": measured,
        "command": recorded_command(),
    }
    groups = {"/".join(_named(one)): one for one in measured}
    with result.written() as folder:
        write_result(folder / METRICS, content, groups)
    for place, one in groups.items():
        typer.echo(f"{place}: mAP {one['map']['mean']:.1f} %, precision at 10 {one['precision_10']['mean']:.1f} %")
    typer.echo(f"{out}: {len(found.queries):,} queries, {len(found.images):,} images")


def _named(one: dict[str, object]) -> list[str]:
    return [str(one["vector"]), *([] if one["block"] is None else [f"block{one['block']}"]), str(one["protocol"])]
