"""`beyondcls retrieve`: whether the images most like a query show the same."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipelines.process.command_log import recorded_command
from pipelines.sharing.places import open_features

if TYPE_CHECKING:
    from probe.retrieval import Search

SEARCH_FILES = (
    "gnd_roxford5k.mat or gnd_rparis6k.mat, or a .csv with the columns query, image and, for several protocols, relation "
    "(easy, hard, junk)"
)


def main(
    features: Annotated[str, typer.Option(help="feature set of the images that are searched: its folder, receipt, or address")],
    relevant: Annotated[
        Path,
        typer.Option(help=f"what is to be found: {SEARCH_FILES}"),
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
    from probe.geometry import VECTORS, by_place, kind_of_vector
    from probe.result_files import METRICS, described_images, result_folder, write_result
    from probe.retrieval import ranked, retrieval, vectors_of_both

    search = read_search(relevant)
    store = open_features(features, params)
    result = result_folder(out, store.attributes["encoder"])
    asked = store if queries is None else open_features(queries, params)
    arrays, found = vectors_of_both(store, asked, vector or VECTORS), ranked(search, store, asked)
    measured = []
    with progress_bar("searching", len(arrays), "vectors") as advance:
        for names in arrays:
            of_vector = {"vector": kind_of_vector(names[0]), "block": names[0].block}
            for protocol, measures in retrieval(store, asked, names, found).items():
                measured.append({**of_vector, "protocol": protocol, **measures})
            advance(1)
    content = {
        **described_images(store, len(found.images)),
        "n_queries": len(found.queries),
        "searches": measured,
        "command": recorded_command(),
    }
    groups = {f"{place}/{one['protocol']}": one for one in measured for place in by_place([one])}
    with result.written() as folder:
        write_result(folder / METRICS, content, groups)
    for place, one in groups.items():
        typer.echo(f"{place}: mAP {one['map']['mean']:.1f} %, precision at 10 {one['precision_10']['mean']:.1f} %")
    typer.echo(f"{out}: {len(found.queries):,} queries, {len(found.images):,} images")


def read_search(file: Path) -> "Search":
    """What a file of ROxford or RParis, or a table, says is to be found.

    Raises:
        BeyondClsError: the file is neither, or nothing is to be found.
    """
    from extract.datasets.listed import parsing
    from store import BeyondClsError

    reader = {".mat": _search_from_matlab, ".csv": _search_from_table}.get(file.suffix)
    if reader is None or not file.is_file():
        raise BeyondClsError(f"{file} is no file of this kind; expected {SEARCH_FILES}")
    with parsing(file, SEARCH_FILES):
        search = reader(file)
    if not any(of_query.get("easy") or of_query.get("hard") for of_query in search.relations):
        raise BeyondClsError(f"{file} has no image that is to be found for a query; expected {SEARCH_FILES}")
    return search


def _search_from_matlab(file: Path) -> "Search":
    import numpy as np

    from extract.datasets.listed import matlab_variable
    from probe.retrieval import RELATIONS, Search

    images, queries = ([str(name) for name in matlab_variable(file, key)] for key in ("imlist", "qimlist"))
    relations = []
    for of_query in matlab_variable(file, "gnd"):
        numbers = {name: np.atleast_1d(np.asarray(of_query[name], np.float64)).astype(int) for name in RELATIONS}
        if any(number < 1 for some in numbers.values() for number in some):
            raise ValueError("images are numbered from 1 on")
        relations.append({name: [images[number - 1] for number in some] for name, some in numbers.items()})
    if len(relations) != len(queries):
        raise ValueError(f"{len(queries)} queries, and what is to be found for {len(relations)}")
    return Search(queries, relations, images)


def _search_from_table(file: Path) -> "Search":
    import csv

    from extract.datasets.listed import text
    from probe.retrieval import RELATIONS, Search

    by_query: dict[str, dict[str, list[str]]] = {}
    for row in csv.DictReader(text(file).splitlines()):
        relation = row.get("relation") or "easy"
        if relation not in RELATIONS:
            raise ValueError(f"relation {relation!r}, expected one of {', '.join(RELATIONS)}")
        by_query.setdefault(row["query"], {}).setdefault(relation, []).append(row["image"])
    return Search(list(by_query), list(by_query.values()))
