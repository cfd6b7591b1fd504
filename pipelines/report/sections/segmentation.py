"""Semantic segmentation from patch tokens: mIoU by protocol, by class, and how much weight falls on objects."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from pipelines.report.collect import Inputs
from pipelines.report.content import Block, Cell, Section, Table, Text
from pipelines.report.dense import (
    AGAINST_TWIN,
    BASELINES,
    GRID,
    ORIGINAL,
    PROTOCOLS,
    against_twin,
    class_scores,
    each_dataset,
    held_out,
    learnt,
    map_title,
    miou,
    resolutions,
)
from pipelines.report.estimate import Estimate, difference, of_measure
from pipelines.report.galleries.predictions import label_maps
from pipelines.report.measured import Entries
from pipelines.report.reading import read
from pipelines.report.tables import (
    DeclaredColumn,
    cells,
    change,
    differences,
    each,
    encoders,
    file_names,
    interval,
    means,
    number,
    numbers,
    pairs,
    spreads,
    table,
    texts,
)

ABOUT = (
    "Without training the encoder: each patch is classified by its token, and predicted label maps are compared with true "
    "ones, without void pixels. Settings are chosen on held-out images."
)
MIOU = (
    "percent, mean over classes. Bold: the highest of a column; ±: over seeds. Baselines see no image: one class "
    f"everywhere, or drawn by their share of training patches. {AGAINST_TWIN} Other resolutions don't compare. A dash: not "
    "measured."
)
OF_PATCHES = f"Intersection over union of labels of patches with labels of patches, {MIOU}"
OF_PIXELS = f"Intersection over union of predicted and true label maps, {MIOU}"
BY_CLASS = (
    "Intersection over union of each class, percent, mean over seeds; a dash: neither truth nor prediction has it. Bold: "
    "the highest of a row. Patches: on the grid of the first encoder."
)
SETTINGS = (
    "Those with the highest mIoU of patches on held-out images. Seconds: of selection and training. A dash: one setting was "
    "given, or nothing is random."
)
FOREGROUND = (
    "Percent of the weight on patches that falls on the foreground, of test images that show any. Bold: the highest of a "
    "row; ±: over seeds of heads. Area: its share of the image, which equal weights have. × area: mean over images of "
    "weight by area. AbMILP minus others: points; 95 %: over test images and seeds."
)
EVERY_MAP = "As above, of every map that was compared. Heads: mean ± standard deviation over seeds."
OTHER_CLASSES = "The foreground is not of the same classes for all encoders; rows are not comparable."
CLS, ABMILP = ("attention", "cls"), ("probe", "abmilp")


def section(inputs: Inputs) -> Section | None:
    """Tables and pictures for each data set; None where nothing was segmented."""
    if not inputs.segmentation:
        return None
    blocks = each_dataset("segmentation", inputs.segmentation, partial(_blocks_of_dataset, inputs))
    return Section("segmentation", "What patches say about pixels", (Text(ABOUT), *blocks))


def _blocks_of_dataset(inputs: Inputs, dataset: str, name: str, results: Sequence[Entries]) -> list[Block]:
    at = resolutions(results)
    return [
        *(_protocol_table(dataset, name, results, resolution) for resolution in at),
        _class_table(dataset, name, results, at[0]),
        _settings_table(dataset, name, results),
        *_foreground_blocks(dataset, name, [one for one in results if one.get("foreground", {}).get("maps")]),
        *label_maps(inputs, dataset, name, results),
    ]


def at_resolution(resolution: str) -> str:
    """A resolution in words, behind "mIoU"."""
    of_names = {GRID: "of patches", ORIGINAL: "at the pixels of the originals"}
    return of_names.get(resolution, f"in a frame of {resolution} pixels")


def _short_resolution(resolution: str) -> str:
    return resolution if resolution in (GRID, ORIGINAL) else f"{resolution} px"


def _protocol_table(dataset: str, name: str, results: Sequence[Entries], resolution: str) -> Table:
    """mIoU at one resolution, and differences to the random twin."""

    def measured(protocols: Sequence[str]) -> list[str]:
        return [p for p in protocols if any(miou(one, p, resolution) for one in results)]

    of_protocol = {p: partial(miou, protocol=p, resolution=resolution) for p in (*learnt(results), *BASELINES)}
    shown, trained = f"mIoU ({_short_resolution(resolution)})", measured(learnt(results))
    return table(
        f"{name}-{resolution}",
        f"{dataset}: mIoU {at_resolution(resolution)}",
        OF_PATCHES if resolution == GRID else OF_PIXELS,
        results,
        encoders(),
        each(
            trained,
            lambda p: spreads(f"{p}_miou_{resolution}", f"{PROTOCOLS.get(p, p)}, {shown}", of_protocol[p], best="column"),
        ),
        each(
            measured(BASELINES),
            lambda p: means(f"{p.replace('-', '_')}_miou_{resolution}", f"{PROTOCOLS[p]}, {shown}", of_protocol[p]),
            apart=True,
        ),
        against_twin(results, {f"{p}_miou_{resolution}": (PROTOCOLS.get(p, p), of_protocol[p]) for p in trained}),
        folded=resolution == GRID,
    )


def _class_table(dataset: str, name: str, results: Sequence[Entries], resolution: str) -> Table:
    """Intersection over union by class: a column for each encoder, rows grouped by protocol."""
    scores = {one.encoder: read(one.folder / "per_class.csv", "beyondcls segment", class_scores) for one in results}
    files = file_names("iou", list(scores))
    first = {label: row for of_encoder in reversed(scores.values()) for label, row in of_encoder.items()}
    labels = dict.fromkeys(label for of_encoder in scores.values() for label in of_encoder)

    def iou(encoder: str, protocol: str, label: str) -> float | None:
        return scores[encoder].get(label, {}).get(f"{protocol} iou_{resolution}")

    return table(
        f"{name}-classes",
        f"{dataset}: by class",
        BY_CLASS,
        [(protocol, label) for protocol in learnt(results) for label in labels],
        texts("class", "Class", lambda row: row[1]),
        each(
            scores,
            lambda e: numbers(files[e], f"{e}, IoU ({_short_resolution(resolution)})", lambda row: iou(e, *row), 1, best="row"),
            apart=True,
        ),
        numbers("n_training_patches", "Training patches", lambda row: first[row[1]]["n_training_patches"], 0, apart=True),
        numbers("n_test_patches", "Test patches", lambda row: first[row[1]]["n_test_patches"], 0),
        group=lambda row: PROTOCOLS.get(row[0], row[0]),
        muted=lambda _: False,
        folded=True,
    )


def _settings_table(dataset: str, name: str, results: Sequence[Entries]) -> Table:
    """What was chosen, on what."""

    def selected(row: Any, entry: str) -> Any:
        return (row[1].selected or {}).get(entry, "")

    return table(
        f"{name}-settings",
        f"{dataset}: settings",
        SETTINGS,
        [(one, one.protocols[protocol], protocol) for one in results for protocol in learnt([one])],
        encoders(lambda row: row[0]),
        texts("protocol", "Protocol", lambda row: PROTOCOLS.get(row[2], row[2])),
        texts("chosen", "Chosen", lambda row: pairs(row[1].chosen)),
        texts("on", "Chosen on", lambda row: selected(row, "on")),
        texts("seeds", "Seeds", lambda row: ", ".join(map(str, row[1].seeds))),
        texts("shown", "Views show", lambda row: (row[0].shown or {}).get("words")),
        numbers("n_candidates", "Of settings", lambda row: len(selected(row, "candidates")) or None, 0),
        numbers("n_held_out", "Images held out", lambda row: selected(row, "n_images") or None, 0),
        numbers("held_out", "mIoU (grid) there", lambda row: held_out(row[1]), 1),
        numbers("seconds", "Seconds", lambda row: row[1].seconds, 1),
        numbers("n_test", "Test images", lambda row: row[0].n_test, 0),
        folded=True,
    )


def _foreground_blocks(dataset: str, name: str, results: Sequence[Entries]) -> list[Block]:
    """How much of the weight of heads and of attention is on the foreground, by encoder, and of every map."""
    if not results:
        return []
    every = table(
        f"{name}-foreground-maps",
        f"{dataset}: weight on the foreground, every map",
        EVERY_MAP,
        [(one, m) for one in results for m in one.foreground.maps],
        encoders(lambda row: row[0]),
        texts("map", "Map", lambda row: map_title(row[1])),
        spreads("weight", "Weight on the foreground", lambda row: row[1].share),
        numbers("area", "Area", lambda row: row[1].chance, 1),
        spreads("gain", "× area", lambda row: row[1].gain, 2),
        folded=True,
    )
    alike = len({tuple(one.foreground.get("classes") or ()) for one in results}) == 1
    notices = [] if alike else [Text(OTHER_CLASSES, kind="notice")]
    return [*notices, _foreground_table(dataset, name, results), every]


def _foreground_table(dataset: str, name: str, results: Sequence[Entries]) -> Table:
    """A row for each encoder: of [cls] and of heads, and what AbMILP has beyond others."""
    maps = {one.encoder: {(m.source, m.name): m for m in one.foreground.maps} for one in results}
    keys = {key: m for of_encoder in maps.values() for key, m in of_encoder.items() if key == CLS or key[0] == "probe"}
    shown = sorted(keys, key=lambda key: (key != CLS, key[1] != "abmilp", key))

    def of_map(one: Entries, key: tuple[str, str], entry: str) -> Any:
        return maps[one.encoder].get(key, {}).get(entry)

    def estimate(one: Entries, key: tuple[str, str], entry: str = "share") -> Estimate | None:
        """Those of attention are the same for all seeds."""
        measure = of_map(one, key, entry)
        return measure and of_measure(measure, f"{one.data}, foreground", key[1] if key[0] == "probe" else None)

    def area(one: Entries) -> float:
        return float(next(iter(maps[one.encoder].values())).chance)

    def beyond_area(one: Entries) -> Cell:
        return change(difference(estimate(one, ABMILP), Estimate(area(one), 0.0, 0)))

    def beyond_cls(one: Entries) -> Estimate | None:
        return difference(estimate(one, ABMILP), estimate(one, CLS))

    def of_each(entry: str, what: str, **about: Any) -> list[DeclaredColumn]:
        return each(
            shown,
            lambda key: spreads(
                f"{'_'.join(key)}_{entry}", f"{map_title(keys[key])}, {what}", lambda one: of_map(one, key, entry), **about
            ),
            apart=True,
        )

    gain = cells(
        "abmilp_gain_interval",
        "AbMILP, × area, 95 %",
        lambda one: interval(estimate(one, ABMILP, "gain"), 2),
        "text",
        optional=True,
    )
    against = [gain, cells("abmilp_against_area", "AbMILP − area", beyond_area, "spread", apart=True)]
    against += differences("abmilp_against_cls", "AbMILP − [cls], mean", beyond_cls) if CLS in keys else []
    return table(
        f"{name}-foreground",
        f"{dataset}: weight on the foreground",
        FOREGROUND,
        results,
        encoders(),
        cells("area", "Area", lambda one: number(area(one), 1)),
        of_each("share", "weight", best="row"),
        of_each("gain", "× area", digits=2),
        against if ABMILP in keys else [],
        texts(
            "foreground", "Foreground", lambda one: ", ".join(one.foreground.get("classes") or ()) or "all objects", apart=True
        ),
        numbers("n_images", "Images", lambda one: max(int(m.n_images) for m in one.foreground.maps), 0),
    )
