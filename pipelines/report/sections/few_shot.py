"""Few images of each class; whether similar images show the same object, and similar patches the same point or object."""

import re

from pipelines.report.collect import Inputs
from pipelines.report.content import Section, Table
from pipelines.report.measured import Entries
from pipelines.report.sections.geometry import cell_of, of_deepest
from pipelines.report.tables import cells, each, encoders, numbers, table, texts, title

SHOTS = re.compile(r"top1_(\d+)shot")
FEW = (
    "Top-1 accuracy, %, on all test images, of a classifier in closed form that learnt from so many images of each class: the "
    "mean over draws of these. Brackets: 95 % over test images and draws."
)
POINTS = (
    "PCK: the percentage of points that the most similar patch of the other image finds, within this share of the longer side "
    "of its object's box; of all points, and on average over pairs. Chance: a patch that is drawn. Brackets: 95 % over images, "
    "left out with all pairs of theirs. Points that no view shows are counted nowhere."
)
SEARCHES = (
    "What is found for a query by cosine of vectors, %: mean average precision (trapezoids), the share of right ones among the "
    "ten nearest, and the average precision of all pairs in one ranking (micro AP). Brackets: 95 % over queries."
)
TRACKS = (
    "Objects of the first frame of videos, followed by the most similar patches, %: J, intersection over union of regions; F, "
    "precision and recall of contours; J & F, their mean; all over objects. Still: J & F of the first frame's mask in all "
    "frames. Brackets: 95 % over videos."
)


def section(inputs: Inputs) -> Section | None:
    """None where none of `beyondcls few-shot`, `correspond`, `retrieve` and `track` was run."""
    tables = {
        "few_shot": _few_shot_table,
        "correspondence": _points_table,
        "retrieval": _searches_table,
        "tracking": _tracks_table,
    }
    kept = tuple(block for kind, of in tables.items() if (block := of(inputs.results(kind))).rows)
    return Section("few-shot", "Few shots, correspondence, retrieval, tracking", kept) if kept else None


def _few_shot_table(results: list[Entries]) -> Table:
    rows = [(one, vector) for one in results for vector in of_deepest(one)]
    names = {int(match[1]): name for _, vector in rows for name in vector if (match := SHOTS.fullmatch(name))}
    return table(
        "few-shot",
        "From a few images of each class",
        FEW,
        rows,
        encoders(lambda row: row[0]),
        texts("vector", "Vector", lambda row: title(row[1].vector)),
        texts("classifier", "Classifier", lambda row: row[1].protocol["name"]),
        each(
            sorted(names),
            lambda k: cells(
                names[k],
                f"{k} image{'s' * (k > 1)}",
                lambda row: cell_of(row[1].get(names[k]), 1, row[0].encoder),
                best="column",
            ),
        ),
    )


def _points_table(results: list[Entries]) -> Table:
    rows = [(one, block) for one in results for block in one.blocks]
    at = sorted({threshold for one in results for threshold in one.at})
    measures = [
        (f"pck_{t:g}_{of}", f"PCK@{t:g}, {words}", t) for t in at for of, words in (("point", "points"), ("image", "pairs"))
    ]
    return table(
        "correspondence",
        "Points found by the most similar patch",
        POINTS,
        rows,
        texts("dataset", "Data set", lambda row: row[0].dataset),
        encoders(lambda row: row[0]),
        numbers("block", "Block", lambda row: row[1].block, 0),
        each(measures, lambda m: cells(m[0], m[1], lambda row: cell_of(row[1].get(m[0]), 1), best="column")),
        each(at, lambda t: numbers(f"chance_{t:g}", f"Chance@{t:g}", lambda row: row[1].chance.get(f"{t:g}"), 1)),
        numbers("pairs", "Pairs", lambda row: row[0].n_pairs, 0),
        within=lambda row: row[0].dataset,
    )


def _searches_table(results: list[Entries]) -> Table:
    measures = (("map", "mAP"), ("precision_10", "Precision at 10"), ("micro_ap", "Micro AP"))
    return table(
        "retrieval",
        "Images found by the most similar vector",
        SEARCHES,
        [(one, search) for one in results for search in one.searches],
        texts("dataset", "Data set", lambda row: row[0].dataset),
        encoders(lambda row: row[0]),
        texts("vector", "Vector", lambda row: title(row[1].vector)),
        numbers("block", "Block", lambda row: row[1].block, 0),
        texts("protocol", "Protocol", lambda row: row[1].protocol),
        each(measures, lambda m: cells(m[0], m[1], lambda row: cell_of(row[1].get(m[0]), 1), best="column")),
        numbers("queries", "Queries", lambda row: row[1].n_queries, 0),
        numbers("images", "Images", lambda row: row[0].n_images, 0),
        within=lambda row: (row[0].dataset, row[1].protocol),
    )


def _tracks_table(results: list[Entries]) -> Table:
    measures = (("j_and_f", "J & F"), ("j", "J"), ("f", "F"))
    return table(
        "tracking",
        "Objects followed by the most similar patches",
        TRACKS,
        [(one, block) for one in results for block in one.blocks],
        texts("dataset", "Data set", lambda row: row[0].dataset),
        encoders(lambda row: row[0]),
        numbers("block", "Block", lambda row: row[1].block, 0),
        each(measures, lambda m: cells(m[0], m[1], lambda row: cell_of(row[1].get(m[0]), 1), best="column")),
        numbers("still", "Still", lambda row: row[1].still.j_and_f, 1),
        numbers("videos", "Videos", lambda row: row[0].n_videos, 0),
        numbers("objects", "Objects", lambda row: row[1].n_objects, 0),
        numbers("frames", "Frames measured", lambda row: row[0].n_measured, 0),
        within=lambda row: row[0].dataset,
    )
