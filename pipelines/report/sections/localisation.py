"""Weakly supervised localisation: where [cls] attention and the weights of heads say that the object is (Table 8 of v2)."""

from collections.abc import Sequence
from typing import Any

from pipelines.report.collect import Inputs
from pipelines.report.content import Section, Table, Text
from pipelines.report.dense import map_title, result_of, trained_first
from pipelines.report.estimate import Estimate, difference, of_measure
from pipelines.report.galleries.predictions import boxes
from pipelines.report.measured import Entries, Measure
from pipelines.report.published.printed import printed_table
from pipelines.report.reading import files_in
from pipelines.report.tables import DeclaredColumn, differences, each, encoders, means, numbers, spreads, table, texts

ABOUT = (
    "Without any box in training: a score map is thresholded, and boxes around what is bright are compared with those of "
    "the objects (Choe et al. 2020). The threshold is the best for all images that are measured, so even the centre "
    "baseline, a Gaussian in the middle, scores."
)
NOTE = (
    "Images whose object is found, %. Bold: the highest of a row, in each measure; ±: over seeds of heads. MaxBoxAccV2: the "
    "mean over IoU 0.3, 0.5 and 0.7, any contour; MaxBoxAcc: IoU 0.5, the largest contour. The best [cls] head was chosen "
    "on these images."
)
WEIGHT = (
    " Weight on the object: % of a map's weight, mean over the images that show one; equal weights would have its share of "
    "the area."
)
DIFFERENCES = (
    "Differences of MaxBoxAccV2, points; ±: over the seeds of heads; 95 %: over test images and seeds. Centre: the baseline "
    "that knows nothing of the image. Best map: chosen on these images, so it is biased upwards."
)
EVERY_MAP = (
    "Images whose object is found, %; each IoU at its own best threshold. Bold: the highest of an encoder; ±: over seeds of "
    "heads."
)
NOT_ALIKE = "Not all encoders were localised on the same images at the same size; rows are not comparable."
OUTSIDE = "Crops that show nothing of an image's objects, which count as not found:"
CONSTANT = "Maps that are constant, and point nowhere:"
OTHER_FRAME = (
    "Published numbers are of the whole image, squashed to 224 x 224 pixels; extract with --crop-mode squash --crop-pct 1 "
    "and localise with --size 224 to compare:"
)
MEASURES = {"max_box_acc_v2": "MaxBoxAccV2", "max_box_acc": "MaxBoxAcc", "on_objects": "weight on the object"}
CLS, BEST, ABMILP, CENTRE = ("attention", "cls"), ("best", ""), ("probe", "abmilp"), ("baseline", "centre")
SHOWN = {CLS: "cls", BEST: "best_cls_head", ("attention", "centre-patch"): "centre_patch"}  # and heads; names of columns


def section(inputs: Inputs) -> Section | None:
    """Tables and pictures; None where nothing was localised."""
    files = files_in(inputs.folders.localisation, "*/localisation.json")
    if not files:
        return None
    results = trained_first(result_of(file, "localise") for file in files)
    frames: dict[str, list[str]] = {}
    for one in results:
        frames.setdefault(f"{one.frame.words}; {one.n_images:,} images", []).append(one.encoder)
    blocks = (
        Text(ABOUT),
        *_notices(results),
        _summary_table(results),
        Text("Boxes are compared in:", tuple(f"{frame}: {', '.join(names)}" for frame, names in frames.items()), "note"),
        _difference_table(results),
        *boxes(inputs, {one.encoder: one.folder / "boxes.json" for one in results}),
        _map_table(results),
        printed_table("table-8"),
    )
    return Section("localisation", "Where the object is", blocks)


def _notices(results: Sequence[Entries]) -> list[Text]:
    """What makes numbers odd, with the encoders and maps that it concerns."""
    flat = [(f"{one.encoder}, {map_title(m)}", max(map(int, m.n_flat))) for one in results for m in one.maps]
    concerned = {
        OUTSIDE: [f"{one.encoder}: {one.n_images_outside:,} images" for one in results if one.n_images_outside],
        CONSTANT: [f"{name}: {n:,} images" for name, n in flat if n],
        OTHER_FRAME: [one.encoder for one in results if not one.frame.official],
    }
    notices = [Text(text, tuple(items), "notice") for text, items in concerned.items() if items]
    alike = len({(one.data, one.size, one.n_images) for one in results}) == 1
    return notices if alike else [Text(NOT_ALIKE, kind="notice"), *notices]


def _map(one: Entries, key: tuple[str, str]) -> Entries:
    """One map; BEST: the single [cls] attention head that finds most, chosen on these images; empty without it."""
    if key != BEST:
        return next((m for m in one.maps if (m.source, m.name) == key), Entries())
    heads = [m for m in one.maps if m.source == "attention" and m.name.startswith("cls-head-")]
    return max(heads, key=lambda m: m.max_box_acc_v2.mean, default=Entries())


def _measure(of_map: Entries, name: str) -> Measure | None:
    measure = of_map.get(name)
    return measure.share if isinstance(measure, Entries) else measure


def _measured(results: Sequence[Entries]) -> dict[str, str]:
    """Names and titles of what was measured of any map; no view may show any object."""
    return {name: title for name, title in MEASURES.items() if any(_measure(m, name) for one in results for m in one.maps)}


def _area_columns(of_map: Any, results: Sequence[Entries]) -> list[DeclaredColumn]:
    """What equal weights would have on objects, %; no column where no weight was measured."""
    weighed = "on_objects" in _measured(results)
    area = numbers("area_of_objects", "area of the object", lambda row: of_map(row).get("on_objects", {}).get("chance"), 1)
    return [area] if weighed else []


def _summary_table(results: Sequence[Entries]) -> Table:
    heads = sorted({m.name for one in results for m in one.maps if m.source == "probe"}, key=lambda n: (n != "abmilp", n))
    shown = SHOWN | {("probe", head): f"head_{head}" for head in heads} | {CENTRE: "centre"}
    first = {key: next((m for one in results if (m := _map(one, key))), Entries()) for key in shown}

    def column(measure: str, key: tuple[str, str]) -> DeclaredColumn:
        heading = f"{'best [cls] head' if key == BEST else map_title(first[key])}, {MEASURES[measure]}"
        declared = spreads if key[0] == "probe" else means
        return declared(
            f"{shown[key]}_{measure}", heading, lambda one: _measure(_map(one, key), measure), best=f"row {measure}"
        )

    return table(
        "localisation",
        "Localisation by encoder and map",
        NOTE + (WEIGHT if "on_objects" in _measured(results) else ""),
        results,
        encoders(),
        *(each(filter(first.get, shown), lambda key, of=name: column(of, key), apart=True) for name in _measured(results)),  # type: ignore[misc]
        _area_columns(lambda one: one.maps[0] if one.maps else {}, results),
    )


def _difference_table(results: Sequence[Entries]) -> Table:
    """AbMILP against the mean [cls] map, either against the baseline, and the best map against that of an untrained encoder."""
    of_encoders = {one.encoder: [m for m in one.maps if m.source != "baseline"] for one in results}
    best = {name: max(maps, key=lambda m: m.max_box_acc_v2.mean) for name, maps in of_encoders.items() if maps}
    twins = [one for one in results if one.pretraining.is_untrained and one.encoder in best]
    twin = max(twins, key=lambda one: best[one.encoder].max_box_acc_v2.mean, default=None)

    def estimate(one: Entries, of_map: Entries) -> Estimate | None:
        """What draws nothing (attention, the baseline) is the same for all seeds."""
        seeds = f"{one.encoder} {of_map.name}" if of_map.get("source") == "probe" else None
        return of_measure(of_map.max_box_acc_v2, f"{one.data} ({one.n_images}) {one.size}", seeds) if of_map else None

    def against(name: str, heading: str, key: tuple[str, str], other: tuple[str, str]) -> list[DeclaredColumn]:
        return differences(
            name, heading, lambda one: difference(estimate(one, _map(one, key)), estimate(one, _map(one, other)))
        )

    def over_twin(one: Entries) -> Estimate | None:
        if twin is None or one.pretraining.is_untrained:
            return None
        return difference(estimate(one, best.get(one.encoder, Entries())), estimate(twin, best[twin.encoder]))

    return table(
        "localisation-differences",
        "What maps find more than others",
        DIFFERENCES,
        results,
        encoders(),
        against("abmilp_against_cls", "AbMILP − [cls], mean", ABMILP, CLS),
        against("abmilp_against_centre", "AbMILP − centre", ABMILP, CENTRE),
        against("cls_against_centre", "[cls], mean − centre", CLS, CENTRE),
        texts("best_map", "Best map", lambda one: map_title(best[one.encoder]) if one.encoder in best else "", apart=True),
        spreads("best_map_v2", "its MaxBoxAccV2", lambda one: best.get(one.encoder, {}).get("max_box_acc_v2")),
        differences("best_map_against_twin", f"− best of {twin.encoder}", over_twin) if twin else [],
    )


def _map_table(results: Sequence[Entries]) -> Table:
    ious = sorted({iou for one in results for m in one.maps for iou in m.by_iou}, key=float)
    others = [name for name in _measured(results) if name != "max_box_acc_v2"]
    return table(
        "localisation-maps",
        "Every map, and every IoU",
        EVERY_MAP + (WEIGHT if "on_objects" in others else ""),
        [(one, m) for one in results for m in one.maps],
        encoders(lambda row: row[0]),
        texts("map", "Map", lambda row: map_title(row[1])),
        spreads("v2", "MaxBoxAccV2", lambda row: row[1].max_box_acc_v2, best="column"),
        each(
            ious,
            lambda iou: spreads(
                f"iou_{iou.replace('.', '_')}", f"IoU {iou}", lambda row: row[1].by_iou.get(iou), best="column"
            ),
            apart=True,
        ),
        each(others, lambda name: spreads(name, MEASURES[name], lambda row: _measure(row[1], name), best="column", apart=True)),
        _area_columns(lambda row: row[1], results),
        muted=lambda row: row[1].source == "baseline",
        within=lambda row: row[0].encoder,
        folded=True,
    )
