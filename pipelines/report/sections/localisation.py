"""Weakly supervised localisation: where [cls] attention and the weights of heads say that the object is (Table 8 of v2)."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pipelines.report.collect import Inputs
from pipelines.report.content import Block, Cell, Column, Row, Section, Table, Text
from pipelines.report.estimate import Estimate, difference, of_measure
from pipelines.report.galleries.predictions import boxes
from pipelines.report.measured import Measure
from pipelines.report.published.printed import printed
from pipelines.report.reading import files_in, measure_of, read
from pipelines.report.tables import (
    NOTHING,
    interval_beside,
    named,
    number,
    spread,
    title,
    with_best,
    with_interval,
    with_known_intervals,
)
from probe.result_files import read_result
from store.format.pretraining import Pretraining

ENCODER = Column("encoder", "Encoder", "text")
WEIGHT = (
    "Weight on the object: % of a map's weight that is on objects, mean over the images that show one; equal weights would "
    "have the object's share of the area there."
)
NOT_ALIKE = "Not all encoders were localised on the same images at the same size; rows are not comparable."
OUTSIDE = "Crops that show nothing of an image's objects, which count as not found:"
CONSTANT = "Maps that are constant, and point nowhere:"
OTHER_FRAME = (
    "Published numbers are of the whole image, squashed to 224 x 224 pixels (Choe et al. 2020), these are not. Extract images "
    "that were cropped by `beyondcls extract --crop-mode squash --crop-pct 1`, and localise with --size 224:"
)
ON_OBJECTS = "on_objects"
MEASURES = {"max_box_acc_v2": "MaxBoxAccV2", "max_box_acc": "MaxBoxAcc", ON_OBJECTS: "weight on the object"}
AREA = Column("area_of_objects", "area of the object")


@dataclass(frozen=True)
class ScoreMap:
    """What one kind of map finds, in percent of the images: each measure, and `by_iou`.

    Attributes:
        measures: those of MEASURES; without the weight on objects where no view shows any.
        area: of objects, percent: what equal weights would have on them.
    """

    source: str
    name: str
    measures: dict[str, Measure]
    by_iou: dict[str, Measure]
    n_flat: int
    area: float | None = None

    @property
    def title(self) -> str:
        if self.source == "probe":
            return title(self.name)
        if self.name.startswith("cls-head-"):
            return f"[cls], attention head {self.name.removeprefix('cls-head-')}"
        return {"cls": "[cls], mean", "centre-patch": "centre patch, mean", "centre": "centre baseline"}.get(
            self.name, self.name
        )

    @property
    def v2(self) -> Measure:
        return self.measures["max_box_acc_v2"]


@dataclass(frozen=True)
class Localisation:
    """One LOCALISATION/ENCODER: localisation.json and description.json."""

    encoder: str
    data: str
    n_images: int
    n_outside: int
    size: int
    maps: tuple[ScoreMap, ...]
    frame: str  # what of the images boxes are compared in
    official: bool  # whether published numbers are of that frame
    is_untrained: bool  # whether the encoder has random weights

    def one(self, source: str, name: str) -> ScoreMap | None:
        return next((m for m in self.maps if (m.source, m.name) == (source, name)), None)

    @property
    def of_encoder(self) -> list[ScoreMap]:
        """Its maps without the baseline."""
        return [m for m in self.maps if m.source != "baseline"]

    def estimate(self, of_map: ScoreMap | None) -> Estimate | None:
        """Of MaxBoxAccV2; what draws nothing (attention, the baseline) is the same for all seeds."""
        if of_map is None:
            return None
        seeds = f"{self.encoder} {of_map.name}" if of_map.source == "probe" else None
        return of_measure(of_map.v2, f"{self.data} ({self.n_images}) {self.size}", seeds)

    @property
    def best_head(self) -> ScoreMap | None:
        """The single [cls] attention head that finds most, chosen on these images."""
        heads = [m for m in self.maps if m.source == "attention" and m.name.startswith("cls-head-")]
        return max(heads, key=lambda m: m.v2.mean, default=None)


def section(inputs: Inputs) -> Section | None:
    """Tables and pictures; None where nothing was localised.

    Raises:
        BeyondClsError: a file is damaged.
    """
    files = files_in(inputs.folders.localisation, "*/localisation.json")
    if not files:
        return None
    read_files = [(read(file, "beyondcls localise", _localisation), file) for file in files]
    read_files.sort(key=lambda pair: (pair[0].is_untrained, pair[0].encoder))
    localised = [one for one, _ in read_files]
    blocks: list[Block] = [
        Text(
            "Without any box in training: a score map is thresholded, and boxes around what is bright are compared with those "
            "drawn around the objects (Choe et al. 2020). The threshold is the best one for the images that are measured, the "
            "same for all of them, so even a map that knows nothing about the image scores: the centre baseline is a Gaussian "
            "in the middle of every image."
        ),
        *_notices(localised),
        _summary(localised),
        Text("Boxes are compared in:", _frames(localised), "note"),
        _differences(localised),
        *boxes(inputs, {one.encoder: file.with_name("boxes.json") for one, file in read_files}),
        _every_map(localised),
        printed("table-8"),
    ]
    return Section("localisation", "Where the object is", tuple(blocks))


def _localisation(file: Path) -> Localisation:
    content = read_result(file)
    return Localisation(
        encoder=file.parent.name,
        data=str(content["data"]),
        n_images=int(content["n_images"]),
        n_outside=int(content["n_images_outside"]),
        size=int(content["size"]),
        maps=tuple(
            ScoreMap(
                source=str(entry["source"]),
                name=str(entry["name"]),
                measures={
                    name: measure_of(entry[name]["share"] if name == ON_OBJECTS else entry[name])
                    for name in MEASURES
                    if name != ON_OBJECTS or name in entry
                },
                by_iou={str(iou): measure_of(measured) for iou, measured in entry["by_iou"].items()},
                n_flat=max(int(n) for n in entry["n_flat"]),
                area=float(entry[ON_OBJECTS]["chance"]) if ON_OBJECTS in entry else None,
            )
            for entry in content["maps"]
        ),
        frame=str(content["frame"]["words"]),
        official=bool(content["frame"]["official"]),
        is_untrained=Pretraining.from_dict(content).is_untrained,
    )


def _frames(localised: Sequence[Localisation]) -> tuple[str, ...]:
    """What of how many images, and of which encoders."""
    encoders: dict[str, list[str]] = {}
    for one in localised:
        encoders.setdefault(f"{one.frame}; {one.n_images:,} images", []).append(one.encoder)
    return tuple(f"{frame}: {', '.join(names)}" for frame, names in encoders.items())


def _notices(localised: Sequence[Localisation]) -> list[Text]:
    """What makes numbers odd, with the encoders and maps that it concerns."""
    outside = [f"{one.encoder}: {one.n_outside:,} images" for one in localised if one.n_outside]
    constant = [f"{one.encoder}, {m.title}: {m.n_flat:,} images" for one in localised for m in one.maps if m.n_flat]
    concerned = {
        OUTSIDE: outside,
        CONSTANT: constant,
        OTHER_FRAME: [one.encoder for one in localised if not one.official],
    }
    notices = [Text(text, tuple(items), "notice") for text, items in concerned.items() if items]
    alike = len({(one.data, one.size, one.n_images) for one in localised}) == 1
    return notices if alike else [Text(NOT_ALIKE, kind="notice"), *notices]


def _summary(localised: Sequence[Localisation]) -> Table:
    heads = sorted({m.name for one in localised for m in one.maps if m.source == "probe"}, key=lambda n: (n != "abmilp", n))
    shown = [("attention", "cls", "cls"), ("best", "", "best_cls_head"), ("attention", "centre-patch", "centre_patch")]
    shown += [("probe", head, f"head_{head}") for head in heads] + [("baseline", "centre", "centre")]

    def shown_map(one: Localisation, source: str, name: str) -> ScoreMap | None:
        return one.best_head if source == "best" else one.one(source, name)

    shown = [entry for entry in shown if any(shown_map(one, *entry[:2]) for one in localised)]
    columns = [ENCODER]
    for measure, words in (measured := _measured(localised)).items():
        for i, (source, name, column) in enumerate(shown):
            first = next(m for one in localised if (m := shown_map(one, source, name)))
            words_of_map = "best [cls] head" if source == "best" else first.title
            kind = "spread" if source == "probe" else "number"
            columns.append(Column(f"{column}_{measure}", f"{words_of_map}, {words}", kind, apart=i == 0))  # type: ignore[arg-type]
    weighed = ON_OBJECTS in measured
    columns += [AREA] if weighed else []
    rows = []
    for one in localised:
        maps = [shown_map(one, *entry[:2]) for entry in shown]
        cells = [named(one.encoder, one.is_untrained)]
        for measure in measured:
            cells += with_best(m.measures.get(measure) if m else None for m in maps)
        cells += [number(next((m.area for m in one.maps), None), 1)] if weighed else []
        rows.append(Row(tuple(cells), muted=one.is_untrained))
    note = (
        "Images whose object is found, %. Bold: the highest of a row, in each measure; ±: the standard deviation over "
        "seeds of heads. MaxBoxAccV2 is the mean over IoU 0.3, 0.5 and 0.7, where any contour counts; MaxBoxAcc is at IoU "
        "0.5 with the largest contour. The best [cls] head was chosen on these images by MaxBoxAccV2, so it is biased "
        "upwards."
    )
    if weighed:
        note += f" {WEIGHT}"
    return Table("localisation", "Localisation by encoder and map", note, tuple(columns), tuple(rows))


def _differences(localised: Sequence[Localisation]) -> Table:
    """AbMILP against the mean [cls] map, either against the baseline, and the best map against that of an untrained encoder."""
    best = {one.encoder: max(maps, key=lambda m: m.v2.mean) for one in localised if (maps := one.of_encoder)}
    twins = [one for one in localised if one.is_untrained and one.encoder in best]
    twin = max(twins, key=lambda one: best[one.encoder].v2.mean, default=None)
    columns = [
        ENCODER,
        *interval_beside(Column("abmilp_against_cls", "AbMILP − [cls], mean", "spread")),
        *interval_beside(Column("abmilp_against_centre", "AbMILP − centre", "spread")),
        *interval_beside(Column("cls_against_centre", "[cls], mean − centre", "spread")),
    ]
    columns += [
        Column("best_map", "Best map", "text", apart=True),
        Column("best_map_v2", "its MaxBoxAccV2", "spread"),
        *(interval_beside(Column("best_map_against_twin", f"− best of {twin.encoder}", "spread")) if twin else ()),
    ]
    rows = []
    for one in localised:
        cls, abmilp, centre = (
            one.estimate(one.one(*key)) for key in (("attention", "cls"), ("probe", "abmilp"), ("baseline", "centre"))
        )
        pairs = ((abmilp, cls), (abmilp, centre), (cls, centre))
        cells = [cell for pair in pairs for cell in with_interval(difference(*pair))]
        most = best.get(one.encoder)
        cells += [Cell(most.title, most.title), spread(most.v2)] if most else [NOTHING, NOTHING]
        if twin:
            of_twin = None if one.is_untrained else twin.estimate(best[twin.encoder])
            cells += with_interval(difference(one.estimate(most), of_twin))
        rows.append(Row((named(one.encoder, one.is_untrained), *cells), muted=one.is_untrained))
    note = (
        "Differences of MaxBoxAccV2, points; ±: over the seeds of heads; 95 %: over test images and seeds. Centre: the "
        "baseline that knows nothing of the image. Best map: chosen on these images, so it is biased upwards; what that of an "
        "untrained encoder finds stands out by itself."
    )
    table = Table("localisation-differences", "What maps find more than others", note, tuple(columns), tuple(rows))
    return with_known_intervals(table)


def _measured(localised: Sequence[Localisation]) -> dict[str, str]:
    """Names and titles of what was measured of any map."""
    return {name: title for name, title in MEASURES.items() if any(name in m.measures for one in localised for m in one.maps)}


def _every_map(localised: Sequence[Localisation]) -> Table:
    ious = sorted({iou for one in localised for m in one.maps for iou in m.by_iou}, key=float)
    columns = [ENCODER, Column("map", "Map", "text"), Column("v2", "MaxBoxAccV2", "spread")]
    columns += [Column(f"iou_{iou.replace('.', '_')}", f"IoU {iou}", "spread", apart=i == 0) for i, iou in enumerate(ious)]
    others = {name: title for name, title in _measured(localised).items() if name != "max_box_acc_v2"}
    columns += [Column(name, title, "spread", apart=True) for name, title in others.items()]
    weighed = ON_OBJECTS in others
    columns += [AREA] if weighed else []
    rows = []
    for one in localised:
        values = [[m.v2, *(m.by_iou.get(iou) for iou in ious), *(m.measures.get(name) for name in others)] for m in one.maps]
        by_column = zip(*(with_best(column) for column in zip(*values, strict=True)), strict=True)
        for m, cells in zip(one.maps, by_column, strict=True):
            names, area = (named(one.encoder, one.is_untrained), Cell(m.title, m.title)), (number(m.area, 1),) * weighed
            rows.append(Row((*names, *cells, *area), muted=m.source == "baseline"))
    note = (
        "Images whose object is found, %; each IoU at its own best threshold. Bold: the highest of an encoder's maps in a "
        "column; ±: the standard deviation over seeds of heads."
    )
    if weighed:
        note += f" {WEIGHT}"
    return Table("localisation-maps", "Every map, and every IoU", note, tuple(columns), tuple(rows), folded=True)
