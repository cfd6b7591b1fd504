"""`beyondcls localise`: how well score maps find objects, compared with the boxes of a feature set (Table 8 of v2)."""

import csv
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipelines.process.command_log import recorded_command
from pipelines.sharing.places import open_features
from store import BeyondClsError
from store.format.pretraining import pretraining_fields
from store.shown import csv_cell

if TYPE_CHECKING:
    import numpy as np

    from probe.localisation.maps import ScoreMaps
    from probe.localisation.max_box_acc import Localised
    from probe.localisation.truths import BoxTruths
    from store import FeatureStore


def main(
    features: Annotated[str, typer.Option(help="feature set of images with boxes: its folder, receipt, or address")],
    out: Annotated[Path, typer.Option(help="folder for localisation.json, localisation.csv and boxes.json")],
    probes: Annotated[Path | None, typer.Option(help="PROBES/ENCODER: probes of the same encoder, in a folder a head")] = None,
    head: Annotated[
        list[str] | None, typer.Option(help="a folder in --probes; several times for several  [default: all with weights]")
    ] = None,
    size: Annotated[int, typer.Option(min=8, help="side of the frame in which boxes are compared, pixels")] = 224,
    block: Annotated[int | None, typer.Option(help="block whose attention maps are scored  [default: deepest stored]")] = None,
    view: Annotated[int, typer.Option(min=0, help="which view of the images; 0 is the evaluation crop")] = 0,
    foreground: Annotated[
        str | None, typer.Option(help="classes whose weight is measured, with commas  [default: all objects]")
    ] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="processes  [default: one a core]")] = None,
    params: Annotated[Path | None, typer.Option(help="parameter file that says where shared feature sets are (store)")] = None,
) -> None:
    """Find objects by attention maps and by the weights of trained heads, and compare with boxes: MaxBoxAcc and MaxBoxAccV2.

    Needs neither images nor encoder. Maps are a block's [cls] attention (mean over attention heads, and each of them),
    the centre patch's if it is stored, the weights over patches of each head (mean and standard deviation over its seeds), and,
    as a baseline, a Gaussian at the centre of every image.

    Boxes are compared in the frame that the encoder saw. Published numbers are of the whole image, squashed to a square:
    extract it so, next to the set that heads are trained on, by

        beyondcls extract --crop-mode squash --crop-pct 1 --encoder mae --data cub --split test --out features/mae-cub-whole

    A central crop loses what is outside of it; what was compared is recorded and printed.

    Beside that, how much of each map's weight is on objects, compared with their share of the area: what equal weights would
    put there. Objects are masks where the set has them, else boxes, or, with --foreground, the pixels of classes in label maps.

    Writes localisation.json (means); description.json (all that was measured, and of what); localisation.csv with a row for
    each map and seed; and boxes.json: of each image, its true boxes, and the one that the mean [cls] map and the first seed of
    each head predict, at the threshold of MaxBoxAcc. Accuracies in percent, boxes in pixels of the frame.
    """
    import torch

    from probe.localisation.foreground import class_names
    from probe.localisation.truths import truths_of
    from probe.result_files import computed_by, result_folder, write_result

    store, classes = open_features(features, params), class_names(foreground)
    result = result_folder(out, store.attributes["encoder"])
    truths = truths_of(store, size, view)
    kinds = score_maps(store, truths.rows, probes, head, view, block)
    measured, boxes, truth = measure_maps(store, truths, kinds, size, view, classes, workers or len(os.sched_getaffinity(0)))
    about = {
        "encoder": store.attributes["encoder"],
        **pretraining_fields(store.attributes),
        "key": store.spec.key,
        "data": store.spec.data,
        "size": size,
        "view": view,
        "block": store.map_block("cls") if block is None else block,  # of the attention maps
        **truths.counts,
        "frame": truths.frame.to_dict(),
        "objects": {"truth": truth, "classes": classes},
        "command": recorded_command(),
        **computed_by(torch.device("cpu")),
        "maps": measured,
    }
    with result.written() as folder:
        write_result(folder / "localisation.json", about, summed_up(measured))
        write_csv(folder / "localisation.csv", measured)
        (folder / "boxes.json").write_text(json.dumps(with_truths(store, truths, size, view, boxes)) + "\n")
    for entry in measured:
        v2, v1 = (f"{entry[name]['mean']:5.1f}" for name in ("max_box_acc_v2", "max_box_acc"))
        weight = ""
        if on_objects := entry.get("on_objects"):
            weight = f"   weight on objects {on_objects['share']['mean']:5.1f} % of {on_objects['chance']:5.1f} % of the area"
        typer.echo(f"{entry['source']:9} {entry['name']:16} MaxBoxAccV2 {v2} %   MaxBoxAcc {v1} %{weight}")
    if lost := truths.counts["n_images_outside"]:
        typer.echo(f"note: the crop shows nothing of the boxes of {lost:,} images; they count as not found", err=True)
    typer.echo(f"frame: {truths.frame.words}{'' if truths.frame.official else ' (not that of published numbers)'}")
    typer.echo(f"{out / 'localisation.json'}: {len(measured)} kinds of maps, {truths.counts['n_images']:,} images")


def measure_maps(
    store: "FeatureStore",
    truths: "BoxTruths",
    kinds: "Sequence[ScoreMaps]",
    size: int,
    view: int,
    classes: Sequence[str],
    workers: int,
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], str | None]:
    """Measure score maps, and the baseline.

    Args:
        classes: whose weight is measured; of all objects, if none are given.

    Returns:
        Entries of `maps` in description.json, those in boxes.json, and what says where objects are; None
        where no view shows any, so that there is no weight on them.

    Raises:
        BeyondClsError: as `foreground_of`.
    """
    import numpy as np

    from pipelines.process.progress import progress_bar
    from probe.localisation.boxes import centre_map
    from probe.localisation.foreground import NothingShown, foreground_of, weight_on
    from probe.localisation.max_box_acc import measure, measure_one

    objects = None
    with progress_bar("objects", len(truths.rows), "images") as progress:
        try:
            objects = foreground_of(store, classes, view, truths.rows, progress)
        except NothingShown as error:
            if classes:
                raise
            typer.echo(f"note: the weight on objects is not measured, as {error}", err=True)

    def weighed(maps: Sequence["np.ndarray"]) -> dict[str, Any]:
        shown = () if objects is None else np.isin(truths.rows, objects.rows)
        return {} if objects is None else {"on_objects": weight_on([of_seed[shown] for of_seed in maps], objects)}

    n = len(truths.rows) * sum(len(kind.maps) for kind in kinds)
    measured, boxes = [], []
    with process_map(workers) as map_function, progress_bar("localise", n, "maps") as progress:
        for kind in kinds:
            results = [measure(maps, truths.boxes, size, map_function, progress) for maps in kind.maps]
            flat = [int((maps.min((1, 2)) == maps.max((1, 2))).sum()) for maps in kind.maps]
            measured.append({**describe_map(kind.source, kind.name, results, kind.seeds, flat), **weighed(kind.maps)})
            if kind.source == "probe" or kind.name == "cls":
                boxes.append(predictions(kind, results[0].threshold, truths, size))
    of_centre = describe_map("baseline", "centre", [measure_one(centre_map(size, size), truths.boxes, size)], (), [0])
    at_patches = np.broadcast_to(centre_map(*store.grid), (len(truths.rows), *store.grid))
    measured.append({**of_centre, **weighed([at_patches])})
    return measured, boxes, None if objects is None else objects.truth


def score_maps(
    store: "FeatureStore",
    rows: "np.ndarray",
    probes: Path | None,
    heads: Sequence[str] | None,
    view: int,
    block: int | None = None,
) -> "list[ScoreMaps]":
    """Stored attention, then the named heads, or all whose weights differ between patches.

    Raises:
        BeyondClsError: nothing to score, a head that is missing or has constant maps, or as `probe_maps`.
    """
    from probe.localisation.maps import attention_maps, probe_maps

    maps_by_kind = attention_maps(store, rows, view, block)
    if heads and probes is None:
        raise BeyondClsError(f"--head is {heads[0]!r}, but there is no --probes PROBES/ENCODER that it could be in")
    if probes is not None:
        names = sorted(folder.parent.name for folder in probes.glob("*/trained"))
        if not names:
            raise BeyondClsError(f"there are no probes in {str(probes)!r}, expected {probes}/HEAD/trained/seed0.json")
        for name in heads or names:
            maps = probe_maps(store, rows, probes / name, view)
            if maps is not None:
                maps_by_kind.append(maps)
            elif heads:
                raise BeyondClsError(
                    f"{probes / name} does not weight patches, or all alike, so it points nowhere; leave it out"
                )
            else:
                typer.echo(f"note: {probes / name} does not weight patches, or all alike; left out", err=True)
    if not maps_by_kind:
        raise BeyondClsError(
            f"there is nothing to score: {store.where} keeps no attention maps, and no head with weights was given; "
            "add them by `beyondcls extract --extend --maps`, or name probes with --probes"
        )
    return maps_by_kind


@contextmanager
def process_map(workers: int) -> Iterator[Callable[..., Iterable[Any]]]:
    """`map` over this many processes; the built-in one for a single process."""
    if workers == 1:
        yield map
        return
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    # Spawned, as torch has threads here that a fork would not have.
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        yield pool.map


def describe_map(
    source: str, name: str, results: "Sequence[Localised]", seeds: Sequence[int], n_flat: Sequence[int]
) -> dict[str, Any]:
    """An entry of `maps` in description.json. `n_flat`: the number of constant maps of each seed."""
    from probe.localisation.max_box_acc import IOUS
    from probe.result_files import over_seeds

    def over(read: "Callable[[Localised], float]") -> dict[str, Any]:
        return over_seeds([read(of_seed) for of_seed in results], [[read(one) for one in r.without] for r in results])

    def at(i: int) -> dict[str, Any]:
        return {**over(lambda one: one.by_iou[i]), "thresholds": [result.thresholds[i] for result in results]}

    return {
        "source": source,
        "name": name,
        "seeds": list(seeds),
        "max_box_acc_v2": over(lambda one: one.max_box_acc_v2),
        "by_iou": {str(iou): at(i) for i, iou in enumerate(IOUS)},
        "max_box_acc": {
            **over(lambda one: one.max_box_acc),
            "thresholds": [result.threshold for result in results],
        },
        "n_flat": list(n_flat),
    }


def summed_up(measured: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What localisation.json shows, by source and name of the map: both measures, without those of single attention heads."""
    shown: dict[str, Any] = {}
    for entry in measured:
        if not entry["name"].startswith("cls-head-"):
            measures = {name: entry[name] for name in ("max_box_acc_v2", "max_box_acc")}
            shown.setdefault(entry["source"], {})[entry["name"]] = measures
    return shown


def predictions(kind: "ScoreMaps", threshold: float, truths: "BoxTruths", size: int) -> dict[str, Any]:
    """The boxes that one kind of map predicts with its first seed: an entry of `maps` in boxes.json."""
    import numpy as np

    from probe.localisation.boxes import iou
    from probe.localisation.max_box_acc import predicted_box

    boxes = [predicted_box(scores, threshold, size) for scores in kind.maps[0]]
    ious = [float(iou(np.array([box]), truth).max(initial=0)) for box, truth in zip(boxes, truths.boxes, strict=True)]
    seed = kind.seeds[0] if kind.seeds else None
    return {"source": kind.source, "name": kind.name, "seed": seed, "threshold": threshold, "boxes": boxes, "ious": ious}


def with_truths(
    store: "FeatureStore", truths: "BoxTruths", size: int, view: int, predicted: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """The content of boxes.json; all lists have an entry for each image."""
    ids = store.ids
    return {
        "data": store.spec.data,
        "size": size,
        "view": view,
        "ids": [ids[row] for row in truths.rows],
        "crops": truths.crops.tolist(),
        "flips": truths.flips.tolist(),
        "boxes": [boxes.tolist() for boxes in truths.boxes],
        "maps": list(predicted),
    }


def write_csv(file: Path, entries: Sequence[dict[str, Any]]) -> None:
    """Write a row for each map and seed."""
    rows = []
    for entry in entries:
        for i, value in enumerate(entry["max_box_acc_v2"]["values"]):
            row = {"source": entry["source"], "name": entry["name"], "seed": entry["seeds"][i] if entry["seeds"] else ""}
            row |= {"max_box_acc_v2": value}
            for iou, measured in entry["by_iou"].items():
                row |= {f"at_iou_{iou}": measured["values"][i], f"threshold_{iou}": measured["thresholds"][i]}
            measured, weight = entry["max_box_acc"], entry.get("on_objects")
            row |= {"max_box_acc": measured["values"][i], "max_box_acc_threshold": measured["thresholds"][i]}
            if weight is not None:
                row |= {"weight_on_objects": weight["share"]["values"][i], "area_of_objects": weight["chance"]}
                row |= {"gain_on_objects": weight["gain"]["values"][i]}
            rows.append(row)
    with file.open("w", newline="") as target:
        writer = csv.DictWriter(target, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows({name: csv_cell(value) for name, value in row.items()} for row in rows)
